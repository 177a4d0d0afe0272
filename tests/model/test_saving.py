"""Model directories: what is saved comes back bit for bit, and whatever goes wrong, a whole version is there."""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from filelock import FileLock
from pytorch_metric_learning import losses
from safetensors.torch import load_file, save_file
from torch import nn

from protodrift import EWC, Everything, IncrementalClassifier, LwF, MetricLoss, Training, Triplet
from protodrift.common import tensorfiles as saving
from protodrift.errors import InputError, ModelFileError
from protodrift.exemplars import Herding
from protodrift.objectives import SigmoidHeads, Softmax
from protodrift.readouts import MaxOverClasses, MaxOverHeads

load = IncrementalClassifier.load


def files_of(path: Path) -> dict[str, bytes]:
    """Every file below a directory with its content; the lock file says nothing about a model."""
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != ".lock"}


@pytest.fixture
def model(two_clouds, tmp_path):
    """The directory of a saved model."""
    return two_clouds.save(tmp_path / "birds")


# -- round trips ------------------------------------------------------------------------------------------------------


def test_what_is_saved_comes_back_bit_for_bit(two_tasks, task_of, tmp_path, same):
    X, _ = task_of(0, 1, 2, 3, test=True)
    assert two_tasks.save(tmp_path / "m") == tmp_path / "m"
    loaded = load(tmp_path / "m")
    assert same(loaded, two_tasks)
    assert np.array_equal(loaded.predict(X), two_tasks.predict(X))
    assert np.array_equal(loaded.predict_proba(X), two_tasks.predict_proba(X))
    assert np.array_equal(loaded.prototypes_, two_tasks.prototypes_)
    assert np.array_equal(loaded.classes_, two_tasks.classes_)
    assert loaded.classes_.dtype == two_tasks.classes_.dtype
    assert loaded.drift_.distances == two_tasks.drift_.distances
    assert loaded.tasks_ == two_tasks.tasks_
    assert loaded.get_params() == two_tasks.get_params()


@pytest.mark.parametrize(
    ("name", "vectors_only"),
    [
        ("E-FT+SDC", False),
        ("E-EWC+SDC", False),
        ("E-MAS", False),
        ("E-LwF", False),
        ("E-Fix", True),
        ("E-MAS+SDC", True),
    ],
)
def test_load_then_continue_is_bit_identical_to_never_having_saved(
    name, vectors_only, task_of, vectors, tmp_path, same
):
    data = vectors if vectors_only else task_of
    tasks = [("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")] if vectors_only else [(0, 1), (2, 3), (4, 5), (6, 7)]
    training = Training(epochs=2, batch_size=16, images_per_class=8)
    clf = IncrementalClassifier.from_method(name, training=training, embedding_dim=8, objective=Triplet(margin=2.0))
    for task in tasks[:2]:
        clf.partial_fit(*data(*task))
    clf.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    for task in tasks[2:]:
        clf.partial_fit(*data(*task))
        loaded.partial_fit(*data(*task))
        assert same(loaded, clf)


@pytest.mark.parametrize(
    "name",
    [
        "E-FT+SDC",
        "E-EWC+SDC",
        "E-LwF",
        "E-MAS",
    ],
)
@pytest.mark.parametrize("backbone", ["convnet", "resnet32"])
def test_color_images_continue_bit_for_bit_too(name, backbone, colors, tmp_path, same):
    # With one channel the memory layouts coincide; only color images show whether a loaded model has the right one.
    training = Training(epochs=1, batch_size=16, images_per_class=8)
    options = {"training": training, "embedding_dim": 8, "objective": Triplet(margin=2.0), "backbone": backbone}
    clf = IncrementalClassifier.from_method(name, **options)
    clf.partial_fit(*colors(0, 1)).partial_fit(*colors(2, 3))
    loaded = load(clf.save(tmp_path / "m"))
    assert same(loaded.partial_fit(*colors(4, 5)), clf.partial_fit(*colors(4, 5)))


