"""Recipes: single values set by name, wrong ones explained, and everything written down."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from PIL import Image

from protodrift import EWC, SDC, Method, Schedule, StreamingLDA
from protodrift.common.config import decode
from protodrift.data import Dataset
from protodrift.errors import InputError
from protodrift.experiments.recipes import RECIPES, get_recipe, with_settings
from protodrift.experiments.run import load_data
from protodrift.experiments.stages import Embed, network_after
from protodrift.networks.weights import describe_weights
from protodrift.training.config import Training


@pytest.fixture
def digits_recipe():
    return get_recipe("digits")


def parts(recipe, kind):
    """Every object of a kind in a recipe's methods."""
    for method in recipe.methods.values():
        for part in (
            method.objective,
            *method.penalties,
            method.exemplars,
            method.drift,
            method.readout,
            method.schedule,
        ):
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
        ("class_order", "-3", "between 0 and 4294967295"),
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


_NOT_OF_THE_PAPER = ("digits", "digits-2d", "folder", "mnist-2d")
PAPER_RECIPES = [name for name in RECIPES if name not in _NOT_OF_THE_PAPER]


@pytest.mark.parametrize("name", PAPER_RECIPES)
def test_every_experiment_of_the_paper_has_both_budgets(name):
    paper, cpu = get_recipe(name, "paper"), get_recipe(name, "cpu")
    assert get_recipe(name) == cpu
    assert (paper.budget, cpu.budget) == ("paper", "cpu")
    assert [row for row, _ in paper.rows] == [row for row, _ in cpu.rows]
    assert decode(json.loads(json.dumps(paper.to_json()))) == paper
    with pytest.raises(InputError, match=r"'paper'.*'cpu'"):
        get_recipe(name, "gpu")


@pytest.mark.parametrize("name", ["cifar100-eleven", "cifar100-ten", "cub200-six"])
def test_the_budget_drift_is_small(name):
    small, cpu = get_recipe(name, "drift"), get_recipe(name, "cpu")
    assert small.budget == "drift"
    assert (small.name, small.tasks, small.first, small.data) == (cpu.name, cpu.tasks, cpu.first, cpu.data)
    assert {"E-FT", "E-LwF", "E-EWC", "E-MAS"} <= set(small.methods) < set(cpu.methods)
    assert small.train_images is not None or small.training.epochs < cpu.training.epochs
    with pytest.raises(InputError, match="'paper'"):
        get_recipe("cifar100-joint", "drift")


def test_metric_objectives_classifiers_and_those_with_exemplars_are_trained_each_in_their_way(digits_recipe):
    trainings = [replace(digits_recipe.training, epochs=1, learning_rate=rate) for rate in (1e-4, 2e-4, 3e-4)]
    recipe = replace(
        digits_recipe, training=trainings[0], classifier_training=trainings[1], exemplar_training=trainings[2]
    )
    stream = recipe.stream(load_data(recipe, None))[:1]
    rows = {name: get_recipe("digits").methods[name] for name in ("E-FT", "FT", "iCaRL-CNN", "iCaRL-NME")}
    described = {}
    for name, method in rows.items():
        tree = recipe.tree(stream, store=None)
        alone = replace(recipe, training=trainings[0], classifier_training=None, exemplar_training=None)
        for training in trainings:  # a stage is named after how it is trained
            same = replace(alone, training=training).tree(stream)
            if same.stage("train", method, 1).key == tree.stage("train", method, 1).key:
                described[name] = training
    assert described == dict(zip(rows, [*trainings, trainings[2]], strict=True))


def test_a_recipe_can_take_only_some_images_of_each_class(digits_recipe):
    data = load_data(replace(digits_recipe, train_images=7, test_images=3), None)
    whole = load_data(digits_recipe, None)
    assert Counter(data.train.labels) == dict.fromkeys(whole.classes, 7)
    assert Counter(data.test.labels) == dict.fromkeys(whole.classes, 3)
    ones = [i for i, label in enumerate(whole.train.labels) if label == 1][:7]
    assert torch.equal(data.train.of_classes([1]).images, whole.train.images[ones])


def test_a_recipe_without_a_choice_says_so():
    with pytest.raises(InputError, match="one budget only"):
        get_recipe("digits", "paper")
    with pytest.raises(InputError, match="unknown budget 'drift'"):
        get_recipe("imagenet-subset-eleven", "drift")


