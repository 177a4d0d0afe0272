"""The search of rates: the same grid for all rows, on validation images, until the best is not at an edge."""

import json
from dataclasses import replace

import pytest
import torch

from benchmarks import equal_rates
from benchmarks.equal_rates import Search, at_rate, best_of, check_budget, next_place, place_of, rate_at
from protodrift.errors import InputError
from protodrift.experiments.recipes import get_recipe, with_settings


def test_places_and_rates_are_the_same_grid():
    assert [rate_at(place) for place in range(-10, -4)] == [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3]
    assert all(place_of(rate_at(place)) == place for place in range(-14, 3))
    for rate in (2e-5, 1.5e-5, 0.0):
        with pytest.raises(InputError, match="1 or 3 times a power of ten"):
            place_of(rate)


def test_a_best_rate_at_an_edge_asks_for_the_one_beyond():
    assert next_place({-3: 5.0, -2: 4.0, -1: 3.0}, -5, 5) == -4
    assert next_place({-3: 3.0, -2: 4.0, -1: 5.0}, -5, 5) == 0
    assert next_place({-3: 3.0, -2: 5.0, -1: 4.0}, -5, 5) is None
    assert next_place({-3: 5.0, -2: 4.0}, -3, 5) is None  # the search ends somewhere
    assert best_of({-3: 4.0, -2: 5.0, -1: 5.0}) == -2


def small():
    recipe = with_settings(get_recipe("digits"), {"tasks": "2", "use_classes": "4", "train_images": "40"})
    training = replace(recipe.training, epochs=1)
    rows = ["E-Fix", "E-FT", "E-FT+SDC", "FT", "iCaRL-CNN"]
    return replace(recipe, training=training, classifier_training=replace(training, learning_rate=1e-3)).only(rows)


def test_unequal_budgets_are_refused():
    recipe = small()
    check_budget(recipe)
    with pytest.raises(InputError, match=r"--set classifier_training.epochs=1"):
        check_budget(replace(recipe, classifier_training=replace(recipe.training, epochs=5)))


def test_a_rate_is_that_of_all_kinds_of_rows():
    recipe = at_rate(small(), 3e-4)
    assert recipe.training.later_learning_rate == recipe.classifier_training.later_learning_rate == 3e-4
    assert (recipe.training.learning_rate, recipe.classifier_training.learning_rate) == (1e-4, 1e-3)
    assert recipe.exemplar_training is None


def test_rates_are_chosen_on_validation_images_and_the_same_trainings_are_read_out_on_test_images(tmp_path):
    search = Search(small(), None, str(tmp_path / "run"), share=0.3, tasks=None, seed=0)
    low, high = place_of(1e-4), place_of(1e-3)
    document = search.run(low, high, beyond=1)
    trained = len(list((tmp_path / "run").glob("stages/train-*")))
    rows = document["rows"]
    assert rows["E-Fix"]["rate"] is None
    for name in ("E-FT", "E-FT+SDC", "FT", "iCaRL-CNN"):
        row = rows[name]
        tried = {entry["rate"]: entry["task_mean"] for entry in row["tried"]}
        assert {rate_at(place) for place in range(low, high + 1)} <= set(tried)  # one grid for all
        assert tried[row["rate"]] == max(tried.values())
        assert row["edge"] == (row["rate"] in (min(tried), max(tried)))
        if row["edge"]:  # it went on as far as it was allowed to
            assert row["rate"] in (rate_at(low - 1), rate_at(high + 1))
    again = search.measure("test", ["FT"], place_of(rows["FT"]["rate"]))
    assert again["FT"] == rows["FT"]["test"]
    assert len(list((tmp_path / "run").glob("stages/train-*"))) == trained  # test images cost no training
    first, chosen_on = (next(iter(search.streams[part])) for part in ("test", "validation"))
    assert torch.equal(first.data.images, chosen_on.data.images)  # what was held out is not trained on
    assert not torch.equal(first.test.images, chosen_on.test.images)


def test_the_tables_print_what_the_log_holds(tmp_path, capsys):
    arguments = ["digits", "--methods", "E-Fix,E-FT,FT", "--grid", "1e-4", "1e-3", "--beyond", "0"]
    arguments += ["--out", str(tmp_path / "run"), "--log", str(tmp_path / "log.json"), "--tasks", "2"]
    arguments += ["--set", "classifier_training.epochs=2", "--set", "train_images=30"]
    equal_rates.main(arguments)
    document = json.loads((tmp_path / "log.json").read_text())
    printed = capsys.readouterr().out
    assert equal_rates.table(document) in printed
    assert equal_rates.crossed(document) in printed
    assert f"| {document['rows']['FT']['test']['just_learned']:.1f} |" in printed
    assert document["tasks"] == 2
