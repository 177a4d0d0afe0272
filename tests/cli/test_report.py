from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from protodrift import METHODS, TaskStream, Training
from protodrift.cli import main
from protodrift.cli.report import _FORMATS, format_of
from protodrift.data import load_digits
from protodrift.experiments.recipe import Recipe
from protodrift.experiments.run import results_document
from protodrift.experiments.tree import Tree
from protodrift.report import FORMATS


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stream = TaskStream(load_digits(), classes=[[0, 1], [2, 3]])
    methods = {name: METHODS[name] for name in ("E-FT", "E-FT+SDC")}
    results = Tree(stream, training=Training(epochs=0)).run(methods)
    recipe = Recipe("tiny", "about", "digits", tuple(methods.items()))
    document = results_document(recipe, stream.task_classes, stream.split, results.values(), 3, "a command")
    out = tmp_path_factory.mktemp("run")
    (out / "results.json").write_text(json.dumps(document))
    return out


def test_a_page_is_written(run_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sub" / "page.html"
    assert main(["report", str(run_directory), "--out", str(out)]) == 0
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert str(out) in capsys.readouterr().out


def test_the_default_page_is_here(run_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run_directory)]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("form", ["csv", "json", "md", "latex"])
def test_tables_go_to_standard_output(run_directory: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run_directory), "--format", form]) == 0
    assert "E-FT+SDC" in capsys.readouterr().out


def test_the_ending_of_the_file_tells_the_format() -> None:
    assert _FORMATS == FORMATS
    assert format_of(None, Path("a.TEX")) == "latex"
    assert format_of("md", Path("a.csv")) == "md"
    assert format_of(None, Path("a")) == format_of(None, None) == "html"


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "no finished run" in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_has_examples_and_needs_no_torch() -> None:
    code = (
        "import sys; from protodrift.cli import main\n"
        "try: main(['report', '--help'])\n"
        "finally: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "examples:" in done.stdout
    assert done.stdout.rstrip().endswith("False")