@pytest.mark.parametrize(
    "axes",
    [
        {"objective": Softmax(), "penalty": LwF(), "readout": MaxOverHeads(), "drift": None},
        {"objective": Softmax(), "penalty": EWC()},
        {
            "objective": SigmoidHeads(),
            "penalty": LwF(),
            "memory": Herding(10),
            "readout": MaxOverClasses(),
            "drift": None,
        },
    ],
    ids=["LwF", "EWC", "iCaRL"],
)
def test_heads_and_exemplars_come_back_and_continue_bit_for_bit(make_classifier, vectors, tmp_path, same, axes):
    clf = make_classifier(**axes).partial_fit(*vectors("a", "b")).partial_fit(*vectors("c", "d", "e"))
    clf.save(tmp_path / "m", store_images=True)
    loaded = load(tmp_path / "m")
    X, y = vectors("f", "g")
    for model in (clf, loaded):
        model.partial_fit(X, y)
    assert same(loaded, clf)
    assert np.array_equal(loaded.predict_proba(X), clf.predict_proba(X))


@pytest.mark.parametrize("objective", [Triplet(), Softmax()])
def test_loading_leaves_the_global_random_state_alone(make_classifier, vectors, tmp_path, objective):
    make_classifier(objective=objective).fit(*vectors("a", "b")).save(tmp_path / "m")
    before = torch.get_rng_state()
    load(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_of_one_task_continues_too(make_classifier, task_of, tmp_path, same):
    clf = make_classifier().fit(*task_of(0, 1))
    loaded = load(clf.save(tmp_path / "m"))
    assert same(loaded.partial_fit(*task_of(2, 3)), clf.partial_fit(*task_of(2, 3)))


def test_labels_of_every_kind_come_back(make_classifier, vectors, tmp_path):
    for labels in (["Käuzchen 梟", "emu\n\"'"], [-3, 10**12]):
        clf = make_classifier().fit(*vectors(*labels))
        loaded = load(clf.save(tmp_path / str(labels[1]).strip("\n\"'")))
        assert loaded.classes_.tolist() == clf.classes_.tolist()


def test_unlearned_models_cannot_be_saved(make_classifier, tmp_path):
    with pytest.raises(ValueError, match="has not learned anything yet"):
        make_classifier().save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_versions_never_change_and_current_names_the_last(two_clouds, model, vectors, same):
    before = files_of(model)
    assert any(name.startswith("versions/1/") for name in before)
    old = copy.deepcopy(two_clouds)
    two_clouds.partial_fit(*vectors("kea", "tui")).save(model)
    after = files_of(model)
    assert {name: after[name] for name in before if name != "CURRENT"} == {
        name: content for name, content in before.items() if name != "CURRENT"
    }
    assert json.loads(after["CURRENT"])["version"] == 2
    assert same(load(model), two_clouds)
    (model / "CURRENT").write_bytes(before["CURRENT"])
    assert same(load(model), old)


def test_only_safetensors_and_json_are_written(model):
    assert {Path(name).suffix for name in files_of(model)} == {"", ".json", ".safetensors"}
    assert set(json.loads((model / "CURRENT").read_text())) == {
        "format",
        "format_version",
        "version",
        "manifest_sha256",
    }


def test_files_have_the_bytes_that_safetensors_writes(monkeypatch):
    """Also where a tensor is larger than what is held at once, and where tensors share memory or are not contiguous."""
    monkeypatch.setattr(saving, "_PART", 4096)
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(300, 20, generator=generator)
    named = {
        "wide": shared, "turned": shared.T, "again": shared, "doubles": shared.double()[:3], "scalar": torch.tensor(3),
        "none": torch.empty(0, 4), "flags": torch.tensor([True, False]), "half": shared[:2].half(),
        "brain": shared[:2].bfloat16(), "pixels": torch.arange(9, dtype=torch.uint8),
        "words \"ü\"": torch.arange(3).int(),
        "small": torch.arange(3, dtype=torch.int8), "short": torch.arange(5, dtype=torch.int16),
    }  # fmt: skip
    expected = safetensors.torch.save({name: value.contiguous().clone() for name, value in named.items()})
    parts = list(saving.packed_parts(named))
    assert len(parts) > 5
    assert b"".join(parts) == expected


def test_a_backbone_of_the_users_must_be_given_again(make_classifier, vectors, tmp_path, same):
    mine = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    clf = make_classifier(backbone=mine).fit(*vectors("a", "b"))
    clf.save(tmp_path / "m")
    with pytest.raises(
        ModelFileError, match=r"its backbone is one of yours \(Sequential\).*load\(path, backbone=...\)"
    ):
        load(tmp_path / "m")
    with pytest.raises(ModelFileError, match="size mismatch"):
        load(tmp_path / "m", backbone=nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    loaded = load(tmp_path / "m", backbone=nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)))
    assert same(loaded, clf)
    assert same(loaded.partial_fit(*vectors("c", "d")), clf.partial_fit(*vectors("c", "d")))


