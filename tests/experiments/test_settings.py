"""`--set`, `--sweep` and recipes from files."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from protodrift import EWC, SDC, LwF, Method
from protodrift.common.machine import device
from protodrift.data import load_digits
from protodrift.drift import Gated, LocalLinear
from protodrift.errors import InputError
from protodrift.experiment import recipe_of
from protodrift.experiments.recipes import RECIPES, get_recipe
from protodrift.experiments.settings import read_part, read_recipe, swept, toml_text, with_settings
from protodrift.model import defaults


@pytest.fixture
def two():
    return get_recipe("digits").only(["E-FT", "E-FT+SDC"])


def test_a_part_of_every_row_is_set_and_equal_rows_are_one(two):
    changed = with_settings(two, {"drift": "LocalLinear"}).methods
    assert list(changed) == ["E-FT drift=LocalLinear"]
    assert changed["E-FT drift=LocalLinear"].drift == LocalLinear()
    assert with_settings(two.only(["E-FT"]), {"drift": "null"}) == two.only(["E-FT"])
    held = with_settings(two, {"penalty": "(EWC(gamma=10), LwF(2))"}).methods
    assert list(held) == ["E-FT penalty=(EWC(gamma=10), LwF(2))", "E-FT+SDC penalty=(EWC(gamma=10), LwF(2))"]
    assert {method.penalties for method in held.values()} == {(EWC(10), LwF(2))}


def test_a_value_in_a_part_is_set_by_the_axis_also_in_a_part_of_a_part(two):
    assert with_settings(two, {"drift.sigma": "0.7"}).methods == {**two.methods, "E-FT+SDC": _moved(two, SDC(0.7))}
    gated = with_settings(with_settings(two, {"drift": "Gated(SDC(0.3))"}), {"drift.sigma": "0.7"})
    assert [method.drift for method in gated.methods.values()] == [Gated(SDC(0.7))]


def _moved(recipe, drift) -> Method:
    return with_settings(recipe.only(["E-FT"]), {"drift": f"SDC({drift.sigma})"}).rows[0][1]


def test_a_sweep_is_read_outs_of_one_training(two):
    rows = swept(two, {"drift.sigma": "0.1,0.2,0.3"}).methods
    assert list(rows) == ["E-FT", "E-FT+SDC sigma=0.1", "E-FT+SDC sigma=0.2", "E-FT+SDC sigma=0.3"]
    assert [method.drift for method in rows.values()] == [None, SDC(0.1), SDC(0.2), SDC(0.3)]
    recipe = with_settings(swept(two, {"sigma": "0.1,0.2"}), {"tasks": "2", "training.epoch": "released"})
    results = recipe.tree(recipe.stream(load_digits())).run(recipe.methods)
    trainings = {key for result in results.values() for key in result.to_json()["trainings"]}
    assert len(results) == 3
    assert len(trainings) == 2
    crossed = swept(two.only(["E-FT"]), {"drift": "SDC,Ridge", "penalty": "null,EWC(1e5)"}).methods
    assert len(crossed) == 4


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("training.epochs", "1,2", "no part of a method"),
        ("drift.sigmma", "1", r"no setting 'drift.sigmma'"),
        ("drift", "SCD", "import the module that defines SCD"),
        ("drift", "SDC(sigma=-1)", "E-FT: SDC: sigma=-1 must be"),
        ("drift", "SDC(sigmas=1)", "no option 'sigmas'"),
        ("drift", "SDC(1, 2, 3, 4, 5, 6)", "options, got 6"),
        ("drift", "SDC(", "is not a part"),
        ("drift", "__import__('os').getcwd()", "is not a part"),
        ("drift", "EWC", "E-FT: drift must be of kind Drift"),
    ],
)
def test_what_cannot_be_swept_is_said(two, key, value, said):
    with pytest.raises(InputError, match=said):
        swept(two, {key: value})


def test_a_setting_of_a_method_that_is_not_selected_says_so(two):
    everything = get_recipe("digits").methods
    with pytest.raises(InputError, match=r"'MAS.gamma' is one of E-MAS, .*--methods leaves them out"):
        with_settings(two, {"MAS.gamma": "1"}, everything)
    with pytest.raises(InputError, match=r"'gamma' is one of .*--methods leaves them out"):  # LwM has two of them
        with_settings(two, {"gamma": "1"}, everything)
    with pytest.raises(InputError, match=r"has no setting 'MAS.gamma'"):
        with_settings(two, {"MAS.gamma": "1"})


def test_parts_are_read_and_nothing_is_executed():
    assert read_part("[EWC, LwF(gamma=2.0)]") == (EWC(), LwF(2.0))
    assert read_part("null") is None
    with pytest.raises(InputError, match="unknown configuration type 'print'"):
        read_part("print('hello')")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_the_same_from_a_file(name, tmp_path):
    recipe = get_recipe(name)
    (tmp_path / "r.toml").write_text(toml_text(recipe.resolved()))
    (tmp_path / "r.json").write_text(json.dumps(recipe.resolved()))
    assert read_recipe(tmp_path / "r.toml") == read_recipe(tmp_path / "r.json") == recipe


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = ", "is not a recipe"),
        ("name = 'x'", "no rows"),
        ("name = 'x'\nabout = ''\ndata = 'digits'\ntaks = 3\n[rows.a]\n", "no option 'taks'"),
        ("name = 'x'\n[rows.a]\n", "about"),
        ("name = 'x'\nabout = ''\ndata = 'digits'\n[rows.a]\ndrift = {type = 'SCD'}\n", "unknown configuration"),
    ],
)
def test_a_file_that_is_no_recipe_says_why(text, said, tmp_path):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(InputError, match=said):
        read_recipe(tmp_path / "r.toml")


def test_a_folder_needs_no_options(tmp_path, monkeypatch):
    for label in "abcd":
        (tmp_path / label).mkdir()
        for at in range(5):
            Image.new("RGB", (20, 20)).save(tmp_path / label / f"{at}.png")
    monkeypatch.setattr(defaults, "pretrained_installed", lambda: True)
    photos = recipe_of("folder", data=tmp_path)
    assert (photos.network.backbone, photos.size, photos.tasks) == (defaults.BACKBONE, defaults.PHOTO_SIZE, 2)
    assert photos.training.learning_rate == 3e-5
    assert {"E-Pre", "SLDA", "E-EWC+oracle", "E-FT+gated", "E-FT+local"} <= set(photos.methods)
    assert photos.methods["E-EWC"].penalties == (EWC(gamma=1e6),)
    assert {method.schedule.batch_norm for method in photos.methods.values()} == {"pretrained"}
    monkeypatch.setattr(defaults, "pretrained_installed", lambda: False)
    plain = recipe_of("folder", data=tmp_path)
    assert (plain.network.backbone, plain.size, plain.training.epochs) == ("auto", defaults.PLAIN_SIZE, 100)


def test_devices_by_name(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert device() == device("cpu") == "cpu"
    assert device("meta") == "meta"
    with pytest.raises(InputError, match="device 'gpu' cannot be used here"):
        device("gpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert device("auto") == "cuda"
