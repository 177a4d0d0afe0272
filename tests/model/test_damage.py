"""Damaged and tampered model directories are refused, and paths that hold something else are left alone."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from protodrift import EWC, Everything, IncrementalClassifier
from protodrift.errors import ModelFileError
from tests.model.directories import files_of, reseal

load = IncrementalClassifier.load


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
        ({"format_version": 2}, "format version 2, this protodrift reads up to 1. Upgrade protodrift"),
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
    if "format_version" in change:  # and nothing is written over a model of a newer protodrift
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
        ("penalty_state0", lambda t: t.update({"head.weight": torch.zeros(3, 8)}), "penalty keeps for head.weight"),
        ("penalty_state0", lambda t: t["head.weight"].fill_(float("nan")), "penalty keeps for head.weight"),
        ("exemplars", lambda t: t.update(images=torch.zeros(48, 5)), "images it keeps are not those"),
        ("exemplars", lambda t: t.update(images=torch.zeros(3, 6)), "3 images but 48 labels"),
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
        (lambda m: m["labels"].__setitem__(0, 1.5), "is neither a name nor a whole number"),
        (lambda m: m.pop("input"), "lacks 'input'"),
        (lambda m: m.pop("files"), "does not list its files"),
        (lambda m: m["files"].pop("network.safetensors"), "network"),
        (lambda m: m["input"].update(shape=[7]), "size mismatch"),
        (lambda m: m["input"].update(shape="x"), "shape: must be a list"),
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
        (lambda m: m["parameters"].update(device="nowhere"), "device='nowhere' cannot be used here"),
        (lambda m: m.update(penalty_states=9), "lacks 'penalty_state1'"),
        (lambda m: m.update(tasks=None), "tasks: must be a list"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused_even_with_right_checksums(held_model, change, message):
    reseal(held_model, change)
    with pytest.raises(ModelFileError, match=message):
        load(held_model)
