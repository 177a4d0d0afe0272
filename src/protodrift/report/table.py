"""The results table as values: what its columns are, and which rows are best. Every format writes the same one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..methods import Method
from .summary import Spread, Summaries, Summary, number_of_tasks

MISSING = "–"
"""Stands where a number is not defined, such as the forgetting of a single task."""


@dataclass(frozen=True)
class Column:
    """One column of R rows.

    Attributes:
        symbol, index: the heading, such as A and 3 for A_3; `index` may be "".
        key: its name for programs.
        meaning: what it is, in words.
        values, deviations: (R,) mean and standard deviation over seeds, in the unit of the table; NaN: not defined.
        decimals: how many are written.
        best: the rows to emphasise; none if all rows that compete are alike.
        ours: False for numbers that the paper prints.
    """

    symbol: str
    index: str
    key: str
    meaning: str
    values: Sequence[float]
    deviations: Sequence[float]
    decimals: int
    best: frozenset[int] = field(default=frozenset())
    ours: bool = True

    @property
    def heading(self) -> str:
        """The heading as plain text, such as A_3."""
        return f"{self.symbol}_{self.index}" if self.index else self.symbol

    @property
    def texts(self) -> tuple[str, ...]:
        """The R values as they are written: the mean, and ± the standard deviation where there is one."""
        pairs = zip(self.values, self.deviations, strict=True)
        return tuple(written(value, deviation, self.decimals) for value, deviation in pairs)


def written(value: float, deviation: float, decimals: int) -> str:
    """Return a mean as text, with its standard deviation if that is defined.

    >>> written(83.21, 1.07, 1), written(-0.04, math.nan, 1), written(math.nan, math.nan, 1)
    ('83.2 ± 1.1', '0.0', '–')
    """
    if not math.isfinite(value):
        return MISSING
    # + 0.0 turns a rounded -0.0 into 0.0.
    text = f"{round(value, decimals) + 0.0:.{decimals}f}"
    return f"{text} ± {deviation:.{decimals}f}" if math.isfinite(deviation) else text


def columns(summaries: Summaries) -> list[Column]:
    """Return A_1..A_T (beside each what the paper prints), their mean, overall accuracy, F_T and the old distance."""
    tasks = number_of_tasks(summaries)
    rows = list(summaries.values())
    competes = [not one.is_upper_bound for one in rows]
    drifts = [honest and _can_drift(one.method) for honest, one in zip(competes, rows, strict=True)]

    def percent(
        symbol: str, index: str, key: str, meaning: str, spreads: Sequence[Spread], task: int | None, sign: int = 1
    ) -> Column:
        at = () if task is None else (task,)
        values = [100 * float(spread.mean[at]) for spread in spreads]
        deviations = [100 * float(spread.std[at]) for spread in spreads]
        best = _best(values, 1, competes, sign)
        return Column(symbol, index, key, f"{meaning}, %", values, deviations, 1, best)

    result = []
    for k in range(1, tasks + 1):
        accuracy = [one.average_accuracy for one in rows]
        result.append(percent("A", str(k), f"A_{k}", f"average accuracy after task {k}", accuracy, k - 1))
        result += _printed(rows, k, "average")
    mean = "mean of A_k over all tasks, the number that later papers print"
    distance = [float(one.old_prototype_distance.mean[-1]) for one in rows]
    deviation = [float(one.old_prototype_distance.std[-1]) for one in rows]
    meaning = "mean distance of the old classes' prototypes to their true means at the end (lower is better)"
    return [
        *result,
        percent("mean A", "", "mean_incremental_accuracy", mean, [one.mean_incremental_accuracy for one in rows], None),
        percent(
            "overall",
            "",
            "overall_accuracy",
            "accuracy over all test images at the end",
            [one.overall_accuracy for one in rows],
            -1,
        ),
        *_printed(rows, tasks, "overall"),
        percent(
            "F",
            str(tasks),
            "average_forgetting",
            "average forgetting at the end (lower is better)",
            [one.average_forgetting for one in rows],
            -1,
            sign=-1,
        ),
        Column(
            "distance",
            "",
            "old_prototype_distance",
            meaning,
            distance,
            deviation,
            3,
            _best(distance, 3, drifts, -1),
        ),
    ]


def _printed(rows: Sequence[Summary], task: int, beside: str) -> list[Column]:
    """Return the column of what the paper prints after a task, if it prints anything of this kind."""
    values = [100 * float(one.paper[task - 1]) if one.paper_beside == beside else math.nan for one in rows]
    if not np.isfinite(values).any():
        return []
    key, meaning = f"paper_A_{task}", f"average accuracy after task {task} as the paper prints it, %"
    if beside == "overall":
        key = f"paper_overall_{task}"
        meaning = f"accuracy after task {task} as the paper prints it, %; almost surely over all test images"
    return [Column("paper", str(task), key, meaning, values, [math.nan] * len(rows), 1, ours=False)]


def _can_drift(method: Method) -> bool:
    """Return whether the distance of its prototypes says something about them, and can be compared with others'.

    A network that is never trained again (E-Fix) does not drift, with exemplars prototypes are computed anew, and the
    features of a classifying network have a scale of their own.
    """
    return method.schedule.train == "all" and method.exemplars is None and not method.objective.classifies


def _best(values: Sequence[float], decimals: int, competes: Sequence[bool], sign: int) -> frozenset[int]:
    """Return the best competing rows; rows that read the same as the best one are as good as it."""
    running = {i: written(value, math.nan, decimals) for i, value in enumerate(values) if competes[i]}
    running = {i: text for i, text in running.items() if text != MISSING}
    if len(set(running.values())) < 2:
        return frozenset()
    winner = max(running, key=lambda i: sign * values[i])
    return frozenset(i for i, text in running.items() if text == running[winner])
