"""Images in a file instead of in ram: every result is the same, and only what is needed is read."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from protodrift.common.ram import parse_bytes, ram_budget
from protodrift.data import spill as stored
from protodrift.data.photos import find_photos
from protodrift.data.spill import Room, StoredImages, StoredRoom, room
from protodrift.errors import InputError
from protodrift.experiments import run as runs
from protodrift.experiments.recipes import get_recipe, with_settings
from protodrift.model import defaults
from protodrift.model import learn as learning

ROWS = torch.tensor([3, 1, 1, 49, 4, 5, 6])


@pytest.fixture
def images():
    return torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def file(images, tmp_path):
    made = StoredRoom(50, (3, 8, 8), tmp_path)
    for row, image in enumerate(images):
        made.write(row, image.numpy())
    return made


LAZY = {
    "slice": lambda x: x[5:20],
    "stride": lambda x: x[::7],
    "rows": lambda x: x[ROWS],
    "mask": lambda x: x[torch.arange(50) % 2 == 0],
    "list": lambda x: x[[1, 2]],
    "array": lambda x: x[np.array([1, 5])],
    "split": lambda x: x.split(7)[3],
    "parts": lambda x: x.tensor_split(3)[1],
    "chunk": lambda x: x.chunk(3)[1],
    "index_select": lambda x: x.index_select(0, ROWS),
    "joined": lambda x: torch.cat([x[3:5], x[:0], x[7:]]),
    "again": lambda x: x[ROWS][2:][torch.tensor([1, 0])],
    "detached": lambda x: x.detach(),
}
READ = {
    "one": lambda x: x[3],
    "last": lambda x: x[-1],
    "crop": lambda x: x[..., 2:4, 1:5],
    "float": lambda x: x.float() / 2,
    "layout": lambda x: x.contiguous(memory_format=torch.channels_last),
    "sum": lambda x: x.double().sum((0, 2, 3)),
    "windows": lambda x: x[torch.arange(3)[:, None], :, torch.tensor([[1], [2], [3]]), torch.tensor([[0], [1], [2]])],
    "stacked": lambda x: torch.stack(list(x)),
    "clone": lambda x: x.clone(),
    "joined with others": lambda x: torch.cat([x[3:5], torch.zeros(2, 3, 8, 8, dtype=torch.uint8)]),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("what", [*LAZY, *READ])
def test_whatever_is_done_gives_what_it_gives_in_memory(file, images, what, inference, monkeypatch):
    monkeypatch.setattr(stored, "READ_AT_ONCE", 0)  # nothing is few
    do = {**LAZY, **READ}[what]
    with torch.inference_mode(inference):
        found = do(file.tensor(50))
        assert isinstance(found, StoredImages) == (what in LAZY)
        assert torch.equal(found.clone(), do(images))


def test_it_looks_like_a_tensor_and_a_few_rows_are_one(file, images):
    x = file.tensor(40)
    assert (x.shape, x.dtype, x.ndim, len(x), x.numel()) == (images[:40].shape, torch.uint8, 4, 40, 40 * 192)
    assert type(x[ROWS[:3]]) is torch.Tensor
    assert np.array_equal(x.numpy(), images[:40].numpy())
    assert repr(x) == "StoredImages((40, 3, 8, 8))"


def test_only_the_rows_that_are_needed_are_read(file, monkeypatch):
    read = []
    plain = StoredRoom._fill
    monkeypatch.setattr(StoredRoom, "_fill", lambda self, into, at: (read.append(len(into)), plain(self, into, at))[1])
    x = file.tensor(50)
    parts = x[10:].split(16)
    assert read == []
    parts[0].float()
    assert read == [16 * 192]  # neighbors together
    x[ROWS]
    assert read[1:] == [192, 192, 192, 192, 3 * 192]


def test_the_budget_decides_and_the_file_has_no_name(tmp_path, images):
    assert isinstance(room(50, (3, 8, 8), ram=50 * 192, folder=tmp_path), Room)
    made = room(50, (3, 8, 8), ram=50 * 192 - 1, folder=tmp_path / "not" / "there")
    made.write(7, images[7].numpy())
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(made.tensor(50)[7], images[7])


def test_nothing_is_left_by_a_process_that_is_killed(tmp_path):
    script = (
        "import sys, os, signal, numpy as np; from protodrift.data.spill import StoredRoom\n"
        "room = StoredRoom(4, (3, 8, 8), sys.argv[1]); room.write(1, np.ones((3, 8, 8), np.uint8))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_explained(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"no room for 768 bytes of decoded images.*No space left.*--ram"):
        StoredRoom(4, (3, 8, 8), tmp_path)


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("512", 512), ("1k", 1024), ("1.5G", 3 * 2**29), ("2GB", 2**31), ("1TiB", 2**40)]
)
def test_sizes(text, count, monkeypatch):
    assert parse_bytes(text) == count
    monkeypatch.setenv("PROTODRIFT_RAM", text)
    assert (ram_budget(), ram_budget(3)) == (count, 3)


@pytest.mark.parametrize("text", ["", "G", "much", "-1", "1X", "nan"])
def test_what_is_no_size(text, monkeypatch):
    with pytest.raises(ValueError, match="8G or 500M"):
        parse_bytes(text)
    monkeypatch.setenv("PROTODRIFT_RAM", text or "?")
    with pytest.raises(InputError, match="PROTODRIFT_RAM"):
        ram_budget()


# -- lessons and runs -------------------------------------------------------------------------------------------------


def photos(root, *classes):
    for name in classes:
        rng = np.random.RandomState(sum(map(ord, name)))
        (root / name).mkdir(parents=True)
        color = rng.randint(0, 256, 3)
        for i in range(8):
            pixels = np.clip(color + rng.randint(-60, 60, (40, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def lessons(model, folders, memory):
    """Learn the folders one after another; the last one with a known class that is refreshed."""
    key = ""
    for folder in folders:
        with learning.workplace(model) as place:
            options = {"epochs": 1, "size": 32 if place.classifier is None else None}
            plan = learning.prepare(place, find_photos(folder), known="refresh", options=options, ram=memory)
            assert isinstance(plan.examples.images, StoredImages) == (memory == 0)
            assert not [path.name for path in model.iterdir() if path.name not in (".lock", "versions", "CURRENT")]
            key = key or learning.lesson_key(plan)
            outcome = learning.carry_out(plan)
    return outcome.classifier, key  # a lesson that was interrupted goes on, whatever --ram says then


@pytest.mark.filterwarnings("ignore::protodrift.errors.CollapseWarning")
def test_a_lesson_from_disk_is_that_from_memory_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(defaults, "pretrained_installed", lambda: False)
    monkeypatch.setattr(stored, "READ_AT_ONCE", 0)
    folders = [photos(tmp_path / "a", "auk", "emu", "jay"), photos(tmp_path / "b", "jay", "owl", "tit")]
    (whole, key), (streamed, same) = (lessons(tmp_path / f"m{memory}", folders, memory) for memory in (None, 0))
    assert key == same
    (manifest, tensors), (other, others) = whole.files(), streamed.files()
    assert manifest == other
    assert tensors.keys() == others.keys()
    for name, kept in tensors.items():
        assert kept.keys() == others[name].keys()
        assert all(torch.equal(kept[key], others[name][key]) for key in kept)


@pytest.mark.filterwarnings("ignore::protodrift.errors.CollapseWarning")
def test_a_run_from_disk_is_that_from_memory(tmp_path, monkeypatch):
    photos(tmp_path / "photos", "auk", "emu", "jay", "owl")
    recipe = with_settings(get_recipe("folder").only(["E-FT+SDC", "E-Joint"]), {"training.epochs": "1", "tasks": "2"})
    whole = runs.run(recipe, tmp_path / "a", data=tmp_path / "photos")
    monkeypatch.setenv("PROTODRIFT_RAM", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(stored, "READ_AT_ONCE", 0)
    assert isinstance(runs.load_data(recipe, tmp_path / "photos").train.images, StoredImages)
    streamed = runs.run(recipe, tmp_path / "b", data=tmp_path / "photos")
    for one, other in zip(whole["results"], streamed["results"], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
