"""The documentation's site: every link leads somewhere, every public name has an entry, code of the pages runs."""

from __future__ import annotations

import doctest
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

ROOT = Path(__file__).parents[1]
ELSEWHERE = re.compile(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//[^"]*|<link[^>]* href="(?:https?:)?//[^"]*')


@pytest.mark.parametrize("name", ["site_hooks", "site_doctests"])
def test_examples_of_what_builds_the_site(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def test_every_page_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    """A dead link or anchor, a page outside of the menu, a public name without an entry stop the build.

    Never with --quiet: it hides warnings from --strict.
    """
    environment = {**os.environ, "NOTEBOOKS": "0", "NO_MKDOCS_2_WARNING": "1"}  # tests/slow/test_tutorials.py runs them
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    pages = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "reference/drift.html", "tutorials/practitioner_month.html", "results/drift.html"} <= set(
        pages
    )
    for name, text in pages.items():
        loaded = ELSEWHERE.findall(text)
        assert not loaded, (name, loaded)


BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def given():
    images, labels = load_digits(return_X_y=True)
    images, labels = images.reshape(-1, 8, 8)[:400], labels[:400]
    return {"X_train": images[:300], "y_train": labels[:300], "X_test": images[300:], "y_test": labels[300:]}


@pytest.mark.parametrize("page", ["own_data", "own_network"])
def test_the_code_of_a_how_to_page_runs_from_top_to_bottom(page, given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((ROOT / "docs" / "howto" / f"{page}.md").read_text())
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), given)


def test_what_you_bring_takes_as_many_lines_as_the_table_says_and_runs(given, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "howto" / "bring_your_own.md").read_text()
    table = {name: int(lines) for name, lines in re.findall(r"^\| \[(.+?)\].* (\d+) \|$", page, re.MULTILINE)}
    sections = {section.partition("\n")[0].lower(): BLOCK.findall(section) for section in page.split("\n## ")[1:]}
    counted = {name: sum(bool(line.strip()) for line in block.splitlines()) for name, (block,) in sections.items()}
    assert counted == table
    assert max(counted.values()) <= 15

    monkeypatch.chdir(tmp_path)  # in a file: runs know parts by their source
    (tmp_path / "brought.py").write_text("\n".join(block for (block,) in sections.values()))
    spec = importlib.util.spec_from_file_location("brought", tmp_path / "brought.py")
    module = importlib.util.module_from_spec(spec)
    vars(module).update(given)
    monkeypatch.setitem(sys.modules, "brought", module)
    torch.manual_seed(0)  # the page's network draws its weights when it is made
    spec.loader.exec_module(module)
    rows = json.loads((tmp_path / "runs" / "mine" / "results.json").read_bytes())["results"]
    last = {row["method"]: np.mean(row["accuracy_matrix"][-1]) for row in rows}
    assert last.keys() == {"mine", "not moved"}
    assert min(last.values()) > 0.2  # ten classes: chance is 0.1
    mine, still = (row["prototype_distance"] for row in rows)
    assert mine != still  # the prototypes were moved
