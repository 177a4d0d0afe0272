"""Two writers of one model, in all orders and with faults: a version is written on top of the one it was made from."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import shutil
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from protodrift import IncrementalClassifier
from protodrift.common import files
from protodrift.errors import InputError, ModelFileError, StaleError
from protodrift.model import versions
from protodrift.model.forget import forget
from tests.model.directories import FULL, fault, files_of

load = IncrementalClassifier.load


def numbers(path: Path) -> list[int]:
    return [one.version for one in versions.chain(path)]


# -- compare and swap -------------------------------------------------------------------------------------------------


def test_the_second_of_two_savers_is_refused_and_both_versions_are_named(model, vectors):
    one, other = load(model), load(model)
    one.partial_fit(*vectors("kea", "tui")).save(model)
    other.partial_fit(*vectors("rail"))
    before = files_of(model)
    with pytest.raises(StaleError, match=r"is version 2 \(\w{8}\) now, .*made from version 1 \(\w{8}\).*--onto latest"):
        other.save(model)
    assert files_of(model) == before
    one.partial_fit(*vectors("rook")).save(model)  # the one who wrote goes on
    on_top = load(model).partial_fit(*vectors("rail"))
    on_top.save(model)
    assert numbers(model) == [4, 3, 2, 1]
    assert set(load(model).classes_) == {*one.classes_, "rail"}


def test_a_classifier_that_was_never_here_is_refused(model, make_classifier, vectors):
    stranger, before = make_classifier().fit(*vectors("a", "b")), files_of(model)
    with pytest.raises(StaleError, match="made from no version of it"):
        stranger.save(model)
    assert files_of(model) == before
    with pytest.raises(StaleError, match="not version 7"):
        stranger.save(model, onto=7)
    assert files_of(model) == before
    stranger.save(model, onto=1)  # by intention
    assert numbers(model) == [2, 1]
    assert load(model).classes_.tolist() == ["a", "b"]


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda clf: pickle.loads(pickle.dumps(clf))])
def test_a_copy_knows_where_it_comes_from_and_goes_its_own_way(model, vectors, copied):
    clf = load(model)
    twin = copied(clf)
    twin.partial_fit(*vectors("kea")).save(model)
    with pytest.raises(StaleError):
        clf.partial_fit(*vectors("rail")).save(model)
    twin.save(model)
    assert numbers(model) == [3, 2, 1]


def test_a_model_that_is_gone_is_not_made_anew_unasked(model, vectors):
    clf = load(model).partial_fit(*vectors("kea"))
    shutil.rmtree(model)
    with pytest.raises(StaleError, match=r"is empty now.*made from version 1.*save\(path, onto=0\)"):
        clf.save(model)
    shutil.rmtree(model)
    assert load(clf.save(model, onto=0)).classes_.tolist() == clf.classes_.tolist()


def test_a_copied_directory_goes_on_and_an_undone_version_does_not(model, vectors, tmp_path):
    clf = load(model).partial_fit(*vectors("kea"))
    clone = Path(shutil.copytree(model, tmp_path / "clone"))
    clf.save(clone)
    clf.save(model)
    assert numbers(clone) == numbers(model) == [2, 1]
    versions.undo(model)
    with pytest.raises(StaleError, match=r"is version 1 .*made from version 2"):
        clf.partial_fit(*vectors("rail")).save(model)
    clf.save(clone)
    assert numbers(clone) == [3, 2, 1]


WRITERS = {
    "learn": lambda path, clf, data: clf.save(path, keep=5),
    "refit": lambda path, clf, data: clf.fit(*data("rook", "crow")).save(path),
    "forget": lambda path, clf, data: forget(path, "owl"),
    "undo": lambda path, clf, data: versions.undo(path),
}


@pytest.fixture(scope="module")
def second_version(make_classifier, vectors, tmp_path_factory):
    path = tmp_path_factory.mktemp("second") / "birds"
    make_classifier().partial_fit(*vectors("owl", "emu")).save(path)
    return load(path).partial_fit(*vectors("kea")).save(path)


def said(write) -> str:
    """What a writer was refused with, or ""."""
    try:
        write()
    except (InputError, ModelFileError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("first", "second"), list(itertools.product(WRITERS, WRITERS)))
@pytest.mark.parametrize("function", [None, "fsync", "rename", "replace", "mkdir"])
def test_two_writers_in_all_orders_with_faults(second_version, vectors, tmp_path, monkeypatch, first, second, function):
    """Both read version 2; the first writes, perhaps on a failing disk; the second must not lose what it wrote."""
    path = Path(shutil.copytree(second_version, tmp_path / "birds"))
    clfs = [load(path).partial_fit(*vectors(label)) for label in ("rail", "tui")]
    old = versions.read_current(path)
    with monkeypatch.context() as patch:
        if function is not None:
            fault(patch, function, 1, FULL, True)
        failed = said(lambda: WRITERS[first](path, clfs[0], vectors))
    between = versions.read_current(path)
    assert ("No space left" in failed) == (between == old) == bool(failed)  # an error means that nothing changed
    names, made_from_old = load(path).classes_.tolist(), second in ("learn", "refit")
    told = said(lambda: WRITERS[second](path, clfs[1], vectors))
    if made_from_old and not failed:  # the others read what is there now
        assert f"is {between} now" in told
        assert f"made from {old}:" in told
    else:
        spent = {"undo": ("nothing to undo", ("forget", "undo")), "forget": ("does not know", ("forget", "refit"))}
        assert not told or (spent[second][0] in told and first in spent[second][1])
    if told:
        assert versions.read_current(path) == between
        assert load(path).classes_.tolist() == names
    load(path)  # whole


# -- a directory or a lock that is not the same any more --------------------------------------------------------------


def exchange_at(monkeypatch, act, at=1):
    """Let `act` happen once, inside a writer: before its `at`-th sync of a directory."""
    real, calls = files.sync_directory, []

    def changed(*args):
        calls.append(1)
        if len(calls) == at:
            act()
        return real(*args)

    monkeypatch.setattr(files, "sync_directory", changed)


def removed(model: Path) -> None:
    os.rename(model, model.with_name("elsewhere"))


def emptied(model: Path) -> None:
    removed(model)
    model.mkdir()


def replaced(model: Path) -> None:
    removed(model)
    shutil.copytree(model.with_name("elsewhere"), model)


def unlocked(model: Path) -> None:
    (model / ".lock").unlink()


def relocked(model: Path) -> None:
    (model / ".lock").unlink()
    (model / ".lock").touch()


@pytest.mark.parametrize("act", [removed, emptied, replaced, unlocked, relocked], ids=lambda act: act.__name__)
@pytest.mark.parametrize(("writer", "at"), [("save", 1), ("save", 2), ("forget", 1), ("forget", 2), ("undo", 1)])
def test_a_directory_or_lock_that_is_exchanged_is_an_error_and_never_a_new_model(
    two_clouds, model, vectors, monkeypatch, act, writer, at
):
    clf = two_clouds.partial_fit(*vectors("kea", "tui"))
    if writer == "undo":
        clf.save(model)
    before, current = files_of(model), versions.read_current(model)
    seen = {}

    def now():
        act(model)
        if model.exists():
            seen.update(files_of(model))

    exchange_at(monkeypatch, now, at=at)
    write = {
        "save": lambda: clf.save(model),
        "forget": lambda: forget(model, "owl"),
        "undo": lambda: versions.undo(model),
    }
    with pytest.raises(
        ModelFileError, match=r"was (removed|exchanged) while this process worked on it: nothing was wr"
    ):
        write[writer]()
    original = model if act in (unlocked, relocked) else model.with_name("elsewhere")
    assert versions.read_current(original) == current
    assert files_of(original) == before  # nothing half-written is left in it
    if original != model:
        assert (files_of(model) if model.exists() else {}) == seen  # and nothing is in what took its place
    load(original)


def test_a_lock_that_another_writer_holds_by_then_is_not_written_over(two_clouds, model, vectors, monkeypatch):
    other = load(model).partial_fit(*vectors("rail"))
    two_clouds.partial_fit(*vectors("kea"))

    def intrude():
        (model / ".lock").unlink()  # a tidy colleague, and a second process
        other.save(model)

    exchange_at(monkeypatch, intrude)
    with pytest.raises(StaleError, match=r"is version \d .* made from version 1"):
        two_clouds.save(model)
    assert "rail" in load(model).classes_.tolist()
    assert numbers(model)[-1] == 1


def test_a_directory_is_held_by_descriptor(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    with files.locked(place) as held:
        held.check()
        os.rename(place, tmp_path / "moved")
        place.mkdir()
        (held.inside / "written").write_text("here")
        with pytest.raises(ModelFileError, match="exchanged"):
            held.check()
    assert (tmp_path / "moved" / "written").read_text() == "here"
    assert not list(place.iterdir())
    with files.locked(tmp_path / "moved"):  # released
        pass


# -- threads ----------------------------------------------------------------------------------------------------------


def test_of_two_threads_on_one_object_one_is_refused(make_classifier, vectors, same, monkeypatch):
    clf, reference = make_classifier(), make_classifier()
    for one in (clf, reference):
        one.partial_fit(*vectors("owl", "emu"))
    inside, go_on, problems = threading.Event(), threading.Event(), []
    real = IncrementalClassifier.learned_from

    def slow(self, *args, **kwargs):
        inside.set()
        assert go_on.wait(60)
        return real(self, *args, **kwargs)

    def first():
        try:
            clf.partial_fit(*vectors("kea", "tui"))
        except BaseException as error:
            problems.append(error)

    monkeypatch.setattr(IncrementalClassifier, "learned_from", slow)
    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(60)
    for call in (clf.partial_fit, clf.fit):
        with pytest.raises(InputError, match="another thread is teaching this IncrementalClassifier"):
            call(*vectors("rail"))
    go_on.set()
    thread.join()
    assert not problems
    assert same(clf, reference.partial_fit(*vectors("kea", "tui")))
    clf.partial_fit(*vectors("rail"))
    assert clf.classes_.tolist() == ["emu", "owl", "kea", "tui", "rail"]


def test_the_lock_of_another_process_is_still_a_lock(two_clouds, model):
    with FileLock(model / ".lock"), pytest.raises(ModelFileError, match="another process is writing"):
        two_clouds.save(model)
