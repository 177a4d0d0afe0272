"""The figures that are made from summaries: curves over tasks, tasks at the end, distances of prototypes, confusion."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import altair as alt
import numpy as np

from ..errors import InputError, did_you_mean
from . import charts
from .charts import COLORS, GRAY, INK, MUTED, PAPER, SHAPES, Row
from .summary import Spread, Summaries, Summary, has_seeds, number_of_tasks
from .table import written

NAMED = 20
"""Classes whose names stand at the edge of a confusion matrix; of more, the numbers of the tasks."""

_SOLID, _DASHED, _DOTTED = (1, 0), (7, 4), (1.5, 3.5)
_STYLES = (_SOLID, (10, 3, 2, 3), (14, 4), (10, 3, 2, 3, 2, 3))


class Metric(NamedTuple):
    """How a metric of a summary is called in a chart and in a tooltip, and how it is written."""

    title: str
    short: str
    factor: float = 100.0
    decimals: int = 1
    unit: str = " %"
    from_zero: bool = False

    def text(self, spread: Spread, task: int) -> str:
        """Return the value after a task (from 0) as it is written, with its deviation over seeds."""
        value, deviation = self.factor * spread.mean[task], self.factor * spread.std[task]
        return written(value, deviation, self.decimals) + (self.unit if math.isfinite(value) else "")

    def ends(self, spread: Spread, task: int) -> Row:
        """Return a value and the ends of its error bar, which stay in what the value can be; None: not defined."""
        value, deviation = self.factor * float(spread.mean[task]), self.factor * float(spread.std[task])
        low = max(min(0.0, value), value - deviation)
        high = min(100.0, value + deviation) if self.unit else value + deviation
        known = {"value": value, "low": low, "high": high} if math.isfinite(deviation) else {"value": value}
        return {key: _rounded(known.get(key, math.nan)) for key in ("value", "low", "high")}


METRICS: Mapping[str, Metric] = {
    "average_accuracy": Metric("average accuracy A, %", "A"),
    "new_task_accuracy": Metric("accuracy on the task just learned, %", "task just learned"),
    "overall_accuracy": Metric("accuracy over all seen test images, %", "all images"),
    "average_forgetting": Metric("average forgetting F, %", "F", from_zero=True),
    "old_prototype_distance": Metric("distance of old prototypes to their true means", "distance", 1, 3, "", True),
}


def _rounded(value: float) -> float | None:
    return round(value, 4) + 0.0 if math.isfinite(value) else None


class Look(NamedTuple):
    """How the line of a method looks; color and shape tell the training, dashes and hollow markers the drift."""

    color: str
    shape: str
    dash: Sequence[float]
    fill: str


def looks(summaries: Summaries) -> dict[str, Look]:
    """Return a look for each method: one color and shape per training, the line style tells the drift estimator.

    Networks that stay as they are after the first task are gray, joint training has the color of text. Each kind of
    method begins with the first color.
    """
    tells = {one.kind for one in summaries.values() if one.is_compensated}
    colors = [color for color in COLORS if color != GRAY]
    trainings: dict[object, tuple[str, str]] = {}
    count: Counter[object] = Counter()
    result = {}
    for name, one in summaries.items():
        if one.training not in trainings:
            i = count[one.kind, one.stays, one.is_joint]
            count[one.kind, one.stays, one.is_joint] += 1
            color = INK if one.is_joint else GRAY if one.stays else colors[i % len(colors)]
            trainings[one.training] = color, SHAPES[(i + i // len(colors)) % len(SHAPES)]
        color, shape = trainings[one.training]
        if one.is_upper_bound:
            result[name] = Look(color, shape, _DOTTED, color)
        elif one.is_compensated or one.stays:  # a second estimator, or network that stays, takes the next style
            result[name] = Look(color, shape, _STYLES[count[one.kind, color] % len(_STYLES)], color)
            count[one.kind, color] += 1
        else:
            plain = one.kind in tells
            result[name] = Look(color, shape, _DASHED if plain else _SOLID, PAPER if plain else color)
    return result


def _scale(styles: Mapping[str, Look], name: str) -> alt.Scale:
    return alt.Scale(domain=list(styles), range=[getattr(look, name) for look in styles.values()])


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
    ends = {name: how.text(one[metric], -1).removesuffix(how.unit) for name, one in summaries.items()}
    pick = charts.picking("method")
    hover = alt.selection_point(name="hover", fields=["method"], on="pointerover", clear="pointerout", empty=False)
    # Where all curves fall alike, what is left of them beside their mean can be told apart.
    box = alt.binding_checkbox(name="difference to the mean of these methods")
    relative = alt.param(name="relative", value=False, bind=box if len(summaries) > 2 else alt.Undefined)
    shifted = "isValid(datum.{0}) ? datum.{0} - (relative ? datum.mean : 0) : null"
    scale = alt.Scale(zero=how.from_zero)
    base = (
        charts.plot(_curve_rows(summaries, metric, own))
        .transform_calculate(at=shifted.format("value"), low=shifted.format("low"), high=shifted.format("high"))
        .encode(x=alt.X("task:O", title="task"), y=alt.Y("at:Q", title=None, scale=scale), opacity=charts.opacity(pick))
    )
    # Only the lines have a legend, and so what it singles out: a legend of several layers does not take clicks.
    legend = alt.Legend(
        title=None,
        symbolType="stroke",
        symbolSize=550,
        symbolStrokeWidth=2.2,
        symbolOpacity=1,
        rowPadding=-5,  # an entry is as high as its symbol is long
        labelExpr=f"datum.label + '\u2002' + {json.dumps(ends)}[datum.label]",
    )
    lines = base.mark_line().encode(
        color=alt.Color("method:N", scale=_scale(own, "color"), legend=legend),
        strokeDash=alt.StrokeDash("method:N", scale=_scale(own, "dash"), legend=legend),
        strokeWidth=alt.when(hover).then(alt.value(4.5)).otherwise(alt.value(2)),
    )
    stroke = alt.Stroke("color:N", scale=None)
    bars = base.mark_rule().encode(y=alt.Y("low:Q", title=None, scale=scale), y2="high:Q", stroke=stroke)
    bars = bars.encode(opacity=charts.opacity(pick, 0.4))
    points = base.mark_point(size=46, strokeWidth=1.6).encode(
        shape=alt.Shape("shape:N", scale=None), stroke=stroke, fill=alt.Fill("fill:N", scale=None)
    )
    # Nobody can point at a small marker: an unseen large one takes the pointer. (`nearest` would do it too, but its
    # tooltips say undefined in Vega-Lite 6.4.)
    told = ["method:N", alt.Tooltip("task:O", title="after task"), *(f"{one.short}:N" for one in METRICS.values())]
    targets = base.mark_point(size=420, filled=True).encode(tooltip=told, opacity=alt.value(0))
    layers = [lines.add_params(pick, relative), points, targets.add_params(hover)]
    entries = [f"{name} {end}" for name, end in ends.items()]
    return charts.single(
        charts.layered(*([bars] if has_seeds(summaries) else []), *layers),
        alt.expr(f"'{how.title}' + (relative ? ', minus the mean' : '')"),
        entries,
        description=f"{how.title}, after each of {tasks} tasks; at the end: {', '.join(entries)}",
        height=300 if len(entries) > 5 else 220,
    )


def _curve_rows(summaries: Summaries, metric: str, styles: Mapping[str, Look]) -> list[Row]:
    """Return a row per method and task: the value, its error bar, the mean of all methods, and what a tooltip says."""
    result = []
    for task in range(number_of_tasks(summaries)):
        values = [METRICS[metric].ends(one[metric], task) for one in summaries.values()]
        known = [value["value"] for value in values if value["value"] is not None]
        mean = _rounded(sum(known) / len(known)) if known else 0.0
        for (name, one), value in zip(summaries.items(), values, strict=True):
            told = {how.short: how.text(one[key], task) for key, how in METRICS.items()}
            look = {**styles[name]._asdict(), "dash": None}
            result.append({"method": name, "task": task + 1, "mean": mean, **look, **value, **told})
    return result


def final_bars(summaries: Summaries, names: Sequence[str]) -> alt.LayerChart:
    """Draw the accuracy of two or three methods on each task after the last one, one bar per method (Fig. 11)."""
    for name in names:
        if name not in summaries:
            raise InputError(f"there is no method {name!r}. {did_you_mean(name, summaries)}")
    tasks, known, how = number_of_tasks(summaries), looks(summaries), METRICS["average_accuracy"]
    styles = {name: known[name] for name in names}
    matrices = {name: summaries[name]["accuracy_matrix"] for name in names}
    last = {name: Spread(matrix.mean[-1], matrix.std[-1]) for name, matrix in matrices.items()}
    rows = [
        {"method": name, "task": task + 1, "accuracy": how.text(own, task), **how.ends(own, task)}
        for name, own in last.items()
        for task in range(tasks)
    ]
    pick, legend = charts.picking("method"), alt.Legend(title=None, symbolType="square", symbolSize=120)
    base = charts.plot(rows).encode(
        x=alt.X("task:O", title="task", scale=alt.Scale(paddingInner=0.25)),
        y=alt.Y("value:Q", title=None, scale=alt.Scale(domain=[0, 100])),
        xOffset=alt.XOffset("method:N", sort=list(names)),
        opacity=charts.opacity(pick),
    )
    bars = base.mark_bar(strokeWidth=1.4).encode(
        stroke=alt.Stroke("method:N", scale=_scale(styles, "color"), legend=legend),
        fill=alt.Fill("method:N", scale=_scale(styles, "fill"), legend=legend),
        tooltip=["method:N", "task:O", "accuracy:N"],
    )
    errors = base.mark_rule(color=INK).encode(y="low:Q", y2="high:Q")
    layers = [bars.add_params(pick), *([errors] if has_seeds(summaries) else [])]
    described = f"accuracy on each of {tasks} tasks after the last one: {', '.join(names)}"
    return charts.single(charts.layered(*layers), "accuracy at the end, %", names, description=described)


def class_distances(*shown: Summary) -> alt.ConcatChart:
    """Draw the distance of every prototype to its true mean: a thin line per class, their mean in bold (Fig. 5).

    Args:
        shown: the methods, one panel each on the same axis; without and with SDC belong side by side.
    """
    highest = max(float(np.nanmax([0.0, *one["prototype_distance"].mean.ravel()])) for one in shown)
    pick = charts.picking("learned in task")
    drawn = [_distance_panel(one, highest or 1.0, pick) for one in shown]
    described = f"distance of each prototype to its true mean, after each task: {', '.join(one.name for one in shown)}"
    return charts.panels(drawn, (4, 2), [str(len(shown[0].tasks))], pick, description=described, aspect=0.8)


def _distance_panel(one: Summary, highest: float, pick: alt.Parameter) -> alt.LayerChart:
    tasks, values = len(one.tasks), one["prototype_distance"].mean
    learned = [t for t, task in enumerate(one.tasks, 1) for _ in task]
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
    means = [
        {"task": task + 1, "value": _rounded(value), "mean of old classes": written(value, math.nan, 3)}
        for task, value in enumerate(one["old_prototype_distance"].mean.tolist())
        if math.isfinite(value)
    ]
    x = alt.X("task:O", title="task", scale=alt.Scale(domain=list(range(1, tasks + 1))))
    y = alt.Y("value:Q", title=None, scale=alt.Scale(domain=[0, highest], nice=True), axis=alt.Axis(tickCount=5))
    legend = alt.Legend(title="classes learned in task", symbolType="stroke", symbolSize=300)
    width, strong = (1.3, 0.85) if len(one.classes) <= 40 else (0.8, 0.5)
    lines = (
        charts.plot(rows)
        .mark_line(strokeWidth=width)
        .encode(
            x=x,
            y=y,
            color=alt.Color("learned in task:O", scale=charts.color_scale(range(1, max(2, tasks))), legend=legend),
            detail="class:N",
            opacity=charts.opacity(pick, strong),
            tooltip=["class:N", "learned in task:O", "at the end:N"],
        )
    )
    bold = charts.plot(means).mark_line(color=INK, strokeWidth=3, point={"color": INK, "size": 40})
    bold = bold.encode(x=x, y=y, tooltip=["task:O", "mean of old classes:N"])
    end = METRICS["old_prototype_distance"].text(one["old_prototype_distance"], -1)
    return charts.layered(lines, bold).properties(title=f"{one.name}: {end}")


def confusion(matrices: Mapping[str, np.ndarray], classes: Sequence[object], tasks: Sequence[int]) -> alt.ConcatChart:
    """Draw confusion matrices side by side (Fig. 9): the stronger the color, the larger the share of a true class.

    Args:
        matrices: title -> (K, K) counts; rows are true classes, columns predicted ones.
        classes: K labels.
        tasks: number of classes of each task, for the lines between them.
    """
    ends, number = list(accumulate(tasks)), len(classes)
    places, names = [i + 0.5 for i in range(number)], [str(label) for label in classes]
    if number > NAMED:
        places = [end - size / 2 for end, size in zip(ends, tasks, strict=True)]
        names = [str(task) for task in range(1, len(tasks) + 1)]
    shown = f"{json.dumps(names)}[indexof({json.dumps(places)}, datum.value)]"
    axis = alt.Axis(
        values=places, labelExpr=shown, labelLimit=70, labelOverlap="greedy", grid=False, ticks=False, domain=False
    )
    x = alt.X("x:Q", title="taken for", scale=alt.Scale(domain=[0, number], nice=False), axis=axis)
    y = alt.Y("y:Q", title="true class", scale=alt.Scale(domain=[number, 0], nice=False), axis=axis)
    strength = alt.Scale(domain=[0, 1], range=[0.15, 1])  # a single mistake must still be seen
    border = charts.plot({"at": end} for end in [0, *ends]).mark_rule(color=MUTED, strokeWidth=0.7)
    drawn = []
    for title, counts in matrices.items():
        totals = counts.sum(axis=1)
        rows = [
            {
                "x": j,
                "x2": j + 1,
                "y": i,
                "y2": i + 1,
                "share": _rounded(counts[i, j] / totals[i]),
                "true class": str(classes[i]),
                "taken for": str(classes[j]),
                "images": f"{counts[i, j]} of {totals[i]}",
            }
            for i, j in np.argwhere(counts).tolist()  # only cells that are not empty: with 200 classes most are
        ]
        cells = (
            charts.plot(rows)
            .mark_rect(color=charts.ACCENT, aria=False)
            .encode(
                x=x,
                x2="x2:Q",
                y=y,
                y2="y2:Q",
                opacity=alt.Opacity("share:Q", scale=strength, legend=None),
                tooltip=["true class:N", "taken for:N", "images:N"],
            )
        )
        layers = charts.layered(cells, border.encode(x="at:Q"), border.encode(y="at:Q"))
        drawn.append(layers.properties(title=title))
    described = f"confusion matrices of {number} classes; {'; '.join(matrices)}"
    return charts.panels(drawn, (len(drawn), 1), description=described)
