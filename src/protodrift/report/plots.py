"""Three more SVG charts: a thin line a class, grouped bars, and a heat map that still works with 200 classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from . import svg
from .svg import Scale, escape, nice_ticks, tick_text

NAMED = 20
"""Classes whose names stand at the edge of a heat map; of more, the numbers of the tasks."""

_WIDTH, _TOP, _RIGHT, _BOTTOM, _LEFT = 400.0, 34.0, 12.0, 48.0, 52.0


def _axis(ticks: Sequence[float], y: Scale, width: float) -> str:
    lines = []
    for tick, text in zip(ticks, tick_text(ticks), strict=True):
        css = "pd-axis" if tick == 0 else "pd-grid"
        at = f"{y(tick):.1f}"
        lines.append(
            f'<line class="{css}" x1="{_LEFT:g}" x2="{width - _RIGHT:g}" y1="{at}" y2="{at}"/>'
            f'<text class="pd-tick" x="{_LEFT - 7:g}" y="{at}" dy="0.35em" text-anchor="end">{text}</text>'
        )
    return "".join(lines)


def _label(x: float, y: float, text: str, anchor: str = "middle", css: str = "pd-tick") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _drawing(width: float, height: float, description: str, css: str, body: str) -> str:
    size = f'viewBox="0 0 {width:g} {height:g}"'
    return f'<svg class="{css}" {size} role="img" aria-label="{escape(description)}">{body}</svg>'


def class_lines(
    values: Mapping[str, Sequence[float]],
    mean: Sequence[float],
    *,
    top: float,
    y_label: str,
    description: str,
    colors: Sequence[int],
) -> str:
    """Draw a thin line a class over T tasks, and their mean in bold.

    Args:
        values: class -> (T,), NaN where it is not defined yet.
        mean: (T,).
        top: the end of the axis, which begins at 0; panels that share it can be compared.
        y_label: what the values are.
        description: for readers who cannot see it.
        colors: the palette index of each class.
    """
    height, tasks = 270.0, len(mean)
    ticks = nice_ticks(0.0, top if top > 0 else 1.0, 5)
    y = Scale(ticks[0], ticks[-1], height - _BOTTOM, _TOP)
    x = Scale(1, max(2, tasks), _LEFT + 12, _WIDTH - _RIGHT - 12)
    body = _label(2, 17, y_label, "start", "pd-axis-label") + _axis(ticks, y, _WIDTH)
    every = max(1, math.ceil(tasks / 12))
    body += "".join(_label(x(k), height - _BOTTOM + 18, str(k)) for k in range(tasks, 0, -every))
    body += _label((_LEFT + _WIDTH - _RIGHT) / 2, height - 8, "task", css="pd-axis-label")
    css = "pd-class pd-many" if len(values) > 40 else "pd-class"
    for (name, line), color in zip(values.items(), colors, strict=True):
        points = [(x(k), y(v)) for k, v in enumerate(line, 1) if math.isfinite(v)]
        last = next((v for v in reversed(line) if math.isfinite(v)), math.nan)
        drawn = f'<polyline class="{css}" points="{" ".join(f"{px:.1f},{py:.1f}" for px, py in points)}"/>'
        title = f"class {name}: {last:.3f} at the end"
        if len(points) > 1:  # a class of the last task has not drifted yet
            body += f'<g class="pd-c{color % svg.COLORS}"><title>{escape(title)}</title>{drawn}</g>'
    known = [(k, v) for k, v in enumerate(mean, 1) if math.isfinite(v)]
    joined = " ".join(f"{x(k):.1f},{y(v):.1f}" for k, v in known)
    dots = "".join(
        f"<g><title>mean, task {k}: {v:.3f}</title>"
        f'<circle class="pd-mean-dot" cx="{x(k):.1f}" cy="{y(v):.1f}" r="3.4"/></g>'
        for k, v in known
    )
    body += f'<polyline class="pd-mean" points="{joined}"/>{dots}'
    return _drawing(_WIDTH, height, description, "pd-plot", body)


def grouped_bars(
    values: Mapping[str, Sequence[float]],
    deviations: Mapping[str, Sequence[float]],
    groups: Sequence[str],
    *,
    y_label: str,
    x_label: str,
    description: str,
    colors: Mapping[str, tuple[int, bool]],
) -> str:
    """Draw a few bars for each group, in percent, with error bars where a deviation is finite.

    Args:
        values, deviations: name -> (G,) in percent.
        groups: G labels.
        colors: name -> palette index, and whether the bar is hollow.
    """
    wide = max(_WIDTH * 1.6, _LEFT + 30.0 * len(groups))
    height = 300.0
    y = Scale(0, 100, height - _BOTTOM, _TOP)
    room = (wide - _LEFT - _RIGHT) / max(1, len(groups))
    width = min(34.0, 0.78 * room / max(1, len(values)))
    body = _label(2, 17, y_label, "start", "pd-axis-label") + _axis([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], y, wide)
    for g, group in enumerate(groups):
        middle = _LEFT + room * (g + 0.5)
        body += _label(middle, height - _BOTTOM + 19, svg.shorten(group, 12))
        for i, (name, own) in enumerate(values.items()):
            value, deviation = own[g], deviations[name][g]
            if not math.isfinite(value):
                continue
            left = middle + (i - len(values) / 2) * width + 1
            spread = f" ± {deviation:.1f}" if math.isfinite(deviation) else ""
            title = f"{name}, {x_label} {group}: {value:.1f}{spread} %"
            color, hollow = colors[name]
            css = "pd-bar pd-bar-hollow" if hollow else "pd-bar"
            tall = max(0.0, y(0) - y(value))
            drawn = (
                f'<rect class="{css}" x="{left:.1f}" y="{y(value):.1f}" width="{width - 2:.1f}" height="{tall:.1f}"/>'
            )
            if math.isfinite(deviation) and deviation > 0:
                drawn += svg.error_bar(left + width / 2 - 1, y(max(0.0, value - deviation)), y(value + deviation))
            body += f'<g class="pd-c{color % svg.COLORS}"><title>{escape(title)}</title>{drawn}</g>'
    body += _label((_LEFT + wide - _RIGHT) / 2, height - 8, x_label, css="pd-axis-label")
    return _drawing(wide, height, description, "pd-plot pd-wide", body)


def heat_map(counts: np.ndarray, classes: Sequence[object], tasks: Sequence[int], *, description: str) -> str:
    """Draw a confusion matrix, (K, K): the stronger the color, the larger the share of a true class.

    Only cells that are not empty are drawn: with 200 classes most are.

    Args:
        counts: rows are true classes, columns predicted ones.
        classes: K labels.
        tasks: classes of each task, for the lines between them.
        description: for readers who cannot see it.
    """
    count = len(counts)
    side, edge = 300.0, 26.0
    cell = side / max(1, count)
    totals = counts.sum(axis=1)
    body = f'<rect class="pd-frame" x="{edge:g}" y="{edge:g}" width="{side:g}" height="{side:g}"/>'
    rows = []
    for i in range(count):
        cells = []
        for j in np.flatnonzero(counts[i]).tolist():
            share = counts[i, j] / totals[i]
            # A single mistake must still be seen.
            shade = max(1, math.ceil(10 * share))
            title = f"{classes[i]} taken for {classes[j]}" if i != j else f"{classes[i]} recognized"
            cells.append(
                f'<rect class="pd-h{shade}" x="{edge + j * cell:.2f}" y="{edge + i * cell:.2f}" '
                f'width="{cell:.2f}" height="{cell:.2f}">'
                f"<title>{escape(title)}: {counts[i, j]} of {totals[i]}</title></rect>"
            )
        rows.append("".join(cells))
    body += f'<g class="pd-heat">{"".join(rows)}</g>'
    end = 0
    for size in tasks[:-1]:
        end += size
        at = f"{edge + end * cell:.2f}"
        body += f'<path class="pd-border" d="M{edge:g},{at}H{edge + side:g}M{at},{edge:g}V{edge + side:g}"/>'
    if count <= NAMED:
        middles = [edge + (i + 0.5) * cell for i in range(count)]
        texts = [svg.shorten(label, 3) for label in classes]
        for middle, text in zip(middles, texts, strict=True):
            body += _label(middle, edge - 6, text) + _label(edge - 6, middle + 4, text, "end")
    else:
        end = 0
        for t, size in enumerate(tasks, 1):
            middle = edge + (end + size / 2) * cell
            body += _label(middle, edge - 6, str(t)) + _label(edge - 6, middle + 4, str(t), "end")
            end += size
    return _drawing(side + edge + 6, side + edge + 6, description, "pd-panel", body)