def test_the_papers_constants_are_the_papers():
    cub, flowers, cars = (get_recipe(f"{name}-six", "paper") for name in ("cub200", "flowers102", "cars196"))
    assert [(r.training.learning_rate, r.training.epochs) for r in (cub, flowers, cars)] == [
        (1e-5, 50),
        (1e-4, 20),
        (1e-5, 100),
    ]
    cifar = get_recipe("cifar100-eleven", "paper")
    assert (cifar.training.learning_rate, cifar.training.epochs, cifar.training.batch_size) == (1e-6, 50, 32)
    for recipe, sigma in ((cub, 0.3), (flowers, 0.3), (cars, 0.3), (cifar, 0.2)):
        assert {part.sigma for part in parts(recipe, SDC)} == {sigma}
        assert recipe.methods["E-EWC"].penalties == (EWC(gamma=1e7),)
        assert recipe.methods["E-LwF"].penalties[0].gamma == 1
        assert recipe.methods["E-MAS"].penalties[0].gamma == 1e6
        assert recipe.network.embedding_dim == 512
    assert {m.schedule.batch_norm for m in cifar.methods.values()} == {"frozen"}
    assert {m.schedule.batch_norm for m in cub.methods.values()} == {"train"}


def test_a_recipe_has_every_row_of_its_table():
    from protodrift.report.paper import paper_table

    for name in RECIPES:
        recipe = get_recipe(name)
        table = paper_table(recipe.table)
        if table is not None:
            assert set(table.rows) <= set(recipe.methods), name


def test_views_belong_together():
    recipe = get_recipe("cub200-six", "paper")
    assert (recipe.stored_size, recipe.fit, recipe.augment.size, recipe.seen_network.crop) == (256, "squash", 224, 224)
    small = with_settings(recipe, {"size": "112"})
    assert (small.stored_size, small.augment.size, small.seen_network.crop) == (128, 112, 112)
    released = with_settings(recipe, {"view": "released"})
    assert (released.fit, type(released.augment).__name__) == ("center", "ResizedCropFlip")
    cifar = get_recipe("cifar100-eleven")
    assert (cifar.stored_size, cifar.augment.pad, cifar.seen_network.crop) == (32, 4, None)


def test_a_warm_up_is_set_by_its_path(digits_recipe):
    recipe = get_recipe("cifar100-eleven")
    changed = with_settings(recipe, {"warmup.training.epochs": "3", "training.epochs": "1", "warmup.smoothing": "0.1"})
    assert (changed.warmup.training.epochs, changed.training.epochs, changed.warmup.smoothing) == (3, 1, 0.1)
    assert changed.classifier_training == recipe.classifier_training
    with pytest.raises(InputError, match=r"warmup\.training\.epochs"):
        with_settings(recipe, {"epochs": "3"})


def test_some_classes_only(digits_recipe):
    from protodrift.data import load_digits

    dataset = load_digits()
    recipe = with_settings(digits_recipe, {"use_classes": "6", "tasks": "3"})
    stream = recipe.stream(dataset)
    assert stream.classes == tuple(c for task in digits_recipe.stream(dataset).task_classes[:3] for c in task)
    assert {label for task in stream for label in task.test.labels} == set(stream.classes)


def test_validation_images_come_from_the_training_images(digits_recipe):
    from protodrift.experiments import run as runs

    whole = runs.load_data(digits_recipe, None)
    held = runs.load_data(with_settings(digits_recipe, {"validation": "0.2"}), None)
    seen = {image.numpy().tobytes() for image in whole.train.images}
    assert all(image.numpy().tobytes() in seen for image in held.test.images)
    assert len(held.train) + len(held.test) == len(whole.train)
    assert not {image.numpy().tobytes() for image in held.train.images} & {
        image.numpy().tobytes() for image in held.test.images
    }


def test_images_held_out_are_those_of_validation_and_both_train_on_the_same(digits_recipe):
    from protodrift.experiments import run as runs

    whole = runs.load_data(digits_recipe, None)
    recipe = with_settings(digits_recipe, {"held_out": "0.2"})
    tested, chosen = (runs.load_data(with_settings(recipe, settings), None) for settings in ({}, {"validation": "0.2"}))
    assert torch.equal(tested.train.images, chosen.train.images)
    assert torch.equal(tested.test.images, whole.test.images)
    assert len(chosen.train) + len(chosen.test) == len(whole.train)
    one, other = (recipe.tree(recipe.stream(data)) for data in (tested, chosen))
    method = Method(schedule=Schedule(train="first"))
    assert network_after(one, method, 1).key == network_after(other, method, 1).key
    assert Embed.of(one, method, 1).key != Embed.of(other, method, 1).key


@pytest.mark.parametrize("budget", ["cpu", "paper"])
def test_weights_that_nobody_publishes_are_asked_for(budget):
    network = get_recipe("cub200-no-birds", budget).network
    with pytest.raises(InputError, match=r"Name your own: --set network.weights=FILE"):
        describe_weights(network.backbone, network.weights)


@pytest.mark.parametrize("name", ["warmup", "training", "classifier_training", "exemplar_training", "network"])
def test_a_part_cannot_be_set_to_something_else(digits_recipe, name):
    with pytest.raises(InputError, match=rf"{name}"):
        with_settings(digits_recipe, {name: "5"})


