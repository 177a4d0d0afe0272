"""The paper's claims: their numbers, and the rule that judges them."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest

from protodrift.errors import InputError, RunError
from protodrift.experiments.recipes import get_recipe
from protodrift.report.claims import METRICS, Claim, all_claims, by_recipe, claims_of, judge_all, rows_needed, verdict

GAIN = Claim("Table 1", "digits", "SDC gains on E-FT", ("E-FT+SDC",), ("E-FT",), 4.0)


@pytest.mark.parametrize(
    ("paper", "values", "said"),
    [
        (4.0, (2.0,), "pass"),
        (4.0, (8.0,), "pass"),
        (4.0, (1.9,), "sign only"),
        (4.0, (8.1,), "sign only"),
        (4.0, (-0.1,), "fail"),
        (4.0, (9.0, -1.0), "fail"),  # the mean is right, a seed is not
        (-4.0, (-3.0, -5.0), "pass"),
        (0.0, (0.9,), "pass"),
        (0.0, (-1.0,), "fail"),
        (math.nan, (0.1, 0.2), "pass"),
        (math.nan, (0.1, 0.0), "fail"),
        (4.0, (math.nan,), "fail"),
    ],
)
def test_sign_and_size(paper: float, values: tuple[float, ...], said: str) -> None:
    assert verdict(replace(GAIN, paper=paper), values) == said


@pytest.mark.parametrize(("ours", "said"), [(45.0, "pass"), (38.0, "pass"), (37.9, "fail")])
def test_a_level(ours: float, said: str) -> None:
    assert verdict(replace(GAIN, lower=(), paper=40.0), (ours,)) == said


def test_a_claim_is_judged_seed_by_seed(document: dict) -> None:
    """Against a loop over the entries of a real run."""
    entries = {(e["method"], e["seed"]): e for e in document["results"]}
    seeds = sorted({seed for name, seed in entries if name == "E-FT+SDC"})
    expected = [
        100 * (entries["E-FT+SDC", s]["average_accuracy"][-1] - entries["E-FT", s]["average_accuracy"][-1])
        for s in seeds
    ]
    (one,) = judge_all([GAIN], {"digits": document})
    assert one.values == pytest.approx(expected)
    assert len(one.values) > 1
    assert one.cells[2].endswith(f"({len(seeds)} seeds)")
    (other,) = judge_all([replace(GAIN, recipe="cars196-six")], {"digits": document})
    assert other.verdict == "not run: `protodrift reproduce TABLE1`, needs Cars-196"
    (unfair,) = judge_all([replace(GAIN, unfair="another rate")], {"digits": document})
    assert unfair.verdict == "not shown: another rate"


def test_the_best_rows_are_compared(document: dict) -> None:
    (one,) = judge_all([replace(GAIN, upper=("E-FT", "E-FT+SDC"))], {"digits": document})
    (plain,) = judge_all([GAIN], {"digits": document})
    assert one.values == pytest.approx([max(0.0, value) for value in plain.values])


def test_images_called_a_later_class() -> None:
    """Three tasks of 1, 2 and 1 classes, counted by hand."""
    confusion = [[5, 1, 0, 2], [0, 3, 1, 0], [1, 0, 4, 1], [0, 0, 3, 7]]
    entry = {"confusion": confusion, "test_counts": [8, 10, 10]}
    assert METRICS["called_later"](entry, -1) == pytest.approx(100 * (1 + 0 + 2 + 0 + 1) / 18)


def test_a_row_that_did_not_learn_shows_nothing(document: dict) -> None:
    low = copy.deepcopy(document)
    for entry in low["results"]:
        if entry["configuration"]["schedule"]["train"] == "all":
            entry["new_task_accuracy"] = [0.0 for _ in entry["new_task_accuracy"]]
    still = copy.deepcopy(low["results"][0])
    still["method"] = "E-Pre"
    still["configuration"]["schedule"]["train"] = "none"
    still["new_task_accuracy"] = [0.5 for _ in still["new_task_accuracy"]]
    low["results"].append(still)
    (one,) = judge_all([GAIN], {"digits": low})
    assert one.verdict.startswith("not shown: E-FT+SDC has 0.0 % on tasks just learned; E-FT has 0.0 %")


def test_two_runs_of_one_recipe_are_refused(document: dict) -> None:
    with pytest.raises(RunError, match="two of the runs are of the recipe"):
        by_recipe([document, document])


def test_every_claim_names_rows_that_its_recipe_has() -> None:
    for recipe, rows in rows_needed(all_claims()).items():
        assert set(rows) <= set(get_recipe(recipe).methods), recipe


def test_numbers_of_the_text_and_of_the_tables_agree() -> None:
    """Where the paper's text says a difference, the one of its tables is the same."""
    told = {claim.text: claim.paper for claim in all_claims()}
    assert told["CUB-200: SDC gains on E-FT"] == 11.9
    assert told["Flowers: SDC gains on E-FT"] == 6.2
    assert told["CUB-200: E-EWC above E-FT"] == 16.8
    assert told["Flowers: E-EWC above E-FT"] == 50.5
    assert told["CIFAR-100: SDC gains on E-FT"] == 7.4
    assert told["CUB-200: multi-similarity against triplets, E-FT after task 6"] == 13.3
    assert told["CUB-200: angular against triplets, E-FT in task 1"] == -5.0
    assert len(told) == len(all_claims())
    assert np.isnan(told["CIFAR-100: joint training above all"])


def test_a_place_is_found_however_it_is_typed() -> None:
    assert claims_of("table1") == claims_of("TABLE1") == claims_of("Table 1")
    assert {claim.place for claim in claims_of("FIG7")} == {"Fig. 7"}
    with pytest.raises(InputError, match="Did you mean 'TABLE1'"):
        claims_of("TABL1")