def test_a_backbone_with_tied_weights_is_saved(make_classifier, vectors, tmp_path, same):
    def tied():
        layer = nn.Linear(6, 6)
        return nn.Sequential(layer, nn.ReLU(), layer)

    clf = make_classifier(backbone=tied()).fit(*vectors("a", "b"))
    assert same(load(clf.save(tmp_path / "m"), backbone=tied()), clf)


def test_a_loss_of_the_users_must_be_given_again(make_classifier, vectors, tmp_path, same):
    clf = make_classifier(objective=MetricLoss(losses.NTXentLoss())).fit(*vectors("a", "b"))
    clf.save(tmp_path / "m")
    with pytest.raises(
        ModelFileError, match=r"its objective is one of yours \(MetricLoss\).*load\(path, objective=...\)"
    ):
        load(tmp_path / "m")
    loaded = load(tmp_path / "m", objective=MetricLoss(losses.NTXentLoss()))
    assert same(loaded.partial_fit(*vectors("c", "d")), clf.partial_fit(*vectors("c", "d")))


def test_kept_images_are_written_only_when_asked_for(make_classifier, vectors, tmp_path, same):
    clf = make_classifier(exemplars=Everything()).fit(*vectors("a", "b"))
    with pytest.raises(InputError, match=r"Everything keeps 24 images.*save\(path, store_images=True\)"):
        clf.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()
    loaded = load(clf.save(tmp_path / "m", store_images=True))
    assert torch.equal(loaded.state_.trained.exemplars.images, clf.state_.trained.exemplars.images)
    assert same(loaded.partial_fit(*vectors("c", "d")), clf.partial_fit(*vectors("c", "d")))


def test_without_a_memory_no_image_is_in_the_files(make_classifier, vectors, tmp_path):
    X, y = vectors("a", "b")
    X[:, 0] = np.float32(1234.5678)
    clf = make_classifier().fit(X, y)
    clf.save(tmp_path / "m", store_images=True)
    assert not any("memory" in name for name in files_of(tmp_path / "m"))
    rows = [row.tobytes() for row in X.astype(np.float32)]
    assert not any(row in content for row in rows for content in files_of(tmp_path / "m").values())


def test_parameters_can_be_set_while_loading(model):
    assert load(model, temperature=3.0).temperature == 3.0
    with pytest.raises(ModelFileError, match=r"no parameter 'temprature'. Did you mean 'temperature'"):
        load(model, temprature=3.0)
    with pytest.raises(ModelFileError, match="temperature=-1 must be greater than 0"):
        load(model, temperature=-1)


def test_a_device_object_is_saved_by_name(make_classifier, vectors, tmp_path):
    clf = make_classifier(device=torch.device("cpu")).fit(*vectors("a", "b"))
    assert load(clf.save(tmp_path / "m")).device == "cpu"


# -- a save path that is something else -------------------------------------------------------------------------------


def test_a_file_in_the_way_is_refused_and_left(two_clouds, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ModelFileError, match=r"is a file, not a model directory. Choose another path"):
        two_clouds.save(tmp_path / "notes.txt")
    with pytest.raises(ModelFileError, match="cannot write the model"):
        two_clouds.save(tmp_path / "notes.txt" / "m")
    assert files_of(tmp_path) == {"notes.txt": b"mine"}


@pytest.mark.parametrize("content", [{"thesis.tex": "x"}, {"a/b": "x"}, {"CURRENT": "not json"}, {"CURRENT": "[1]"}])
def test_a_folder_with_other_things_is_refused_and_left(two_clouds, tmp_path, content):
    for name, text in content.items():
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / name).write_text(text)
    with pytest.raises(ModelFileError, match=r"not a protodrift model \(it holds|CURRENT is damaged"):
        two_clouds.save(tmp_path / "x")
    assert files_of(tmp_path / "x") == {name: text.encode() for name, text in content.items()}
    assert not (tmp_path / "x" / "versions").exists()


