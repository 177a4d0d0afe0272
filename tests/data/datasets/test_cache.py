"""Decoded images are kept, mapped, and made anew when a source changes; whatever happens, an entry is whole."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from protodrift.data.datasets import load_dataset
from protodrift.data.datasets.cache import _mapped, cached, describe
from protodrift.errors import InputError, SkippedImagesWarning

from . import layouts


@pytest.fixture
def birds(tmp_path):
    return layouts.cub(tmp_path)


@pytest.fixture
def load(tmp_path, birds):
    """Load the birds; return the dataset and whether images were decoded."""

    def run(**options):
        calls = []
        dataset = load_dataset(
            "cub200",
            tmp_path,
            **{"size": 8, "check": False, "on_progress": lambda *args: calls.append(args), **options},
        )
        return dataset, bool(calls)

    return run


@pytest.fixture
def entries(tmp_path):
    """List what the cache holds, locks left out."""
    root = tmp_path / "cache-home" / "protodrift" / "decoded"
    return lambda: sorted(path for path in root.iterdir() if path.suffix != ".lock") if root.exists() else []


def touch_later(path):
    """Give a file a later time of change, as a real later change has."""
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))


def test_an_entry_larger_than_memory_is_mapped(tmp_path):
    """ImageNet-Subset at 256 pixels is; the file has holes, so it takes no space."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    file = tmp_path / "train.npy"
    rows = 2 * memory // (3 * 64 * 64)
    with open(file, "wb") as opened:
        header = {"descr": "|u1", "fortran_order": False, "shape": (rows, 3, 64, 64)}
        np.lib.format.write_array_header_1_0(opened, header)
        opened.truncate(opened.tell() + rows * 3 * 64 * 64)
    pixels = _mapped(file)
    assert pixels.shape == (rows, 3, 64, 64)
    pixels[rows - 1] = 7  # writable, and the file stays as it is
    assert not np.load(file, mmap_mode="r")[rows - 1].any()


def test_missing_images_are_left_out_of_one_entry_however_the_folder_is_called(load, birds, tmp_path, monkeypatch):
    (birds / "images" / "002.Bird_y" / "Bird_1.jpg").unlink()
    with pytest.warns(SkippedImagesWarning):
        assert load(skip_bad_images=True)[1]
    monkeypatch.chdir(tmp_path)
    calls = []
    with pytest.warns(SkippedImagesWarning):
        load_dataset("cub200", ".", size=8, check=False, skip_bad_images=True, on_progress=lambda *a: calls.append(a))
    assert calls == []


def test_images_are_decoded_once_and_then_mapped(load, entries):
    first, decoded = load()
    again, decoded_again = load()
    assert (decoded, decoded_again) == (True, False)
    assert torch.equal(first.train.images, again.train.images)
    assert (first.train.labels, first.test.labels) == (again.train.labels, again.test.labels)
    (entry,) = entries()
    before = (entry / "train.npy").read_bytes()
    again.train.images.fill_(7)  # a user's change stays the user's
    assert (entry / "train.npy").read_bytes() == before
    assert not torch.equal(load()[0].train.images, again.train.images)
    mapped = Path("/proc/self/maps")
    assert not mapped.exists() or "train.npy" in mapped.read_text()


def test_progress_counts_every_image(tmp_path, birds):
    calls = []
    load_dataset("cub200", tmp_path, size=8, check=False, on_progress=lambda *args: calls.append(args))
    assert calls[-1] == ("decode cub200", 12, 12)


@pytest.mark.parametrize("options", [{"size": 9}, {"fit": "center"}, {"classes": 2}, {"classes": 2, "seed": 5}])
def test_every_choice_has_its_own_entry(load, entries, options):
    load()
    assert load(**options)[1]
    assert not load()[1]
    assert not load(**options)[1]
    assert len(entries()) == 2


def test_a_source_that_changed_is_decoded_again_and_the_old_entry_goes(load, entries, birds):
    old, _ = load()
    file = birds / "images" / "001.Bird_z" / "Bird_0.jpg"
    size = file.stat().st_size
    layouts.photo(file, (250, 250, 250))
    if file.stat().st_size == size:
        touch_later(file)
    new, decoded = load()
    assert decoded
    assert new.train.images[0].min() > 240
    assert old.train.images[0].max() < 120  # who has the old one open keeps it
    assert len(entries()) == 1


