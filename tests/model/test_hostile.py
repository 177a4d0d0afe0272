"""Models with right checksums and wrong content: an error of ours, in little memory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from protodrift import EWC, Everything, IncrementalClassifier, StreamingLDA
from protodrift.errors import ModelFileError, ProtodriftError
from protodrift.model.audit import audit, class_bytes
from protodrift.model.facts import classes_document, inspected
from protodrift.networks.build import BACKBONES
from tests.model.directories import reseal
from tests.model.mutations import mutate

MOST_BYTES = 200 * 2**20
"""That reading a model of a few kilobytes may take beyond what the process has."""


def peak() -> int:
    """Return the most bytes this process ever had."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


@pytest.fixture(scope="module")
def hostile_models(make_classifier, vectors, tmp_path_factory):
    """Models with every kind of file: importances and exemplars, a read-out that learns, classification heads."""
    root = tmp_path_factory.mktemp("hostile")
    held = make_classifier(penalty=EWC(gamma=1e3), exemplars=Everything()).partial_fit(*vectors("owl", "emu"))
    held.partial_fit(*vectors("jay", "ibis")).save(root / "held", store_images=True)
    learned = make_classifier(readout=StreamingLDA()).partial_fit(*vectors("owl", "emu"))
    learned.partial_fit(*vectors("jay", "ibis")).save(root / "learned")
    return [root / "held", root / "learned"]


def use(path: Path) -> str:
    """Do what commands do with a model; return how it ended. Anything but an error of ours is raised."""
    X = np.random.RandomState(0).randn(3, 6)
    try:
        clf = IncrementalClassifier.load(path)
        clf.recognize(X)
        clf.predict(X)
        audit(path)
        inspected(clf, class_bytes(clf.state_))
        json.dumps(classes_document(1, clf.state_))
    except ProtodriftError as error:
        return type(error).__name__
    return "used"


def attack(models: list[Path], folder: Path, seeds: range) -> dict[str, int]:
    """Use mutations of the models; return how often each ending was met."""
    ends: dict[str, int] = {}
    for seed in seeds:
        copy = folder / "copy"
        shutil.copytree(models[seed % len(models)], copy)
        done = mutate(copy, seed)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                end = use(copy)
        except BaseException as error:
            raise AssertionError(f"mutation {seed} ({done}): {type(error).__name__}: {error}") from error
        ends[end] = ends.get(end, 0) + 1
        shutil.rmtree(copy)
    return ends


def test_mutated_models_end_in_an_error_of_ours_in_little_memory(hostile_models, tmp_path):
    attack(hostile_models, tmp_path, range(2))  # what is allocated once
    before = peak()
    ends = attack(hostile_models, tmp_path, range(2, 150))
    assert ends["ModelFileError"] > 100
    assert peak() - before < MOST_BYTES


@pytest.mark.slow
def test_two_thousand_mutated_models(hostile_models, tmp_path):
    before = peak()
    ends = attack(hostile_models, tmp_path, range(150, 2150))
    print(ends, f"{(peak() - before) // 2**20} MiB")
    assert sum(ends.values()) == 2000
    assert peak() - before < MOST_BYTES


def edited(model: Path, folder: Path, change) -> Path:
    copy = folder / "copy"
    shutil.copytree(model, copy)
    reseal(copy, change)
    return copy


def test_a_small_manifest_cannot_ask_for_a_large_network(hostile_models, tmp_path):
    before = peak()
    path = edited(hostile_models[0], tmp_path, lambda m: m["fixed"].update(embedding_dim=10**6))
    with pytest.raises(ModelFileError, match=r"size mismatch for head\.weight"):
        IncrementalClassifier.load(path)
    assert peak() - before < MOST_BYTES


@pytest.mark.parametrize("backbone", sorted(BACKBONES))
def test_every_backbone_is_compared_with_its_file_before_it_is_built(backbone):
    """On the meta device, which has no memory; also what it says about its features."""
    from protodrift.data import InputSpec
    from protodrift.networks.build import build_embedder

    spec = InputSpec((6,), "free", 0.0, 1.0) if backbone == "mlp" else InputSpec((3, 32, 32), "uint8", 0.0, 255.0)
    with torch.device("meta"):
        shape = build_embedder(backbone, spec, embedding_dim=8)
    real = build_embedder(backbone, spec, embedding_dim=8)
    assert {n: (v.shape, v.dtype) for n, v in shape.state_dict().items()} == {
        n: (v.shape, v.dtype) for n, v in real.state_dict().items()
    }


