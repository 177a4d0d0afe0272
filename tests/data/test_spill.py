"""Images in a file instead of in RAM: every result is the same, and nothing is left of them."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from protodrift.common.machine import parse_bytes, ram_budget
from protodrift.data import Examples, spill
from protodrift.data.folder import find_photos
from protodrift.errors import InputError
from protodrift.experiments import run as runs
from protodrift.experiments.recipes import get_recipe, with_settings
from protodrift.model import defaults
from protodrift.model import learn as learning

SCATTERED = torch.tensor([3, 1, 1, 49, 4, 5, 6])


@pytest.fixture
def images():
    return torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def stored(images, tmp_path):
    """The same images in a file."""
    return spill.mapped(images.shape, torch.uint8, tmp_path).copy_(images)


@pytest.fixture
def nothing_is_few(monkeypatch):
    monkeypatch.setattr(spill, "COPY_BYTES", 192)  # one image


@pytest.mark.parametrize(
    "rows", [SCATTERED, torch.arange(50), torch.arange(5, 20), torch.arange(9).flip(0), torch.arange(0)], ids=len
)
def test_selected_images_are_those_of_ram_and_stay_in_a_file(stored, images, rows, nothing_is_few, tmp_path):
    found = spill.take(stored, rows)
    assert torch.equal(found, images[rows])
    assert spill.is_mapped(found) == (len(rows) > 0)
    assert not spill.is_mapped(spill.take(images, rows))
    assert list(tmp_path.iterdir()) == []


def test_a_range_of_mapped_images_takes_no_space(stored, nothing_is_few):
    assert spill.take(stored, torch.arange(5, 20)).data_ptr() == stored[5].data_ptr()


def test_few_selected_images_are_copied_to_ram(stored, images):
    found = spill.take(stored, SCATTERED)
    assert not spill.is_mapped(found)
    assert torch.equal(found, images[SCATTERED])
    assert not spill.is_mapped(spill.join([stored[:3], stored[7:9]]))


@pytest.mark.parametrize("others", [False, True])
def test_joined_images_are_those_of_ram_and_stay_in_a_file(stored, images, others, nothing_is_few):
    second = images if others else stored
    found = spill.join([stored[3:5], stored[:0], second[7:]])
    assert spill.is_mapped(found)
    assert torch.equal(found, torch.cat([images[3:5], images[7:]]))
    assert not spill.is_mapped(spill.join([images[3:5], images[7:]]))


def test_examples_select_and_join_without_ram(stored, images, nothing_is_few):
    examples, plain = (Examples(x, tuple(i % 3 for i in range(50))) for x in (stored, images))
    for found, expected in (
        (examples.of_classes([0, 2]), plain.of_classes([0, 2])),
        (Examples.concatenate([examples, plain]), Examples.concatenate([plain, plain])),
    ):
        assert spill.is_mapped(found.images)
        assert torch.equal(found.images, expected.images)
        assert found.labels == expected.labels


def test_the_budget_decides_and_the_file_has_no_name(tmp_path, images):
    assert not spill.is_mapped(spill.empty_images(50, (3, 8, 8), ram=50 * 192, folder=tmp_path))
    made = spill.empty_images(50, (3, 8, 8), ram=50 * 192 - 1, folder=tmp_path / "not" / "there")
    assert spill.is_mapped(made)
    made[7] = images[7]
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(made[7], images[7])


def test_nothing_is_left_by_a_process_that_is_killed(tmp_path):
    script = (
        "import sys, os, signal; from protodrift.data.spill import empty_images\n"
        "images = empty_images(4, (3, 8, 8), ram=0, folder=sys.argv[1]); images[1] = 1\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_explained(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"no space for 768 bytes of decoded images.*No space left.*--ram"):
        spill.empty_images(4, (3, 8, 8), ram=0, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


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


# -- tasks and runs ---------------------------------------------------------------------------------------------------


def photos(root, *classes):
    for name in classes:
        rng = np.random.RandomState(sum(map(ord, name)))
        (root / name).mkdir(parents=True)
        color = rng.randint(0, 256, 3)
        for i in range(8):
            pixels = np.clip(color + rng.randint(-60, 60, (40, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def learned(model, folders, memory):
    """Learn the folders one after another; the last one with a known class that is refreshed."""
    key = ""
    for folder in folders:
        with learning.locked_model(model) as place:
            options = {"epochs": 1, "size": 32 if place.classifier is None else None}
            plan = learning.plan_task(place, find_photos(folder), known="refresh", options=options, ram=memory)
            assert spill.is_mapped(plan.photos.examples.images) == (memory == 0)
            assert not [path.name for path in model.iterdir() if path.name not in (".lock", "versions", "CURRENT")]
            key = key or learning.task_key(plan)
            outcome = learning.learn_task(plan)
    return outcome.classifier, key  # a task that was interrupted goes on, whatever --ram says then


@pytest.mark.filterwarnings("ignore::protodrift.errors.CollapseWarning")
def test_a_task_from_disk_is_that_from_memory_bit_for_bit(tmp_path, monkeypatch, nothing_is_few):
    monkeypatch.setattr(defaults, "pretrained_installed", lambda: False)
    folders = [photos(tmp_path / "a", "auk", "emu", "jay"), photos(tmp_path / "b", "jay", "owl", "tit")]
    (whole, key), (streamed, same) = (learned(tmp_path / f"m{memory}", folders, memory) for memory in (None, 0))
    assert key == same
    (manifest, tensors), (other, others) = whole.files(), streamed.files()
    assert manifest == other
    assert tensors.keys() == others.keys()
    for name, kept in tensors.items():
        assert kept.keys() == others[name].keys()
        assert all(torch.equal(kept[key], others[name][key]) for key in kept)


@pytest.mark.filterwarnings("ignore::protodrift.errors.CollapseWarning")
def test_a_run_from_disk_is_that_from_memory(tmp_path, monkeypatch, nothing_is_few):
    photos(tmp_path / "photos", "auk", "emu", "jay", "owl")
    recipe = with_settings(get_recipe("folder").only(["E-FT+SDC", "E-Joint"]), {"training.epochs": "1", "tasks": "2"})
    whole = runs.run(recipe, tmp_path / "a", data=tmp_path / "photos")
    monkeypatch.setenv("PROTODRIFT_RAM", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert spill.is_mapped(runs.load_data(recipe, tmp_path / "photos").train.images)
    streamed = runs.run(recipe, tmp_path / "b", data=tmp_path / "photos")
    for one, other in zip(whole["results"], streamed["results"], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
