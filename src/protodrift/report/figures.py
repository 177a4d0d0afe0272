"""The figures that are made from summaries: curves over tasks, distances of prototypes, confusion, tasks at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from ..errors import InputError, did_you_mean
from . import plots, svg
from .summary import Spread, Summaries, Summary, has_seeds, number_of_tasks

Metric = Literal["average_accuracy", "overall_accuracy", "average_forgetting"]

_METRICS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "average_accuracy": ("average accuracy A, %", ()),
    "overall_accuracy": ("accuracy over all seen test images, %", ()),
    "average_forgetting": ("average forgetting F, %", (0.0,)),
}


def caption(text: str) -> str:
    """Return a figure's caption."""
    return f"<figcaption>{svg.escape(text)}</figcaption>"


# -- curves (Figs. 2, 6, 7, 10) ---------------------------------------------------------------------------------------


def accuracy_curves(
    summaries: Summaries, metric: Metric = "average_accuracy", *, include: Sequence[float] = (), said: str = ""
) -> str:
    """Draw a metric in percent against the task, one line a method (Figs. 2, 6, 7, 10), with error bars over seeds.

    Rows of one training share a color. Solid: its prototypes are compensated; dashed: left where they were; dotted: an
    upper bound that sees old images.

    Args:
        summaries: R methods on streams of T tasks.
        metric: which (T,) curve of a summary.
        include: values that the axis must contain, so that charts can be compared.
        said: the beginning of the caption.

    Returns:
        A `<figure>`: the SVG, its legend and a caption.
    """
    if metric not in _METRICS:
        raise InputError(f"unknown metric {metric!r}. {did_you_mean(metric, _METRICS)}")
    label, zero = _METRICS[metric]
    spreads = {name: _percent(getattr(one, metric)) for name, one in summaries.items()}
    limits = (0.0, 100.0)
    return _curves(
        summaries, spreads, label, include=(*zero, *include), unit=" %", decimals=1, within=limits, said=said
    )


def distance_curves(summaries: Summaries, *, said: str = "") -> str:
    """Draw the old prototypes' mean distance to their true means against the task (the bold lines of Fig. 5)."""
    spreads = {name: one.old_prototype_distance for name, one in summaries.items()}
    label = "distance of old prototypes to their true means"
    return _curves(summaries, spreads, label, include=(0.0,), unit="", decimals=3, within=(0.0, math.inf), said=said)


def _percent(spread: Spread) -> Spread:
    return Spread(100 * spread.mean, 100 * spread.std)


def _curves(
    summaries: Summaries,
    spreads: Mapping[str, Spread],
    label: str,
    *,
    include: Sequence[float],
    unit: str,
    decimals: int,
    within: tuple[float, float],
    said: str,
) -> str:
    tasks = number_of_tasks(summaries)
    chart = svg.line_chart(
        {name: spread.mean.tolist() for name, spread in spreads.items()},
        range(1, tasks + 1),
        label,
        x_label="task",
        unit=unit,
        decimals=decimals,
        styles=line_styles(summaries),
        include=include,
        deviations={name: spread.std.tolist() for name, spread in spreads.items()},
        within=within,
    )
    return f"<figure>{chart}{caption(f'{said} {_explain_lines(summaries)}'.strip())}</figure>"


def line_styles(summaries: Summaries) -> dict[str, svg.LineStyle]:
    """Return a look for each method: one color a training, the line style tells the drift estimator.

    Where nothing is compensated there is nothing to tell: all lines but upper bounds are solid.
    """
    tells = any(_is_compensated(one) for one in summaries.values())
    families: dict[object, int] = {}
    compensated: dict[object, int] = {}
    styles = {}
    for name, one in summaries.items():
        color = families.setdefault(one.training, len(families))
        if one.is_upper_bound:
            styles[name] = svg.LineStyle(color, svg.DOTTED)
        elif one.method.drift is None:
            styles[name] = svg.LineStyle(color, svg.DASHED, hollow=True) if tells else svg.LineStyle(color)
        else:  # a second estimator on the same training takes the styles that are still free
            nth = compensated[one.training] = compensated.get(one.training, -1) + 1
            styles[name] = svg.LineStyle(color, svg.SOLID if nth == 0 else svg.DOTTED + nth)
    return styles


def _is_compensated(one: Summary) -> bool:
    return one.method.drift is not None and not one.is_upper_bound