def test_another_programs_current_file_is_not_taken_for_ours(two_clouds, tmp_path):
    (tmp_path / "CURRENT").write_text('{"format": "other"}')
    for action in (two_clouds.save, load):
        with pytest.raises(ModelFileError, match="its CURRENT says format 'other'"):
            action(tmp_path)


def test_empty_and_missing_folders_are_filled(two_clouds, tmp_path, same):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "a" / "b" / "c"):
        assert same(load(two_clouds.save(path)), two_clouds)


def test_what_a_killed_first_save_leaves_does_not_block_the_next(two_clouds, tmp_path, same):
    (tmp_path / "m" / "versions" / ".new-1").mkdir(parents=True)
    (tmp_path / "m" / "versions" / ".new-1" / "network.safetensors").write_bytes(b"half")
    (tmp_path / "m" / ".CURRENT.new").write_text("half")
    (tmp_path / "m" / ".lock").touch()
    assert same(load(two_clouds.save(tmp_path / "m")), two_clouds)
    assert not (tmp_path / "m" / "versions" / ".new-1").exists()


# -- damaged and tampered directories ---------------------------------------------------------------------------------


def reseal(path: Path, change=None) -> None:
    """Make all checksums right again, as a careful attacker would; `change` edits the manifest before."""
    folder = path / "versions" / "1"
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in list(manifest["files"]):
        if (folder / name).exists():
            content = (folder / name).read_bytes()
            manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    if change is not None:
        change(manifest)
    data = json.dumps(manifest).encode()
    (folder / "manifest.json").write_bytes(data)
    current = json.loads((path / "CURRENT").read_text())
    current["manifest_sha256"] = hashlib.sha256(data).hexdigest()
    (path / "CURRENT").write_text(json.dumps(current))


def test_resealing_alone_changes_nothing(model, two_clouds, same):
    reseal(model)
    assert same(load(model), two_clouds)


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"there is no model at .*nowhere"):
        load(tmp_path / "nowhere")
    with pytest.raises(ModelFileError, match="is not a protodrift model: it has no CURRENT file"):
        load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ModelFileError, match="is not a protodrift model"):
        load(tmp_path / "file")


def test_every_truncated_or_missing_file_is_found_and_named(model, two_clouds, same):
    whole = files_of(model)
    assert len(whole) >= 5
    for name, content in whole.items():
        for length in (0, 1, len(content) // 2, len(content) - 2):
            (model / name).write_bytes(content[:length])
            with pytest.raises(ModelFileError, match=Path(name).name):
                load(model)
        (model / name).unlink()
        with pytest.raises(ModelFileError, match=Path(name).name):
            load(model)
        (model / name).write_bytes(content)
    assert same(load(model), two_clouds)


def test_every_flipped_byte_is_found(model, two_clouds, same):
    rng = np.random.RandomState(0)
    for name, content in files_of(model).items():
        stripped = len(content.rstrip())  # the newline after CURRENT means nothing
        positions = range(stripped) if name == "CURRENT" else {0, stripped - 1, *rng.randint(0, stripped, 12).tolist()}
        for position in positions:
            for bit in (0, 7):
                changed = bytearray(content)
                changed[position] ^= 1 << bit
                (model / name).write_bytes(changed)
                if name == "CURRENT" and json_or_none(bytes(changed)) == json.loads(content):
                    continue  # a blank that became another blank
                with pytest.raises(ModelFileError):
                    load(model)
        (model / name).write_bytes(content)
    assert same(load(model), two_clouds)


def json_or_none(data: bytes):
    try:
        return json.loads(data)
    except ValueError:
        return None


def test_an_extra_file_is_refused(model):
    (model / "versions" / "1" / "extra.safetensors").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"does not list: \['extra.safetensors'\]. Remove them"):
        load(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 3}, "format version 3, this protodrift reads up to 2. Upgrade protodrift"),
        ({"format_version": 1}, "its CURRENT says format version 1, which it was not written in"),
        ({"format_version": "1"}, "CURRENT is damaged: format version '1'"),
        ({"format_version": 0}, "CURRENT is damaged: format version 0"),
        ({"version": 0}, "CURRENT is damaged: version 0"),
        ({"version": "../../etc"}, r"CURRENT is damaged: version '../../etc'"),
        ({"version": True}, "CURRENT is damaged: version True"),
        ({"version": 7}, r"versions/7/manifest.json is missing"),
        ({"manifest_sha256": None}, "does not match its checksum"),
    ],
)
def test_a_current_file_that_says_something_else_is_refused(model, two_clouds, change, message):
    current = json.loads((model / "CURRENT").read_text())
    (model / "CURRENT").write_text(json.dumps({**current, **change}))
    before = files_of(model)
    with pytest.raises(ModelFileError, match=message):
        load(model)
    if change.get("format_version") not in (None, 1):  # and nothing is written over a model of a newer protodrift
        with pytest.raises(ModelFileError, match=message):
            two_clouds.save(model)
        assert files_of(model) == before


