"""What results/ claims is what its data says."""

import json
from pathlib import Path

import numpy as np
import pytest

RESULTS = Path(__file__).parent.parent / "results"


@pytest.fixture(scope="module")
def digits():
    document = json.loads((RESULTS / "digits.json").read_text())
    table = {}
    for entry in document["results"]:
        table.setdefault(entry["method"], []).append(entry)
    assert all(sorted(entry["seed"] for entry in entries) == [0, 1, 2, 3, 4] for entries in table.values())
    return table


def final(entries, key="average_accuracy"):
    return np.mean([entry[key][-1] for entry in entries])


def test_sdc_brings_old_prototypes_nearer_in_every_seed(digits):
    for plain, moved in zip(digits["E-FT"], digits["E-FT+SDC"], strict=True):
        assert moved["old_prototype_distance"][-1] < plain["old_prototype_distance"][-1]


@pytest.mark.parametrize("name", ["E-FT", "E-EWC", "E-MAS", "E-SI"])
def test_sdc_gains_and_the_oracle_gains_more(digits, name):
    assert final(digits[name]) < final(digits[f"{name}+SDC"]) < final(digits[f"{name}+oracle"])


def test_joint_training_is_on_top(digits):
    best = max(final(entries) for name, entries in digits.items() if name != "Joint")
    assert final(digits["Joint"]) > best


@pytest.mark.parametrize("name", ["iCaRL-CNN", "iCaRL-NME", "Rebalance"])
def test_exemplars_are_above_fine_tuning(digits, name):
    assert final(digits[name]) > final(digits["FT"])


def test_the_relation_that_fails_is_reported_as_it_is(digits):
    assert final(digits["E-FT"]) < final(digits["FT"])
    assert "E-FT above FT | **no**: 51.6 against 77.4" in (RESULTS / "digits.md").read_text()


def test_every_printed_accuracy_is_the_measured_one(digits):
    lines = (RESULTS / "digits.md").read_text().splitlines()
    printed = {}
    for line in lines:
        if line.startswith("|") and "±" in line:
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            name = name.replace(r"\*", "\0").strip("*").replace("\0", "*")  # emphasis off, the star of FT* kept
            printed[name] = cells[4].strip("*").split(" ±")[0]
    assert printed == {name: f"{100 * final(entries):.1f}" for name, entries in digits.items()}
