"""The harness: order of sides, ratios, aims, tables, and the program."""

from __future__ import annotations

import json
import os

import pytest

from benchmarks import run, speed
from benchmarks.speed.elsewhere import Elsewhere
from benchmarks.speed.harness import compared, interleaved, machine, quartiles, reaches, skipped
from benchmarks.speed.tables import as_json, as_markdown, as_text
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
    page, text = as_markdown(results), as_text(results)
    assert "| 2x | 1.5-2.5 | >= 5 | **no** |" in page
    assert "1. no gone" in page
    assert "not run [1]" in text
    assert "[1] no gone" in text
    assert "1 of 1 aims are missed" in text


def test_json_holds_everything_and_no_place():
    document = as_json([compared("c", "n", SECONDS, "ours", "theirs")], machine(), {"quick": True})
    assert json.loads(json.dumps(document))["results"][0]["ratio"] == 2.0
    assert set(document["machine"]) == {
        "processor", "machine", "cpus", "threads", "instructions", "system", "python", "torch", "protodrift",
    }  # fmt: skip
    assert "/" not in json.dumps({k: v for k, v in document["machine"].items() if k != "processor"})


def test_an_unknown_case_is_refused_with_a_guess():
    with pytest.raises(InputError, match="'predict'"):
        speed.choose(["predikt"])
    assert list(speed.choose(["sdc", "training"])) == ["training", "sdc"]


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

    monkeypatch.setitem(speed.CASES, "predict", whole)
    monkeypatch.setitem(speed.CASES, "growth", interrupted)


def test_the_program_prints_a_table_and_writes_its_files(two_cases, tmp_path, capsys):
    assert run.main(["predict", "--quick", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "half way" in said.err
    assert "ours" in said.out
    document = json.loads((tmp_path / "benchmarks.json").read_text())
    assert [one["case"] for one in document["results"]] == ["predict"]
    assert document["settings"] == {"cases": ["predict"], "quick": True, "repeats": None, "finished": True}
    page = (tmp_path / "benchmarks.md").read_text()
    assert "with the quick sizes" in page
    assert "| predict | n | ours | theirs |" in page


def test_ctrl_c_prints_what_is_finished(two_cases, tmp_path, capsys):
    assert run.main(["predict", "growth", "--out", str(tmp_path)]) == 130
    out = capsys.readouterr().out
    assert "predict" in out
    assert "growth" in out
    assert json.loads((tmp_path / "benchmarks.json").read_text())["settings"]["finished"] is False


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--repeats", "0"], "must be 1 or more; got 0"), (["nothing"], "there is no benchmark 'nothing'")],
)
def test_wrong_options_are_refused(words, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        run.main(words)
    assert message in capsys.readouterr().err


def test_the_curve_of_growth_is_drawn_without_a_browser(tmp_path):
    points = [{"classes": 100, "seconds": 1.0, "seconds_of_sdc_and_readout": 0.2}]
    assert run.draw(points, tmp_path / "growth.png") == "growth.png"
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
