"""Small SVG charts: a line chart and a scatter panel. No dependency, no script, no external resource.

Colors, line styles and text sizes are CSS classes of `style.css`, so that one drawing reads well on light and on dark
paper. A drawing has a `viewBox` and takes the width of its container.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Shape = Literal["circle", "square", "triangle", "diamond", "star"]

COLORS = 10
"""Colors in the palette of `style.css`, classes `pd-c0` to `pd-c9`; an index beyond them starts again."""

DASHES: tuple[str, ...] = ("", "7 4", "1.5 4", "10 3 2 3", "14 4", "10 3 2 3 2 3")
"""Line styles by index: solid, dashed, dotted, dash-dot, long dashes, dash-dot-dot."""

SOLID, DASHED, DOTTED = 0, 1, 2

LINE_MARKERS: tuple[Shape, ...] = ("circle", "square", "triangle", "diamond")

Point = tuple[float, float]


# -- text and numbers -------------------------------------------------------------------------------------------------


def escape(text: object) -> str:
    """Return `text` safe inside HTML and SVG, in elements and in quoted attributes.

    >>> escape('<b>&"')
    '&lt;b&gt;&amp;&quot;'
    """
    # What XML cannot hold at all, however it is escaped: control characters and halves of surrogate pairs.
    clean = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", str(text))
    return html.escape(clean, quote=True)


def shorten(text: object, length: int) -> str:
    """Return `text`, cut to `length` characters with an ellipsis; the whole text belongs into a hover title.

    >>> shorten("white-throated sparrow", 8), shorten(7, 8)
    ('white-t…', '7')
    """
    whole = str(text)
    return whole if len(whole) <= length else whole[: length - 1] + "…"


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers, equally spaced, the first at or below `low`, the last at or above `high`.

    >>> nice_ticks(41.3, 97.2), nice_ticks(0.0, 0.07)
    ([40.0, 60.0, 80.0, 100.0], [0.0, 0.02, 0.04, 0.06, 0.08])
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"an axis needs finite ends, got {low} and {high}")
    low, high = min(low, high), max(low, high)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # one value: give it an axis of some length
        room = abs(low) / 10 or 1.0
        low, high = low - room, high + room
    raw = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next((nice for nice in (1, 2, 2.5, 5) if raw <= nice * power * 1.1), 10)
    # The slack keeps 0.30000000000000004 from asking for one more tick.
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(i * step, digits) + 0.0 for i in range(first, last + 1)]


def tick_text(ticks: Sequence[float]) -> list[str]:
    """Return the ticks as text, all with as many decimals as their step needs.

    >>> tick_text([0.0, 2.5, 5.0])
    ['0.0', '2.5', '5.0']
    """
    step = min((abs(b - a) for a, b in pairwise(ticks)), default=1.0)
    if step < 1e-6 or max(map(abs, ticks), default=0.0) >= 1e7:
        return [f"{tick:.8g}".replace("-", "−") for tick in ticks]
    decimals = next(d for d in range(10) if all(abs(round(tick, d) - tick) <= step / 1000 for tick in ticks))
    return [f"{tick:.{decimals}f}".replace("-", "−") for tick in ticks]


@dataclass(frozen=True)
class Scale:
    """A linear map from data to pixels.

    Attributes:
        low, high: the ends of the axis in data units.
        start, end: their pixels; for a vertical axis `start` is larger than `end`.

    >>> Scale(0, 10, 300, 100)(2.5)
    250.0
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


# -- shapes -----------------------------------------------------------------------------------------------------------


def shape(kind: Shape, x: float, y: float, radius: float, css: str) -> str:
    """Return one marker centered on (x, y) in pixels, with the CSS classes `css`."""
    if kind == "circle":
        return f'<circle class="{css}" cx="{_px(x)}" cy="{_px(y)}" r="{_px(radius)}"/>'
    corners = " ".join(f"{_px(x + dx)},{_px(y + dy)}" for dx, dy in _corners(kind, radius))
    return f'<polygon class="{css}" points="{corners}"/>'


def _corners(kind: Shape, radius: float) -> Iterator[Point]:
    if kind == "star":  # ten corners, every second one near the center
        for i in range(10):
            r = radius * (1.0 if i % 2 == 0 else 0.45)
            yield r * math.sin(i * math.pi / 5), -r * math.cos(i * math.pi / 5)
        return
    sides = {"triangle": 3, "square": 4, "diamond": 4}[kind]
    turn = math.pi / 4 if kind == "square" else 0.0
    for i in range(sides):
        angle = turn + 2 * math.pi * i / sides
        yield radius * math.sin(angle), -radius * math.cos(angle)


