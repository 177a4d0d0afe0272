"""Drift estimators side by side on the same trainings: how much of the gap from not moving to the oracle they close.

    gap closed = sum(estimator - none) / sum(oracle - none),  pooled over the cells whose gap is at least 2 points

A cell is one setting (data and split), one training method and one seed. Smaller gaps are no yardstick: there an
estimator is judged in points, and by whether it makes things worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from protodrift.common.covariance import Covariance
from protodrift.common.labels import Label, sorted_labels
from protodrift.drift import (
    ADC,
    SDC,
    AdaGauss,
    AffineKernel,
    Blend,
    Drift,
    DualProjection,
    EFCKernel,
    Gated,
    GaussianProcess,
    LocalLinear,
    MeanShift,
    Oracle,
    Procrustes,
    RelativeSDC,
    Ridge,
    RidgeToIdentity,
)
from protodrift.errors import InputError
from protodrift.experiments.results import MethodResult
from protodrift.experiments.tree import Tree
from protodrift.methods import Method, with_drift
from protodrift.readouts import Readout, RidgeClassifier, View

LEAST_GAP = 0.02

ESTIMATORS: dict[str, Drift] = {
    "mean shift": MeanShift(),
    "SDC 0.3": SDC(0.3),
    "SDC 0.2": SDC(0.2),
    "SDC relative": RelativeSDC(0.3),
    "SDC neighbors": RelativeSDC(0.5, neighbors=50),
    "ridge (LDC)": Ridge(1e-2),
    "ridge to identity": RidgeToIdentity(1.0),
    "SLDC": RidgeToIdentity(1e-2, intercept=False, shrink="blend"),
    "Procrustes": Procrustes(),
    "local linear": LocalLinear(),
    "stiffer local linear": LocalLinear(0.3, ridge=1.0),
    "affine + kernel": AffineKernel(1.0, 0.2),
    "EFC": EFCKernel(),
    "DPCR": DualProjection(),
    "DPCR projecting first": DualProjection(order="before"),
    "AdaGauss": AdaGauss(),
    "blend": Blend(),
    "GP": GaussianProcess(),
    "GP at the point": GaussianProcess(cloud=0.0),
    "gated SDC 0.3": Gated(SDC(0.3)),
    "gated local linear": Gated(LocalLinear()),
    "gated GP": Gated(GaussianProcess(), folds=5),
}
"""The estimators that need only embeddings, by name: pairs of them, and for DPCR and AdaGauss covariances."""

PROBING: dict[str, Drift] = {"ADC": ADC(), "ADC 25": ADC(candidates=25, precision="bfloat16")}
"""Those that need images and both networks: far slower than all others together; with 25 candidates and
gradients in bfloat16 an eighth so."""


@dataclass(frozen=True)
class Cell:
    """One estimator in one setting, method and seed.

    Attributes:
        setting, method, seed, estimator: which.
        accuracy, none, oracle: accuracy with this estimator, without any, with the oracle.
        error, error_none: mean distance of old prototypes to the true means, with it and without.
    """

    setting: str
    method: str
    seed: int
    estimator: str
    accuracy: float
    none: float
    oracle: float
    error: float
    error_none: float

    @property
    def gain(self) -> float:
        """Accuracy gained over not moving."""
        return self.accuracy - self.none

    @property
    def gap(self) -> float:
        """What the oracle gains."""
        return self.oracle - self.none


@dataclass(frozen=True)
class Summary:
    """One estimator over many cells.

    Attributes:
        cells: how many.
        pooled: how many of them have a gap of at least 2 points.
        gap_closed: over those; NaN if there are none.
        low, high: 95 % bootstrap interval over those cells.
        small_gain: mean gain over the other cells; NaN if there are none.
        relative_error: sum of prototype errors over that without compensation, over all cells.
        worst: the smallest gain of any cell.
    """

    estimator: str
    cells: int
    pooled: int
    gap_closed: float
    low: float
    high: float
    small_gain: float
    relative_error: float
    worst: float


def compare(
    tree: Tree, methods: Mapping[str, Method], estimators: Mapping[str, Drift], *, setting: str = "", metric: str = "A"
) -> list[Cell]:
    """Read out the same trainings with every estimator: prototypes are carried along the tasks as the product does.

    Args:
        tree: the stages; trainings and embeddings that it has are not computed again.
        methods: trainings by name; their own drift does not matter.
        estimators: by name.
        setting: what this tree is called.
        metric: "A": mean over tasks of the accuracy after the last task; "overall": over all test images then;
            "mean": the mean of A_k over the tasks k >= 2.
    """
    cells = []
    for name, method in methods.items():
        drifts: dict[str, Drift | None] = {"none": None, "oracle": Oracle(), **estimators}
        results = tree.run({f"{name} | {label}": with_drift(method, drift) for label, drift in drifts.items()})
        outcomes = dict(zip(drifts, results.values(), strict=True))
        none, oracle = outcomes["none"], outcomes["oracle"]
        cells += [
            Cell(
                setting,
                name,
                tree.seed,
                label,
                _accuracy(outcomes[label], metric),
                _accuracy(none, metric),
                _accuracy(oracle, metric),
                float(np.nanmean(outcomes[label].old_prototype_distance)),
                float(np.nanmean(none.old_prototype_distance)),
            )
            for label in estimators
        ]
    return cells


def carrying(method: Method) -> Method:
    """Return a method with the same training and drift that carries a full covariance of every class along."""
    return replace(method, readout=RidgeClassifier(covariance=Covariance()))


def read_out(tree: Tree, method: Method, readouts: Mapping[str, Readout]) -> dict[str, float]:
    """Return the accuracy over all seen classes after the last task, for several read-outs of the same prototypes.

    Means and a full covariance of every class are carried along the tasks once, by the method's drift.

    Raises:
        InputError: for a read-out that looks at more than embeddings, prototypes and covariances.
    """
    for name, readout in readouts.items():
        learns = type(readout).learn is not Readout.learn
        if learns or readout.needs_heads or readout.needs_every_network or readout.space_name != "plain":
            raise InputError(
                f"{name!r} looks at more than embeddings and prototypes: read it out by itself, with Tree.run."
            )
    carried = carrying(method)
    prototypes, z = tree.prototypes(carried, len(tree.stream)), tree.embeddings(carried, len(tree.stream)).z_test
    view = View(z, prototypes.means, statistics=prototypes.statistics, counts=prototypes.counts)
    true = [label for task in tree.stream if task.test is not None for label in task.test.labels]
    right = {}
    for name, readout in readouts.items():
        rows = readout.predict(view).tolist()
        right[name] = float(np.mean([prototypes.labels[row] == label for row, label in zip(rows, true, strict=True)]))
    return right


@dataclass(frozen=True)
class Movement:
    """What became of one old prototype in one task, beside the truth; lengths are in units of the embedding.

    Attributes:
        setting, method, seed, estimator, task, label: which.
        predicted: how far off the estimator says the prototype may be: its uncertainties of all tasks so far, added as
            independent errors are, u = sqrt(sum_j u_j^2). NaN if it does not say.
        error: how far off it is.
        error_none: how far off it would be, had it not been moved in this task.
        gate: the share of the proposed movement that was made; NaN for estimators without a gate.
    """

    setting: str
    method: str
    seed: int
    estimator: str
    task: int
    label: Label
    predicted: float
    error: float
    error_none: float
    gate: float


def movements(
    tree: Tree, methods: Mapping[str, Method], estimators: Mapping[str, Drift], *, setting: str = ""
) -> list[Movement]:
    """Follow every old prototype through the tasks: how far off the estimator says it is, and how far off it is."""
    return [
        movement
        for name, method in methods.items()
        for label, drift in estimators.items()
        for movement in _followed(tree, setting, name, label, with_drift(method, drift), drift)
    ]


def _followed(tree: Tree, setting: str, name: str, label: str, method: Method, drift: Drift) -> Iterator[Movement]:
    variance: dict[Label, float] = {}
    for task in range(2, len(tree.stream) + 1):
        old, after = tree.prototypes(method, task - 1), tree.prototypes(method, task)
        found, new = tree.embeddings(method, task), tree.stream[task - 1].data
        space = method.readout.space
        fitted = drift.fit(space(found.z_old), space(found.z_new), new.targets_of(sorted_labels(new.labels)))
        extras = fitted.diagnostics(old.means)
        nothing = torch.full((len(old),), float("nan"))
        steps, gates = extras.get("uncertainty", nothing).tolist(), extras.get("gate", nothing).tolist()
        true = tree.true_means(method, task)[: len(old)]
        errors, errors_none = ((p[: len(old)] - true).norm(dim=1).tolist() for p in (after.means, old.means))
        for row, of in enumerate(old.labels):
            variance[of] = variance.get(of, 0.0) + steps[row] ** 2
            yield Movement(
                setting, name, tree.seed, label, task, of,
                variance[of] ** 0.5, errors[row], errors_none[row], gates[row],
            )  # fmt: skip


def _accuracy(result: MethodResult, metric: str) -> float:
    if metric == "mean":
        return float(result.average_accuracy[1:].mean())
    return float((result.average_accuracy if metric == "A" else result.overall_accuracy)[-1])


def summarize(
    cells: Iterable[Cell], *, least_gap: float = LEAST_GAP, draws: int = 2000, seed: int = 0
) -> list[Summary]:
    """Return one line an estimator, in the order in which they come.

    >>> cells = [Cell("s", "E-FT", seed, "SDC", 0.70, 0.60, 0.80, 0.2, 0.4) for seed in (0, 1)]
    >>> [(round(s.gap_closed, 3), round(s.relative_error, 3), s.pooled) for s in summarize(cells)]
    [(0.5, 0.5, 2)]
    """
    of: dict[str, list[Cell]] = {}
    for cell in cells:
        of.setdefault(cell.estimator, []).append(cell)
    return [_summary(name, own, least_gap, draws, seed) for name, own in of.items()]


def _summary(name: str, cells: Sequence[Cell], least_gap: float, draws: int, seed: int) -> Summary:
    gains, gaps = (np.array([getattr(cell, what) for cell in cells]) for what in ("gain", "gap"))
    large = gaps >= least_gap
    closed = low = high = float("nan")
    if large.any():
        closed = gains[large].sum() / gaps[large].sum()
        # The same draws for every estimator: their intervals move together.
        rows = np.random.default_rng(seed).integers(0, large.sum(), (draws, large.sum()))
        ratios = gains[large][rows].sum(axis=1) / gaps[large][rows].sum(axis=1)
        low, high = np.quantile(ratios, [0.025, 0.975])
    small = float(gains[~large].mean()) if (~large).any() else float("nan")
    error = sum(cell.error for cell in cells) / max(sum(cell.error_none for cell in cells), 1e-300)
    return Summary(
        name,
        len(cells),
        int(large.sum()),
        float(closed),
        float(low),
        float(high),
        small,
        float(error),
        float(gains.min()),
    )


def table(cells: Sequence[Cell], *, least_gap: float = LEAST_GAP) -> str:
    """Return a Markdown table: every estimator over all cells, and its gap closed for every setting and method."""
    groups = list(dict.fromkeys((cell.setting, cell.method) for cell in cells))
    heads = [" ".join(part for part in group if part) for group in groups]
    lines = [
        "| estimator | gap closed | 95 % | prototype error | small gaps, points | worst, points | "
        + " | ".join(heads)
        + " |",
        "|---" * (6 + len(groups)) + "|",
    ]
    for whole in summarize(cells, least_gap=least_gap):
        parts = []
        for group in groups:
            own = [c for c in cells if (c.setting, c.method) == group and c.estimator == whole.estimator]
            part = summarize(own, least_gap=least_gap)[0]
            points = 100 * float(np.mean([c.gain for c in own]))
            parts.append(f"{points:+.1f} pt" if np.isnan(part.gap_closed) else f"{part.gap_closed:.2f}")
        small = "" if np.isnan(whole.small_gain) else f"{100 * whole.small_gain:+.2f}"
        lines.append(
            f"| {whole.estimator} | {whole.gap_closed:.3f} | {whole.low:.2f} .. {whole.high:.2f} | "
            f"{whole.relative_error:.3f} | {small} | {100 * whole.worst:+.2f} | {' | '.join(parts)} |"
        )
    return "\n".join(lines)
