"""The figures that are made from embeddings: drift in two dimensions, the field of drift vectors, and t-SNE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt
import torch

from ..common.geometry import main_plane
from ..errors import InputError
from ..experiments.samples import Picture
from . import charts
from .charts import INK, PAPER, STAR, Row

ARROWS = 160
"""Drift vectors drawn in one field: more would hide each other."""

NAMED = 30
"""Classes that are named in a panel and its legend; of more, only tooltips tell the names."""

_OLD = ("saved prototype", "moved by SDC", "true mean")
_MARKERS = {**dict(zip(_OLD, ("circle", "triangle-up", STAR), strict=True)), "new prototype": "diamond"}
_TOLD = ["class:N", alt.Tooltip("task:O", title="learned in task")]


class _Square(NamedTuple):
    """The part of the plane that a panel shows; as wide as high, so that angles and distances are true."""

    left: float
    bottom: float
    side: float

    @staticmethod
    def around(*points: torch.Tensor) -> _Square:
        """Return the square around all finite points, with a margin."""
        every = torch.cat([part.double() for part in points])
        every = every[every.isfinite().all(dim=1)]
        if len(every) == 0:
            raise InputError("there is no finite point to draw.")
        low, high = every.amin(dim=0), every.amax(dim=0)
        side = float((high - low).max()) * 1.1 or 1.0
        left, bottom = ((low + high) / 2 - side / 2).tolist()
        return _Square(left, bottom, side)


class _Panel:
    """One panel, drawn layer by layer; what is drawn later lies on top."""

    def __init__(
        self, picture: Picture, square: _Square, pick: alt.Parameter, kinds: Sequence[str] = _OLD, *, ticks: bool = True
    ) -> None:
        self.names = [str(label) for label in picture.classes]
        self.learned = [t for t, task in enumerate(picture.tasks, 1) for _ in task]
        self.few = len(self.names) <= NAMED
        self.square, self.pick = square, pick
        self.layers: list[alt.Chart] = []
        axis = alt.Axis(grid=False, domain=False, ticks=False, labels=ticks, tickCount=4)
        x, y = (alt.Scale(domain=[low, low + square.side], nice=False) for low in (square.left, square.bottom))
        self.x, self.y = alt.X("x:Q", title=None, axis=axis, scale=x), alt.Y("y:Q", title=None, axis=axis, scale=y)
        legend = alt.Legend(title="class", symbolType="circle", symbolOpacity=1, symbolStrokeWidth=0)
        self.color = alt.Color("class:N", scale=charts.color_scale(self.names), legend=legend if self.few else None)
        shapes = alt.Scale(domain=list(kinds), range=[_MARKERS[kind] for kind in kinds])
        gray = alt.Legend(title=None, columns=2, symbolFillColor=charts.MUTED, symbolStrokeColor=INK, symbolSize=90)
        self.shape = alt.Shape("what:N", scale=shapes, legend=gray)

    def images(self, z: torch.Tensor, targets: torch.Tensor) -> None:
        """Draw (N, 2) images of the classes `targets`."""
        dots = self._layer(self._placed(z, targets.tolist()), 0.5).mark_point(filled=True, size=16, strokeWidth=0)
        self.layers.append(dots.encode(color=self.color, tooltip=_TOLD))

    def arrows(
        self, start: torch.Tensor, end: torch.Tensor, targets: Sequence[int], color: alt.Color, **look: Any
    ) -> None:
        """Draw arrows of the classes `targets`; `look` is that of their shafts."""
        known = (start.isfinite() & end.isfinite()).all(dim=1)
        starts = self._placed(start[known], [target for target, ok in zip(targets, known.tolist(), strict=True) if ok])
        shafts, heads = [], []
        for row, (x2, y2), (dx, dy) in zip(starts, end[known].tolist(), (end - start)[known].tolist(), strict=True):
            shafts.append({**row, "x2": round(x2, 4), "y2": round(y2, 4)})
            if math.hypot(dx, dy) > self.square.side / 60:  # a head on a very short arrow would hide it
                angle = round(math.degrees(math.atan2(dx, dy)), 1)  # from straight up, clockwise
                heads.append({**row, "x": round(x2, 4), "y": round(y2, 4), "angle": angle})
        lines = self._layer(shafts).mark_rule(strokeCap="round", **look)
        self.layers.append(lines.encode(x2="x2:Q", y2="y2:Q", color=color))
        wedges = self._layer(heads).mark_point(
            shape="triangle", filled=True, size=22 * look["strokeWidth"], strokeWidth=0
        )
        self.layers.append(wedges.encode(angle=alt.Angle("angle:Q", scale=None), color=color))

    def prototypes(self, saved: torch.Tensor, moved: torch.Tensor, true: torch.Tensor) -> None:
        """Draw the old classes: saved and moved prototypes, dotted arrows between them, and true means."""
        self.arrows(saved, moved, range(len(saved)), alt.Color(value=INK), strokeDash=[0.1, 3.6], strokeWidth=1.9)
        for means, what in zip((saved, moved, true), _OLD, strict=True):
            self.markers(means, what, named=what == "true mean")

    def markers(self, z: torch.Tensor, what: str, first: int = 0, *, named: bool = True) -> None:
        """Draw one marker for each of the classes from `first` on, with its name if there are few."""
        rows = [{**row, "what": what} for row in self._placed(z, range(first, first + len(z)))]
        marks = self._layer(rows).mark_point(filled=True, stroke=INK, strokeWidth=1.1, size=110)
        self.layers.append(marks.encode(color=self.color, shape=self.shape, tooltip=["what:N", *_TOLD]))
        if named and self.few:
            text = self._layer(rows).encode(text="class:N")
            style: dict[str, Any] = {"dy": -13, "fontSize": 12, "fontWeight": 600, "limit": 90}
            halo = text.mark_text(**style, color=PAPER, stroke=PAPER, strokeWidth=3, strokeJoin="round")
            self.layers += [halo, text.mark_text(**style, color=INK)]

    def chart(self, title: str) -> alt.LayerChart:
        """Return the panel."""
        return charts.layered(*self.layers).properties(title=title, view=alt.ViewBackground(stroke="var(--rule)"))

    def _layer(self, rows: Sequence[Row], strength: float = 1.0) -> alt.Chart:
        return charts.plot(rows).encode(x=self.x, y=self.y, opacity=charts.opacity(self.pick, strength))

    def _placed(self, z: torch.Tensor, targets: Sequence[int]) -> list[Row]:
        return [
            {"x": round(x, 4), "y": round(y, 4), "class": self.names[target], "task": self.learned[target]}
            for (x, y), target in zip(z.tolist(), targets, strict=True)
            if math.isfinite(x) and math.isfinite(y)
        ]


def _names(picture: Picture) -> list[str]:
    return [str(label) for label in picture.classes]


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm(dim=1).nanmean())


def drift_panels(picture: Picture) -> alt.ConcatChart:
    """Draw how the first task's prototypes drift and are compensated, in a 2-D embedding (Figs. 4 and 8).

    Three panels with the same axes: task 1 after task 1; task 2 through that same network; both after task 2. Circles
    are the saved prototypes of task 1, triangles the compensated ones, stars the true means; dotted arrows go from
    circle to triangle.

    Args:
        picture: a picture with `panels`: of a 2-D embedding, and a method that keeps no old images.

    Raises:
        InputError: if it has none.
    """
    data, pick = picture.panels, charts.picking("class")
    if data is None:
        raise InputError(
            f"drift_panels draws a 2-D embedding of a method without exemplars; {picture.method!r} has embeddings of "
            f"{picture.z_new.shape[1]} dimensions. Use Network(embedding_dim=2, normalize=False)."
        )
    square = _Square.around(data.first, data.current, data.both, data.saved, data.moved, data.true)
    first, current, both = (_Panel(picture, square, pick) for _ in range(3))
    first.images(data.first, data.rows_first)
    first.markers(data.saved, "saved prototype")
    current.images(data.current, data.rows_current)
    current.markers(data.saved, "saved prototype")
    both.images(data.both, data.rows_both)
    both.prototypes(data.saved, data.moved, data.true)
    drawn = [
        first.chart("1. Task 1 after task 1"),
        current.chart("2. Task 2 before it is learned"),
        both.chart("3. Both after task 2"),
    ]
    described = f"{picture.method}: {drift_text(picture)}"
    return charts.panels(drawn, (3, 1), _names(picture), pick, description=described)


def drift_text(picture: Picture) -> str:
    """Return how far the first task's prototypes are from their true means, in a sentence."""
    data = picture.panels
    assert data is not None
    return (
        f"After task 2 the saved prototypes of task 1 are {_distance(data.saved, data.true):.2f} from their true means "
        f"on average; compensated by SDC, {_distance(data.moved, data.true):.2f}."
    )