def _titled(title: str, body: str, css: str = "") -> str:
    """Return a group that shows `title` when the pointer rests on it."""
    named = f' class="{css}"' if css else ""
    return f"<g{named}><title>{escape(title)}</title>{body}</g>"


def _text(x: float, y: float, text: str, css: str, anchor: str = "middle") -> str:
    return f'<text class="{css}" x="{_px(x)}" y="{_px(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def _drawing(width: float, height: float, label: str, css: str, body: str) -> str:
    # No xmlns: inside an HTML page the parser knows <svg>, and the page then holds no address of any kind.
    return (
        f'<svg class="{css}" viewBox="0 0 {_px(width)} {_px(height)}" role="img" aria-label="{escape(label)}">'
        f"{body}</svg>"
    )


# -- legends ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LineStyle:
    """How one line looks. Color, dashes and markers each tell lines apart without the other two.

    Attributes:
        color: index into the palette.
        dash: index into `DASHES`.
        hollow: draw the markers hollow.
    """

    color: int
    dash: int = SOLID
    hollow: bool = False

    @property
    def css(self) -> str:
        """The class that sets the color."""
        return f"pd-c{self.color % COLORS}"

    def path(self, points: Sequence[Point]) -> str:
        """Return a line through `points`, in pixels."""
        dash = DASHES[self.dash % len(DASHES)]
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        return f'<polyline class="pd-line" points="{_joined(points)}"{dashed}/>'

    def marker(self, x: float, y: float, radius: float = 3.6) -> str:
        """Return the marker of this line at (x, y)."""
        kind = LINE_MARKERS[self.color % len(LINE_MARKERS)]
        # Polygons look smaller than a circle of the same radius.
        grown = radius if kind == "circle" else radius * 1.25
        return shape(kind, x, y, grown, "pd-dot pd-hollow" if self.hollow else "pd-dot")


def _joined(points: Sequence[Point]) -> str:
    return " ".join(f"{_px(x)},{_px(y)}" for x, y in points)


