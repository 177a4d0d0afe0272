"""Folders in folders: what the class is, is the user's choice, and nothing is put together without a word."""

from __future__ import annotations

import pytest
from PIL import Image

from protodrift.cli import main
from protodrift.data import load_folder, scan_folder
from protodrift.data.folder import find_photos, read_photos, same_pictures
from protodrift.errors import InputError


def save(path, color=(0, 0, 0)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (24, 24), color).save(path)


@pytest.fixture
def months(tmp_path):
    """2026-01/{owl, emu}, 2026-02/{owl, wren}: one photo each, two of the first."""
    names = ("2026-01/owl/1", "2026-01/owl/2", "2026-01/emu/1", "2026-02/owl/3", "2026-02/wren/1")
    for number, name in enumerate(names):
        save(tmp_path / "photos" / f"{name}.png", (50 * number, 0, 0))
    return tmp_path / "photos"


def test_folders_in_folders_are_refused_with_every_reading_and_what_to_type(months):
    with pytest.raises(InputError) as caught:
        find_photos(months)
    said = str(caught.value).splitlines()
    assert "2026-01/emu/1.png): which name is the class?" in said[0]
    assert said[1:] == [
        "  --classes leaf  3 classes: emu (1), owl (3), wren (1)",
        "  --classes top   2 classes: 2026-01 (3), 2026-02 (2)",
        "  --classes path  4 classes: 2026-01/emu (1), 2026-01/owl (2), 2026-02/owl (1), 2026-02/wren (1)",
    ]
    for read in (scan_folder, load_folder):
        with pytest.raises(InputError, match="which name is the class"):
            read(months)


@pytest.mark.parametrize(
    ("label_by", "classes", "note"),
    [
        ("leaf", {"emu": 1, "owl": 3, "wren": 1}, "owl is one class from 2026-01/owl, 2026-02/owl"),
        ("top", {"2026-01": 3, "2026-02": 2}, ""),
        ("path", {"2026-01/emu": 1, "2026-01/owl": 2, "2026-02/owl": 1, "2026-02/wren": 1}, ""),
    ],
)
def test_the_choice_is_taken_and_what_was_put_together_is_said(months, label_by, classes, note):
    found = find_photos(months, label_by=label_by)
    assert found.classes == classes
    assert found.note == note
    dataset = load_folder(months, 8, label_by=label_by)
    assert {label: dataset.train.labels.count(label) for label in dataset.classes} == classes


def test_one_nested_folder_among_plain_ones_is_enough_to_ask(months):
    plain = months / "2026-01"
    assert find_photos(plain).classes == {"emu": 1, "owl": 2}
    assert find_photos(plain, label_by="path").classes == {"emu": 1, "owl": 2}  # one reading: all the same
    save(plain / "owl" / "young" / "1.png")
    with pytest.raises(InputError, match=r"(?s)leaf  3 classes: emu \(1\), owl .*top   2 classes: emu"):
        find_photos(plain)
    save(plain / "owl" / ".trash" / "deep" / "1.png")  # hidden: not an image of anybody's
    assert find_photos(plain, label_by="top").classes == {"emu": 1, "owl": 3}


def test_inner_folders_have_names_that_can_be_classes(months):
    save(months / "2026-02" / "OWL" / "1.png")
    with pytest.raises(InputError, match="'OWL' and 'owl', which differ only in case"):
        find_photos(months, label_by="leaf")
    save(months / "2026-01" / "emu" / " " / "1.png")
    with pytest.raises(InputError, match="is empty"):
        find_photos(months / "2026-01", label_by="leaf")


def test_a_list_has_its_labels(tmp_path):
    save(tmp_path / "a.png")
    (tmp_path / "list.csv").write_text("a.png,owl\n")
    with pytest.raises(InputError, match=r"lists its labels.*Drop it"):
        find_photos(tmp_path / "list.csv", label_by="leaf")


def test_every_command_that_reads_class_folders_asks_and_takes_the_answer(months, tmp_path, capsys):
    model, options = str(tmp_path / "m"), ["--size", "16", "--epochs", "1", "--quiet", "--train"]
    assert main(["learn", model, str(months), *options]) == 1
    assert "--classes leaf  3 classes" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()
    assert main(["learn", model, str(months), "--classes", "leaf", *options]) == 0
    assert "note: owl is one class from 2026-01/owl, 2026-02/owl" in capsys.readouterr().out
    assert main(["evaluate", model, str(months)]) == 1
    capsys.readouterr()
    assert main(["evaluate", model, str(months), "--classes", "leaf"]) == 0
    said = capsys.readouterr()
    assert "never learned" not in said.out
    assert "owl is one class from" in said.err
    run = ["run", "folder", "--out", str(tmp_path / "run")]
    assert main([*run, "--data", str(months)]) == 1
    assert "--classes leaf  3 classes" in capsys.readouterr().err
    assert main(["run", "digits", "--classes", "leaf", "--out", str(tmp_path / "run")]) == 1
    assert "knows its classes" in capsys.readouterr().err


def test_files_with_the_same_pixels_are_named(tmp_path):
    for name in ("owl/1.png", "owl/copy.png", "emu/1.png"):
        save(tmp_path / name, (9, 9, 9))
    save(tmp_path / "owl" / "2.png", (0, 200, 0))
    lines = same_pictures(read_photos(find_photos(tmp_path), 16))
    assert lines == [
        f"warning: the same picture under two classes: {tmp_path}/emu/1.png and {tmp_path}/owl/1.png",
        f"warning: the same picture under two classes: {tmp_path}/emu/1.png and {tmp_path}/owl/copy.png",
    ]
    (tmp_path / "emu" / "1.png").unlink()
    save(tmp_path / "emu" / "2.png", (0, 0, 77))
    lines = same_pictures(read_photos(find_photos(tmp_path), 16))
    assert lines == [f"note: the same picture twice: {tmp_path}/owl/1.png and {tmp_path}/owl/copy.png"]