def _explain_lines(summaries: Summaries) -> str:
    rows = list(summaries.values())
    tells = any(map(_is_compensated, rows))
    told = [
        (tells, "solid: prototypes compensated"),
        (tells and any(one.method.drift is None and not one.is_upper_bound for one in rows), "dashed: not compensated"),
        (any(one.is_upper_bound for one in rows), "dotted: upper bound that sees old images"),
    ]
    styles = "; ".join(text for there, text in told if there)
    styles = f" {styles[0].upper()}{styles[1:]}." if styles else ""
    bars = " Error bars: standard deviation over seeds." if has_seeds(summaries) else ""
    return f"One color per training.{styles}{bars} The legend gives the value after the last task."


# -- distance of prototypes to true means (Fig. 5) --------------------------------------------------------------------


def class_distances(*shown: Summary, top: float | None = None) -> str:
    """Draw the distance of every prototype to its true mean, a thin line a class, the mean of the old in bold (Fig. 5).

    Args:
        shown: the methods, one panel each on the same axis; without and with SDC belong side by side.
        top: the end of the axis; None: the largest distance.
    """
    lines = [one.prototype_distance.mean for one in shown]
    known = [v for own in lines for v in own.ravel().tolist() if math.isfinite(v)]
    highest = max(known, default=0.0) if top is None else top
    panels = []
    for one, own in zip(shown, lines, strict=True):
        mean = one.old_prototype_distance.mean.tolist()
        end = f"mean at the end {mean[-1]:.3f}" if math.isfinite(mean[-1]) else "no old class yet"
        drawing = plots.class_lines(
            {str(label): own[:, k].tolist() for k, label in enumerate(one.classes)},
            mean,
            top=highest,
            y_label="distance to the true mean",
            description=f"{one.name}: distance of each prototype to its true mean; {end}",
            colors=[t for t, task in enumerate(one.tasks) for _ in task],
        )
        panels.append(panel(f"{one.name}: {end}", drawing))
    return f'<div class="pd-pair">{"".join(panels)}</div>'


def panel(title: str, drawing: str) -> str:
    """Return one drawing of several, with its title."""
    return f'<div class="pd-panel-box"><p class="pd-panel-title">{svg.escape(title)}</p>{drawing}</div>'


# -- confusion (Fig. 9) -----------------------------------------------------------------------------------------------


def confusion_matrices(*shown: Summary) -> str:
    """Draw confusion matrices after the last task side by side (Fig. 9); hovering tells the numbers."""
    panels = []
    for one in shown:
        if one.confusion is None:
            raise InputError(f"{one.name}: {len(one.classes)} classes are too many for a confusion matrix.")
        right = np.trace(one.confusion) / max(1, one.confusion.sum())
        title = f"{one.name}: {100 * right:.1f} % right"
        drawing = plots.heat_map(one.confusion, one.classes, [len(task) for task in one.tasks], description=title)
        panels.append(panel(title, drawing))
    return f'<div class="pd-pair">{"".join(panels)}</div>'


# -- each task at the end (Fig. 11) -----------------------------------------------------------------------------------


def final_bars(summaries: Summaries, names: Sequence[str], *, said: str = "") -> str:
    """Draw the accuracy on each task after the last one, a bar a method (Fig. 11).

    Args:
        summaries: where the methods are.
        names: which two or three.
        said: the caption.
    """
    for name in names:
        if name not in summaries:
            raise InputError(f"there is no method {name!r}. {did_you_mean(name, summaries)}")
    chosen = {name: summaries[name] for name in names}
    spreads = {name: _percent(one.accuracy_matrix) for name, one in chosen.items()}
    # Two rows of one training have one color; the one that is not compensated is hollow, as its line is dashed.
    trainings = [one.training for one in chosen.values()]
    styles = {
        name: (style.color, style.hollow and trainings.count(chosen[name].training) > 1)
        for name, style in line_styles(chosen).items()
    }
    drawing = plots.grouped_bars(
        {name: spread.mean[-1].tolist() for name, spread in spreads.items()},
        {name: spread.std[-1].tolist() for name, spread in spreads.items()},
        [str(k) for k in range(1, number_of_tasks(chosen) + 1)],
        y_label="accuracy at the end, %",
        x_label="task",
        description=f"accuracy on each task after the last one: {', '.join(names)}",
        colors=styles,
    )
    samples = [
        (
            svg.marker_sample("square", f"pd-bar{' pd-bar-hollow' if hollow else ''} pd-c{color % svg.COLORS}"),
            name,
            "",
        )
        for name, (color, hollow) in styles.items()
    ]
    text = caption(said) if said else ""
    return f'<figure><div class="pd-chart">{drawing}</div>{svg.legend(samples)}{text}</figure>'
