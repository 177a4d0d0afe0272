"""The map from an old model's space into a new one's, chosen and judged on pairs it was not fitted on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..common import seeding
from ..drift.base import Drift, FittedDrift
from ..drift.successors.linear import Procrustes, Ridge
from ..errors import InputError
from .recall import check_metric, first_found, nearest, recall, similarity

CANDIDATES: tuple[Drift, ...] = (
    Ridge(0.03, intercept=True),
    Ridge(0.3, intercept=True),
    Ridge(3.0, intercept=True),
    Procrustes(intercept=True),
)
"""What is tried where no estimator is named; all of them take any size to any size."""

FEWEST_PAIRS = 20
KS = (1, 10)

_HELD_OUT_MOST = 4000  # of each part: Recall@k compares all of them with each other
_ANCHORS_MOST = 512  # pairs whose residuals say what is left near them; each vector is compared with all of them
_NEIGHBORS = 16
_UNIT = 1e-2  # float16 has 3 digits


@dataclass(frozen=True)
class Recalls:
    """Recall@k of one way to search, against the exact neighbors of the new model.

    Attributes:
        at: k -> share of the k true neighbors among the first k found.
        first_at: k -> share of queries whose nearest neighbor is among the first k found.
    """

    at: dict[int, float]
    first_at: dict[int, float]

    @staticmethod
    def of(found: torch.Tensor, true: torch.Tensor) -> Recalls:
        """Compare neighbors found with the true ones, (Q, k) each."""
        ks = [k for k in KS if k <= true.shape[1]]
        return Recalls({k: recall(found, true, k) for k in ks}, {k: first_found(found, true, k) for k in ks})


@dataclass(frozen=True)
class HeldOutReport:
    """What the map does to pairs that neither fitted nor chose it.

    Attributes:
        chosen: the estimator.
        tried: (estimator, Recall@10 on the part that chose) each.
        fitted_on: pairs that candidates were fitted on; the map that moves the store is fitted on all.
        vectors: held-out vectors, each searched for among the others.
        metric: of the search.
        old: old queries among old vectors: the search before the upgrade.
        unmoved: new queries among old vectors; None if the sizes differ.
        moved: new queries among moved vectors.
        residual: mean |moved - new|.
        residual_of_mean: the same of moving every vector to the new mean.
        uncertainty_rank: Spearman's correlation of the uncertainty with |moved - new|.
        uncertainty_ratio: mean uncertainty / mean |moved - new|: 1 is calibrated.
    """

    chosen: Drift
    tried: tuple[tuple[Drift, float], ...]
    fitted_on: int
    vectors: int
    metric: str
    old: Recalls
    unmoved: Recalls | None
    moved: Recalls
    residual: float
    residual_of_mean: float
    uncertainty_rank: float
    uncertainty_ratio: float

    def recovered(self, k: int) -> float | None:
        """Return (moved - unmoved) / (1 - unmoved) of Recall@k: the share of the gap to re-embedding that is closed."""
        if self.unmoved is None or self.unmoved.at[k] >= 1:
            return None
        return (self.moved.at[k] - self.unmoved.at[k]) / (1 - self.unmoved.at[k])


@dataclass(frozen=True)
class Uncertainty:
    """The expected |moved - new| of a vector: the mean residual of the held-out pairs nearest to it in the old space.

    Attributes:
        anchors: (A, D_old) held-out old vectors.
        residuals: (A,) |T(anchor) - its new vector|, T fitted without them.
    """

    anchors: torch.Tensor
    residuals: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return (n, D_old) -> (n,)."""
        near = similarity(x, self.anchors, "l2").topk(min(_NEIGHBORS, len(self.anchors)), dim=1).indices
        return self.residuals[near].mean(dim=1)


