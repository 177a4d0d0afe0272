"""A whole task meets a fault at every write, fsync and rename: the old or the new model, and a rerun ends it."""

import shutil

import numpy as np
import pytest
from PIL import Image

from protodrift import IncrementalClassifier
from protodrift.data.folder import find_photos
from protodrift.errors import ProtodriftError
from protodrift.model import versions
from protodrift.model.learn import learn_task, locked_model, plan_task, unfinished
from tests.model.directories import FULL, fault, files_of

pytestmark = pytest.mark.slow

OPTIONS = {"train": True, "size": 32, "epochs": 2}


def learn(model, photos, **options):
    with locked_model(model) as place:
        return learn_task(plan_task(place, find_photos(photos), options=options))


def photos(root, *classes):
    for name in classes:
        rng = np.random.RandomState(sum(map(ord, name)))
        (root / name).mkdir(parents=True)
        for i in range(4):
            pixels = np.clip(rng.randint(0, 256, 3) + rng.randint(-40, 40, (32, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A model of one task, the photos of the next, and the files of the version after it, undisturbed."""
    root = tmp_path_factory.mktemp("tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "protodrift.model.defaults.pretrained_installed", lambda: False
        )  # the small network: this is about files
        learn(root / "birds", photos(root / "first", "owl", "emu"), **OPTIONS)
    photos(root / "second", "kea", "tui")
    shutil.copytree(root / "birds", root / "after")
    learn(root / "after", root / "second", epochs=2)
    return root


def current(model):
    folder = model / "versions" / str(versions.read_current(model).version)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("function", ["fsync", "rename", "replace", "write"])
@pytest.mark.parametrize("raised", [FULL, KeyboardInterrupt()], ids=["full disk", "Ctrl-C"])
def test_a_fault_at_any_moment_of_a_task(prepared, tmp_path, monkeypatch, function, raised):
    old, new = current(prepared / "birds"), current(prepared / "after")
    met = 0
    for at in range(1, 99):
        model = tmp_path / f"birds{at}"
        shutil.copytree(prepared / "birds", model)
        with monkeypatch.context() as patch:
            calls = fault(patch, function, at, raised, lasting=True)
            try:
                learn(model, prepared / "second", epochs=2)
            except (KeyboardInterrupt, ProtodriftError, OSError):
                met += 1
        IncrementalClassifier.load(model)
        assert current(model) in (old, new)
        if current(model) == old:
            learn(model, prepared / "second", epochs=2)  # goes on, or begins anew
            assert not unfinished(model).exists()
        assert current(model) == new
        if len(calls) < at:  # the task was over before the fault
            break
    assert met >= 1
    assert at < 98
    assert files_of(prepared / "birds")  # the model that was copied is untouched