@pytest.mark.parametrize("content", [b"", b"1", b"\x00\xff", b"[" * 100_000, b"{}", b'{"format": "protodrift-model"}'])
def test_garbage_in_current_is_refused(model, content):
    (model / "CURRENT").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"CURRENT"):
        load(model)


@pytest.mark.parametrize(
    "name",
    ["../../../secret.safetensors", "/etc/secret.safetensors", "a/../b.safetensors", "x.pkl", "", "a\0.safetensors"],
)
def test_file_names_in_a_manifest_never_lead_elsewhere(model, name):
    save_file({"x": torch.zeros(1)}, model.parent / "secret.safetensors")
    digest = hashlib.sha256((model.parent / "secret.safetensors").read_bytes()).hexdigest()
    reseal(model, lambda manifest: manifest["files"].update({name: {"sha256": digest, "bytes": 1}}))
    with pytest.raises(ModelFileError, match=r"it lists a file|cannot read"):
        load(model)


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("dump", [lambda v, p: p.write_bytes(pickle.dumps(v)), torch.save], ids=["pickle", "torch"])
@pytest.mark.parametrize("name", ["network", "prototypes", "drift"])
def test_a_pickle_under_another_name_is_refused_and_not_executed(model, tmp_path, name, dump):
    dump({"x": Trap(tmp_path / "executed")}, model / "versions" / "1" / f"{name}.safetensors")
    reseal(model)
    with pytest.raises(ModelFileError, match=f"{name}.safetensors is not a safetensors file"):
        load(model)
    assert not (tmp_path / "executed").exists()


def edit(path: Path, name: str, change) -> None:
    file = path / "versions" / "1" / f"{name}.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    reseal(path)


