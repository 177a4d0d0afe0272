"""The figures that are made from embeddings: the drift vector field, arrows in 2-D, and t-SNE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from ..common.labels import Label
from ..errors import InputError
from ..experiments.samples import Picture
from . import svg
from .figures import caption, panel

ARROWS = 160
"""Drift vectors drawn in one field: more would hide each other."""


def _pairs(z: torch.Tensor) -> list[svg.Point]:
    return [(x, y) for x, y in z.tolist()]


def _by_class(z: torch.Tensor, rows: torch.Tensor) -> dict[int, list[svg.Point]]:
    return {row: _pairs(z[rows == row]) for row in rows.unique().tolist()}


def _mean_distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm(dim=1).nanmean())


def _marks(
    labels: Sequence[Label], means: torch.Tensor, kind: svg.Shape, what: str, *, first: int = 0, labeled: bool = False
) -> list[svg.Mark]:
    return [
        svg.Mark(at, kind, row, f"class {label}: {what}", str(label) if labeled else "")
        for row, (label, at) in enumerate(zip(labels, _pairs(means), strict=True), first)
        if all(map(math.isfinite, at))
    ]


def _arrows(labels: Sequence[Label], start: torch.Tensor, end: torch.Tensor) -> list[svg.Arrow]:
    ends = zip(labels, _pairs(start), _pairs(end), strict=True)
    return [
        svg.Arrow(a, b, row, f"class {label}: estimated drift")
        for row, (label, a, b) in enumerate(ends)
        if all(map(math.isfinite, (*a, *b)))
    ]


def _prototype_marks(
    labels: Sequence[Label], saved: torch.Tensor, moved: torch.Tensor, true: torch.Tensor
) -> list[svg.Mark]:
    # Thirty names in one panel cannot be read; hovering tells them.
    few = len(labels) <= 30
    return [
        *_marks(labels, saved, "circle", "saved prototype, where it was"),
        *_marks(labels, moved, "triangle", "prototype compensated by SDC"),
        *_marks(labels, true, "star", "true mean", labeled=few),
    ]


def _classes(labels: Sequence[Label], first: int, heading: str) -> str:
    if len(labels) > 30:
        return svg.legend([], f"{heading}: {len(labels)} classes")
    samples = [svg.marker_sample("circle", f"pd-sample pd-c{(first + i) % svg.COLORS}") for i in range(len(labels))]
    entries = [(sample, svg.shorten(label, 24), "") for sample, label in zip(samples, labels, strict=True)]
    return svg.legend(entries, heading)


def _shapes(what: str, *, field: bool = False) -> str:
    drawn = [(svg.arrow_sample(thin=True), "drift of an image", "")] if field else []
    return svg.legend(
        [
            (svg.marker_sample("circle", "pd-mark pd-ink"), f"saved prototype of {what}", ""),
            (svg.marker_sample("triangle", "pd-mark pd-ink"), "compensated by SDC", ""),
            (svg.marker_sample("star", "pd-mark pd-ink"), "true mean", ""),
            (svg.arrow_sample(), "estimated drift", ""),
            *drawn,
        ]
    )


# -- three panels in 2-D (Figs. 4 and 8) ------------------------------------------------------------------------------


def drift_panels(picture: Picture) -> str:
    """Draw how the first task's prototypes drift and are compensated, in a 2-D embedding (Figs. 4 and 8).

    Three panels with the same axes: task 1 after task 1; task 2 through that same network; both after task 2. Circles
    are the saved prototypes of task 1, triangles the compensated ones, stars the true means; dotted arrows go from
    circle to triangle.

    Args:
        picture: a picture with `panels`: of a 2-D embedding, and a method that keeps no old images.

    Returns:
        A `<figure>` of three SVGs that wrap in a narrow window, a legend and a caption.

    Raises:
        InputError: if it has none.
    """
    data = picture.panels
    if data is None:
        raise InputError(
            f"drift_panels draws a 2-D embedding of a method without memory; {picture.method!r} has embeddings of "
            f"{picture.z_new.shape[1]} dimensions. Use Network(embedding_dim=2, normalize=False)."
        )
    old, new = picture.tasks[0], picture.tasks[1]
    shown = [
        _by_class(data.first, data.rows_first),
        _by_class(data.current, data.rows_current),
        _by_class(data.both, data.rows_both),
    ]
    drawn = [point for by_class in shown for points in by_class.values() for point in points]
    bounds = svg.Bounds.around(drawn + _pairs(torch.cat([data.saved, data.moved, data.true])))
    saved = _marks(old, data.saved, "circle", "saved prototype", labeled=True)
    final = _prototype_marks(old, data.saved, data.moved, data.true)
    arrows = _arrows(old, data.saved, data.moved)
    before, after = _mean_distance(data.saved, data.true), _mean_distance(data.moved, data.true)
    text = (
        f"After task 2 the saved prototypes of task 1 are {before:.2f} from their true means on average; "
        f"compensated by SDC, {after:.2f}."
    )

    def draw(title: str, points: Mapping[int, Sequence[svg.Point]], marks: list[svg.Mark], own: list[svg.Arrow]) -> str:
        clouds = _clouds(picture, points)
        return panel(title, svg.scatter_panel(clouds, marks, own, bounds=bounds, description=f"{title}. {text}"))

    panels = [
        draw("1. Task 1 after task 1", shown[0], saved, []),
        draw("2. Task 2 before it is learned", shown[1], saved, []),
        draw("3. Both after task 2", shown[2], final, arrows),
    ]
    legends = _classes(old, 0, "Task 1") + _classes(new, len(old), "Task 2") + _shapes("task 1")
    return f'<figure><div class="pd-panels">{"".join(panels)}</div>{legends}{caption(text)}</figure>'


def _clouds(picture: Picture, points: Mapping[int, Sequence[svg.Point]]) -> list[svg.Cloud]:
    names = picture.classes
    task_of = [t for t, task in enumerate(picture.tasks, 1) for _ in task]
    return [svg.Cloud(own, row, f"class {names[row]}, task {task_of[row]}") for row, own in points.items()]


# -- the vector field (Fig. 3) ----------------------------------------------------------------------------------------


def drift_field(*pictures: Picture) -> str:
    """Draw the drift vectors of current images, and what SDC makes of them for the old prototypes (Fig. 3).

    Thin arrows go from z_old to z_new (delta_i, Eq. 9) of images of the last task. An embedding of more than two
    dimensions is shown in the plane of the two main directions of z_old.

    Args:
        pictures: one panel each, of methods on the same tasks.

    Returns:
        A `<figure>` of panels, a legend and a caption.
    """
    first = pictures[0]
    drawn = [_field(picture, _shared_bounds(pictures)) for picture in pictures]
    names, old, count = first.classes, len(first.saved), len(first.tasks)
    text = (
        f"Each thin arrow is how one image of task {count} moved while the network learned it: a sparse vector field. "
        f"SDC moves the prototypes of the {old} old classes by the weighted mean of the arrows near them (Fig. 3). "
        "Above each panel: the mean distance of the old prototypes to their true means, before and after."
    )
    shares = [100 * share for _, share in drawn if share is not None]
    if shares:
        span = f"{min(shares):.0f}" + (f" to {max(shares):.0f}" if round(max(shares)) > round(min(shares)) else "")
        text += (
            f" The embedding has {first.z_old.shape[1]} dimensions: shown are the two main directions of the images "
            f"before the task (PCA), which hold {span} % of their variance; distances are of the whole space."
        )
    legends = _shapes("old classes", field=True) + _classes(names[old:], old, f"Task {count}")
    panels = "".join(panel for panel, _ in drawn)
    return f'<figure><div class="pd-pair">{panels}</div>{legends}{caption(text)}</figure>'


def _shared_bounds(pictures: Sequence[Picture]) -> svg.Bounds | None:
    """Return bounds around all pictures if they are 2-D; planes of larger embeddings have nothing in common."""
    if any(picture.z_old.shape[1] != 2 for picture in pictures):
        return None
    return svg.Bounds.around(
        _pairs(torch.cat([z for p in pictures for z in (p.z_old, p.z_new, p.saved, p.moved, p.true)]))
    )


def _field(picture: Picture, bounds: svg.Bounds | None) -> tuple[str, float | None]:
    """Return one panel of a field, and the share of variance that its plane holds."""
    plane, share = _plane(picture.z_old)
    z_old, z_new = plane(picture.z_old), plane(picture.z_new)
    saved, moved, true = plane(picture.saved), plane(picture.moved), plane(picture.true)
    step = max(1.0, len(z_old) / ARROWS)
    some = [int(i * step) for i in range(min(len(z_old), ARROWS))]
    names, old = picture.classes, len(picture.saved)
    field = [
        svg.Arrow(a, b, row, f"an image of class {names[row]}", thin=True)
        for a, b, row in zip(_pairs(z_old[some]), _pairs(z_new[some]), picture.rows[some].tolist(), strict=True)
    ]
    marks = _prototype_marks(names[:old], saved, moved, true)
    if bounds is None:
        bounds = svg.Bounds.around(_pairs(torch.cat([z_old[some], z_new[some], saved, moved, true])))
    before, after = _mean_distance(picture.saved, picture.true), _mean_distance(picture.moved, picture.true)
    title = f"{picture.method}: {before:.3f} → {after:.3f}"
    arrows = field + _arrows(names[:old], saved, moved)
    return panel(title, svg.scatter_panel([], marks, arrows, bounds=bounds, description=title)), share


class _Plane:
    """A projection to two dimensions, (N, D) -> (N, 2)."""

    def __init__(self, center: torch.Tensor, directions: torch.Tensor) -> None:
        self.center, self.directions = center, directions

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        return (z.double() - self.center) @ self.directions


def _plane(z: torch.Tensor) -> tuple[_Plane, float | None]:
    """Return the plane of the two main directions of (N, D) embeddings, and its share of their variance.

    A 2-D embedding is shown as it is, with a share of None.
    """
    dim = z.shape[1]
    if dim == 2:
        return _Plane(torch.zeros(2, dtype=torch.double), torch.eye(2, dtype=torch.double)), None
    center = z.double().mean(dim=0)
    _, lengths, directions = torch.linalg.svd(z.double() - center, full_matrices=False)
    two = torch.zeros(dim, 2, dtype=torch.double)
    found = directions[:2].T
    # The sign of a direction is arbitrary: the largest entry decides, so that a picture does not flip between machines.
    found = found * found.gather(0, found.abs().argmax(dim=0, keepdim=True)).sign()
    two[:, : found.shape[1]] = found
    variance = lengths.square()
    return _Plane(center, two), float(variance[:2].sum() / variance.sum().clamp_min(1e-30))


# -- t-SNE (Fig. 1) ---------------------------------------------------------------------------------------------------


def tsne_map(picture: Picture) -> str:
    """Draw test images of all classes after the last task by t-SNE, with old and moved prototypes (Fig. 1).

    Images, saved and compensated prototypes and true means are embedded together; the seed is fixed.

    Returns:
        A `<figure>` of one panel, a legend and a caption.
    """
    from sklearn.manifold import TSNE  # slow to import, and only this figure needs it

    parts = [picture.z_test, picture.saved, picture.moved, picture.true, picture.new]
    sizes = [len(part) for part in parts]
    everything = torch.cat(parts).double()
    known = everything.isfinite().all(dim=1)
    flat = torch.full((len(everything), 2), torch.nan, dtype=torch.double)
    perplexity = max(1.0, min(30.0, (int(known.sum()) - 1) / 3))
    # The start by PCA, which is sklearn's default, divides by the spread: an embedding that collapsed has none.
    spread = everything.shape[1] > 1 and float(everything[known].std(dim=0).max()) > 1e-9
    start = "pca" if spread else "random"
    made = TSNE(2, perplexity=perplexity, init=start, random_state=0).fit_transform(everything[known].numpy())
    flat[known] = torch.from_numpy(made).double()
    images, saved, moved, true, new = flat.split(sizes)
    names, old, count = picture.classes, len(picture.saved), len(picture.tasks)
    marks = [
        *_prototype_marks(names[:old], saved, moved, true),
        *_marks(names[old:], new, "diamond", "prototype of the last task", first=old, labeled=len(names) <= 30),
    ]
    text = (
        f"{picture.method}: t-SNE of a sample of {len(images)} test images after task {count}, embedded together with "
        "the old prototypes before and after compensation and the true means (Fig. 1). t-SNE keeps neighborhoods, "
        "not distances: look at which cloud a marker sits in, not at the length of an arrow."
    )
    drawing = svg.scatter_panel(
        _clouds(picture, _by_class(images, picture.rows_test)),
        marks,
        _arrows(names[:old], saved, moved),
        bounds=svg.Bounds.around(_pairs(flat)),
        description=text,
        ticks=False,
    )
    diamond = svg.legend([(svg.marker_sample("diamond", "pd-mark pd-ink"), "prototype of the last task", "")])
    legends = _shapes("old classes") + diamond + _classes(names, 0, "Classes")
    inner = f'<div class="pd-panel-box pd-large">{drawing}</div><div>{legends}{caption(text)}</div>'
    return f'<figure class="pd-beside">{inner}</figure>'
