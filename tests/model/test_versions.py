"""Model directories over time: undo, forget, pruning, and what every byte is."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from protodrift import Herding, IncrementalClassifier, Schedule, Softmax, StreamingLDA
from protodrift.common import files, tensorfiles
from protodrift.errors import InputError, ModelFileError
from protodrift.model import versions
from protodrift.model.audit import audit, class_bytes
from protodrift.model.forget import forget
from protodrift.model.rename import rename
from tests.model.directories import files_of, reseal

load = IncrementalClassifier.load


@pytest.fixture
def three_versions(make_classifier, vectors, tmp_path):
    """A model of three versions, and the classifiers of each."""
    clf, path, kept = make_classifier(), tmp_path / "birds", []
    for pair in (("owl", "emu"), ("jay", "ibis"), ("kea", "tui")):
        clf.partial_fit(*vectors(*pair)).save(path)
        kept.append(load(path))
    return path, kept


# -- undo -------------------------------------------------------------------------------------------------------------


def test_undo_goes_back_version_by_version_bit_for_bit(three_versions, same):
    path, kept = three_versions
    before = files_of(path)
    assert versions.undo(path) == (3, 2)
    assert same(load(path), kept[1])
    after = files_of(path)
    assert not any(name.startswith("versions/3/") for name in after)
    assert {n: c for n, c in after.items() if n != "CURRENT"} == {
        n: c for n, c in before.items() if n != "CURRENT" and not n.startswith("versions/3/")
    }
    assert versions.undo(path) == (2, 1)
    assert same(load(path), kept[0])
    with pytest.raises(ModelFileError, match="nothing to undo: version 1"):
        versions.undo(path)
    assert same(load(path), kept[0])


def test_after_undo_learning_goes_on_as_if_nothing_had_been(three_versions, vectors, same):
    path, kept = three_versions
    versions.undo(path)
    again = load(path).partial_fit(*vectors("kea", "tui"))
    again.save(path)
    assert same(load(path), kept[2])
    assert [one.version for one in versions.chain(path)] == [3, 2, 1]


def test_undo_never_goes_back_to_what_is_damaged(three_versions, same):
    path, kept = three_versions
    file = path / "versions" / "2" / "prototypes.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    before = files_of(path)
    with pytest.raises(ModelFileError, match="does not match its checksum"):
        versions.undo(path)
    assert files_of(path) == before
    assert same(load(path), kept[2])


@pytest.mark.parametrize("file", ["network.safetensors", "manifest.json"])
def test_a_damaged_version_is_told_once_and_in_plain_words(three_versions, file):
    path, _ = three_versions
    (path / "versions" / "3" / file).unlink()
    with pytest.raises(ModelFileError) as raised:
        load(path)
    assert str(raised.value) == (
        f"the model is damaged: {path / 'versions' / '3' / file} is missing. Restore it from a backup."
    )


def test_an_old_version_that_is_damaged_hinders_no_task_and_no_undo(three_versions, vectors):
    path, kept = three_versions
    (path / "versions" / "1" / "manifest.json").unlink()
    kept[2].partial_fit(*vectors("rook", "crow")).save(path, keep=5)
    assert load(path).classes_.tolist()[-2:] == ["crow", "rook"]
    # What version 1 came from cannot be known, so nothing that might be needed was removed.
    assert sorted(p.name for p in (path / "versions").iterdir()) == ["1", "2", "3", "4"]
    assert versions.undo(path) == (4, 3)
    assert sorted(p.name for p in (path / "versions").iterdir()) == ["1", "2", "3"]
    with pytest.raises(ModelFileError, match=r"versions/1/manifest\.json is missing"):
        versions.chain(path)


def test_a_damaged_version_is_removed_when_it_is_too_old(three_versions, vectors):
    path, kept = three_versions
    (path / "versions" / "1" / "manifest.json").unlink()
    kept[2].partial_fit(*vectors("rook", "crow")).save(path, keep=3)
    assert sorted(p.name for p in (path / "versions").iterdir()) == ["2", "3", "4"]


def test_only_so_many_versions_are_kept(make_classifier, vectors, tmp_path):
    clf, path = make_classifier(), tmp_path / "birds"
    for label in "abcdefg":
        clf.partial_fit(*vectors(label)).save(path, keep=3)
    assert sorted(p.name for p in (path / "versions").iterdir()) == ["5", "6", "7"]
    assert versions.undo(path) == (7, 6)
    assert versions.undo(path) == (6, 5)
    with pytest.raises(ModelFileError, match=r"nothing to undo: version 4 of .* was not kept"):
        versions.undo(path)


def test_a_reader_whose_version_is_undone_reads_the_other_one(three_versions, same, monkeypatch):
    path, kept = three_versions
    real, undone = files.read_bytes, []

    def slow(file, *most):
        content = real(file, *most)
        if file.name == "CURRENT" and not undone:
            undone.append(1)
            versions.undo(path)  # the version is removed between a reader's two looks
        return content

    monkeypatch.setattr(files, "read_bytes", slow)
    assert same(load(path), kept[1])


def meanwhile(monkeypatch, file: Path, act) -> None:
    """Let `act`, another process's work, happen once, just before this file is read."""
    real, acted = files.read_bytes, []

    def slow(path, *most):
        if path == file and not acted:
            acted.append(1)
            act()
        return real(path, *most)

    monkeypatch.setattr(files, "read_bytes", slow)