def drift_field(*pictures: Picture) -> alt.ConcatChart:
    """Draw the drift vectors of current images, and what SDC makes of them for the old prototypes (Fig. 3).

    Thin arrows go from z_old to z_new (delta_i, Eq. 9) of images of the last task. An embedding of more than two
    dimensions is shown in the plane of the two main directions of z_old.

    Args:
        pictures: one panel each, of methods on the same tasks.
    """
    shared = None
    if all(picture.z_old.shape[1] == 2 for picture in pictures):  # planes of larger embeddings have nothing in common
        shared = _Square.around(*(z for p in pictures for z in (p.z_old, p.z_new, p.saved, p.moved, p.true)))
    pick = charts.picking("class")
    drawn = [_field(picture, shared, pick) for picture in pictures]
    described = f"drift of images, and old prototypes, of {', '.join(picture.method for picture in pictures)}"
    columns = (min(3, len(drawn)), 2, 1)
    return charts.panels(drawn, columns, _names(pictures[0]), pick, description=described)


def _field(picture: Picture, square: _Square | None, pick: alt.Parameter) -> alt.LayerChart:
    center, directions, _ = main_plane(picture.z_old)
    step = max(1.0, len(picture.z_old) / ARROWS)
    some = [int(i * step) for i in range(min(len(picture.z_old), ARROWS))]
    whole = (picture.z_old[some], picture.z_new[some], picture.saved, picture.moved, picture.true)
    z_old, z_new, *means = ((z.double() - center) @ directions for z in whole)
    panel = _Panel(picture, square or _Square.around(z_old, z_new, *means), pick)
    panel.arrows(z_old, z_new, picture.rows[some].tolist(), panel.color, strokeWidth=0.9)
    panel.prototypes(*means)
    before, after = _distance(picture.saved, picture.true), _distance(picture.moved, picture.true)
    return panel.chart(f"{picture.method}: {before:.3f} → {after:.3f}")