@pytest.fixture
def held_model(make_classifier, vectors, tmp_path):
    """A model with a penalty and a memory: every kind of file."""
    clf = make_classifier(penalty=EWC(), exemplars=Everything()).partial_fit(*vectors("a", "b"))
    return clf.partial_fit(*vectors("c", "d")).save(tmp_path / "held", store_images=True)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("network", lambda t: t.update({"head.weight": torch.zeros(8, 3)}), "size mismatch for head.weight"),
        (
            "network",
            lambda t: t.update({"head.weight": t["head.weight"].T.contiguous()}),
            "size mismatch for head.weight",
        ),
        ("network", lambda t: t.pop("head.bias"), "Missing key.*head.bias"),
        ("network", lambda t: t.update({"evil": torch.zeros(1)}), "Unexpected key.*evil"),
        ("network", lambda t: t["head.bias"].fill_(float("nan")), "not finite"),
        ("network", lambda t: t["standardize.std"].fill_(float("inf")), "not finite"),
        ("prototypes", lambda t: t.update(means=torch.zeros(3, 8)), r"prototypes of shape \(3, 8\) for 4 classes"),
        ("prototypes", lambda t: t.update(means=torch.zeros(4, 8, dtype=torch.int64)), "prototypes of shape"),
        ("prototypes", lambda t: t["means"].fill_(float("nan")), "not finite"),
        ("prototypes", lambda t: t.update(counts=torch.zeros(5)), "counts and tasks do not fit"),
        ("prototypes", lambda t: t.pop("means"), "lacks 'means'"),
        ("drift", lambda t: t.update(before=torch.zeros(3, 8)), "its drift does not fit"),
        ("drift", lambda t: t.pop("after"), "lacks 'after'"),
        ("penalty0", lambda t: t.update({"head.weight": torch.zeros(3, 8)}), "penalty keeps for head.weight"),
        ("penalty0", lambda t: t["head.weight"].fill_(float("nan")), "penalty keeps for head.weight"),
        ("memory", lambda t: t.update(images=torch.zeros(48, 5)), "images it keeps are not those"),
        ("memory", lambda t: t.update(images=torch.zeros(3, 6)), "3 images but 48 labels"),
    ],
)
def test_tensors_that_do_not_belong_together_are_refused_even_with_right_checksums(held_model, file, change, message):
    edit(held_model, file, change)
    with pytest.raises(ModelFileError, match=message):
        load(held_model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["labels"].reverse(), "its labels are not those of its tasks"),
        (lambda m: m["labels"].__setitem__(0, 1.5), "its labels are not those of its tasks"),
        (lambda m: m.pop("input"), "lacks 'input'"),
        (lambda m: m.pop("files"), "does not list its files"),
        (lambda m: m["files"].pop("network.safetensors"), "network"),
        (lambda m: m["input"].update(shape=[7]), "size mismatch"),
        (lambda m: m["input"].update(shape="x"), "cannot be used"),
        (lambda m: m["fixed"].update(embedding_dim=10**15), "cannot be used"),
        (lambda m: m["fixed"].update(backbone="os.system"), "unknown backbone 'os.system'"),
        (lambda m: m["parameters"].update(readout=5), "readout must be"),
        (lambda m: m["parameters"].update(drift={"type": "Popen"}), "unknown configuration type 'Popen'"),
        (lambda m: m["parameters"].update(drift={"type": "SDC", "sigma": -1}), "sigma=-1 must be greater than 0"),
        (
            lambda m: m["parameters"].update(drift={"type": "SDC", "sgima": 1}),
            "no option 'sgima'. Did you mean 'sigma'",
        ),
        (lambda m: m["parameters"].update(surprise=1), "surprise"),
        (lambda m: m["parameters"].update(device="nowhere"), "device 'nowhere' cannot be used here"),
        (lambda m: m.update(kept=99), "lacks 'penalty1'"),
        (lambda m: m.update(tasks=None), "cannot be used"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused_even_with_right_checksums(held_model, change, message):
    reseal(held_model, change)
    with pytest.raises(ModelFileError, match=message):
        load(held_model)


# -- disks that fail --------------------------------------------------------------------------------------------------


@contextmanager
def read_only(path: Path):
    """Mount a read-only view over `path`, or give a place where nobody can write."""
    possible = shutil.which("mount") and shutil.which("umount")
    made = bool(possible) and subprocess.run(["mount", "--bind", path, path], capture_output=True).returncode == 0
    if made and subprocess.run(["mount", "-o", "remount,bind,ro", path], capture_output=True).returncode == 0:
        try:
            yield path
        finally:
            subprocess.run(["umount", path], check=True)
    else:
        if made:
            subprocess.run(["umount", path], check=True)
        yield Path("/proc/protodrift")  # not even root writes there


def test_a_read_only_disk_is_an_error_and_the_old_version_still_loads(two_clouds, model, vectors, same):
    old = copy.deepcopy(two_clouds)
    two_clouds.partial_fit(*vectors("kea", "tui"))
    with read_only(model) as path:
        with pytest.raises(ModelFileError, match=r"cannot write the model to .*Check that the disk is writable"):
            two_clouds.save(path)
        with pytest.raises(ModelFileError, match="cannot write the model to"):
            two_clouds.save(path / "deeper")
        assert same(load(model), old)
    assert same(load(two_clouds.save(model)), two_clouds)


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("lasting", [True, False], ids=["for good", "once"])
@pytest.mark.parametrize("function", ["fsync", "rename", "replace", "open", "mkdir", "write"])
@pytest.mark.parametrize("raised", [FULL, KeyboardInterrupt()], ids=["full disk", "Ctrl-C"])
def test_a_fault_at_any_moment_leaves_the_old_version_whole(
    two_clouds, model, vectors, same, monkeypatch, function, raised, lasting
):
    old = copy.deepcopy(two_clouds)
    two_clouds.partial_fit(*vectors("kea", "tui"))
    before, told = files_of(model), []
    for at in range(1, 99):
        with monkeypatch.context() as patch:
            calls = fault(patch, function, at, raised, lasting)
            try:
                two_clouds.save(model)
            except KeyboardInterrupt:
                pass
            except ModelFileError as error:
                told.append(str(error))
            else:
                if len(calls) < at:  # this save was over before the fault
                    break
                old, before = copy.deepcopy(two_clouds), files_of(model)  # a fault that does not matter
        assert len(calls) >= at
        assert same(load(model), old)
        assert {name: content for name, content in files_of(model).items() if name in before} == before
    assert all("No space left on device. What was there before is unchanged" in text for text in told)
    assert 1 < at < 99  # the fault happened, and every moment of a save was tried
    assert same(load(model), two_clouds)
    shutil.rmtree(model)
    assert same(load(two_clouds.save(model)), two_clouds)


def fault(patch, function, at, raised, lasting):
    """Let the `at`-th call of a system function raise (and all later ones if it is lasting)."""
    import builtins

    calls = []
    module = builtins if function in ("open", "write") else os
    real = getattr(module, "open" if function == "write" else function)

    def now():
        calls.append(1)
        return len(calls) >= at if lasting else len(calls) == at

    def wrapped(*args, **kwargs):
        writing = module is os or (len(args) > 1 and "w" in args[1])
        if function != "write":
            if writing and now():
                raise raised
            return real(*args, **kwargs)
        file = real(*args, **kwargs)
        if writing and now():
            file.write(b"half")
            file.close()
            raise raised
        return file

    patch.setattr(module, "open" if function == "write" else function, wrapped)
    return calls


@pytest.mark.parametrize("function", ["fsync", "rename", "replace"])
def test_a_fault_in_the_first_save_leaves_a_path_that_can_be_saved_to(
    two_clouds, tmp_path, same, monkeypatch, function
):
    with monkeypatch.context() as patch:
        fault(patch, function, 1, FULL, True)
        with pytest.raises(ModelFileError, match="No space left on device"):
            two_clouds.save(tmp_path / "m")
    with pytest.raises(ModelFileError, match="is not a protodrift model"):
        load(tmp_path / "m")
    assert same(load(two_clouds.save(tmp_path / "m")), two_clouds)


def test_a_writer_that_was_killed_is_cleaned_up_after(two_clouds, model, same):
    draft = model / "versions" / ".new-2"
    draft.mkdir()
    (draft / "network.safetensors").write_bytes(b"half")
    assert same(load(model), two_clouds)
    assert same(load(two_clouds.save(model)), two_clouds)
    assert sorted(p.name for p in (model / "versions").iterdir()) == ["1", "2"]


def test_a_second_writer_is_told_to_wait(two_clouds, model, same):
    before = files_of(model)
    with FileLock(model / ".lock"), pytest.raises(ModelFileError, match=r"another process is writing to .*Try again"):
        two_clouds.save(model)
    assert files_of(model) == before
    two_clouds.save(model)


def test_a_writer_in_another_process_is_waited_for(two_clouds, model, same):
    script = f"""
import sys
from filelock import FileLock
with FileLock({str(model / ".lock")!r}):
    print("locked", flush=True)
    sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(ModelFileError, match="another process is writing"):
            two_clouds.save(model)
        assert same(load(model), two_clouds)  # readers never wait
    finally:
        process.communicate("")
    two_clouds.save(model)


def test_a_reader_that_started_before_a_save_reads_the_old_version_whole(two_clouds, model, vectors, same, monkeypatch):
    old = copy.deepcopy(two_clouds)
    two_clouds.partial_fit(*vectors("kea", "tui"))
    from protodrift.common import tensorfiles as saving

    real, saved = saving._bytes, []

    def slow(path):
        content = real(path)
        if path.name == "CURRENT" and not saved:
            saved.append(1)
            two_clouds.save(model)  # a writer comes between the reader's two looks
        return content

    monkeypatch.setattr(saving, "_bytes", slow)
    assert same(load(model), old)
    assert same(load(model), two_clouds)
