"""The results table: its columns, which rows are best, and how it is printed. Every format writes the same one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..common.tables import text_table
from .summary import Document, Summaries, Summary, has_seeds, not_learned, number_of_tasks, summaries

MISSING = "–"
"""Stands where a number is not defined, such as the forgetting of a single task."""


@dataclass(frozen=True)
class Column:
    """One column of R rows.

    Attributes:
        heading: such as A_3.
        key: its name for programs.
        meaning: what it is, in words.
        values, deviations: (R,) mean and standard deviation over seeds, in the unit of the table; NaN: not defined.
        decimals: how many are written.
        best: the rows to emphasize; none if all rows that compete are alike.
        ours: False for numbers that the paper prints.
        detail: True for a column that only stands where there is room: the page shows it below the one before it.
    """

    heading: str
    key: str
    meaning: str
    values: Sequence[float]
    deviations: Sequence[float]
    decimals: int = 1
    best: frozenset[int] = frozenset()
    ours: bool = True
    detail: bool = False

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
    text = f"{round(value, decimals) + 0.0:.{decimals}f}"  # + 0.0 turns a rounded -0.0 into 0.0
    return f"{text} ± {deviation:.{decimals}f}" if math.isfinite(deviation) else text


def columns(summaries: Summaries) -> list[Column]:
    """Return A_1..A_T, their mean, accuracy on new tasks, overall accuracy, F_T and the old distance.

    Beside A_k stand the accuracy on the task just learned (`detail`) and what the paper prints, if it does.
    """
    tasks, rows = number_of_tasks(summaries), list(summaries.values())

    def column(
        heading: str, key: str, meaning: str, metric: str, at: int | tuple[()], sign: int = 1, *, detail: bool = False
    ) -> Column:
        distance = metric == "old_prototype_distance"
        factor, decimals = (1, 3) if distance else (100, 1)
        spreads = [one[metric] for one in rows]
        values, deviations = ([factor * float(getattr(s, part)[at]) for s in spreads] for part in ("mean", "std"))
        competes = [not one.is_upper_bound and (not distance or _can_drift(one)) for one in rows]
        best = frozenset[int]() if detail else _best(values, decimals, competes, sign)
        return Column(heading, key, meaning, values, deviations, decimals, best, detail=detail)

    result = []
    for k in range(1, tasks + 1):
        result.append(column(f"A_{k}", f"A_{k}", f"average accuracy after task {k}, %", "average_accuracy", k - 1))
        if k > 1:  # after the first task it is A_1
            meaning = f"accuracy on task {k} just after it was learned, %"
            result.append(column(f"new_{k}", f"new_{k}", meaning, "new_task_accuracy", k - 1, detail=True))
        result += _printed(rows, k, "average")
    mean = "mean of A_k over all tasks, the number that later papers print, %"
    new = "accuracy on each task just after it was learned, mean over all tasks, %"
    lost = "average forgetting at the end (lower is better), %"
    far = "mean distance of the old classes' prototypes to their true means at the end (lower is better)"
    return [
        *result,
        column("mean A", "mean_incremental_accuracy", mean, "mean_incremental_accuracy", ()),
        column("new", "mean_new_task_accuracy", new, "mean_new_task_accuracy", ()),
        column("overall", "overall_accuracy", "accuracy over all test images at the end, %", "overall_accuracy", -1),
        *_printed(rows, tasks, "overall"),
        column(f"F_{tasks}", "average_forgetting", lost, "average_forgetting", -1, sign=-1),
        column("distance", "old_prototype_distance", far, "old_prototype_distance", -1, sign=-1),
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
    return [Column(f"paper_{task}", key, meaning, values, [math.nan] * len(rows), ours=False)]


def _can_drift(one: Summary) -> bool:
    """Return whether the distance of its prototypes says something about them, and can be compared with others'.

    A network that is never trained again (E-Fix) does not drift, with exemplars prototypes are computed anew, and the
    features of a classifying network have a scale of their own.
    """
    return not one.stays and one.kind == "Embedding networks"


def _best(values: Sequence[float], decimals: int, competes: Sequence[bool], sign: int) -> frozenset[int]:
    """Return the best competing rows; rows that read the same as the best one are as good as it."""
    running = {i: written(value, math.nan, decimals) for i, value in enumerate(values) if competes[i]}
    running = {i: text for i, text in running.items() if text != MISSING}
    if len(set(running.values())) < 2:
        return frozenset()
    winner = max(running, key=lambda i: sign * values[i])
    return frozenset(i for i, text in running.items() if text == running[winner])


def summary_text(document: Document) -> str:
    """Return the results table of one run as aligned lines."""
    return results_text(summaries([document])).rstrip("\n")


def results_text(summaries: Summaries) -> str:
    """Return the results as aligned lines, one per method: the columns that are no details.

    The best row of a column carries a `*`; upper bounds, which see old images, do not compete and stand in brackets.
    """
    table = [column for column in columns(summaries) if not column.detail]
    names = [f"({name})" if one.is_upper_bound else name for name, one in summaries.items()]
    marked = [[t + ("*" if i in c.best else " ") for i, t in enumerate(c.texts)] for c in table]
    head = ["method", *(f"{column.heading} " for column in table)]
    lines = text_table(zip(names, *marked, strict=True), head, range(1, len(head)), rule=True)
    notes = [
        (
            True,
            "A, new, overall, F in %; new: on a task just after it was learned; F, distance: lower is better; * best",
        ),
        (has_seeds(summaries), "mean ± standard deviation over seeds"),
        (not all(column.ours for column in table), "paper: what the paper prints"),
        (any(one.is_upper_bound for one in summaries.values()), "(in brackets: upper bounds, they see old images)"),
    ]
    warning = not_learned(summaries)
    return "\n".join([lines, *(note for there, note in notes if there), *([warning] if warning else [])]) + "\n"
