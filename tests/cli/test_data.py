"""`protodrift data`: what there is, what a folder holds, and how it gets there."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from dataclasses import replace

import pytest

from protodrift.cli import main
from protodrift.data.datasets import DATASETS
from protodrift.data.datasets.base import RemoteFile

from ..data.datasets import layouts


def test_ls_shows_every_dataset_with_where_it_is_or_how_to_get_it(command, tmp_path):
    folder = layouts.cub(tmp_path)
    lines = command("data", "ls", "--data", tmp_path).stdout.splitlines()
    rows = {line.split()[0]: line for line in lines[1:]}
    assert list(rows) == list(DATASETS)
    assert str(folder) in rows["cub200"]
    assert "200" in rows["cub200"]
    assert "5,994" in rows["cub200"]
    assert "not here: protodrift data prepare cifar100" in rows["cifar100"]
    assert "not here: https://www.image-net.org" in rows["imagenet-subset"]
    assert "MIT" in rows["fashion-mnist"]


def test_check_prints_counted_beside_published_and_fails_on_a_difference(command, tmp_path):
    folder = layouts.cub(tmp_path)
    (folder / "images" / "002.Bird_y" / "Bird_1.jpg").unlink()
    for i in range(12):
        layouts.photo(folder / "images" / "002.Bird_y" / f"new{i:02d}.jpg")
    (folder / "images" / "Thumbs.db").write_bytes(b"x")
    done = command("data", "check", "cub200", "--data", tmp_path)
    assert done.returncode == 1
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["training", "images", "8", "5,994", "<-", "differs"] in lines
    assert ["test", "images", "3", "5,794", "<-", "differs"] in lines
    assert "1 missing files:\n    images/002.Bird_y/Bird_1.jpg" in done.stdout
    assert "12 images that no list names" in done.stdout
    assert "new09.jpg\n    and 2 more" in done.stdout
    assert "new10" not in done.stdout
    assert "1 other files beside the images, ignored" in done.stdout
    assert done.stdout.endswith("NOT as published\n")


@pytest.fixture
def small_cub(tmp_path, monkeypatch):
    """CUB-200-2011 as if 9 + 3 images of 3 classes had been published; commands run in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(DATASETS, "cub200", replace(DATASETS["cub200"], classes=3, train=9, test=3))
    return layouts.cub(tmp_path / "data")


def test_check_of_a_folder_as_published_is_status_0(small_cub, capsys):
    assert main(["data", "check", "cub200", "--data", str(small_cub), "--images"]) == 0
    assert capsys.readouterr().out.endswith("  as published\n")


def test_check_opens_every_image_if_asked_to(small_cub, capsys):
    bad = layouts.cut_short(small_cub / "images" / "002.Bird_y" / "Bird_1.jpg")
    assert main(["data", "check", "cub200", "--data", str(small_cub)]) == 0
    assert main(["data", "check", "cub200", "--data", str(small_cub), "--images"]) == 1
    assert f"1 damaged images:\n    {bad}" in capsys.readouterr().out


def test_prepare_checks_and_decodes_what_is_there(small_cub, capsys, tmp_path):
    assert main(["data", "prepare", "cub200", "--data", str(small_cub), "--size", "8"]) == 0
    out = capsys.readouterr().out
    assert "as published" in out
    assert "decoded: Dataset('cub200': 9 training images of 3 classes, 3 test images), 8 x 8" in out
    assert len(list((tmp_path / "cache" / "protodrift" / "decoded").glob("cub200-8-squash-*/train.npy"))) == 1


def test_prepare_lists_the_damaged_images_it_leaves_out(small_cub, capsys):
    bad = layouts.cut_short(small_cub / "images" / "002.Bird_y" / "Bird_1.jpg")
    args = ["data", "prepare", "cub200", "--data", str(small_cub), "--size", "8"]
    assert main(args) == 1
    assert f"{bad} cannot be read as an image" in capsys.readouterr().err
    assert main([*args, "--skip-bad-images"]) == 0
    said = capsys.readouterr()
    assert "1 damaged or missing image was left out" in said.err
    assert str(bad) in said.err
    assert "8 training images" in said.out


def test_prepare_decodes_what_is_there_of_a_folder_that_differs(small_cub, capsys):
    birds = small_cub / "images" / "002.Bird_y"
    args = ["data", "prepare", "cub200", "--data", str(small_cub), "--size", "8"]
    shutil.copy(birds / "Bird_1.jpg", birds / "Bird_99.jpg")  # images that no list names are not loaded
    assert main(args) == 0
    assert "decoded: Dataset('cub200': 9 training images" in capsys.readouterr().out
    (birds / "Bird_1.jpg").unlink()
    (birds / "Bird_1.jpg").symlink_to("nowhere.jpg")  # as in a farm of links whose images were not fetched
    assert main(args) == 1
    assert "1 missing files" in capsys.readouterr().out
    assert main([*args, "--skip-bad-images"]) == 0
    assert "decoded: Dataset('cub200': 8 training images" in capsys.readouterr().out


def test_nothing_left_to_train_on_is_an_error(small_cub, capsys):
    for file in (small_cub / "images").glob("*/*.jpg"):
        layouts.cut_short(file)
    assert main(["data", "prepare", "cub200", "--data", str(small_cub), "--size", "8", "--skip-bad-images"]) == 1
    assert "holds no training image that can be read" in capsys.readouterr().err


def test_prepare_unpacks_an_archive_that_was_put_there(tmp_path, monkeypatch, capsys):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(layouts.cifar(tmp_path / "publisher"), "cifar-100-python")
    content = buffer.getvalue()
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(content)
    file = RemoteFile(
        "http://127.0.0.1:1/cifar-100-python.tar.gz", len(content), "md5:" + hashlib.md5(content).hexdigest()
    )
    monkeypatch.setitem(DATASETS, "cifar100", replace(DATASETS["cifar100"], files=(file,)))
    assert main(["data", "prepare", "cifar100", "--data", str(tmp_path)]) == 1  # 6 images are not 50,000
    out = capsys.readouterr().out
    assert f"CIFAR-100 in {tmp_path / 'cifar-100-python'}" in out
    assert "NOT as published" in out


@pytest.fixture
def error(capsys):
    """Run a command in this process that must fail with one line on standard error; return that line."""

    def run(*args) -> str:
        assert main(["data", *map(str, args)]) == 1
        said = capsys.readouterr()
        assert not said.out
        assert said.err.startswith("protodrift: error: ")
        assert said.err.count("\n") == 1
        return said.err

    return run


def test_errors_are_one_line_that_says_what_to_do(error, tmp_path):
    assert "Did you mean 'cub200'" in error("check", "cub", "--data", tmp_path)
    said = error("check", "cub200", "--data", tmp_path)
    assert f"images.txt, image_class_labels.txt, train_test_split.txt, classes.txt into {tmp_path}/CUB_200_2011" in said
    assert "no address to download from" in error("prepare", "cars196", "--data", tmp_path)
    layouts.cifar(tmp_path)
    (tmp_path / "cifar-100-python" / "train").write_bytes(b"cos\nsystem\n(S'echo x'\ntR.")
    assert "is refused: it asks for os.system" in error("check", "cifar100", "--data", tmp_path)


@pytest.mark.parametrize("action", ["ls", "check", "prepare"])
def test_the_actions_explain_themselves(command, action):
    assert command("data", action, "--help").stdout.startswith(f"usage: protodrift data {action}")
