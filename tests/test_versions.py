"""Model directories over time: undo, forget, pruning, an older format, and what every byte is."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.test_saving import files_of, reseal
from torch import nn

from protodrift import Herding, IncrementalClassifier, Softmax, StreamingLDA, saving
from protodrift.accounting import account, class_bytes
from protodrift.errors import InputError, ModelFileError
from protodrift.forgetting import forget

load = IncrementalClassifier.load
FORMAT1 = Path(__file__).parent / "models" / "format1"


@pytest.fixture
def lessons(make_classifier, vectors, tmp_path):
    """A model of three versions, and the classifiers of each."""
    clf, path, kept = make_classifier(), tmp_path / "birds", []
    for pair in (("owl", "emu"), ("jay", "ibis"), ("kea", "tui")):
        clf.partial_fit(*vectors(*pair)).save(path)
        kept.append(load(path))
    return path, kept


# -- undo -------------------------------------------------------------------------------------------------------------


def test_undo_goes_back_version_by_version_bit_for_bit(lessons, same):
    path, kept = lessons
    before = files_of(path)
    assert saving.undo(path) == (3, 2)
    assert same(load(path), kept[1])
    after = files_of(path)
    assert not any(name.startswith("versions/3/") for name in after)
    assert {n: c for n, c in after.items() if n != "CURRENT"} == {
        n: c for n, c in before.items() if n != "CURRENT" and not n.startswith("versions/3/")
    }
    assert saving.undo(path) == (2, 1)
    assert same(load(path), kept[0])
    with pytest.raises(ModelFileError, match="nothing to undo: version 1"):
        saving.undo(path)
    assert same(load(path), kept[0])


def test_after_undo_learning_goes_on_as_if_nothing_had_been(lessons, vectors, same):
    path, kept = lessons
    saving.undo(path)
    again = load(path).partial_fit(*vectors("kea", "tui"))
    again.save(path)
    assert same(load(path), kept[2])
    assert [one.version for one in saving.chain(path)] == [3, 2, 1]


def test_undo_never_goes_back_to_what_is_damaged(lessons, same):
    path, kept = lessons
    file = path / "versions" / "2" / "prototypes.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    before = files_of(path)
    with pytest.raises(ModelFileError, match="does not match its checksum"):
        saving.undo(path)
    assert files_of(path) == before
    assert same(load(path), kept[2])


def test_only_so_many_versions_are_kept(make_classifier, vectors, tmp_path):
    clf, path = make_classifier(), tmp_path / "birds"
    for label in "abcdefg":
        clf.partial_fit(*vectors(label)).save(path, keep=3)
    assert sorted(p.name for p in (path / "versions").iterdir()) == ["5", "6", "7"]
    assert saving.undo(path) == (7, 6)
    assert saving.undo(path) == (6, 5)
    with pytest.raises(ModelFileError, match=r"nothing to undo: version 4 of .* was not kept"):
        saving.undo(path)


def test_a_reader_whose_version_is_undone_reads_the_other_one(lessons, same, monkeypatch):
    path, kept = lessons
    real, undone = saving._bytes, []

    def slow(file):
        content = real(file)
        if file.name == "CURRENT" and not undone:
            undone.append(1)
            saving.undo(path)  # the version is removed between a reader's two looks
        return content

    monkeypatch.setattr(saving, "_bytes", slow)
    assert same(load(path), kept[1])


# -- forget -----------------------------------------------------------------------------------------------------------


def test_a_forgotten_class_is_in_no_file(lessons, vectors):
    path, kept = lessons
    row = kept[2].state_.prototypes.row("emu")
    own = [clf.prototypes_[clf.classes_.tolist().index("emu")].tobytes() for clf in kept]
    assert any(own[2] in content for content in files_of(path).values())
    left = forget(path, "emu")
    assert (left.version, left.classes, left.removed, left.trained) == (4, 5, 3, True)
    contents = files_of(path)
    assert not any(part in content for part in own for content in contents.values())
    assert not any(b"emu" in content for content in contents.values())
    assert [p.name for p in (path / "versions").iterdir()] == ["4"]
    clf = load(path)
    assert clf.classes_.tolist() == ["owl", "ibis", "jay", "kea", "tui"]
    rows = [i for i in range(6) if i != row]
    assert np.array_equal(clf.prototypes_, kept[2].prototypes_[rows])
    assert torch.equal(clf.state_.calibration.quantiles, kept[2].state_.calibration.quantiles[rows])
    with pytest.raises(ModelFileError, match="or the first since a class was forgotten"):
        saving.undo(path)
    assert account(path).strangers == ()
    clf.partial_fit(*vectors("emu", "rook"))  # it may be learned again, from new images
    assert load(clf.save(path)).classes_.tolist()[-2:] == ["emu", "rook"]


@pytest.mark.parametrize("label", ["owls", "OWL", ""])
def test_an_unknown_class_is_an_error_and_nothing_changes(lessons, label):
    path, _ = lessons
    before = files_of(path)
    with pytest.raises(InputError, match="does not know a class"):
        forget(path, label)
    assert files_of(path) == before


def test_what_cannot_forget_says_why(make_classifier, vectors, tmp_path):
    make_classifier().fit(*vectors("a")).save(tmp_path / "one")
    with pytest.raises(InputError, match=r"the only class of this model. Delete"):
        forget(tmp_path / "one", "a")
    make_classifier(objective=Softmax()).fit(*vectors("a", "b")).save(tmp_path / "heads")
    with pytest.raises(InputError, match="has classification heads"):
        forget(tmp_path / "heads", "a")


def test_forgetting_takes_kept_images_along_and_int_labels_from_text(make_classifier, vectors, tmp_path):
    clf = make_classifier(memory=Herding(8), readout=StreamingLDA()).fit(*vectors(3, 7))
    clf.save(tmp_path / "m", store_images=True)
    left = forget(tmp_path / "m", "3")
    assert left.shared  # the covariance holds its share
    memory = load(tmp_path / "m").state_.trained.memory
    assert memory is not None
    assert set(memory.labels) == {7}


def test_a_forget_that_was_killed_before_it_removed_old_versions_is_finished_by_the_next(lessons, monkeypatch):
    path, _ = lessons
    with monkeypatch.context() as patch:
        patch.setattr(saving, "remove_unreachable", lambda *args: None)  # as if killed right after CURRENT was replaced
        forget(path, "emu")
    assert any(b"emu" in content for content in files_of(path).values())
    found = account(path)
    assert {file.name.split("/")[1] for file in found.strangers} == {"1", "2", "3"}
    assert "emu" not in load(path).classes_
    forget(path, "emu")
    assert not any(b"emu" in content for content in files_of(path).values())


# -- the older format -------------------------------------------------------------------------------------------------


@pytest.fixture
def format1(tmp_path):
    """A model that protodrift 0.1.0 wrote, with a backbone of the user's."""
    return Path(shutil.copytree(FORMAT1, tmp_path / "old"))


