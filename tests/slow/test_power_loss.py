"""The power goes at any moment of learn, forget, undo and run: what was not synced is lost, or in another order."""

from __future__ import annotations

import random
import shutil

import pytest

from protodrift import IncrementalClassifier
from protodrift.cli import main
from protodrift.data import load_digits
from protodrift.errors import ModelFileError
from protodrift.experiments.recipes import get_recipe, with_settings
from protodrift.experiments.run import run
from protodrift.model import defaults, versions
from protodrift.model.audit import audit
from protodrift.model.forget import forget
from tests.cli.test_model_commands import photos
from tests.slow.power import recorded
from tests.slow.watching import results, tensors

pytestmark = pytest.mark.slow

load = IncrementalClassifier.load
RANDOM = 6  # random remains at each moment


def remains(disk, tmp_path):
    """Yield what may be left at every moment: the call before, how it was chosen, and the folder."""
    rng = random.Random(0)
    for number, moment in enumerate(disk.moments):
        for choice in ("synced", "names", *[rng] * RANDOM):
            place = tmp_path / "left"
            shutil.rmtree(place, ignore_errors=True)
            yield number, moment.what, disk.left(moment, place, choice)


@pytest.fixture
def two_versions(make_classifier, vectors, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    path = make_classifier().partial_fit(*vectors("owl", "emu")).save(root / "birds")
    load(path).partial_fit(*vectors("kea", "tui")).save(path)
    return path


def learn(path, vectors):
    load(path).partial_fit(*vectors("jay", "ibis")).save(path, keep=2)


WRITERS = {
    "learn": learn,
    "forget": lambda path, vectors: forget(path, "owl"),
    "undo": lambda path, vectors: versions.undo(path),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_model_is_the_old_or_the_new_one_whole_and_what_was_said_is_kept(
    two_versions, vectors, tmp_path, same, writer
):
    path = two_versions
    before = load(path)
    with recorded(path.parent) as disk:
        WRITERS[writer](path, vectors)
    after, last, seen = load(path), len(disk.moments) - 1, set()
    assert len(disk.moments) > 5
    for number, what, left in remains(disk, tmp_path):
        found = load(left / "birds")
        now = same(found, after)
        assert now or same(found, before), what
        seen.add(now)
        if number == last:  # the command has returned: power or not, it is done
            assert now, what
            if writer == "forget":
                listed = [folder for folder in (left / "birds" / "versions").iterdir() if folder.name.isdigit()]
                assert not any("owl" in versions.listed_labels(folder) for folder in listed)
        if not now:  # the same command again finishes it
            WRITERS[writer](left / "birds", vectors)
            assert same(load(left / "birds"), after)
            assert audit(left / "birds").foreign == ()
    assert seen == {True, False}


def test_a_first_task_is_there_or_not(make_classifier, vectors, tmp_path, same):
    root = tmp_path / "root"
    root.mkdir()
    clf = make_classifier().partial_fit(*vectors("owl", "emu"))
    with recorded(root) as disk:
        clf.save(root / "deeper" / "birds")
    last, seen = len(disk.moments) - 1, set()
    for number, what, left in remains(disk, tmp_path):
        path = left / "deeper" / "birds"
        try:
            found = load(path)
        except ModelFileError as error:
            said = str(error)
        else:
            said = ""
            assert same(found, clf), what
        assert not said or ("damaged" not in said and number < last), (what, said)
        seen.add(not said)
        if said:
            other = make_classifier().partial_fit(*vectors("owl", "emu"))
            assert same(load(other.save(path)), clf)
    assert seen == {True, False}


def test_protodrift_learn_with_a_network_that_trains(tmp_path, monkeypatch, same):
    monkeypatch.setattr(defaults, "pretrained_installed", lambda: False)
    root = tmp_path / "root"
    photos(tmp_path / "first", "red", "green")
    photos(tmp_path / "second", "blue", "white")
    root.mkdir()
    assert (
        main(["learn", str(root / "birds"), str(tmp_path / "first"), "--epochs", "1", "--size", "32", "--quiet"]) == 0
    )
    before = load(root / "birds")
    again = ["learn", "BIRDS", str(tmp_path / "second"), "--epochs", "2", "--quiet"]
    with recorded(root) as disk:
        assert main([again[0], str(root / "birds"), *again[2:]]) == 0
    after, last, rng = load(root / "birds"), len(disk.moments) - 1, random.Random(1)
    for number, what, left in remains(disk, tmp_path):
        found = load(left / "birds")
        now = same(found, after)
        assert now or same(found, before), what
        assert now or number < last
        if not now and rng.random() < 0.05:  # also from an epoch that was half-written
            assert main([again[0], str(left / "birds"), *again[2:]]) == 0
            assert same(load(left / "birds"), after)


def test_a_run_goes_on_to_the_same_results(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    assert len(load_digits().classes) == 10
    recipe = with_settings(
        get_recipe("digits").only(["E-FT", "E-FT+SDC"]),
        {"tasks": "2", "train_images": "8", "test_images": "4", "training.epochs": "2"},
    )
    with recorded(root) as disk:
        run(recipe, root / "out")
    wanted, made = results(root / "out"), tensors(root / "out")
    last, rng, tried = len(disk.moments) - 1, random.Random(2), 0
    for number, what, left in remains(disk, tmp_path):
        if number == last:
            assert results(left / "out") == wanted, what
        if number == last or rng.random() < 40 / (len(disk.moments) * (RANDOM + 2)):
            tried += 1
            run(recipe, left / "out")
            assert results(left / "out") == wanted, what
            assert tensors(left / "out") == made, what
    assert tried > 15