def test_a_reader_whose_version_vanishes_after_its_last_file_reads_the_other_one(three_versions, same, monkeypatch):
    path, kept = three_versions
    real, undone = tensorfiles._read_tensors, []

    def slow(file, *args):
        found = real(file, *args)
        if file.name == "statistics.safetensors" and not undone:
            undone.append(1)
            versions.undo(path)
        return found

    monkeypatch.setattr(tensorfiles, "_read_tensors", slow)
    assert same(load(path), kept[1])


@pytest.mark.parametrize("look", [versions.chain, audit])
def test_a_version_that_a_writer_drops_while_we_look_was_not_kept(three_versions, monkeypatch, look):
    path, _ = three_versions
    oldest = path / "versions" / "1"
    meanwhile(monkeypatch, oldest / "manifest.json", lambda: shutil.rmtree(oldest))
    found = look(path)
    assert (found.versions if look is audit else tuple(one.version for one in found)) == (3, 2)


@pytest.mark.parametrize("look", [versions.chain, audit])
def test_who_looks_while_a_class_is_forgotten_sees_what_is_left(three_versions, monkeypatch, look):
    path, _ = three_versions
    meanwhile(monkeypatch, path / "versions" / "3" / "manifest.json", lambda: forget(path, "emu"))
    found = look(path)
    assert (found.versions if look is audit else tuple(one.version for one in found)) == (6, 5, 4)


# -- forget -----------------------------------------------------------------------------------------------------------


def test_a_forgotten_class_is_in_no_file(three_versions, vectors):
    path, kept = three_versions
    row = kept[2].state_.prototypes.row("emu")
    own = [clf.prototypes_[clf.classes_.tolist().index("emu")].tobytes() for clf in kept]
    assert any(own[2] in content for content in files_of(path).values())
    left = forget(path, "emu")
    assert (left.version, left.classes, left.removed, left.undo, left.trained) == (6, 5, 3, 2, True)
    contents = files_of(path)
    assert not any(part in content for part in own for content in contents.values())
    assert not any(b"emu" in content for content in contents.values())
    assert sorted(p.name for p in (path / "versions").iterdir()) == ["4", "5", "6"]
    clf = load(path)
    assert clf.classes_.tolist() == ["owl", "ibis", "jay", "kea", "tui"]
    rows = [i for i in range(6) if i != row]
    assert np.array_equal(clf.prototypes_, kept[2].prototypes_[rows])
    assert torch.equal(clf.state_.calibration.quantiles, kept[2].state_.calibration.quantiles[rows])
    assert audit(path).foreign == ()
    clf.partial_fit(*vectors("emu", "rook"))  # it may be learned again, from new images
    assert load(clf.save(path)).classes_.tolist()[-2:] == ["emu", "rook"]


