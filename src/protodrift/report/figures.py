"""The figures of a report: curves over tasks, and the paper's Fig. 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from ..drift import SDC
from ..errors import InputError, did_you_mean
from ..labels import Label
from ..methods import Method
from ..stages import MethodResult, Tree
from . import svg
from .table import is_upper_bound, number_of_tasks

Metric = Literal["average_accuracy", "overall_accuracy", "average_forgetting"]

_METRICS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "average_accuracy": ("average accuracy A, %", ()),
    "overall_accuracy": ("accuracy over all seen test images, %", ()),
    "average_forgetting": ("average forgetting F, %", (0.0,)),
}

POINTS_PER_CLASS = 60
"""Points drawn of each class in `drift_panels`: more would hide the markers."""


# -- curves -----------------------------------------------------------------------------------------------------------


def accuracy_curves(results: Mapping[str, MethodResult], metric: Metric = "average_accuracy") -> str:
    """Draw a metric in percent against the task, one line a method.

    Rows of one training share a colour. Solid: its prototypes are compensated; dashed: left where they were; dotted: an
    upper bound that sees old images.

    Args:
        results: R results of streams of T tasks.
        metric: which (T,) curve of a result.

    Returns:
        A `<figure>`: the SVG, its legend and a caption.
    """
    if metric not in _METRICS:
        raise InputError(f"unknown metric {metric!r}. {did_you_mean(metric, _METRICS)}")
    label, include = _METRICS[metric]
    values = {name: [100 * float(v) for v in getattr(result, metric)] for name, result in results.items()}
    return _curves(results, values, label, include=include, unit=" %", decimals=1)


def distance_curves(results: Mapping[str, MethodResult]) -> str:
    """Draw the old prototypes' mean distance to their true means against the task (Fig. 5), as `accuracy_curves`."""
    values = {name: [float(v) for v in result.old_prototype_distance] for name, result in results.items()}
    label = "distance of old prototypes to their true means"
    return _curves(results, values, label, include=(0.0,), unit="", decimals=3)


def _curves(
    results: Mapping[str, MethodResult],
    values: Mapping[str, Sequence[float]],
    label: str,
    *,
    include: Sequence[float],
    unit: str,
    decimals: int,
) -> str:
    tasks = number_of_tasks(results)
    chart = svg.line_chart(
        values,
        range(1, tasks + 1),
        label,
        x_label="task",
        unit=unit,
        decimals=decimals,
        styles=line_styles({name: result.method for name, result in results.items()}),
        include=include,
    )
    return f"<figure>{chart}{_caption(_explain_lines(results))}</figure>"


def line_styles(methods: Mapping[str, Method]) -> dict[str, svg.LineStyle]:
    """Return a look for each method: one colour a training, the line style tells the drift estimator."""
    families: dict[Method, int] = {}
    compensated: dict[Method, int] = {}
    styles = {}
    for name, method in methods.items():
        family = replace(method, drift=None)
        colour = families.setdefault(family, len(families))
        if is_upper_bound(method):
            styles[name] = svg.LineStyle(colour, svg.DOTTED)
        elif method.drift is None:
            styles[name] = svg.LineStyle(colour, svg.DASHED, hollow=True)
        else:  # a second estimator on the same training takes the styles that are still free
            nth = compensated[family] = compensated.get(family, -1) + 1
            styles[name] = svg.LineStyle(colour, svg.SOLID if nth == 0 else svg.DOTTED + nth)
    return styles


def _explain_lines(results: Mapping[str, MethodResult]) -> str:
    methods = [result.method for result in results.values()]
    told = [
        (any(m.drift is not None and not is_upper_bound(m) for m in methods), "solid: prototypes compensated"),
        (any(m.drift is None and not is_upper_bound(m) for m in methods), "dashed: not compensated"),
        (any(map(is_upper_bound, methods)), "dotted: upper bound that sees old images"),
    ]
    said = "; ".join(text for there, text in told if there)
    return f"One colour per training. {said[0].upper()}{said[1:]}. The legend gives the value after the last task."


