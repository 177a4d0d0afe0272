"""The harness: order of sides, ratios, aims, tables, and the verb."""

from __future__ import annotations

import json
import os

import pytest

from protodrift import bench
from protodrift.bench.elsewhere import Elsewhere
from protodrift.bench.harness import compared, interleaved, quartiles, reaches, skipped
from protodrift.cli import bench as verb
from protodrift.cli import main
from protodrift.errors import InputError

SECONDS = {"ours": [1.0, 2.0, 4.0], "theirs": [2.0, 2.0, 12.0]}


def test_sides_run_in_turn_and_warm_up_is_not_counted():
    order = []

    def side(name):
        def run():
            order.append(name)
            return float(len(order))

        return run

    seconds = interleaved({"a": side("a"), "b": side("b")}, rounds=2, warmup=1)
    assert order == ["b", "a", "a", "b", "b", "a"]
    assert seconds == {"a": [3.0, 6.0], "b": [4.0, 5.0]}


def test_the_ratio_is_the_median_over_rounds_not_the_ratio_of_medians():
    one = compared("case", "name", SECONDS, "ours", "theirs", aim=">= 1.9")
    assert (one.ratio, one.low, one.high) == (2.0, 1.5, 2.5)
    assert one.met is True
    assert one.numbers == {"seconds": 2.0, "seconds_against": 2.0}


def test_our_share_of_their_time_and_work_of_another_size():
    assert compared("c", "n", SECONDS, "ours", "theirs", inverse=True).ratio == 0.5
    assert compared("c", "n", SECONDS, "ours", "theirs", scale=3.0).ratio == 6.0


@pytest.mark.parametrize(
    ("ratio", "aim", "met"), [(1.2, ">= 1.2", True), (1.19, ">= 1.2", False), (3.0, "<= 2", False)]
)
def test_aims(ratio, aim, met):
    assert reaches(ratio, aim) is met


def test_one_round_has_no_spread():
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)


def test_a_missed_aim_and_a_side_that_is_missing_are_said():
    results = [compared("c", "n", SECONDS, "ours", "theirs", aim=">= 5"), skipped("c", "n", "ours", "gone", "no gone")]
    page, text = bench.as_markdown(results), verb.text(results)
    assert "| 2x | 1.5-2.5 | >= 5 | **no** |" in page
    assert "1. no gone" in page
    assert "not run [1]" in text
    assert "[1] no gone" in text
    assert "1 of 1 aims are missed" in text


def test_json_holds_everything_and_no_place():
    document = bench.as_json([compared("c", "n", SECONDS, "ours", "theirs")], bench.machine(), {"quick": True})
    assert json.loads(json.dumps(document))["results"][0]["ratio"] == 2.0
    assert set(document["machine"]) == {
        "processor", "cores", "threads", "instructions", "system", "python", "torch", "protodrift",
    }  # fmt: skip
    assert "/" not in json.dumps({k: v for k, v in document["machine"].items() if k != "processor"})


def test_an_unknown_case_is_refused_with_a_guess():
    with pytest.raises(InputError, match="'predict'"):
        bench.choose(["predikt"])
    assert list(bench.choose(["sdc", "training"])) == ["training", "sdc"]


def once(value):
    """A side that answers its first call only."""
    answers = [value]
    return lambda: answers.pop()


def test_a_side_elsewhere_answers_and_its_errors_come_back(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    with Elsewhere(once, 2.5) as side:
        assert side() == 2.5
        with pytest.raises(RuntimeError, match="IndexError: pop from empty list"):
            side()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


@pytest.fixture
def two_cases(monkeypatch):
    def whole(setup):
        setup.say("half way")
        yield compared("predict", "n", SECONDS, "ours", "theirs", aim="<= 1")

    def interrupted(setup):
        yield compared("growth", "m", SECONDS, "ours", "theirs")
        raise KeyboardInterrupt

    monkeypatch.setitem(bench.CASES, "predict", whole)
    monkeypatch.setitem(bench.CASES, "growth", interrupted)


def test_the_verb_prints_a_table_and_writes_json(two_cases, tmp_path, capsys):
    assert main(["bench", "predict", "--quick", "--json", str(tmp_path / "b.json")]) == 0
    said = capsys.readouterr()
    assert "half way" in said.err
    assert "ours" in said.out
    document = json.loads((tmp_path / "b.json").read_text())
    assert [one["case"] for one in document["results"]] == ["predict"]
    assert document["settings"] == {"cases": ["predict"], "quick": True, "repeats": None, "finished": True}


def test_ctrl_c_prints_what_is_finished(two_cases, tmp_path, capsys):
    assert main(["bench", "predict", "growth", "--json", str(tmp_path / "b.json")]) == 130
    out = capsys.readouterr().out
    assert "predict" in out
    assert "growth" in out
    assert json.loads((tmp_path / "b.json").read_text())["settings"]["finished"] is False


def test_wrong_options_are_refused(capsys):
    assert main(["bench", "--repeats", "0"]) == 1
    assert main(["bench", "nothing"]) == 1
    assert "no benchmark 'nothing'" in capsys.readouterr().err