def default_styles(names: Sequence[str]) -> dict[str, LineStyle]:
    """Return a style for each name: first the colors, then the same colors with the next line style."""
    return {name: LineStyle(i % COLORS, i // COLORS % len(DASHES)) for i, name in enumerate(names)}


def line_legend(styles: Mapping[str, LineStyle], values: Mapping[str, str]) -> str:
    """Return an HTML list of line samples, names and values (such as the last one); it wraps as text does."""
    return legend(
        [
            (
                f'<svg class="pd-swatch {style.css}" viewBox="0 0 36 12" aria-hidden="true">'
                f"{style.path([(1, 6), (35, 6)])}{style.marker(18, 6)}</svg>",
                name,
                values.get(name, ""),
            )
            for name, style in styles.items()
        ]
    )


def legend(entries: Sequence[tuple[str, str, str]], heading: str = "") -> str:
    """Return an HTML list; each entry is a drawn sample (markup), a name and a value (plain text, may be "")."""
    items = "".join(
        f"<li>{sample}<span>{escape(name)}</span>"
        + (f'<span class="pd-value">{escape(value)}</span>' if value else "")
        + "</li>"
        for sample, name, value in entries
    )
    head = f'<li class="pd-heading">{escape(heading)}</li>' if heading else ""
    return f'<ul class="pd-legend">{head}{items}</ul>'


def marker_sample(kind: Shape, css: str) -> str:
    """Return a legend sample of one marker."""
    return f'<svg class="pd-swatch pd-small" viewBox="0 0 16 16" aria-hidden="true">{shape(kind, 8, 8, 6.5, css)}</svg>'


def arrow_sample(*, thin: bool = False) -> str:
    """Return a legend sample of an arrow: dotted, or thin."""
    drawn = _arrow((1, 6), (35, 6), 4.0 if thin else 6.0)
    css = "pd-thin pd-ink" if thin else "pd-ink"
    return f'<svg class="pd-swatch" viewBox="0 0 36 12" aria-hidden="true"><g class="{css}">{drawn}</g></svg>'


# -- line chart -------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT = 640.0, 350.0
_TOP, _RIGHT, _BOTTOM, _INSET = 40.0, 18.0, 58.0, 16.0
# `style.css` enlarges the text of a small drawing to at most 20 units; a character is then about 11 wide.
_CHARACTER = 11.0


def line_chart(
    series: Mapping[str, Sequence[float]],
    x_labels: Sequence[object],
    y_label: str,
    *,
    x_label: str = "",
    unit: str = "",
    decimals: int = 1,
    styles: Mapping[str, LineStyle] | None = None,
    include: Sequence[float] = (),
    deviations: Mapping[str, Sequence[float]] | None = None,
    within: tuple[float, float] = (-math.inf, math.inf),
    description: str = "",
) -> str:
    """Draw lines over a few named positions, with a legend below that never meets the lines.

    Args:
        series: name -> (T,) values; a value that is not finite is a gap.
        x_labels: T labels of the positions.
        y_label: what the values are; stands above the axis.
        x_label: what the positions are.
        unit: written after a value in hover titles, such as " %".
        decimals: of the values in hover titles and legend.
        styles: name -> look; None takes `default_styles`.
        include: values that the axis must contain, such as 0.
        deviations: name -> (T,) half lengths of error bars; none where not finite.
        within: what a value can be: error bars end there. (A value of 99 ± 2 % must not make an axis up to 120.)
        description: for readers who cannot see the chart; "" makes one from the labels.

    Returns:
        One `<div>` of an `<svg>` and its legend, which stands beside it in a wide container and below it in others.
    """
    for name, values in series.items():
        if len(values) != len(x_labels):
            raise ValueError(f"series {name!r} has {len(values)} values for {len(x_labels)} positions")
    styles = default_styles(list(series)) if styles is None else styles
    bars = {name: list((deviations or {}).get(name, [math.nan] * len(x_labels))) for name in series}
    known = [v for values in series.values() for v in values if math.isfinite(v)]
    known += [
        end for name, values in series.items() for ends in _ends(values, bars[name], within) if ends for end in ends
    ]
    ticks = nice_ticks(min([*known, *include]), max([*known, *include])) if known else [0.0, 1.0]
    texts = tick_text(ticks)
    left = 14 + _CHARACTER * max(3, *map(len, texts))
    x = _positions(len(x_labels), left)
    y = Scale(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    body = _text(4, 20, y_label, "pd-axis-label", "start") + _grid(ticks, texts, y, left) + _x_axis(x, x_labels)
    if x_label:
        body += _text((left + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x_label, "pd-axis-label")
    if not known:
        body += _text((left + _WIDTH - _RIGHT) / 2, _HEIGHT / 2, "no values yet", "pd-axis-label")
    where = [f"{x_label} {label}".strip() for label in x_labels]
    for name, values in series.items():
        own = bars[name]
        texts = [_value(v, d, decimals, unit) for v, d in zip(values, own, strict=True)]
        hints = [f"{name}, {place}: {text}" for place, text in zip(where, texts, strict=True)]
        pixels = [(px, y(v)) if math.isfinite(v) else None for px, v in zip(x, values, strict=True)]
        body += _line(name, pixels, hints, styles[name], _error_bars(x, y, _ends(values, own, within)))
    label = description or f"{y_label} by {x_label or 'position'}: {', '.join(series)}"
    last = {name: _value(values[-1], bars[name][-1], decimals, unit) for name, values in series.items() if len(values)}
    drawing = _drawing(_WIDTH, _HEIGHT, label, "pd-lines", body)
    # Two boxes: a container query can style what is inside the container, not the container itself.
    inner = f"{drawing}{line_legend({n: styles[n] for n in series}, last)}"
    return f'<div class="pd-chart"><div class="pd-chart-body">{inner}</div></div>'


def _positions(count: int, left: float) -> list[float]:
    start, end = left + _INSET, _WIDTH - _RIGHT - _INSET
    return [(start + end) / 2] if count == 1 else [start + (end - start) * i / (count - 1) for i in range(count)]


def _grid(ticks: Sequence[float], texts: Sequence[str], y: Scale, left: float) -> str:
    rows = [
        f'<line class="{"pd-axis" if i == 0 or tick == 0 else "pd-grid"}" x1="{_px(left)}" x2="{_px(_WIDTH - _RIGHT)}" '
        f'y1="{_px(y(tick))}" y2="{_px(y(tick))}"/>'
        f'<text class="pd-tick" x="{_px(left - 8)}" y="{_px(y(tick))}" dy="0.35em" text-anchor="end">{text}</text>'
        for i, (tick, text) in enumerate(zip(ticks, texts, strict=True))
    ]
    return "".join(rows)


def _x_axis(x: Sequence[float], labels: Sequence[object]) -> str:
    texts = [shorten(label, 10) for label in labels]
    room = x[1] - x[0] if len(x) > 1 else _WIDTH
    every = max(1, math.ceil((_CHARACTER * max(map(len, texts), default=0) + 8) / room))
    # Counted back from the last label, which is the one a reader looks for.
    shown = [i for i in range(len(x)) if (len(x) - 1 - i) % every == 0]
    return "".join(
        _text(
            x[i] + (_INSET if len(texts[i]) > 4 and i == len(x) - 1 else 0),
            _HEIGHT - _BOTTOM + 24,
            texts[i],
            "pd-tick",
            "end" if len(texts[i]) > 4 and i == len(x) - 1 else "middle",
        )
        for i in shown
    )


def _line(
    name: str, pixels: Sequence[Point | None], hints: Sequence[str], style: LineStyle, error_bars: str = ""
) -> str:
    runs: list[list[Point]] = [[]]
    for pixel in pixels:
        if pixel is not None:
            runs[-1].append(pixel)
        elif runs[-1]:
            runs.append([])
    drawn = "".join(
        f'<polyline class="pd-hit" points="{_joined(run)}"/>{style.path(run)}' for run in runs if len(run) > 1
    )
    dots = "".join(
        _titled(hint, style.marker(*pixel)) for pixel, hint in zip(pixels, hints, strict=True) if pixel is not None
    )
    return _titled(name, drawn + error_bars + dots, f"pd-series {style.css}")


def _ends(
    values: Sequence[float], deviations: Sequence[float], within: tuple[float, float]
) -> list[tuple[float, float] | None]:
    """Return the ends of the error bar of each value; None where there is none."""
    low, high = within
    return [
        (max(v - d, min(v, low)), min(v + d, max(v, high))) if math.isfinite(v + d) and d > 0 else None
        for v, d in zip(values, deviations, strict=True)
    ]


def _error_bars(x: Sequence[float], y: Scale, ends: Sequence[tuple[float, float] | None]) -> str:
    return "".join(error_bar(px, y(own[0]), y(own[1])) for px, own in zip(x, ends, strict=True) if own)


def error_bar(x: float, low: float, high: float) -> str:
    """Return an upright error bar with caps, in pixels."""
    left, right, low_text, high_text = _px(x - 3), _px(x + 3), _px(low), _px(high)
    path = f"M{left},{low_text}H{right}M{left},{high_text}H{right}M{_px(x)},{low_text}V{high_text}"
    return f'<path class="pd-error" d="{path}"/>'


def _value(value: float, deviation: float, decimals: int, unit: str) -> str:
    if not math.isfinite(value):
        return ""
    spread = f" ± {deviation:.{decimals}f}" if math.isfinite(deviation) else ""
    return f"{round(value, decimals) + 0.0:.{decimals}f}{spread}{unit}"


# -- scatter panel ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cloud:
    """The points of one class, drawn small and translucent.

    Attributes:
        points: N (x, y) in data units.
        color: index into the palette.
        title: shown when the pointer rests on a point.
    """

    points: Sequence[Point]
    color: int
    title: str


@dataclass(frozen=True)
class Mark:
    """One outlined marker, drawn over all points: a prototype or a mean."""

    at: Point
    kind: Shape
    color: int
    title: str
    label: str = ""


@dataclass(frozen=True)
class Arrow:
    """An arrow between two points in data units.

    Attributes:
        thin: a thin solid arrow in its color, one of many; else a dotted one between two markers.
    """

    start: Point
    end: Point
    color: int
    title: str
    thin: bool = False


@dataclass(frozen=True)
class Bounds:
    """A rectangle in data units; panels that share one can be compared."""

    left: float
    right: float
    bottom: float
    top: float

    @staticmethod
    def around(points: Sequence[Point], room: float = 0.06) -> Bounds:
        """Return the rectangle around (N, 2) finite points, with some room; never flatter than 2:3.

        >>> Bounds.around([(0, 0), (10, 10)], room=0.1)
        Bounds(left=-1.0, right=11.0, bottom=-1.0, top=11.0)
        """
        finite = [(px, py) for px, py in points if math.isfinite(px) and math.isfinite(py)]
        if not finite:
            raise ValueError("there is no finite point to draw")
        xs, ys = [px for px, _ in finite], [py for _, py in finite]
        width, height = max(xs) - min(xs), max(ys) - min(ys)
        longest = max(width, height) or 1.0
        half_x, half_y = (max(side, longest * 2 / 3) / 2 + room * longest for side in (width, height))
        x, y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
        return Bounds(x - half_x, x + half_x, y - half_y, y + half_y)


_PANEL, _EDGE = 320.0, 32.0
_LAYERS: tuple[Shape, ...] = ("diamond", "circle", "triangle", "star")
_RADII: Mapping[Shape, float] = {"circle": 4.6, "diamond": 5.6, "triangle": 6.4, "star": 7.2}


def scatter_panel(
    clouds: Sequence[Cloud],
    marks: Sequence[Mark],
    arrows: Sequence[Arrow],
    *,
    bounds: Bounds,
    description: str,
    ticks: bool = True,
) -> str:
    """Draw points, arrows and markers in one mapping from data to pixels, the same scale on both axes.

    Args:
        clouds: points by class.
        marks: diamonds, circles, triangles and stars, drawn in that order over everything else.
        arrows: from where something was to where it was moved.
        bounds: what part of the plane is shown.
        description: for readers who cannot see it.
        ticks: write numbers at the axes.

    Returns:
        One `<svg>`. Its markers have the classes `pd-circle`, `pd-triangle`, `pd-star` and `pd-arrow`.
    """
    edge = _EDGE if ticks else 8.0
    inner = _PANEL - edge - 8
    height = inner * (bounds.top - bounds.bottom) / (bounds.right - bounds.left)
    x = Scale(bounds.left, bounds.right, edge, edge + inner)
    y = Scale(bounds.bottom, bounds.top, 8 + height, 8)
    body = _frame(x, y, ticks=ticks)
    body += "".join(_cloud(cloud, x, y) for cloud in clouds)
    for arrow in arrows:
        start, end = ((x(px), y(py)) for px, py in (arrow.start, arrow.end))
        drawn = _arrow(start, end, 4.0) if arrow.thin else _arrow(*_between(start, end))
        kind = "pd-thin" if arrow.thin else "pd-arrow"
        body += _titled(arrow.title, drawn, f"{kind} pd-c{arrow.color % COLORS}")
    for kind in _LAYERS:
        body += "".join(_mark(mark, x, y) for mark in marks if mark.kind == kind)
    body += "".join(_text(x(m.at[0]), y(m.at[1]) - 12, shorten(m.label, 12), "pd-name") for m in marks if m.label)
    return _drawing(_PANEL, height + 8 + edge, description, "pd-panel", body)


def _frame(x: Scale, y: Scale, *, ticks: bool = True) -> str:
    sides = f'width="{_px(x.end - x.start)}" height="{_px(y.start - y.end)}"'
    out = f'<rect class="pd-frame" x="{_px(x.start)}" y="{_px(y.end)}" {sides}/>'
    for axis in (x, y) if ticks else ():
        values = nice_ticks(axis.low, axis.high, 5)
        for tick, text in zip(values, tick_text(values), strict=True):
            if not axis.low <= tick <= axis.high:
                continue
            if axis is x:
                out += _text(x(tick), y.start + 14, text, "pd-tick")
            else:
                out += _text(x.start - 4, y(tick) + 4, text, "pd-tick", "end")
    return out


def _cloud(cloud: Cloud, x: Scale, y: Scale) -> str:
    dots = "".join(
        f'<circle cx="{_px(x(px))}" cy="{_px(y(py))}" r="2.2"/>'
        for px, py in cloud.points
        if math.isfinite(px) and math.isfinite(py)
    )
    return _titled(cloud.title, dots, f"pd-cloud pd-c{cloud.color % COLORS}")


def _mark(mark: Mark, x: Scale, y: Scale) -> str:
    drawn = shape(mark.kind, x(mark.at[0]), y(mark.at[1]), _RADII[mark.kind], f"pd-mark pd-{mark.kind}")
    return _titled(mark.title, drawn, f"pd-c{mark.color % COLORS}")


def _between(start: Point, end: Point) -> tuple[Point, Point]:
    """Return the ends of an arrow that stops at the rim of the markers at `start` and `end`, if there is room."""
    length = math.dist(start, end)
    leave, arrive = _RADII["circle"], _RADII["triangle"] * 0.8
    if length < leave + arrive + 4:
        return start, end
    ux, uy = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    return (start[0] + leave * ux, start[1] + leave * uy), (end[0] - arrive * ux, end[1] - arrive * uy)


def _arrow(start: Point, end: Point, largest: float = 6.0) -> str:
    """Return a line with a head, in pixels. (An SVG <marker> would need an id, unique in the page.)"""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = math.hypot(dx, dy)
    line = f'<line class="pd-shaft" x1="{_px(start[0])}" y1="{_px(start[1])}" x2="{_px(end[0])}" y2="{_px(end[1])}"/>'
    if length < 1:  # nothing moved: a head would point nowhere
        return line
    ux, uy = dx / length, dy / length
    size = min(largest, length / 2)
    back = (end[0] - size * ux, end[1] - size * uy)
    wing = size * 0.55
    head = [end, (back[0] - wing * uy, back[1] + wing * ux), (back[0] + wing * uy, back[1] - wing * ux)]
    return f'{line}<polygon class="pd-head" points="{_joined(head)}"/>'
