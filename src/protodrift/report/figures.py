"""The figures that are made from summaries: curves over tasks, tasks at the end, distances of prototypes, confusion."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import altair as alt
import numpy as np

from ..errors import InputError, did_you_mean
from . import charts
from .charts import COLORS, GRAY, INK, PAPER, SHAPES, Row
from .summary import Spread, Summaries, Summary, has_seeds, number_of_tasks
from .table import written

NAMED = 20
"""Classes whose names stand at the edge of a confusion matrix; of more, the numbers of the tasks."""

_SOLID, _DASHED, _DOTTED = [1, 0], [7, 4], [1.5, 3.5]
_OTHERS = ([10, 3, 2, 3], [14, 4], [10, 3, 2, 3, 2, 3])


@dataclass(frozen=True)
class Metric:
    """A curve of a summary: how it is called, and how it is written."""

    title: str
    factor: float = 100.0
    decimals: int = 1
    unit: str = " %"
    from_zero: bool = False

    def text(self, spread: Spread, task: int) -> str:
        """Return the value after a task (from 0) as it is written, with its deviation over seeds."""
        value, deviation = self.factor * spread.mean[task], self.factor * spread.std[task]
        return written(value, deviation, self.decimals) + (self.unit if math.isfinite(value) else "")


METRICS: Mapping[str, Metric] = {
    "average_accuracy": Metric("average accuracy A, %"),
    "new_task_accuracy": Metric("accuracy on the task just learned, %"),
    "overall_accuracy": Metric("accuracy over all seen test images, %"),
    "average_forgetting": Metric("average forgetting F, %", from_zero=True),
    "old_prototype_distance": Metric("distance of old prototypes to their true means", 1.0, 3, "", from_zero=True),
}


# -- looks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """How the line of a method looks; color and shape tell the training, dashes and hollow markers the drift."""

    color: str
    shape: str
    dash: Sequence[float]
    hollow: bool = False

    @property
    def fill(self) -> str:
        """The color of its markers."""
        return PAPER if self.hollow else self.color


def looks(summaries: Summaries) -> dict[str, Look]:
    """Return a look for each method: one color and shape per training, the line style tells the drift estimator.

    Networks that stay as they are after the first task are gray, joint training has the color of text. Each kind of
    method begins with the first color.
    """
    tells = {one.kind for one in summaries.values() if one.is_compensated}
    colors = [color for color in COLORS if color != GRAY]
    trainings: dict[object, tuple[str, str]] = {}
    numbers: Counter[object] = Counter()
    result = {}
    for name, one in summaries.items():
        stays = one.method.schedule.train != "all"
        if one.training not in trainings:
            i = numbers[one.kind, stays, one.is_joint]
            numbers[one.kind, stays, one.is_joint] += 1
            color = INK if one.is_joint else GRAY if stays else colors[i % len(colors)]
            trainings[one.training] = color, SHAPES[(i + i // len(colors)) % len(SHAPES)]
        color, shape = trainings[one.training]
        if one.is_upper_bound:
            result[name] = Look(color, shape, _DOTTED)
        elif one.is_compensated or stays:  # a second estimator, or network that stays, takes the next style
            i = numbers[one.kind, color]
            numbers[one.kind, color] += 1
            result[name] = Look(color, shape, [_SOLID, *_OTHERS][i % 4])
        else:
            result[name] = Look(color, shape, _DASHED, hollow=True) if one.kind in tells else Look(color, shape, _SOLID)
    return result


def _scale(styles: Mapping[str, Look], name: str) -> alt.Scale:
    return alt.Scale(domain=list(styles), range=[getattr(look, name) for look in styles.values()])


# -- curves (Figs. 2, 6, 7, 10) ---------------------------------------------------------------------------------------


def curves(
    summaries: Summaries, metric: str = "average_accuracy", styles: Mapping[str, Look] | None = None
) -> alt.LayerChart:
    """Draw a metric against the task, one line per method (Figs. 2, 5, 6, 7, 10), with error bars over seeds.

    Args:
        summaries: R methods on streams of T tasks.
        metric: one of `METRICS`.
        styles: the looks of the methods, of these or more; None: `looks`.
    """
    if metric not in METRICS:
        raise InputError(f"unknown metric {metric!r}. {did_you_mean(metric, METRICS)}")
    tasks, how = number_of_tasks(summaries), METRICS[metric]
    known = looks(summaries) if styles is None else styles
    own = {name: known[name] for name in summaries}
    ends = {name: how.text(getattr(one, metric), -1).removesuffix(how.unit) for name, one in summaries.items()}
    pick = charts.picking("method")
    hover = alt.selection_point(name="hover", fields=["method"], on="pointerover", clear="pointerout", empty=False)
    # Where all curves fall alike, what is left of them beside their mean can be told apart.
    box = alt.binding_checkbox(name="difference to the mean of these methods")
    relative = alt.param(name="relative", value=False, bind=box if len(summaries) > 2 else alt.Undefined)
    legend = alt.Legend(
        title=None,
        symbolType="stroke",
        symbolSize=550,
        symbolStrokeWidth=2.2,
        symbolOpacity=1,
        rowPadding=-5,  # an entry is as high as its symbol is long
        labelExpr=f"datum.label + '\u2002' + {json.dumps(ends)}[datum.label]",
    )
    scale = alt.Scale(zero=how.from_zero)
    shift = "(relative ? datum.mean : 0)"
    strong, weak, faint = alt.value(1), alt.value(0.4), alt.value(0.1)
    base = (
        alt.Chart(charts.data(_curve_rows(summaries, metric, own)))
        .transform_calculate(
            at=f"isValid(datum.value) ? datum.value - {shift} : null",
            low=f"isValid(datum.low) ? datum.low - {shift} : null",
            high=f"isValid(datum.high) ? datum.high - {shift} : null",
        )
        .encode(x=alt.X("task:O", title="task"), y=alt.Y("at:Q", title=None, scale=scale))
    )
    # Only the lines have a legend, and so what it singles out: a legend of several layers does not take clicks.
    lines = base.mark_line().encode(
        color=alt.Color("method:N", scale=_scale(own, "color"), legend=legend),
        strokeDash=alt.StrokeDash("method:N", scale=_scale(own, "dash"), legend=legend),
        strokeWidth=alt.when(hover).then(alt.value(4.5)).otherwise(alt.value(2)),
        opacity=alt.when(pick).then(strong).otherwise(faint),
    )
    bars = base.mark_rule().encode(
        stroke=alt.Stroke("color:N", scale=None),
        y=alt.Y("low:Q", title=None, scale=scale),
        y2="high:Q",
        opacity=alt.when(pick).then(weak).otherwise(faint),
    )
    points = base.mark_point(size=46, strokeWidth=1.6).encode(
        shape=alt.Shape("shape:N", scale=None),
        stroke=alt.Stroke("color:N", scale=None),
        fill=alt.Fill("fill:N", scale=None),
        opacity=alt.when(pick).then(strong).otherwise(faint),
    )
    # Nobody can point at a small marker: an unseen large one takes the pointer. (`nearest` would do it too, but its
    # tooltips say undefined in Vega-Lite 6.4.)
    told = ["method:N", alt.Tooltip("task:O", title="after task"), *(f"{key}:N" for key in _NUMBERS)]
    targets = base.mark_point(size=420, filled=True, opacity=0).encode(tooltip=told)
    layers = [
        *([bars] if has_seeds(summaries) else []),
        lines.add_params(pick, relative),
        points,
        targets.add_params(hover),
    ]
    entries = [f"{name} {end}" for name, end in ends.items()]
    return charts.single(
        charts.layered(*layers),
        alt.expr(f"'{how.title}' + (relative ? ', minus the mean' : '')"),
        entries,
        description=f"{how.title}, after each of {tasks} tasks; at the end: {', '.join(entries)}",
        height=300 if len(entries) > 5 else 220,
    )


def _curve_rows(summaries: Summaries, metric: str, styles: Mapping[str, Look]) -> list[Row]:
    """Return a row per method and task: the value, its error bar, the mean of all methods, and what a tooltip says."""
    how = METRICS[metric]
    result = []
    for task in range(number_of_tasks(summaries)):
        values = [how.factor * float(getattr(one, metric).mean[task]) for one in summaries.values()]
        known = [value for value in values if math.isfinite(value)]
        mean = _rounded(sum(known) / len(known)) if known else 0.0
        for name, one in summaries.items():
            style = styles[name]
            row: Row = {"method": name, "task": task + 1, "mean": mean}
            row.update(color=style.color, shape=style.shape, fill=style.fill)
            result.append({**row, **_ends(getattr(one, metric), task, how.factor), **_numbers(one, task)})
    return result


_NUMBERS = {
    "A": "average_accuracy",
    "task just learned": "new_task_accuracy",
    "all images": "overall_accuracy",
    "F": "average_forgetting",
    "distance": "old_prototype_distance",
}


def _numbers(one: Summary, task: int) -> Row:
    """Return what a tooltip says about a method after a task."""
    return {key: METRICS[name].text(getattr(one, name), task) for key, name in _NUMBERS.items()}


def _ends(spread: Spread, task: int, factor: float) -> Row:
    """Return a value with the ends of its error bar, which stay in what the value can be; None: not defined."""
    value, deviation = factor * float(spread.mean[task]), factor * float(spread.std[task])
    if not math.isfinite(value):
        return {"value": None, "low": None, "high": None}
    if not math.isfinite(deviation):
        return {"value": _rounded(value), "low": None, "high": None}
    highest = 100.0 if factor == 100.0 else math.inf
    return {
        "value": _rounded(value),
        "low": _rounded(max(min(0.0, value), value - deviation)),
        "high": _rounded(min(highest, value + deviation)),
    }


def _rounded(value: float) -> float:
    return round(value, 4) + 0.0


# -- each task at the end (Fig. 11) -----------------------------------------------------------------------------------


def final_bars(summaries: Summaries, names: Sequence[str]) -> alt.LayerChart:
    """Draw the accuracy on each task after the last one, one bar per method (Fig. 11).

    Args:
        summaries: where the methods are.
        names: which two or three.
    """
    for name in names:
        if name not in summaries:
            raise InputError(f"there is no method {name!r}. {did_you_mean(name, summaries)}")
    chosen = {name: summaries[name] for name in names}
    tasks, known = number_of_tasks(chosen), looks(summaries)
    styles = {name: known[name] for name in names}
    title = "accuracy at the end, %"
    last = {name: Spread(one.accuracy_matrix.mean[-1], one.accuracy_matrix.std[-1]) for name, one in chosen.items()}
    rows = [
        {
            **_ends(own, task, 100.0),
            "method": name,
            "task": task + 1,
            "accuracy": METRICS["average_accuracy"].text(own, task),
        }
        for name, own in last.items()
        for task in range(tasks)
    ]
    pick, legend = charts.picking("method"), alt.Legend(title=None, symbolType="square", symbolSize=120)
    base = alt.Chart(charts.data(rows)).encode(
        x=alt.X("task:O", title="task", scale=alt.Scale(paddingInner=0.25)),
        y=alt.Y("value:Q", title=None, scale=alt.Scale(domain=[0, 100])),
        xOffset=alt.XOffset("method:N", sort=list(names)),
        opacity=alt.when(pick).then(alt.value(1)).otherwise(alt.value(0.15)),
    )
    bars = (
        base.mark_bar(strokeWidth=1.4)
        .encode(
            stroke=alt.Stroke("method:N", scale=_scale(styles, "color"), legend=legend),
            fill=alt.Fill("method:N", scale=_scale(styles, "fill"), legend=legend),
            tooltip=["method:N", "task:O", "accuracy:N"],
        )
        .add_params(pick)
    )
    errors = base.mark_rule(color=INK).encode(y="low:Q", y2="high:Q")
    described = f"accuracy on each of {tasks} tasks after the last one: {', '.join(names)}"
    layers = [bars, errors] if has_seeds(chosen) else [bars]
    return charts.single(charts.layered(*layers), title, names, description=described)


# -- distance of prototypes to true means (Fig. 5) --------------------------------------------------------------------


def class_distances(*shown: Summary) -> alt.ConcatChart:
    """Draw the distance of every prototype to its true mean: a thin line per class, their mean in bold (Fig. 5).

    Args:
        shown: the methods, one panel each on the same axis; without and with SDC belong side by side.
    """
    tasks = len(shown[0].tasks)
    highest = max(float(np.nanmax([0.0, *one.prototype_distance.mean.ravel()])) for one in shown)
    pick = charts.picking("learned in task")
    drawn = [_distance_panel(one, highest or 1.0, tasks, pick) for one in shown]
    names = ", ".join(one.name for one in shown)
    described = f"distance of each prototype to its true mean, after each task: {names}"
    return charts.panels(drawn, (4, 2), [str(tasks)], pick, description=described, aspect=0.8)


def _distance_panel(one: Summary, highest: float, tasks: int, pick: alt.Parameter) -> alt.LayerChart:
    learned = [t for t, task in enumerate(one.tasks, 1) for _ in task]
    values = one.prototype_distance.mean
    rows = [
        {
            "class": str(label),
            "learned in task": learned[k],
            "task": task + 1,
            "value": _rounded(float(values[task, k])),
            "at the end": written(float(values[-1, k]), math.nan, 3),
        }
        for k, label in enumerate(one.classes)
        for task in range(learned[k] - 1, tasks)
        if learned[k] < tasks and math.isfinite(values[task, k])  # a class of the last task has not drifted yet
    ]
    mean = METRICS["old_prototype_distance"]
    means = [
        {"task": task + 1, "value": _rounded(float(value)), "mean of old classes": f"{value:.3f}"}
        for task, value in enumerate(one.old_prototype_distance.mean.tolist())
        if math.isfinite(value)
    ]
    axis = alt.X("task:O", title="task", scale=alt.Scale(domain=list(range(1, tasks + 1))))
    y = alt.Y("value:Q", title=None, scale=alt.Scale(domain=[0, highest], nice=True), axis=alt.Axis(tickCount=5))
    few = len(one.classes) <= 40
    before = list(range(1, max(2, tasks)))
    color = alt.Color(
        "learned in task:O",
        scale=alt.Scale(domain=before, range=charts.cycle(COLORS, len(before))),
        legend=alt.Legend(title="classes learned in task", symbolType="stroke", symbolSize=300),
    )
    strong = 0.85 if few else 0.5
    lines = (
        alt.Chart(charts.data(rows))
        .mark_line(strokeWidth=1.3 if few else 0.8)
        .encode(
            x=axis,
            y=y,
            color=color,
            detail="class:N",
            opacity=alt.when(pick).then(alt.value(strong)).otherwise(alt.value(0.06)),
            tooltip=["class:N", "learned in task:O", "at the end:N"],
        )
    )
    bold = (
        alt.Chart(charts.data(means))
        .mark_line(color=INK, strokeWidth=3, point={"color": INK, "size": 40})
        .encode(x=axis, y=y, tooltip=["task:O", "mean of old classes:N"])
    )
    end = mean.text(one.old_prototype_distance, -1)
    return charts.layered(lines, bold).properties(title=f"{one.name}: {end}")


# -- confusion (Fig. 9) -----------------------------------------------------------------------------------------------


def confusion_matrices(*shown: Summary) -> alt.ConcatChart:
    """Draw confusion matrices after the last task side by side (Fig. 9); tooltips tell the numbers."""
    drawn, titles = [], []
    for one in shown:
        if one.confusion is None:
            raise InputError(f"{one.name}: {len(one.classes)} classes are too many for a confusion matrix.")
        right = np.trace(one.confusion) / max(1, one.confusion.sum())
        titles.append(f"{one.name}: {100 * right:.1f} % right")
        drawn.append(_heat_map(one.confusion, one.classes, [len(task) for task in one.tasks], titles[-1]))
    return charts.panels(drawn, (len(shown), 1), description=f"confusion matrices; {'; '.join(titles)}")


def confusion_matrix(
    counts: np.ndarray, classes: Sequence[object], tasks: Sequence[int], title: str = ""
) -> alt.ConcatChart:
    """Draw one confusion matrix, (K, K): the stronger the color, the larger the share of a true class.

    Only cells that are not empty are drawn: with 200 classes most are.

    Args:
        counts: rows are true classes, columns predicted ones.
        classes: K labels.
        tasks: number of classes of each task, for the lines between them.
        title: stands above it.
    """
    described = f"confusion matrix of {len(classes)} classes. {title}".strip()
    return charts.panels([_heat_map(counts, classes, tasks, title)], (1,), description=described)


def _heat_map(counts: np.ndarray, classes: Sequence[object], tasks: Sequence[int], title: str) -> alt.LayerChart:
    totals, number = counts.sum(axis=1), len(counts)
    rows = [
        {
            "x": int(j),
            "x2": int(j) + 1,
            "y": int(i),
            "y2": int(i) + 1,
            "true class": str(classes[i]),
            "taken for": str(classes[j]),
            "images": f"{counts[i, j]} of {totals[i]}",
            "share": _rounded(counts[i, j] / totals[i]),
        }
        for i, j in np.argwhere(counts).tolist()
    ]
    ends = list(accumulate(tasks))
    if number <= NAMED:
        places, names = [i + 0.5 for i in range(number)], [str(label) for label in classes]
    else:
        places, names = (
            [end - size / 2 for end, size in zip(ends, tasks, strict=True)],
            [str(t + 1) for t in range(len(tasks))],
        )
    axis = alt.Axis(
        values=places,
        labelExpr=f"{json.dumps(names)}[indexof({json.dumps(places)}, datum.value)]",
        labelLimit=70,
        labelOverlap="greedy",
        grid=False,
        ticks=False,
        domain=False,
    )
    scale = alt.Scale(domain=[0, number], nice=False)
    x, y = (
        alt.X("x:Q", title="taken for", scale=scale, axis=axis),
        alt.Y("y:Q", title="true class", scale=scale, axis=axis),
    )
    y = y.scale(domain=[number, 0])
    cells = (
        alt.Chart(charts.data(rows))
        .mark_rect(color=charts.ACCENT, aria=False)
        .encode(
            x=x,
            x2="x2:Q",
            y=y,
            y2="y2:Q",
            # A single mistake must still be seen.
            opacity=alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0.15, 1]), legend=None),
            tooltip=["true class:N", "taken for:N", "images:N"],
        )
    )
    border = alt.Chart(charts.data({"at": end} for end in [0, *ends])).mark_rule(color=charts.MUTED, strokeWidth=0.7)
    return charts.layered(cells, border.encode(x="at:Q"), border.encode(y="at:Q")).properties(title=title)
