"""Recipes: single values set by name, wrong ones explained, and everything written down."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from protodrift import EWC, SDC
from protodrift.config import decode
from protodrift.errors import InputError
from protodrift.recipes import RECIPES, get_recipe, with_settings
from protodrift.trainer import Training


@pytest.fixture
def digits_recipe():
    return get_recipe("digits")


def parts(recipe, kind):
    """Every object of a kind in a recipe's methods."""
    for method in recipe.methods.values():
        for part in (method.objective, *method.penalties, method.memory, method.drift, method.readout, method.schedule):
            if type(part) is kind:
                yield part


def test_sigma_reaches_every_sdc_and_nothing_else(digits_recipe):
    changed = with_settings(digits_recipe, {"sigma": "0.2"})
    assert len(list(parts(changed, SDC))) == len(list(parts(digits_recipe, SDC))) >= 4
    assert {part.sigma for part in parts(changed, SDC)} == {0.2}
    assert {part.sigma for part in parts(digits_recipe, SDC)} == {0.3}  # the recipe itself is as it was
    for name, method in changed.methods.items():
        if not isinstance(method.drift, SDC):
            assert method == digits_recipe.methods[name]
    assert changed.training == digits_recipe.training


def test_a_gamma_is_set_for_its_own_penalty(digits_recipe):
    changed = with_settings(digits_recipe, {"EWC.gamma": "1e6"})
    assert {part.gamma for part in parts(changed, EWC)} == {1e6}
    assert changed.methods["E-LwF"] == digits_recipe.methods["E-LwF"]
    assert changed.methods["E-MAS"] == digits_recipe.methods["E-MAS"]


def test_training_and_the_split_are_set_by_name(digits_recipe):
    changed = with_settings(digits_recipe, {"training.epochs": "7", "training.learning_rate": "3e-4", "tasks": "2"})
    assert (changed.training.epochs, changed.training.learning_rate, changed.tasks) == (7, 3e-4, 2)
    assert changed.rows == digits_recipe.rows
    assert with_settings(digits_recipe, {"training.later_learning_rate": "null"}).training.later_learning_rate is None
    assert with_settings(digits_recipe, {"network.backbone": "resnet18"}).network.backbone == "resnet18"
    assert with_settings(digits_recipe, {"class_order": "3"}).class_order == 3


def test_settings_follow_one_another(digits_recipe):
    changed = with_settings(digits_recipe, {"sigma": "0.2", "EWC.gamma": "10", "Triplet.margin": "0.5"})
    method = changed.methods["E-EWC+SDC"]
    assert (method.drift.sigma, method.penalties[0].gamma, method.objective.margin) == (0.2, 10, 0.5)


def test_a_name_that_several_things_have_names_the_choices(digits_recipe):
    with pytest.raises(InputError, match="not clear") as error:
        with_settings(digits_recipe, {"gamma": "1"})
    for choice in ("EWC.gamma", "LwF.gamma", "MAS.gamma"):
        assert choice in str(error.value)


@pytest.mark.parametrize(
    ("key", "meant"),
    [("sigm", "sigma"), ("EWC.gama", "EWC.gamma"), ("training.epoch_s", "training.epochs"), ("task", "tasks")],
)
def test_an_unknown_name_is_answered_with_the_nearest(digits_recipe, key, meant):
    with pytest.raises(InputError, match=f"has no setting '{key}'. Did you mean '{meant}'"):
        with_settings(digits_recipe, {key: "1"})


@pytest.mark.parametrize("key", ["name", "about", "data", "rows", "recipe.rows"])
def test_what_makes_the_recipe_cannot_be_set(digits_recipe, key):
    with pytest.raises(InputError, match="has no setting"):
        with_settings(digits_recipe, {key: "x"})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("sigma", "0", "greater than 0"),
        ("sigma", "wide", "'wide' must be a finite number"),
        ("sigma", "NaN", "finite number"),
        ("training.epochs", "2.5", "2.5 must be a whole number"),
        ("training.epochs", "-1", "at least 0"),
        ("training.epoch", "fulll", "Did you mean 'full'"),
        ("tasks", "0", "at least 1"),
        ("tasks", "true", "whole number"),
        ("test_fraction", "1", "between 0.01 and 0.9"),
        ("class_order", "-3", "at least 0"),
        ("Schedule.train", "frist", "Did you mean 'first'"),
    ],
)
def test_a_value_that_does_not_fit_is_explained(digits_recipe, key, value, said):
    with pytest.raises(InputError, match=said) as error:
        with_settings(digits_recipe, {key: value})
    assert key.rsplit(".", maxsplit=1)[-1] in str(error.value)


def test_a_second_way_to_cut_the_classes_is_refused_not_ignored(digits):
    for name, key in (("digits-2d", "tasks"), ("digits", "first")):
        recipe = with_settings(get_recipe(name), {key: "5"})
        with pytest.raises(InputError, match="one way"):
            recipe.stream(digits)
    recipe = with_settings(get_recipe("digits"), {"tasks": "null", "first": "4", "step": "3"})
    assert recipe.stream(digits).split == "4 + 2x3"


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_resolved_recipe_is_json_and_complete(name):
    recipe = get_recipe(name)
    resolved = recipe.resolved()
    again = json.loads(json.dumps(resolved, allow_nan=False))
    assert again == resolved
    for key in ("name", "about", "data", "tasks", "class_order", "size", "test_fraction", "network", "training"):
        assert key in again
    assert list(again["rows"]) == list(recipe.methods)
    for row, method in recipe.methods.items():
        assert decode(again["rows"][row]) == method  # nothing is left out
    assert decode(again["training"]) == recipe.training
    assert decode(again["network"]) == recipe.network
    assert set(again["training"]) == {"type", *(field.name for field in fields(Training))}


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_says_what_it_is_in_one_line(name):
    about = get_recipe(name).about
    assert about
    assert "\n" not in about
    assert get_recipe(name).name == name


def test_an_unknown_recipe_or_method_is_answered_with_the_nearest(digits_recipe):
    with pytest.raises(InputError, match=r"unknown recipe 'digit'\. Did you mean 'digits'"):
        get_recipe("digit")
    with pytest.raises(InputError, match=r"no method 'E-EWC\+SCD'. Did you mean 'E-EWC\+SDC'"):
        digits_recipe.only(["E-FT", "E-EWC+SCD"])


def test_only_keeps_the_order_asked_for_and_each_method_once(digits_recipe):
    assert list(digits_recipe.only(["E-LwF", "E-FT", "E-LwF"]).methods) == ["E-LwF", "E-FT"]
