"""The tutorials run from top to bottom, and what their text says is what their cells print."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"


def executed(name: str) -> str:
    """Return a tutorial as the page of the site: its cells, and what they printed."""
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    return hooks.executed(DOCS / "tutorials" / f"{name}.py")[0]


def test_the_month_learns_is_asked_and_goes_back():
    page = executed("practitioner_month")
    assert "model is version 1 with 4 classes" in page
    assert "model is version 2 with 8 classes" in page
    assert "never learned: 40 photos" in page
    assert "No photo is stored" in page


def test_the_new_estimator_fails_as_the_text_says():
    page = executed("new_drift_estimator")
    error = {name: float(value) for name, value in re.findall(r"^error of (the median|SDC): +(\S+)$", page, re.M)}
    assert error["the median"] < 1e-5 < 0.1 < error["SDC"]
    closed = {name.strip(): int(share) for name, share in re.findall(r"^(.{14}) closes +(-?\d+)% of", page, re.M)}
    (median,) = (share for name, share in closed.items() if name.startswith("median"))
    assert median < 25  # "no better than nothing"
    assert closed["SDC"] > median + 25