def test_a_change_of_time_alone_is_noticed(load, birds):
    load()
    touch_later(birds / "images" / "001.Bird_z" / "Bird_0.jpg")
    assert load()[1]


def test_a_change_of_the_lists_is_noticed(load, birds):
    load()
    split = birds / "train_test_split.txt"
    split.write_text(split.read_text().replace("1 1\n", "1 0\n", 1))
    dataset, decoded = load()
    assert decoded
    assert len(dataset.train) == 8
    (birds / "images" / "001.Bird_z").rename(birds / "images" / "001.Owl")  # a label is the name of its folder
    for name in ("classes.txt", "images.txt"):
        (birds / name).write_text((birds / name).read_text().replace("001.Bird_z", "001.Owl"))
    assert load()[0].classes[0] == "001.Owl"


def test_a_packed_source_that_changed_is_noticed(tmp_path):
    folder = layouts.cifar(tmp_path)
    first = load_dataset("cifar100", tmp_path, check=False)
    assert torch.equal(load_dataset("cifar100", tmp_path, check=False).train.images, first.train.images)
    content = layouts.cifar_parts(train=9)["train"]
    (folder / "train").write_bytes(layouts.python2_pickle(content))
    assert len(load_dataset("cifar100", tmp_path, check=False).train) == 9


@pytest.mark.parametrize("damage", ["short", "empty", "missing", "json", "other", "rows"])
def test_an_entry_that_is_damaged_is_made_anew(load, entries, damage):
    load()
    (entry,) = entries()
    file = entry / "train.npy"
    content = file.read_bytes()
    match damage:
        case "short":
            file.write_bytes(content[:-100])
        case "empty":
            file.write_bytes(b"")
        case "missing":
            file.unlink()
        case "json":
            (entry / "entry.json").write_text("{")
        case "other":
            np.save(file, np.zeros((9, 3, 8, 8), np.float32))
        case "rows":
            np.save(file, np.zeros((8, 3, 8, 8), np.uint8))
    again, decoded = load()
    assert decoded
    assert len(again.train) == 9
    assert torch.equal(again.test.images, load_fresh(load).test.images)


def load_fresh(load):
    return load(cache=False)[0]


def test_without_a_cache_nothing_is_left(load, entries, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    dataset, decoded = load(cache=False)
    assert decoded
    assert len(dataset.train) == 9
    assert not list(scratch.iterdir())
    assert not entries()


def test_a_cache_directory_can_be_named(load, entries, tmp_path):
    load(cache=tmp_path / "elsewhere")
    assert not entries()
    assert not load(cache=tmp_path / "elsewhere")[1]


def test_a_cache_that_cannot_be_written_is_explained(load, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"cannot write decoded images to .*file.*cache=False"):
        load(cache=tmp_path / "file")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_leaves_nothing_half(load, entries, workers):
    def interrupt(*args):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(on_progress=interrupt, workers=workers)
    assert entries() == []
    assert load()[1]


def test_what_a_killed_process_left_is_cleared_away(load, entries):
    load()
    (entry,) = entries()
    draft = entry.with_name(f".new-{entry.name}")
    entry.rename(draft)
    (draft / "train.npy").write_bytes(b"half")
    assert load()[1]
    assert entries() == [entry]


def test_two_at_once_build_it_once(load):
    start = threading.Barrier(4)
    results = []

    def run():
        start.wait()
        results.append(load())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(decoded for _, decoded in results) == [False, False, False, True]
    assert all(torch.equal(dataset.train.images, results[0][0].train.images) for dataset, _ in results)


def test_an_entry_without_test_images_can_be_opened(tmp_path):
    def build(draft):
        np.save(draft / "train.npy", np.ones((2, 3, 4, 4), np.uint8))
        np.save(draft / "test.npy", np.ones((0, 3, 4, 4), np.uint8))
        describe(draft, ["a", "b"], [], [])

    entry = cached(tmp_path, "x", "k" * 30, build)
    assert entry.train_labels == ("a", "b")
    assert entry.test.shape == (0, 3, 4, 4)