def test_other_tasks_can_be_undone_after_a_class_was_forgotten(three_versions):
    path, kept = three_versions
    forget(path, "emu")
    for before, classes in ((kept[1], ["owl", "ibis", "jay"]), (kept[0], ["owl"])):
        versions.undo(path)
        clf = load(path)
        assert clf.classes_.tolist() == classes
        rows = [before.classes_.tolist().index(label) for label in classes]
        assert np.array_equal(clf.prototypes_, before.prototypes_[rows])
        assert "emu" not in [label for task in clf.tasks_ for label in task.classes]
    with pytest.raises(ModelFileError, match="nothing to undo"):
        versions.undo(path)


def test_an_undo_that_would_change_nothing_is_left_out(make_classifier, vectors, tmp_path):
    clf, path = make_classifier(schedule=Schedule(train="none")), tmp_path / "birds"
    for pair in (("owl", "jay"), ("emu",), ("kea",)):
        clf.partial_fit(*vectors(*pair)).save(path)
    left = forget(path, "emu")  # a task of its own: before and after it the model knows the same
    assert (left.undo, load(path).classes_.tolist()) == (1, ["jay", "owl", "kea"])
    versions.undo(path)
    assert load(path).classes_.tolist() == ["jay", "owl"]


def test_a_class_is_forgotten_under_all_its_names(three_versions):
    path, _ = three_versions
    rename(path, "emu", "Emu")
    assert load(path).classes_.tolist() == ["Emu", "owl", "ibis", "jay", "kea", "tui"]
    left = forget(path, "Emu")
    assert (left.undo, load(path).classes_.tolist()) == (2, ["owl", "ibis", "jay", "kea", "tui"])
    assert not any(name in content for name in (b"emu", b"Emu") for content in files_of(path).values())
    rename(path, "owl", "Owl")  # of another class: it can be undone, and does not hide what is forgotten
    assert forget(path, "jay").undo == 3
    versions.undo(path)
    assert load(path).classes_.tolist() == ["owl", "ibis", "kea", "tui"]