def test_a_model_of_format_1_loads_learns_on_and_can_be_undone(format1, vectors):
    expected = json.loads(FORMAT1.with_name("format1_expected.json").read_text())
    clf = load(format1, backbone=nn.Linear(6, 4))
    X, _ = vectors("owl", "emu", "jay", "ibis", count=2)
    assert clf.predict(X).tolist() == expected["classes"]
    assert np.allclose(clf.prototypes_, expected["prototypes"])
    assert not clf.recognise(X).unknown.any()  # it held nothing out: nothing is known about distances
    clf.partial_fit(*vectors("kea", "tui")).save(format1)
    assert json.loads((format1 / "CURRENT").read_text())["format_version"] == 2
    assert [one.version for one in saving.chain(format1)] == [3, 2, 1]
    assert saving.undo(format1) == (3, 2)
    assert saving.undo(format1) == (2, 1)
    assert load(format1, backbone=nn.Linear(6, 4)).classes_.tolist() == ["emu", "owl"]


# -- every byte -------------------------------------------------------------------------------------------------------


def test_every_byte_of_every_version_is_accounted_for(lessons):
    path, _ = lessons
    found = account(path)
    assert found.strangers == ()
    assert found.checked == found.versions == (3, 2, 1)
    assert found.bytes == sum(len(content) for content in files_of(path).values())


