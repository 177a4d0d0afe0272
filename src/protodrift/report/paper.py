"""The numbers that the paper prints, for the column beside ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper.

    Attributes:
        place: where it stands, such as "Table 1".
        tasks: T.
        rows: method -> (T,) as a fraction, NaN where the paper prints no number.
        beside: what it stands beside: "average" (A_k, the task mean that the paper defines), or "overall" (over all
            seen classes). Table 5 is called A_k and is almost surely the latter, which the released code prints: with
            fifty classes in the first task the two are far apart, and only the latter can be as high.
    """

    place: str
    tasks: int
    rows: Mapping[str, np.ndarray]
    beside: str = "average"


@cache
def _tables() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("paper_tables.json").read_text(encoding="utf-8")
    return json.loads(text)["tables"]  # type: ignore[no-any-return]


def paper_tables() -> tuple[str, ...]:
    """Return the names of the tables, such as "table5_eleven_tasks/cifar100"."""
    return tuple(_tables())


def paper_table(name: str) -> PaperTable | None:
    """Return a table by its name; None if there is none, which is what a recipe without a table has.

    >>> float(paper_table("table1/cub200").rows["E-EWC+SDC"][-1])
    0.564
    """
    found = _tables().get(name)
    if found is None:
        return None
    rows = {method: np.array(values, dtype=float) / 100 for method, values in found["rows"].items()}
    return PaperTable(found["place"], found["tasks"], rows, found.get("beside", "average"))