def field_text(*pictures: Picture) -> str:
    """Return what a field shows, in sentences."""
    first = pictures[0]
    text = (
        f"Each thin arrow is how one image of task {len(first.tasks)} moved while the network learned it: a sparse "
        f"vector field. SDC moves the prototypes of the {len(first.saved)} old classes by the weighted mean of the "
        "arrows near them, along the dotted arrows (Fig. 3). Above each panel: the mean distance of the old prototypes "
        "to their true means, before and after."
    )
    if first.z_old.shape[1] == 2:
        return text
    shares = sorted(round(100 * main_plane(picture.z_old)[2]) for picture in pictures)
    return (
        f"{text} The embedding has {first.z_old.shape[1]} dimensions: shown are the two main directions of the images "
        f"before the task (PCA), which hold {' to '.join(map(str, sorted({shares[0], shares[-1]})))} % of their "
        "variance; distances are of the whole space."
    )


def tsne_map(picture: Picture) -> alt.ConcatChart:
    """Draw test images of all classes after the last task by t-SNE, with old and moved prototypes (Fig. 1).

    Images, saved and compensated prototypes and true means are embedded together; the seed is fixed.
    """
    from sklearn.manifold import TSNE  # slow to import, and only this figure needs it
    from threadpoolctl import threadpool_limits

    parts = [picture.z_test, picture.saved, picture.moved, picture.true, picture.new]
    everything = torch.cat(parts).double()
    known = everything.isfinite().all(dim=1)
    flat = torch.full((len(everything), 2), torch.nan, dtype=torch.double)
    perplexity = max(1.0, min(30.0, (int(known.sum()) - 1) / 3))
    # The start by PCA, which is sklearn's default, divides by the spread: an embedding that collapsed has none.
    spread = everything.shape[1] > 1 and float(everything[known].std(dim=0).max()) > 1e-9
    start = "pca" if spread else "random"
    with threadpool_limits(1):  # for a few hundred points threads wait longer than they compute
        made = TSNE(2, perplexity=perplexity, init=start, random_state=0).fit_transform(everything[known].numpy())
    flat[known] = torch.from_numpy(made).double()
    images, saved, moved, true, new = flat.split([len(part) for part in parts])
    pick = charts.picking("class")
    panel = _Panel(picture, _Square.around(flat), pick, list(_MARKERS), ticks=False)
    panel.images(images, picture.rows_test)
    panel.prototypes(saved, moved, true)
    panel.markers(new, "new prototype", first=len(picture.saved))
    described = f"{picture.method}: t-SNE of test images and prototypes"
    return charts.panels([panel.chart(picture.method)], (1,), _names(picture), pick, description=described)
