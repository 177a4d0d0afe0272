"""`protodrift reproduce`: runs, reads, judges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from protodrift.cli import main
from protodrift.experiments import recipes
from protodrift.experiments.recipes import digits

RESULTS = Path(__file__).parents[2] / "results"


def test_it_reads_results(command):
    done = command("reproduce", "FIG5", "--runs", RESULTS / "cub200_six.json")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["claim", "paper", "ours", "(seeds,", "±)", "verdict"]
    assert sum(line.startswith("Fig. 5, CUB-200: SDC brings") and line.endswith("pass") for line in lines) == 4
    assert "4 pass, 0 sign only, 0 fail, 0 not shown, 0 not run" in lines


def test_it_runs_what_it_needs_and_then_reads_it(tmp_path, monkeypatch, capsys):
    """The 2-D recipe for real, on digits in place of MNIST; the second call finds it finished, and computes nothing."""
    small = digits.picture_recipe()
    small = replace(small, name="mnist-2d", training=replace(small.training, epochs=1))
    monkeypatch.setitem(recipes.RECIPES, "mnist-2d", lambda: small)
    arguments = ["reproduce", "FIG4", "--out", str(tmp_path), "--threads", "1"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert "Fig. 4, MNIST: SDC brings old prototypes nearer to the true means, E-FT" in first
    assert "(1 seed)" in first
    assert "0 not shown, 0 not run" in first
    monkeypatch.setattr("protodrift.cli.reproduce._run", None)
    assert main(arguments) == 0
    assert capsys.readouterr().out == first


def test_without_data_nothing_is_made_up(command, tmp_path):
    done = command("reproduce", "TABLE4", "--data", tmp_path)
    assert done.returncode == 1
    assert "warning: cars196-six is not run: " in done.stderr
    assert "error: nothing of TABLE4 can be run here" in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(("args", "said"), [(["TABL1"], "Did you mean 'TABLE1'"), (["FIG5", "--runs", "none"], "none")])
def test_what_cannot_be_meant_is_explained(fails, args, said):
    assert said in fails("reproduce", *args)