def _caption(text: str) -> str:
    return f"<figcaption>{svg.escape(text)}</figcaption>"


# -- Fig. 4 -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fig4:
    """What Fig. 4 shows; K1 old classes, all tensors (., 2).

    Attributes:
        old, new: the labels of task 1, of task 2; a class's colour is its index in old + new.
        first: task 1's images after task 1; `rows_first` (N,) the index of their class.
        current: task 2's images through the network after task 1; `rows_current` likewise.
        both: images of both tasks after task 2, task 1's first.
        saved, moved, true: (K1, 2) the prototypes of task 1: as saved, compensated, and their true means.
    """

    old: tuple[Label, ...]
    new: tuple[Label, ...]
    first: torch.Tensor
    rows_first: torch.Tensor
    current: torch.Tensor
    rows_current: torch.Tensor
    both: torch.Tensor
    saved: torch.Tensor
    moved: torch.Tensor
    true: torch.Tensor


def drift_panels(tree: Tree, method: Method) -> str:
    """Draw the paper's Fig. 4: how the first task's prototypes drift and are compensated, in a 2-D embedding.

    Three panels with the same axes: task 1 after task 1; task 2 through that same network; both after task 2. Circles
    are the saved prototypes of task 1, triangles the compensated ones, stars the true means; dotted arrows go from
    circle to triangle. Training images, at most `POINTS_PER_CLASS` of a class.

    Args:
        tree: a tree whose network has `embedding_dim=2` and whose stream has at least two tasks.
        method: a method whose drift is an `SDC` and that keeps no old images.

    Returns:
        A `<figure>` of three SVGs that wrap in a narrow window, a legend and a caption.

    Raises:
        ValueError: if tree or method cannot be drawn like this.
    """
    _check_drawable(tree, method)
    data = _fig4(tree, method)
    shown = [
        _thinned(data.first, data.rows_first),
        _thinned(data.current, data.rows_current),
        _thinned(data.both, torch.cat([data.rows_first, data.rows_current])),
    ]
    drawn = [point for by_class in shown for points in by_class.values() for point in points]
    bounds = svg.Bounds.around(drawn + _pairs(torch.cat([data.saved, data.moved, data.true])))
    saved = _marks(data, data.saved, "circle", "saved prototype", labelled=True)
    panels = [
        _panel("1. Task 1 after task 1", data, shown[0], saved, [], bounds),
        _panel("2. Task 2 before it is learned", data, shown[1], saved, [], bounds),
        _panel("3. Both after task 2", data, shown[2], _final_marks(data), _arrows(data), bounds),
    ]
    inner = "".join(panels)
    return f'<figure><div class="pd-panels">{inner}</div>{_legends(data)}{_caption(_measured(data))}</figure>'


def _check_drawable(tree: Tree, method: Method) -> None:
    if tree.network.embedding_dim != 2:
        raise InputError(
            f"drift_panels draws a 2-D embedding, this tree has embedding_dim={tree.network.embedding_dim}. "
            "Use Tree(..., network=Network(embedding_dim=2, normalise=False))."
        )
    if len(tree.stream) < 2:
        raise InputError("drift_panels needs a second task: a stream of one task has no drift.")
    if not isinstance(method.drift, SDC):
        raise InputError(f"drift_panels needs a method with drift=SDC(sigma=...), got drift={method.drift!r}.")
    if method.memory is not None:
        raise InputError("drift_panels needs a method without memory: kept images leave no drift to compensate.")


def _fig4(tree: Tree, method: Method) -> _Fig4:
    first, second = tree.stream[0], tree.stream[1]
    count = len(first.classes)
    after = tree.embeddings(method, 2)
    uncompensated = replace(method, drift=None)
    return _Fig4(
        old=first.classes,
        new=second.classes,
        first=tree.embeddings(method, 1).z_new,
        rows_first=first.data.rows_of(first.classes),
        current=after.z_old,
        rows_current=second.data.rows_of(second.classes) + count,
        both=torch.cat([tree.z_train(method, 2, of_task=1), after.z_new]),
        saved=tree.prototypes(uncompensated, 2).means[:count],
        moved=tree.prototypes(method, 2).means[:count],
        true=tree.true_means(method, 2)[:count],
    )


