"""The results table as values: what its columns are, and which rows are best. HTML and text write the same one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..memory import Everything
from ..methods import Method
from ..stages import MethodResult

MISSING = "–"
"""Stands where a number is not defined, such as the forgetting of a single task."""


@dataclass(frozen=True)
class Column:
    """One column of R rows.

    Attributes:
        symbol, index: the heading, such as A and 3 for A_3; `index` may be "".
        meaning: what it is, in words.
        texts: R values as they are written.
        best: the rows to emphasise; none if all rows that compete are alike.
    """

    symbol: str
    index: str
    meaning: str
    texts: tuple[str, ...]
    best: frozenset[int]


def is_upper_bound(method: Method) -> bool:
    """Return whether a method looks at old images that a learner of this kind does not have: an oracle, or joint."""
    return (method.drift is not None and method.drift.evaluation_only) or isinstance(method.memory, Everything)


def number_of_tasks(results: Mapping[str, MethodResult]) -> int:
    """Return T, the same for all results.

    Raises:
        InputError: if there is no result, or results of streams of different length.
    """
    counts = {name: len(result.accuracy_matrix) for name, result in results.items()}
    if not counts:
        raise InputError("there are no results to report: run at least one method.")
    if len(set(counts.values())) > 1:
        raise InputError(f"results of one report must have the same number of tasks, got {counts}.")
    return next(iter(counts.values()))


def columns(results: Mapping[str, MethodResult]) -> list[Column]:
    """Return A_1..A_T, overall accuracy, F_T and the old prototypes' distance, all but the last in percent."""
    tasks = number_of_tasks(results)
    rows = list(results.values())
    competes = [not is_upper_bound(result.method) for result in rows]

    # A network that is never trained again (E-Fix) does not drift: its distance of 0 is no merit of its prototypes.
    drifts = [honest and result.method.schedule.train == "all" for honest, result in zip(competes, rows, strict=True)]

    def percent(symbol: str, index: str, meaning: str, metric: str, task: int = -1, sign: int = 1) -> Column:
        values = [100 * float(getattr(result, metric)[task]) for result in rows]
        texts = _texts(values, 1)
        return Column(symbol, index, f"{meaning}, %", texts, _best(values, texts, competes, sign))

    distance = [float(result.old_prototype_distance[-1]) for result in rows]
    shown = _texts(distance, 3)
    meaning = "mean distance of the old classes' prototypes to their true means at the end (lower is better)"
    return [
        *(
            percent("A", str(k), f"average accuracy after task {k}", "average_accuracy", k - 1)
            for k in range(1, tasks + 1)
        ),
        percent("overall", "", "accuracy over all test images at the end", "overall_accuracy"),
        percent("F", str(tasks), "average forgetting at the end (lower is better)", "average_forgetting", sign=-1),
        Column("distance", "", meaning, shown, _best(distance, shown, drifts, -1)),
    ]


def _texts(values: Sequence[float], decimals: int) -> tuple[str, ...]:
    # + 0.0 turns a rounded -0.0 into 0.0.
    return tuple(
        f"{round(value, decimals) + 0.0:.{decimals}f}" if math.isfinite(value) else MISSING for value in values
    )


def _best(values: Sequence[float], texts: Sequence[str], competes: Sequence[bool], sign: int) -> frozenset[int]:
    """Return the best competing rows; rows that read the same as the best one are as good as it."""
    running = [i for i, value in enumerate(values) if competes[i] and math.isfinite(value)]
    if len({texts[i] for i in running}) < 2:
        return frozenset()
    winner = max(running, key=lambda i: sign * values[i])
    return frozenset(i for i in running if texts[i] == texts[winner])