def test_what_a_killed_task_left_makes_no_unknown_class_a_forgotten_one(three_versions):
    path, _ = three_versions
    before = files_of(path)
    draft = path / "versions" / ".new-4"
    draft.mkdir()
    (draft / "network.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match=r"does not know a class 'Owl'. Did you mean 'owl'.*removed: versions/.new-4"):
        forget(path, "Owl")
    assert files_of(path) == before


@contextmanager
def busy(folder: Path):
    """Let nobody remove a folder: something is mounted there; without the right to mount, removing it fails as then."""
    if (
        shutil.which("mount")
        and not subprocess.run(["mount", "--bind", folder, folder], capture_output=True).returncode
    ):
        try:
            yield
        finally:
            subprocess.run(["umount", folder], check=True)
        return
    real = shutil.rmtree

    def rmtree(path, *args, **kwargs):
        if Path(path).name.endswith(folder.name):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        real(path, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions.shutil, "rmtree", rmtree)
        yield


def test_old_versions_that_cannot_be_removed_are_said_and_the_same_command_removes_them(three_versions):
    path, _ = three_versions
    with busy(path / "versions" / "2"):
        with pytest.raises(ModelFileError) as raised:
            forget(path, "emu")
        for words in ("is version 6", "could not be removed: Device or resource busy", "run the same command again"):
            assert words in str(raised.value)
        assert re.search(r": versions/(\.new-gone-)?2, versions/3\. ", str(raised.value))
        assert "emu" not in load(path).classes_
        with pytest.raises(ModelFileError, match="could not be removed"):
            forget(path, "emu")
    left = forget(path, "emu")
    assert (left.version, left.removed, left.trained) == (6, 2, None)
    assert not any(b"emu" in content for content in files_of(path).values())
    with pytest.raises(InputError, match="does not know a class 'emu'"):
        forget(path, "emu")


def test_a_class_is_forgotten_though_an_older_version_is_damaged(three_versions):
    path, _ = three_versions
    (path / "versions" / "1" / "manifest.json").write_bytes(b"{")
    assert forget(path, "emu").removed == 3
    assert sorted(p.name for p in (path / "versions").iterdir()) == ["4", "5"]  # what can still be read


# -- rename -----------------------------------------------------------------------------------------------------------


def test_a_renamed_class_is_the_same_under_another_name_and_can_be_undone(three_versions, vectors, same):
    path, kept = three_versions
    before, X = files_of(path), vectors("owl", "emu", "kea")[0]
    assert rename(path, "owl", "Snowy Owl").version == 4
    clf = load(path)
    names = {"owl": "Snowy Owl"}
    assert clf.classes_.tolist() == [names.get(label, label) for label in kept[2].classes_.tolist()]
    assert clf.predict(X).tolist() == [names.get(label, label) for label in kept[2].predict(X).tolist()]
    assert np.array_equal(clf.predict_proba(X), kept[2].predict_proba(X))
    assert clf.drift_.labels == tuple(names.get(label, label) for label in kept[2].drift_.labels)
    assert not any(b'"owl"' in content for name, content in files_of(path).items() if name.startswith("versions/4/"))
    assert audit(path).foreign == ()
    clf.partial_fit(*vectors("rook", "crow"))  # it goes on learning
    versions.undo(path)
    assert same(load(path), kept[2])
    assert {name: content for name, content in files_of(path).items() if name != "CURRENT"} == {
        name: content for name, content in before.items() if name != "CURRENT"
    }


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("owls", "x", r"does not know a class 'owls'. Did you mean 'owl'"),
        ("owl", "emu", "has a class 'emu' already"),
        ("owl", " ", "is empty. A class needs a name that can be shown"),
        ("owl", "a\0b", "holds a zero character"),
        ("owl", "\ud800", "is not valid Unicode"),
        ("owl", 3, "is of another kind"),
    ],
)
def test_a_name_that_cannot_be_given_is_refused_and_nothing_changes(three_versions, old, new, said):
    path, _ = three_versions
    before = files_of(path)
    with pytest.raises(InputError, match=said):
        rename(path, old, new)
    assert files_of(path) == before


def test_only_tasks_with_its_photos_count_as_trained_with_them(make_classifier, vectors, tmp_path):
    frozen, path = make_classifier(schedule=Schedule(train="none")), tmp_path / "frozen"
    frozen.partial_fit(*vectors("owl", "emu")).save(path)
    assert forget(path, "emu").trained is False
    later, path = make_classifier(), tmp_path / "later"
    with pytest.warns(UserWarning, match="no negatives"):
        later.partial_fit(*vectors("owl"))
    later.partial_fit(*vectors("emu", "jay"))
    assert [bool(task.history) for task in later.tasks_] == [False, True]
    later.save(path)
    later.partial_fit(*vectors("kea", "tui", "owl"), known="refresh").save(tmp_path / "refreshed")
    assert forget(path, "owl").trained is False
    assert forget(path, "emu").trained is True
    assert forget(tmp_path / "refreshed", "owl").trained is True
    memory = make_classifier(exemplars=Herding(8))
    with pytest.warns(UserWarning, match="no negatives"):
        memory.partial_fit(*vectors("owl"))
    memory.partial_fit(*vectors("emu", "jay")).save(tmp_path / "memory", store_images=True)
    assert forget(tmp_path / "memory", "owl").trained is True


@pytest.mark.parametrize("label", ["owls", "OWL", ""])
def test_an_unknown_class_is_an_error_and_nothing_changes(three_versions, label):
    path, _ = three_versions
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
    clf = make_classifier(exemplars=Herding(8), readout=StreamingLDA()).fit(*vectors(3, 7))
    clf.save(tmp_path / "m", store_images=True)
    left = forget(tmp_path / "m", "3")
    assert left.shared  # the covariance holds its share
    memory = load(tmp_path / "m").state_.trained.exemplars
    assert memory is not None
    assert set(memory.labels) == {7}