def _pairs(z: torch.Tensor) -> list[svg.Point]:
    return [(x, y) for x, y in z.tolist()]


def _thinned(z: torch.Tensor, rows: torch.Tensor) -> dict[int, list[svg.Point]]:
    """Return class index -> at most `POINTS_PER_CLASS` of its (N, 2) points, evenly from the whole class."""
    result = {}
    for row in rows.unique().tolist():
        own = (rows == row).nonzero()[:, 0]
        step = max(1.0, len(own) / POINTS_PER_CLASS)
        chosen = [int(i * step) for i in range(min(len(own), POINTS_PER_CLASS))]
        result[row] = _pairs(z[own[chosen]])
    return result


def _panel(
    title: str,
    data: _Fig4,
    points: Mapping[int, Sequence[svg.Point]],
    marks: Sequence[svg.Mark],
    arrows: Sequence[svg.Arrow],
    bounds: svg.Bounds,
) -> str:
    names = data.old + data.new
    clouds = [
        svg.Cloud(own, row, f"class {names[row]}, task {1 if row < len(data.old) else 2}")
        for row, own in points.items()
    ]
    drawing = svg.scatter_panel(clouds, marks, arrows, bounds=bounds, description=f"{title}. {_measured(data)}")
    return f'<div class="pd-panel-box"><p class="pd-panel-title">{svg.escape(title)}</p>{drawing}</div>'


def _marks(data: _Fig4, means: torch.Tensor, kind: svg.Shape, what: str, *, labelled: bool = False) -> list[svg.Mark]:
    return [
        svg.Mark(at, kind, row, f"class {label}: {what}", str(label) if labelled else "")
        for row, (label, at) in enumerate(zip(data.old, _pairs(means), strict=True))
    ]


def _final_marks(data: _Fig4) -> list[svg.Mark]:
    return [
        *_marks(data, data.saved, "circle", "saved prototype, where it was"),
        *_marks(data, data.moved, "triangle", "prototype compensated by SDC"),
        *_marks(data, data.true, "star", "true mean", labelled=True),
    ]


def _arrows(data: _Fig4) -> list[svg.Arrow]:
    ends = zip(data.old, _pairs(data.saved), _pairs(data.moved), strict=True)
    return [svg.Arrow(a, b, row, f"class {label}: estimated drift") for row, (label, a, b) in enumerate(ends)]


def _legends(data: _Fig4) -> str:
    def classes(labels: Sequence[Label], first: int) -> list[tuple[str, str, str]]:
        samples = [
            svg.marker_sample("circle", f"pd-sample pd-c{(first + i) % svg.COLOURS}") for i in range(len(labels))
        ]
        return [(sample, svg.shorten(label, 24), "") for sample, label in zip(samples, labels, strict=True)]

    shapes = [
        (svg.marker_sample("circle", "pd-mark pd-ink"), "saved prototype of task 1", ""),
        (svg.marker_sample("triangle", "pd-mark pd-ink"), "compensated by SDC", ""),
        (svg.marker_sample("star", "pd-mark pd-ink"), "true mean", ""),
        (svg.arrow_sample(), "estimated drift", ""),
    ]
    old, new = classes(data.old, 0), classes(data.new, len(data.old))
    return svg.legend(old, "Task 1") + svg.legend(new, "Task 2") + svg.legend(shapes)


def _measured(data: _Fig4) -> str:
    before, after = (float((means - data.true).norm(dim=1).mean()) for means in (data.saved, data.moved))
    return (
        f"After task 2 the saved prototypes of task 1 are {before:.2f} from their true means on average; "
        f"compensated by SDC, {after:.2f}."
    )
