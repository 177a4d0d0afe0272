"""`protodrift merge` as a user meets it."""

from __future__ import annotations

import shutil

import pytest

from protodrift import IncrementalClassifier
from protodrift.cli import main
from tests.cli.photo_models import frozen_model, photos
from tests.model.directories import files_of


@pytest.fixture
def shops(tmp_path, monkeypatch):
    """Two copies of one model, each taught a class of its own and more photos of red."""
    monkeypatch.chdir(tmp_path)
    frozen_model(tmp_path / "shop1", photos(tmp_path / "first", "red", "green"))
    shutil.copytree(tmp_path / "shop1", tmp_path / "shop2")
    for shop, name, seed in (("shop1", "blue", 1), ("shop2", "white", 2)):
        photos(tmp_path / f"more{seed}", name, "red", count=3, seed=seed)
        assert main(["learn", shop, f"more{seed}", "--known", "refresh", "--quiet"]) == 0
    return tmp_path


def test_two_shops_become_one_model(shops, capsys):
    capsys.readouterr()
    assert main(["merge", "shop1", "shop2", "--out", "all"]) == 0
    said = capsys.readouterr().out
    assert "shop2: 1 new class; 2 classes in both, merged by counts: green, red; what both were copied from" in said
    assert "all is version 1 with 4 classes from 24 photos" in said
    whole = IncrementalClassifier.load("all").state_.prototypes
    assert dict(zip(whole.labels, whole.counts.tolist(), strict=True)) == {"green": 6, "red": 12, "blue": 3, "white": 3}
    assert main(["inspect", "all"]) == 0
    assert "every byte is accounted for" in capsys.readouterr().out
    assert main(["predict", "all", "more1", "more2"]) == 0


def test_what_cannot_be_merged_is_one_line_and_changes_nothing(shops, capsys):
    frozen_model(shops / "shop3", photos(shops / "third", "gray", "white", seed=5))
    before = files_of(shops)
    capsys.readouterr()
    for args, said in (
        (
            ("shop1", "shop3", "--out", "all"),
            "shop3 cannot be merged with shop1: their networks differ: each standardizes",
        ),
        (("shop1", "nowhere", "--out", "all"), "there is no model at nowhere"),
        (("shop1", "--out", "all"), "merging needs two models or more"),
        (("shop1", "shop2", "--out", "first"), "first exists and is not a protodrift model"),
    ):
        assert main(["merge", *args]) == 1
        assert said in capsys.readouterr().err
        assert files_of(shops) == before
