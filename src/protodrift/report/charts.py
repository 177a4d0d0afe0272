"""The look that all charts share, and a chart as a part of a page or as a file.

Colors are variables of `style.css`, such as `var(--c0)`: in a page one chart reads well on light and on dark paper. In
a file they are the colors of the light page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from ..common.files import replace_file
from ..errors import InputError, did_you_mean
from .page import asset, style

try:
    import altair as alt
    import vl_convert
except ModuleNotFoundError as error:
    raise InputError(f"charts need the extra: pip install 'protodrift[report]' ({error.name} is missing).") from None

Chart: TypeAlias = alt.LayerChart | alt.ConcatChart
Row = dict[str, Any]

COLORS = tuple(f"var(--c{i})" for i in range(10))
INK, MUTED, GRAY, PAPER, ACCENT = "var(--ink)", "var(--muted)", "var(--c8)", "var(--paper)", "var(--accent)"
STAR = "M0,-1L.26,-.36L.95,-.31L.43,.14L.59,.81L0,.45L-.59,.81L-.43,.14L-.95,-.31L-.26,-.36Z"
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", STAR)

FILES = ("pdf", "png", "svg")
"""What `save` writes."""


def plot(rows: Iterable[Row]) -> alt.Chart:
    """Return a chart of tidy rows."""
    return alt.Chart({"values": tuple(rows)})  # altair copies a list with every step of building a chart, not a tuple


def layered(*layers: alt.Chart) -> alt.LayerChart:
    """Return charts on top of each other."""
    return alt.LayerChart(layer=list(layers))


def color_scale(names: Sequence[str] | range) -> alt.Scale:
    """Return a color for each name; after the tenth they begin again."""
    return alt.Scale(domain=list(names), range=[COLORS[i % len(COLORS)] for i in range(len(names))])


def picking(field: str) -> alt.Parameter:
    """Return what a click on entries of the legend singles out; another click on an entry takes it back."""
    return alt.selection_point(name="pick", fields=[field], bind="legend", toggle="true")


def opacity(pick: alt.Parameter, strong: float = 1.0) -> Any:
    """Return the opacity of what is singled out; of what is not, a tenth."""
    return alt.when(pick).then(alt.value(strong)).otherwise(alt.value(strong / 10))


def single(
    chart: alt.LayerChart, title: str | alt.ExprRef, legend: Sequence[str], *, description: str, height: int = 260
) -> alt.LayerChart:
    """Return a chart that takes the width of the page, and the height that its legend needs; `title`: of the y axis."""
    return chart.properties(
        width=680,
        height=max(height, 18 * len(legend)),
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding", resize=True),
        title=alt.TitleParams(title, fontWeight="normal", fontSize=12, color=MUTED),
        usermeta={"entry": _width(legend)},
        description=description,
    )


def panels(
    charts: Sequence[alt.LayerChart],
    columns: Sequence[int],
    legend: Sequence[str] = (),
    pick: alt.Parameter | None = None,
    *,
    description: str,
    aspect: float = 1.0,
) -> alt.ConcatChart:
    """Return charts side by side in one figure.

    Args:
        charts: one or more, each with its title.
        columns: how many side by side, from the widest page to the narrowest; a file has as many as the first.
        legend: the entries of the legend that they share.
        pick: what is singled out in all of them.
        description: for readers who cannot see it.
        aspect: height / width of each.
    """
    side = 420 if len(charts) == 1 else 230
    sized = [chart.properties(width=side, height=round(side * aspect)) for chart in charts]
    if pick is not None:  # added to one view it acts on all of them
        sized[0] = sized[0].add_params(pick)
    plan = {"columns": list(columns), "aspect": aspect, "entry": _width(legend)}
    return alt.concat(*sized, columns=columns[0]).properties(usermeta=plan, description=description)


def _width(entries: Sequence[str]) -> int:
    """Return how wide a column of a legend is, in pixels."""
    return 48 + 7 * min(36, max(map(len, entries), default=0))


def specification(chart: Chart) -> dict[str, Any]:
    """Return a chart as Vega-Lite, with the look of this project."""
    spec = chart.to_dict(validate=False)  # validation takes seconds for thousands of rows; the tests do it
    del spec["$schema"]
    theme = json.loads(asset("theme.json"))
    theme["legend"]["orient"] = "right"
    if "concat" in spec:
        whole = spec["columns"] * spec["concat"][0]["width"]
        theme["legend"].update(orient="bottom", columns=max(1, whole // spec["usermeta"]["entry"]))
    return {**spec, "config": theme}


@cache
def javascript() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script that needs no network; it defines `vegaEmbed`."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_version())


def _version() -> str:
    """Return the version of Vega-Lite that altair writes, such as 6.4."""
    return ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])


def save(chart: Chart, path: Path) -> None:
    """Write a chart as a file for a paper: pdf, png (300 dots per inch) or svg, as the ending of `path` says."""
    form = path.suffix.removeprefix(".").lower()
    if form not in FILES:
        raise InputError(f"unknown format {form!r} of a figure. {did_you_mean(form, FILES)}")
    colors = {**dict(re.findall(r"(--\w+): (#\w+);", style().split("@media")[0])), "--paper": "#ffffff"}
    text = re.sub(r"var\((--\w+)\)", lambda match: colors[match[1]], json.dumps(specification(chart)))
    spec = {**json.loads(text), "background": "white"}
    spec["config"]["font"] = "Liberation Sans, Helvetica, Arial, sans-serif"
    if form == "png":
        content = vl_convert.vegalite_to_png(spec, vl_version=_version(), ppi=300)
    elif form == "pdf":
        content = vl_convert.vegalite_to_pdf(spec, vl_version=_version())
    else:
        content = vl_convert.vegalite_to_svg(spec, vl_version=_version()).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
