from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from protodrift import METHODS, TaskStream, Training
from protodrift.cli import main
from protodrift.cli.report import _FILES, _FORMATS, format_of
from protodrift.data import load_digits
from protodrift.experiments.recipe import Recipe
from protodrift.experiments.run import results_document
from protodrift.experiments.tree import Tree
from protodrift.report import FORMATS
from protodrift.report.charts import FILES


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stream = TaskStream(load_digits(), classes=[[0, 1], [2, 3]])
    methods = {name: METHODS[name] for name in ("E-FT", "E-FT+SDC")}
    results = Tree(stream, training=Training(epochs=0)).run(methods)
    recipe = Recipe("tiny", "about", "digits", tuple(methods.items()))
    document = results_document(recipe, stream.task_classes, stream.split, results.values(), "a command")
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


@pytest.mark.parametrize(("form", "start"), [("pdf", b"%PDF"), ("png", b"\x89PNG"), ("svg", b"<svg"), (None, b"%PDF")])
def test_figures_are_written_one_file_each(
    run_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str | None, start: bytes
) -> None:
    out = tmp_path / "paper" / "figures"
    assert main(["report", str(run_directory), "--figures", str(out), *(["--format", form] if form else [])]) == 0
    written = sorted(out.iterdir())
    assert {path.stem for path in written} == {"accuracy", "final", "prototypes", "confusion"}
    assert all(path.read_bytes().startswith(start) for path in written)
    assert sorted(capsys.readouterr().out.splitlines()) == [f"wrote {path}" for path in written]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "pdf"], "say where to, --figures DIR"),
        (["--figures", "out", "--format", "md"], "--figures writes pdf, png, svg, not md"),
    ],
)
def test_a_format_that_does_not_fit_is_said(
    run_directory: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run_directory), *arguments]) == 1
    assert message in capsys.readouterr().err


def test_without_the_extra_tables_are_written_and_the_page_says_what_to_install(run_directory: Path) -> None:
    code = (
        "import sys; sys.modules['altair'] = None\n"
        "from protodrift.cli import main\n"
        f"run = {str(run_directory)!r}\n"
        "print(main(['report', run, '--format', 'md']), main(['report', run]), main(['report', run, '--figures', 'x']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "E-FT+SDC" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 1 1"
    assert done.stderr.count("pip install 'protodrift[report]' (altair is missing)") == 2


def test_the_ending_of_the_file_tells_the_format() -> None:
    assert (_FORMATS, _FILES) == (FORMATS, FILES)
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