@pytest.mark.parametrize("name", ["photo.jpg", "versions/3x/a.jpg", "versions/a.jpg", "sub/deep/a", ".hidden"])
def test_what_does_not_belong_is_named(lessons, name):
    path, _ = lessons
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    (path / name).write_bytes(b"a photo")
    assert [(file.name, file.bytes) for file in account(path).strangers] == [(name, 7)]


def test_a_link_and_a_lock_with_content_do_not_belong(lessons):
    path, _ = lessons
    os.symlink("/etc/hosts", path / "link")
    (path / ".lock").write_bytes(b"hidden in the lock")
    assert sorted(file.name for file in account(path).strangers) == [".lock", "link"]


def hide_in_metadata(path: Path) -> None:
    file = path / "versions" / "1" / "prototypes.safetensors"
    save_file(load_file(file), file, metadata={"photo": "x" * 100})


def hide_in_blanks(path: Path) -> None:
    file = path / "versions" / "1" / "manifest.json"
    file.write_bytes(file.read_bytes() + b" " * 100)


@pytest.mark.parametrize("hide", [hide_in_metadata, hide_in_blanks])
def test_nothing_hides_between_the_tensors_even_with_right_checksums(two_clouds, tmp_path, hide):
    path = two_clouds.save(tmp_path / "m")
    assert account(path).checked == (1,)
    hide(path)
    if hide is hide_in_metadata:
        reseal(path)
    else:
        _reseal_current(path)
    with pytest.raises(ModelFileError, match="no part of the model"):
        account(path)


def _reseal_current(path: Path) -> None:
    import hashlib

    current = json.loads((path / "CURRENT").read_text())
    current["manifest_sha256"] = hashlib.sha256((path / "versions" / "1" / "manifest.json").read_bytes()).hexdigest()
    (path / "CURRENT").write_text(json.dumps(current))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(photo="x"), "what no model has, the field 'photo'"),
        (lambda m: m["made_with"].update(photo="x" * 999), "made_with says"),
        (lambda m: m["input"].update(photo="x"), "no part of the model"),
        (lambda m: m["tasks"][0].update(photo="x"), "no part of the model"),
    ],
)
def test_no_field_hides_anything(two_clouds, tmp_path, change, message):
    path = two_clouds.save(tmp_path / "m")
    reseal(path, change)
    with pytest.raises(ModelFileError, match=message):
        account(path)


@pytest.mark.parametrize("file", ["prototypes", "drift", "calibration", "statistics"])
def test_a_tensor_more_is_refused_when_the_model_is_loaded(two_clouds, tmp_path, file):
    path = two_clouds.save(tmp_path / "m")
    name = path / "versions" / "1" / f"{file}.safetensors"
    save_file({**load_file(name), "photo": torch.zeros(3, 8, 8)}, name)
    reseal(path)
    with pytest.raises(ModelFileError, match=r"what no model has, the tensor|do not fit"):
        load(path)


def test_bytes_of_a_class_add_up_to_the_tensors(lessons):
    _, kept = lessons
    state = kept[2].state_
    tensors = [state.prototypes.means, state.prototypes.counts, state.prototypes.tasks]
    tensors += [*state.calibration.named().values(), state.drift.before, state.drift.after]
    tensors += list(state.drift.diagnostics.values())
    assert sum(class_bytes(state).values()) == sum(t.numel() * t.element_size() for t in tensors)