@dataclass(frozen=True)
class Mover:
    """A fitted map of stored vectors, with its report.

    Attributes:
        fitted: the estimator, fitted on all pairs.
        unit: whether moved vectors are brought to length 1, as the new model's are.
        uncertainty: estimates how far each moved vector may be off.
        report: how good it is on held-out pairs.
        width_old, width_new: D_old and D_new.
    """

    fitted: FittedDrift
    unit: bool
    uncertainty: Uncertainty
    report: HeldOutReport
    width_old: int
    width_new: int

    def applied(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the map as a function of float32 vectors, (n, D_old) -> (n, D_new)."""
        return _applied(self.fitted, self.unit)

    def move(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return moved vectors, (n, D_old) -> (n, D_new) float32, and the uncertainty of each, (n,)."""
        vectors = torch.from_numpy(np.array(x, dtype=np.float32))
        if vectors.ndim != 2 or vectors.shape[1] != self.width_old:
            raise InputError(f"vectors must be (n, {self.width_old}) as the old pairs are, got {tuple(vectors.shape)}.")
        return self.applied()(vectors).numpy(), self.uncertainty(vectors).numpy()


def fit_mover(
    pairs_old: np.ndarray,
    pairs_new: np.ndarray,
    *,
    drift: Drift | None = None,
    metric: str = "l2",
    held_out: float = 0.2,
    seed: int = 0,
) -> Mover:
    """Fit the map z_old -> z_new on pairs, and measure it on pairs it has not seen.

    The pairs are split at random: one part fits the candidates, one (held_out / 2) chooses by Recall@10, one
    (held_out / 2) is reported. Then the chosen one is fitted on all of them.

    Args:
        pairs_old: (N, D_old) vectors of the old model.
        pairs_new: (N, D_new) vectors of the SAME items by the new model, row by row.
        drift: the estimator; None: the best of `CANDIDATES`.
        metric: of the search that follows: "l2", "ip" or "cosine".
        held_out: share of the pairs that judges.
        seed: of the split.
    """
    check_metric(metric)
    old, new = checked_pairs(pairs_old, pairs_new)
    if not 0 < held_out < 1:
        raise InputError(f"held_out={held_out!r} must be a share between 0 and 1.")
    unit = bool((torch.linalg.vector_norm(new, dim=1) - 1).abs().max() < _UNIT)
    order = torch.randperm(len(old), generator=seeding.generator(seed, "held-out pairs"))
    part = min(max(round(len(old) * held_out / 2), 5), _HELD_OUT_MOST)
    choosing, judging, fitting = order[:part], order[part : 2 * part], order[2 * part :]
    candidates = CANDIDATES if drift is None else (drift,)
    fitted = [_fit(one, old[fitting], new[fitting]) for one in candidates]
    best, tried = _choose(candidates, fitted, old[choosing], new[choosing], unit, metric)
    move = _applied(fitted[best], unit)
    report, uncertainty = _judge(move, old, new, choosing, judging, metric)
    final = _fit(candidates[best], old, new)
    return Mover(
        final,
        unit,
        uncertainty,
        HeldOutReport(candidates[best], tried, len(fitting), part, metric, **report),
        old.shape[1],
        new.shape[1],
    )


def checked_pairs(pairs_old: np.ndarray, pairs_new: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pairs as float32 tensors, or say what is wrong with them."""
    for name, value in (("old", pairs_old), ("new", pairs_new)):
        if value.ndim != 2 or value.dtype.kind != "f" or value.shape[1] == 0:
            raise InputError(f"the {name} pairs must be (N, D) floats, got {value.shape} of {value.dtype}.")
    if len(pairs_old) != len(pairs_new):
        raise InputError(
            f"{len(pairs_old)} old vectors but {len(pairs_new)} new ones: row i of both must be the same item."
        )
    if len(pairs_old) < FEWEST_PAIRS:
        raise InputError(f"{len(pairs_old)} pairs are too few: {FEWEST_PAIRS} at least, better thousands. Embed more.")
    old, new = (np.array(value, dtype=np.float32) for value in (pairs_old, pairs_new))
    for name, value in (("old", old), ("new", new)):
        wrong = ~np.isfinite(value).all(axis=1)
        if wrong.any():
            raise InputError(
                f"the {name} pairs have NaN or infinite numbers in {int(wrong.sum())} rows, the first is row "
                f"{int(wrong.argmax())}. Drop these rows from both files."
            )
    return torch.from_numpy(old), torch.from_numpy(new)


def _fit(drift: Drift, old: torch.Tensor, new: torch.Tensor) -> FittedDrift:
    try:
        return drift.fit(old, new)
    except ValueError as error:
        raise InputError(f"{drift} cannot be fitted on these pairs: {error}") from error


def _applied(fitted: FittedDrift, unit: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    linear = fitted.linear()
    if linear is not None:
        # One product in float32: leverages in float64 would cost more than the move.
        weight, bias = (part.float() for part in linear)

        def move(x: torch.Tensor) -> torch.Tensor:
            return torch.addmm(bias, x, weight)
    else:

        def move(x: torch.Tensor) -> torch.Tensor:
            return fitted.transport(x)

    # Ridge shrinks toward the mean; a unit model's vectors are compared by angle.
    return (lambda x: torch.nn.functional.normalize(move(x), dim=1)) if unit else move


def _choose(
    candidates: Sequence[Drift],
    fitted: Sequence[FittedDrift],
    old: torch.Tensor,
    new: torch.Tensor,
    unit: bool,
    metric: str,
) -> tuple[int, tuple[tuple[Drift, float], ...]]:
    k = min(10, len(old) - 1)
    true = nearest(new, new, k, metric, same=True)
    scores = [recall(nearest(new, _applied(one, unit)(old), k, metric, same=True), true, k) for one in fitted]
    return int(np.argmax(scores)), tuple(zip(candidates, scores, strict=True))


def _judge(
    move: Callable[[torch.Tensor], torch.Tensor],
    old: torch.Tensor,
    new: torch.Tensor,
    choosing: torch.Tensor,
    judging: torch.Tensor,
    metric: str,
) -> tuple[dict[str, Any], Uncertainty]:
    def lengths(rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.linalg.vector_norm(move(old[rows]) - new[rows], dim=1)
        return result

    x, y = old[judging], new[judging]
    k = min(max(KS), len(x) - 1)
    true = nearest(y, y, k, metric, same=True)
    same_size = old.shape[1] == new.shape[1]

    def searched(queries: torch.Tensor, vectors: torch.Tensor) -> Recalls:
        return Recalls.of(nearest(queries, vectors, k, metric, same=True), true)

    # The anchors that judge the uncertainty are the choosing part, so that no vector is its own anchor.
    residuals = lengths(judging)
    trial = Uncertainty(old[choosing][:_ANCHORS_MOST], lengths(choosing[:_ANCHORS_MOST]))(x)
    both = torch.cat([choosing[: _ANCHORS_MOST // 2], judging[: _ANCHORS_MOST // 2]])
    report: dict[str, Any] = {
        "old": searched(x, x),
        "unmoved": searched(y, x) if same_size else None,
        "moved": searched(y, move(x)),
        "residual": float(residuals.mean()),
        "residual_of_mean": float(torch.linalg.vector_norm(y - new[choosing].mean(dim=0), dim=1).mean()),
        "uncertainty_rank": _spearman(trial, residuals),
        "uncertainty_ratio": float(trial.mean() / residuals.mean().clamp(min=1e-12)),
    }
    return report, Uncertainty(old[both], lengths(both))


def _spearman(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the correlation of ranks; 0 where one of them does not vary."""
    ranks = torch.stack([value.argsort().argsort().double() for value in (a, b)])
    ranks -= ranks.mean(dim=1, keepdim=True)
    if float(a.std()) == 0 or float(b.std()) == 0:
        return 0.0
    return float((ranks[0] * ranks[1]).sum() / (ranks[0].norm() * ranks[1].norm()))
