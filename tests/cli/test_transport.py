"""`protodrift transport` as a user meets it."""

from __future__ import annotations

import json

import numpy as np
import pytest


@pytest.fixture
def files(tmp_path):
    """Pairs and a store whose new model is a rotation of the old one."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    old, store = rng.normal(size=(300, 5)).astype(np.float32), rng.normal(size=(60, 5)).astype(np.float32)
    for name, array in {"a": old, "b": (old @ turn).astype(np.float32), "s": store}.items():
        np.save(tmp_path / f"{name}.npy", array)
    return store @ turn


ARGS = ("transport", "--pairs-old", "a.npy", "--pairs-new", "b.npy", "--vectors", "s.npy", "--out", "o.npy")


def test_it_moves_and_reports(command, files, tmp_path):
    done = command(*ARGS, "--reembed", 5)
    assert done.returncode == 0, done
    for part in (
        "moved 60 vectors to o.npy: 5 -> 5 numbers, float32",
        "Recall@10",
        "unmoved",
        "re-embedded",
        "gap from",
    ):
        assert part in done.stdout
    assert np.abs(np.load(tmp_path / "o.npy") - files).mean() < 0.1
    assert np.load(tmp_path / "o.npy.reembed.npy").shape == (5,)


def test_json(command, files):
    said = json.loads(command(*ARGS, "--json", "--no-uncertainty").stdout)
    assert said["vectors"] == 60
    assert said["moved"]["recall"]["10"] > 0.9 > said["unmoved"]["recall"]["10"]
    assert said["uncertainty"] is None


@pytest.mark.usefixtures("files")
def test_it_does_not_overwrite(fails, tmp_path):
    (tmp_path / "o.npy").write_bytes(b"mine")
    assert "already there" in fails(*ARGS)
    assert (tmp_path / "o.npy").read_bytes() == b"mine"
    assert "there is no file" in fails(*ARGS[:-3], "t.npy", "--out", "p.npy")