def test_a_forget_that_was_killed_before_it_removed_old_versions_is_finished_by_the_next(three_versions, monkeypatch):
    path, _ = three_versions
    with monkeypatch.context() as patch:
        patch.setattr(
            versions, "remove_unreachable", lambda *args: None
        )  # as if killed right after CURRENT was replaced
        forget(path, "emu")
    assert any(b"emu" in content for content in files_of(path).values())
    found = audit(path)
    assert {file.name.split("/")[1] for file in found.foreign} == {"1", "2", "3"}
    assert "emu" not in load(path).classes_
    forget(path, "emu")
    assert not any(b"emu" in content for content in files_of(path).values())


# -- every byte -------------------------------------------------------------------------------------------------------


def test_every_byte_of_every_version_is_accounted_for(three_versions):
    path, _ = three_versions
    found = audit(path)
    assert found.foreign == ()
    assert found.checked == found.versions == (3, 2, 1)
    assert sum(file.bytes for file in found.files) == sum(len(content) for content in files_of(path).values())


@pytest.mark.parametrize("name", ["photo.jpg", "versions/3x/a.jpg", "versions/a.jpg", "sub/deep/a", ".hidden"])
def test_what_does_not_belong_is_named(three_versions, name):
    path, _ = three_versions
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    (path / name).write_bytes(b"a photo")
    assert [(file.name, file.bytes) for file in audit(path).foreign] == [(name, 7)]


def test_a_link_and_a_lock_with_content_do_not_belong(three_versions):
    path, _ = three_versions
    os.symlink("/etc/hosts", path / "link")
    (path / ".lock").write_bytes(b"hidden in the lock")
    assert sorted(file.name for file in audit(path).foreign) == [".lock", "link"]


def hide_in_metadata(path: Path) -> None:
    file = path / "versions" / "1" / "prototypes.safetensors"
    save_file(load_file(file), file, metadata={"photo": "x" * 100})


def hide_in_blanks(path: Path) -> None:
    file = path / "versions" / "1" / "manifest.json"
    file.write_bytes(file.read_bytes() + b" " * 100)


@pytest.mark.parametrize(
    ("hide", "message"),
    [(hide_in_metadata, "bytes that are no tensors"), (hide_in_blanks, "not written as a manifest")],
)
def test_nothing_hides_between_the_tensors_even_with_right_checksums(two_clouds, tmp_path, hide, message):
    path = two_clouds.save(tmp_path / "m")
    assert audit(path).checked == (1,)
    hide(path)
    if hide is hide_in_metadata:
        reseal(path)
    else:
        _reseal_current(path)
    with pytest.raises(ModelFileError, match=message):
        audit(path)


def _reseal_current(path: Path) -> None:
    import hashlib

    current = json.loads((path / "CURRENT").read_text())
    current["manifest_sha256"] = hashlib.sha256((path / "versions" / "1" / "manifest.json").read_bytes()).hexdigest()
    (path / "CURRENT").write_text(json.dumps(current))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(photo="x"), "what no model has, the field 'photo'"),
        (lambda m: m["made_with"].update(photo="x" * 999), "what no model has, the field 'photo'"),
        (lambda m: m["input"].update(photo="x"), "what no model has, the field 'photo'"),
        (lambda m: m["tasks"][0].update(photo="x"), "what no model has, the field 'photo'"),
    ],
)
def test_no_field_hides_anything(two_clouds, tmp_path, change, message):
    path = two_clouds.save(tmp_path / "m")
    reseal(path, change)
    with pytest.raises(ModelFileError, match=message):
        audit(path)


