"""A folder of class folders: what is read, how, and what is passed over."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protodrift.data import load_folder, read_image, scan_folder
from protodrift.data.folder import find_images
from protodrift.data.images import to_rgb
from protodrift.errors import InputError, SkippedImagesWarning

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def save(path, color=RED, size=(8, 8), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path, **options)
    return path


@pytest.fixture
def birds(tmp_path):
    root = tmp_path / "birds"
    for i in range(2):
        save(root / "owl" / f"{i}.png", (i, 0, 0))
        save(root / "emu" / f"{i}.bmp", (0, i, 0))
    return root


def test_class_folders_give_the_labels_and_files_come_in_order(birds):
    dataset = load_folder(birds, size=8)
    assert dataset.classes == ("emu", "owl")
    assert dataset.train.labels == ("emu", "emu", "owl", "owl")
    assert dataset.train.images.shape == (4, 3, 8, 8)
    assert dataset.train.images[:, :, 0, 0].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0]]
    assert dataset.name == "birds"


def test_a_test_folder_becomes_the_test_images(birds, tmp_path):
    save(tmp_path / "later" / "owl" / "9.png")
    dataset = load_folder(birds, size=8, test=tmp_path / "later")
    assert dataset.test is not None
    assert dataset.test.labels == ("owl",)


def test_only_the_classes_asked_for_are_read(birds):
    (birds / "emu" / "0.bmp").write_bytes(b"broken, and never opened")
    assert load_folder(birds, size=8, classes=["owl"]).classes == ("owl",)
    with pytest.raises(InputError, match="no class folder 'ibis'"):
        load_folder(birds, classes=["ibis"])


def test_what_is_no_image_is_ignored_and_listed(birds):
    others = ["notes.txt", "paper.pdf", "data.h5", "clip.mpg", "noending", ".hidden.png", ".cache/0.png"]
    for name in others:
        save(birds / "owl" / name, format="PNG")
    (birds / "README.png").write_bytes(b"a file beside the class folders")
    save(birds / ".git" / "x.png")
    scan = scan_folder(birds)
    assert len(scan.files) == 4
    assert {str(p.relative_to(birds)) for p in scan.ignored} == {*(f"owl/{name}" for name in others), "README.png"}
    assert scan.classes == ("emu", "owl")


def test_endings_may_be_capital(birds):
    save(birds / "owl" / "A.JPG")
    assert [label for path, label in scan_folder(birds).files if path.name == "A.JPG"] == ["owl"]


def test_links_that_lead_back_up_are_followed_once(birds):
    (birds / "owl" / "again").symlink_to(birds / "owl", target_is_directory=True)
    (birds / "emu" / "up").symlink_to(birds, target_is_directory=True)
    owls = [path for path, label in scan_folder(birds, label_by="top").files if label == "owl"]
    assert len(owls) == 2


def test_unicode_names_are_labels(tmp_path):
    save(tmp_path / "Käuzchen 梟" / "é 1.png")
    save(tmp_path / "emu" / "1.png")
    assert load_folder(tmp_path, size=8).classes == ("Käuzchen 梟", "emu")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "is not a folder"),
        (lambda root: root.write_text("x"), "is not a folder"),
        (lambda root: root.mkdir(), "has no class folders.*sub-folder, e.g."),
        (lambda root: save(root / "1.png"), "has no class folders"),
        (lambda root: (root / "owl").mkdir(parents=True), "no image that can be read"),
    ],
)
def test_a_folder_without_class_folders_is_refused(tmp_path, make, message):
    make(tmp_path / "x")
    with pytest.raises(InputError, match=message):
        load_folder(tmp_path / "x")


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (64, 64, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("content", [b"", b"not an image", _png()[:300], _png()[:-2000]])
def test_a_broken_file_is_named(birds, content):
    (birds / "owl" / "broken.png").write_bytes(content)
    with pytest.raises(InputError, match=r"owl/broken\.png cannot be read as an image.*Remove or replace it"):
        load_folder(birds)


def test_a_missing_image_is_named(tmp_path):
    with pytest.raises(InputError, match=r"there is no image .*gone\.png"):
        read_image(tmp_path / "gone.png", 8)


@pytest.mark.parametrize("kind", ["png", "jpg", "gif", "bmp", "tiff", "webp"])
def test_damage_anywhere_is_an_input_error_or_a_picture(tmp_path, kind):
    whole = save(tmp_path / f"x.{kind}", size=(24, 24)).read_bytes()
    rng = np.random.RandomState(0)
    for _ in range(60):
        data = bytearray(whole)
        for position in rng.randint(0, len(data), 3):
            data[position] = rng.randint(256)
        (tmp_path / f"x.{kind}").write_bytes(data)
        try:
            image = read_image(tmp_path / f"x.{kind}", 8)
            outcome = str(image.shape)
        except InputError as error:
            outcome = str(error)
        assert outcome == "(8, 8, 3)" or f"x.{kind}" in outcome


# -- every kind of image becomes RGB ----------------------------------------------------------------------------------


def corner(path):
    return tuple(int(v) for v in read_image(path, 8)[0, 0])


@pytest.mark.parametrize(
    ("name", "mode", "color", "expected"),
    [
        ("gray.png", "L", 77, (77, 77, 77)),
        ("bits.png", "1", 1, WHITE),
        ("clear.png", "RGBA", (0, 0, 255, 0), WHITE),
        ("half.png", "RGBA", (0, 0, 0, 127), (128, 128, 128)),
        ("opaque.png", "RGBA", (0, 0, 255, 255), BLUE),
        ("grayalpha.png", "LA", (10, 0), WHITE),
        ("deep.png", "I;16", 65535, WHITE),
        ("deep-mid.png", "I;16", 32768, (127, 127, 127)),
        ("float.tiff", "F", 5.0, WHITE),
        ("cmyk.tiff", "CMYK", (0, 255, 255, 0), RED),
    ],
)
def test_every_mode_becomes_rgb_over_white(tmp_path, name, mode, color, expected):
    assert corner(save(tmp_path / name, color, mode=mode)) == expected


@pytest.mark.parametrize(
    ("mode", "values"),
    [
        ("I;16", np.uint16([0, 300, 65535])),
        ("I;16", np.uint16([0, 100, 255])),  # 8 bits in a wide mode: as they are
        ("I;16B", np.uint16([0, 300, 65535])),
        ("I", np.int32([-5, 70_000, 40_000])),
        ("F", np.float32([-1.0, 0.25, 7.0])),
    ],
)
def test_wide_images_are_stretched_by_the_maximum_of_the_whole_in_little_memory(mode, values):
    array = np.resize(values[:1], (2100, 1000))
    array[-1, :2] = values[1:]  # the maximum is in the last row only
    image = Image.frombytes(mode, (1000, 2100), array.astype(array.dtype.newbyteorder(">" if "B" in mode else "<")))
    tracemalloc.start()
    rgb = to_rgb(image)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    top = array.max() if mode == "F" else 65535 if array.max() > 255 else 255
    naive = np.clip(array.astype(np.float64) * (255.0 / float(top)), 0, 255).astype(np.uint8)
    assert (np.asarray(rgb) == naive[:, :, None]).all()
    assert peak < 6 * array.size  # bytes a pixel; one float64 array of the whole would be 8


def test_a_cmyk_jpeg_is_red_not_cyan(tmp_path):
    red, green, blue = corner(save(tmp_path / "x.jpg", (0, 255, 255, 0), mode="CMYK", quality=95))
    assert red > 240
    assert green < 15
    assert blue < 15


def test_a_palette_image_with_transparency_becomes_white_there(tmp_path):
    image = Image.new("P", (8, 8), 0)
    image.putpalette([0, 0, 255, 255, 0, 0])
    image.putpixel((7, 7), 1)
    image.save(tmp_path / "p.png", transparency=0)
    assert corner(tmp_path / "p.png") == WHITE
    assert tuple(read_image(tmp_path / "p.png", 8)[7, 7]) == RED


@pytest.mark.parametrize(("mode", "color"), [("RGB", BLUE), ("L", 9)])
def test_one_transparent_color_becomes_white(tmp_path, mode, color):
    path = save(tmp_path / "x.png", color, mode=mode, transparency=color)
    assert corner(path) == WHITE


@pytest.mark.parametrize(
    ("orientation", "place"),
    [(1, (0, 0)), (2, (0, 1)), (3, (1, 1)), (4, (1, 0)), (5, (0, 0)), (6, (0, 1)), (7, (1, 1)), (8, (1, 0))],
)
def test_exif_orientation_is_honoured(tmp_path, orientation, place):
    image = Image.new("RGB", (8, 8), WHITE)
    image.paste(RED, (0, 0, 4, 4))  # stored upper left; where it is seen depends on the orientation
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / "x.png", exif=exif)
    seen = read_image(tmp_path / "x.png", 8)
    row, column = place
    assert tuple(seen[4 * row + 1, 4 * column + 1]) == RED
    assert (seen == np.array(RED)).all(axis=2).sum() == 16


def test_the_short_side_is_resized_and_the_center_cropped(tmp_path):
    image = Image.new("RGB", (60, 20), RED)
    image.paste(BLUE, (20, 0, 40, 20))
    image.save(tmp_path / "x.png")
    assert (read_image(tmp_path / "x.png", 10)[:, 1:-1] == np.array(BLUE)).all()


def test_class_folders_that_differ_only_in_case_are_an_error(birds):
    save(birds / "Owl" / "9.png")
    with pytest.raises(InputError, match="'Owl' and 'owl', which differ only in case"):
        scan_folder(birds)


def test_some_classes_can_be_scanned_alone(birds):
    assert scan_folder(birds, classes=["owl"]).classes == ("owl",)


def test_broken_files_are_left_out_if_asked_to(birds):
    broken = birds / "owl" / "0.png"
    whole = load_folder(birds, 8)
    broken.write_bytes(b"no image")
    with pytest.raises(InputError, match=r"0.png cannot be read.*--skip-bad-images"):
        load_folder(birds, 8)
    with pytest.warns(SkippedImagesWarning, match=r"1 damaged or missing image was left out:\n.*0.png"):
        rest = load_folder(birds, 8, skip_bad_images=True)
    assert len(rest.train) == len(whole.train) - 1
    assert len(rest.skipped) == 1
    kept = [row for row, label in enumerate(whole.train.labels) if row != whole.train.labels.index("owl")]
    assert torch.equal(rest.train.images, whole.train.images[kept])


def test_a_folder_that_may_not_be_read_is_named():
    root = Path(tempfile.mkdtemp())  # pytest's own folders are closed to others
    closed = root / "owl" / "closed"
    closed.mkdir(parents=True)
    was = os.geteuid()
    root.chmod(0o755)
    closed.chmod(0)
    if was == 0:
        os.seteuid(65534)  # to root nothing is closed
    try:
        with pytest.raises(InputError, match=r"closed cannot be listed \(Permission denied\)"):
            scan_folder(root)
        with pytest.raises(InputError, match=r"closed cannot be listed"):
            list(find_images([root]))
    finally:
        os.seteuid(was)
        closed.chmod(0o755)
        shutil.rmtree(root)


def test_squash_keeps_the_whole_image_and_center_its_middle(tmp_path):
    picture = np.zeros((8, 16, 3), np.uint8)
    picture[:, 4:12] = 255  # white in the middle half
    Image.fromarray(picture).save(tmp_path / "x.png")
    assert read_image(tmp_path / "x.png", 8, "center").min() == 255
    squashed = read_image(tmp_path / "x.png", 8, "squash")[0, :, 0]
    assert squashed[0] < 30
    assert squashed[7] < 30
    assert squashed[3] > 220