def test_rows_that_classify_have_a_rate_at_which_a_new_head_learns():
    for name in ("cub100-ten", "caltech101-ten", "cifar100-eleven", "cifar100-ten"):
        recipe = get_recipe(name, "paper")
        assert recipe.classifier_training.learning_rate >= 1e-4
        assert recipe.classifier_training.epochs == recipe.training.epochs


def test_figures_have_their_rows():
    """Fig. 2: FT, FT*, E-FT, Joint. Fig. 6: LwM, Expert Gate, Joint, E-MAS with and without SDC."""
    for name in ("cifar100-eleven", "imagenet-subset-eleven", "cub200-six"):
        assert {"FT", "FT*", "E-FT", "Joint"} <= set(get_recipe(name).methods)
    for name in ("cub100-ten", "caltech101-ten"):
        rows = {"FT", "LwM", "Expert Gate", "Joint", "E-MAS", "E-MAS+SDC"}
        assert rows <= set(get_recipe(name).methods)


def test_the_classes_of_imagenet_subset_are_chosen_by_a_seed(tmp_path, monkeypatch):
    asked = {}

    def load(name, data, **options):
        asked.update(options, name=name)
        raise InputError("enough")

    monkeypatch.setattr("protodrift.data.datasets.load_dataset", load)
    recipe = with_settings(get_recipe("imagenet-subset-eleven"), {"data_seed": "7"})
    with pytest.raises(InputError, match="enough"):
        load_data(recipe, tmp_path)
    assert (asked["name"], asked["seed"]) == ("imagenet-subset", 7)
    assert get_recipe("imagenet-subset-eleven").data_seed == 1993


@pytest.mark.parametrize(("view", "side", "left"), [("plain", 32, 255), ("paper", 37, 0), ("center", 37, 255)])
def test_a_folder_is_stored_as_its_views_need_it(tmp_path, view, side, left):
    picture = np.zeros((40, 120, 3), np.uint8)
    picture[:, 40:80] = 255  # the middle third
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(picture).save(tmp_path / name / f"{i}.png")
    recipe = with_settings(get_recipe("folder"), {"view": view, "size": "32", "tasks": "2"})
    images = load_data(recipe, tmp_path).train.images
    assert tuple(images.shape[1:]) == (3, side, side)
    assert int(images[0, 0, side // 2, 1]) == left


@pytest.mark.parametrize("name", ["cifar100-ten", "cifar100-eleven"])
def test_the_frontier_of_cifar_has_untrained_patches(name):
    method = get_recipe(name, "frontier").methods["Patches+SLDA"]
    assert method.backbone == "patches-1600"
    assert method.schedule.train == "none"


def test_the_frontier_of_eleven_tasks_is_one_training_that_stays_or_goes_on():
    """Every read-out has a row of the network that stays; all rows share the first task, learned ones all tasks."""
    recipe = get_recipe("cifar100-eleven", "frontier")
    assert all(method.reads_pooled for method in recipe.methods.values())
    fixed = [method for method in recipe.methods.values() if method.schedule.train == "first"]
    for method in recipe.methods.values():
        if method.schedule.train == "all":
            assert any(other.readout == method.readout and other.beside is None for other in fixed)
    rng = np.random.RandomState(0)
    X = rng.randint(0, 256, (32, 32, 32, 3), dtype=np.uint8)
    y = np.repeat(np.arange(4), 8)
    short = replace(recipe.classifier_training, epochs=1, later_epochs=1, batch_size=16, precision="float32")
    recipe = replace(recipe, tasks=2, first=None, step=None, classifier_training=short)
    tree = recipe.tree(recipe.stream(Dataset(X, y, X, y)))
    rows = ["Fixed+NCM", "Learned+NCM", "Learned+map+LDA", "Learned+oracle+LDA", "Fixed beside Learned+GP+LDA"]
    tree.run({row: recipe.methods[row] for row in rows})
    assert tree.computed["train"] == 3  # the first task; the second, learned; the second, in which nothing happens
    assert tree.readout(recipe.methods[rows[-1]], 2).prototypes.means.shape == (4, 2 * 64)


OTHERS = {"digits-2d", "mnist-2d", "cifar100-joint"}


@pytest.mark.parametrize("name", sorted(set(RECIPES) - OTHERS))
def test_every_recipe_shows_what_the_frozen_network_can(name):
    """All but two pictures, whose numbers are no results, and a training of all classes at once."""
    make = RECIPES[name]
    budgets = [None] if "budget" not in inspect.signature(make).parameters else ["paper", "cpu"]
    for budget in budgets:
        methods = get_recipe(name, budget).methods
        for row in ("E-Pre", "SLDA"):
            assert methods[row].schedule.train == "none"
            assert methods[row].reads_pooled
        assert isinstance(methods["SLDA"].readout, StreamingLDA)