@pytest.mark.parametrize("name", ["manifest.json", "network.safetensors", "CURRENT"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_refused_without_waiting(hostile_models, tmp_path, name, kind):
    path = edited(hostile_models[0], tmp_path, None)
    file = path / name if name == "CURRENT" else path / "versions" / "1" / name
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    with pytest.raises(ModelFileError):
        IncrementalClassifier.load(path)


def test_files_larger_than_the_memory_and_long_headers_are_refused_unread(hostile_models, tmp_path):
    path = edited(hostile_models[0], tmp_path, None)
    file = path / "versions" / "1" / "network.safetensors"
    with open(file, "r+b") as opened:
        opened.truncate(2**42)  # a hole: it takes no space
    manifest = json.loads((file.parent / "manifest.json").read_text())
    manifest["files"][file.name]["bytes"] = 2**42
    data = json.dumps(manifest, indent=1).encode()
    (file.parent / "manifest.json").write_bytes(data)
    current = json.loads((path / "CURRENT").read_text())
    (path / "CURRENT").write_text(json.dumps({**current, "manifest_sha256": hashlib.sha256(data).hexdigest()}))
    with pytest.raises(ModelFileError, match=r"has 4,398\.0 GB, and this machine has"):
        IncrementalClassifier.load(path)
    file.write_bytes((2**25).to_bytes(8, "little") + b" " * 100)
    reseal(path)
    with pytest.raises(ModelFileError, match="a header of more than"):
        IncrementalClassifier.load(path)
    (path / "CURRENT").write_bytes(b" " * (2**26 + 1))
    with pytest.raises(ModelFileError, match="at most 67,108,864 make sense"):
        IncrementalClassifier.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(note="smuggled"), "the field 'note'"),
        (lambda m: m["tasks"][0].update(photo="smuggled"), r"tasks: \[0\] holds what no model has, the field 'photo'"),
        (lambda m: m["input"].update(author="x"), "the field 'author'"),
        (lambda m: m["made_with"].update(torch="a b"), "must be a short word"),
        (lambda m: m["fixed"].pop("standardize"), "standardize"),
        (lambda m: m["fixed"].update(pixels="smuggled"), "the field 'pixels'"),
        (lambda m: m["labels"].__setitem__(0, ""), r"labels: \[0\] is empty"),
        (lambda m: m["labels"].__setitem__(0, "a\0b"), "holds a zero character"),
        (lambda m: m["labels"].__setitem__(0, "\ud800"), "is not valid Unicode"),
        (lambda m: m["tasks"][1]["drift"][0].__setitem__(1, -1), "drift: .*must be at least 0"),
        (lambda m: m["last_task"]["history"][0].update(loss=None), "must be a finite number"),
        (lambda m: m["tasks"][0]["images"].pop(), "do not count their images"),
    ],
)
def test_a_manifest_says_what_it_must_and_nothing_more(hostile_models, tmp_path, change, message):
    with pytest.raises(ModelFileError, match=message):
        IncrementalClassifier.load(edited(hostile_models[0], tmp_path, change))


def test_bytes_between_the_fields_of_a_manifest_are_refused(hostile_models, tmp_path):
    path = edited(hostile_models[0], tmp_path, None)
    file = path / "versions" / "1" / "manifest.json"
    for data in (
        file.read_bytes() + b"\n",
        file.read_bytes().replace(b"{", b'{"labels": ["hidden"],', 1),
        file.read_bytes().replace(b'"note": ""', b'"note": "\\u0041"', 1),
    ):
        file.write_bytes(data)
        current = json.loads((path / "CURRENT").read_text())
        (path / "CURRENT").write_text(json.dumps({**current, "manifest_sha256": hashlib.sha256(data).hexdigest()}))
        with pytest.raises(ModelFileError, match="not written as a manifest is"):
            IncrementalClassifier.load(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("file", "tensor"), [("drift", "before"), ("drift", "after"), ("readout_state", "scatter.triangle")]
)
def test_values_that_are_no_numbers_are_refused(hostile_models, tmp_path, value, file, tensor):
    path = edited(hostile_models[1], tmp_path, None)
    name = path / "versions" / "1" / f"{file}.safetensors"
    tensors = load_file(name)
    tensors[tensor].view(-1)[0] = value
    save_file(tensors, name)
    reseal(path)
    with pytest.raises(ModelFileError, match="does not fit its classes"):
        IncrementalClassifier.load(path)


def test_a_triangle_of_another_length_is_refused(hostile_models, tmp_path):
    path = edited(hostile_models[1], tmp_path, None)
    name = path / "versions" / "1" / "readout_state.safetensors"
    tensors = load_file(name)
    save_file({**tensors, "scatter.triangle": tensors["scatter.triangle"][:-1].clone()}, name)
    reseal(path)
    with pytest.raises(ModelFileError):
        IncrementalClassifier.load(path)


def test_metadata_of_a_tensor_file_is_refused(hostile_models, tmp_path):
    path = edited(hostile_models[0], tmp_path, None)
    name = path / "versions" / "1" / "prototypes.safetensors"
    save_file(load_file(name), name, metadata={"photo": "smuggled"})
    reseal(path)
    with pytest.raises(ModelFileError, match="holds bytes that are no tensors"):
        IncrementalClassifier.load(path)


@pytest.mark.parametrize("name", [".DS_Store", "Thumbs.db", "desktop.ini", "._manifest.json"])
def test_what_an_operating_system_leaves_is_tolerated_and_reported(hostile_models, tmp_path, name):
    path = edited(hostile_models[0], tmp_path, None)
    shutil.rmtree(path)
    shutil.copytree(hostile_models[0], path)
    (path / "versions" / "1" / name).write_bytes(b"x")
    assert use(path) == "used"
    (found,) = audit(path).foreign
    assert (found.name, found.what) == (f"versions/1/{name}", "left by the operating system; it can be removed")