@pytest.mark.parametrize("file", ["prototypes", "drift", "calibration", "statistics"])
def test_a_tensor_more_is_refused_when_the_model_is_loaded(two_clouds, tmp_path, file):
    path = two_clouds.save(tmp_path / "m")
    name = path / "versions" / "1" / f"{file}.safetensors"
    save_file({**load_file(name), "photo": torch.zeros(3, 8, 8)}, name)
    reseal(path)
    with pytest.raises(ModelFileError, match=r"what no model has, the tensor|do not fit"):
        load(path)


def test_bytes_of_a_class_add_up_to_the_tensors(three_versions):
    _, kept = three_versions
    state = kept[2].state_
    tensors = [state.prototypes.means, state.prototypes.counts, state.prototypes.tasks]
    tensors += [*state.calibration.named().values(), state.drift.before, state.drift.after]
    tensors += list(state.drift.diagnostics.values())
    assert sum(class_bytes(state).values()) == sum(t.numel() * t.element_size() for t in tensors)


# -- what versions share ----------------------------------------------------------------------------------------------


@pytest.fixture
def frozen_months(make_classifier, vectors, tmp_path):
    """A model of three versions whose network stays as it is, and its directory."""
    clf, path = make_classifier(schedule=Schedule(train="none"), readout=StreamingLDA()), tmp_path / "birds"
    for pair in (("owl", "emu"), ("jay", "ibis"), ("kea", "tui")):
        clf.partial_fit(*vectors(*pair)).save(path)
    return path


def inodes(path, name):
    return {(folder / name).stat().st_ino for folder in (path / "versions").iterdir()}


def test_versions_share_the_files_that_did_not_change(frozen_months):
    found = audit(frozen_months)
    assert len(inodes(frozen_months, "network.safetensors")) == 1
    assert len(inodes(frozen_months, "prototypes.safetensors")) == 3
    assert sum(f.shared for f in found.files if f.name.endswith("network.safetensors")) == 2
    assert found.bytes == sum(f.bytes for f in found.files if not f.shared) < sum(f.bytes for f in found.files)
    assert load_file(frozen_months / "versions/3/drift.safetensors")["before"].shape[0] == 0


def test_a_version_that_shares_files_stays_whole_when_others_go(frozen_months, same):
    newest = load(frozen_months)
    forget(frozen_months, "owl")
    assert not any("owl" in versions.listed_labels(folder) for folder in (frozen_months / "versions").iterdir())
    assert len(inodes(frozen_months, "network.safetensors")) == 1  # the rewritten ones share it too
    versions.undo(frozen_months)
    left = load(frozen_months)
    assert left.classes_.tolist() == ["emu", "ibis", "jay"]
    pairs = zip(left.network_.parameters(), newest.network_.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert audit(frozen_months).foreign == ()


def test_damage_does_not_spread_to_the_next_version(frozen_months, vectors):
    clf = load(frozen_months)
    file = frozen_months / "versions/3/network.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))  # in place: all three versions have this file
    clf.partial_fit(*vectors("auk", "tit")).save(frozen_months)
    assert load(frozen_months).classes_.tolist() == [*clf.classes_]
    assert len(inodes(frozen_months, "network.safetensors")) == 2


def test_a_disk_without_hard_links_gets_copies(make_classifier, vectors, tmp_path, monkeypatch, same):
    def refuse(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    clf = make_classifier(schedule=Schedule(train="none")).partial_fit(*vectors("owl", "emu"))
    path = clf.save(tmp_path / "birds")
    clf.partial_fit(*vectors("jay", "ibis")).save(path)
    assert len(inodes(path, "network.safetensors")) == 2
    assert same(load(path), clf)
    assert audit(path).checked == (2, 1)


def test_a_symmetric_matrix_is_stored_once(frozen_months):
    stored = load_file(frozen_months / "versions/3/readout_state.safetensors")
    state = load(frozen_months).state_.readout_state
    size = len(state["scatter"])
    assert stored["scatter.triangle"].shape == (size * (size + 1) // 2,)
    assert torch.equal(state["scatter"], state["scatter"].T)
