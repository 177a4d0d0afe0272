"""What can be kept of a class beside its mean: a covariance, whole or in a shorter form.

A `Covariance` says what is kept; the kept values are a flat dict of named tensors, so that saving and stages need no
further code. Every form can be made `dense`, (K, D, D), moved by a drift estimator, and made short again:

    full        {"full": (K, D, D)}                               K D^2 numbers
    diagonal    {"diagonal": (K, D)}                              K D
    low-rank    {"factors": (K, r, D), "rest": (K,)}              K (r D + 1):  Sigma = F'F + rest I
    shared      {"shared": (D, D)}                                D^2, one for all classes

Sums are in float64, what is kept has the type of the embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..common.config import Config, one_of, whole
from ..errors import InputError

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Covariance(Config):
    """Which form of each class's covariance is kept.

    Args:
        form: "full"; "diagonal"; "low-rank": the `rank` leading directions, and the mean variance of all others in
            every other direction (probabilistic PCA, so the trace is kept); "shared": one for all classes, the mean
            weighted by the number of images.
        rank: for "low-rank".
    """

    form: str = "full"
    rank: int = 16
    rules: ClassVar = {"form": one_of("full", "diagonal", "low-rank", "shared"), "rank": whole(1)}

    def measure(self, z: torch.Tensor, targets: torch.Tensor, count: int) -> Tensors:
        """Return what is kept of `count` classes, from their embeddings.

        Sigma_c = 1/n_c sum_i [y_i = c] (z_i - mu_c)(z_i - mu_c)', a class without an image gets zeros.

        Args:
            z: (N, D) embeddings.
            targets: (N,) class index of each, in 0..count-1.
            count: K.
        """
        return self.shorten(class_covariances(z, targets, count), torch.bincount(targets, minlength=count))

    def shorten(self, covariances: torch.Tensor, counts: torch.Tensor) -> Tensors:
        """Return the kept form of dense covariances, (K, D, D); counts (K,) weigh the classes of a shared one."""
        if self.form == "full":
            return {"full": covariances}
        if self.form == "diagonal":
            return {"diagonal": covariances.diagonal(dim1=1, dim2=2).clone()}
        if self.form == "shared":
            weights = counts.double() / counts.sum().clamp(min=1)
            return {"shared": torch.einsum("k,kde->de", weights, covariances.double()).to(covariances.dtype)}
        size = covariances.shape[1]
        rank = min(self.rank, size)
        values, vectors = torch.linalg.eigh(covariances.double())
        values, vectors = values.clamp(min=0), vectors.mT  # ascending; rows are directions
        rest = values[:, : size - rank].sum(dim=1) / max(size - rank, 1)
        above = (values[:, size - rank :] - rest[:, None]).clamp(min=0).sqrt()
        factors = above[:, :, None] * vectors[:, size - rank :]
        return {"factors": factors.to(covariances.dtype), "rest": rest.to(covariances.dtype)}


def class_covariances(z: torch.Tensor, targets: torch.Tensor, count: int) -> torch.Tensor:
    """Return each class's covariance about its own mean, over its number of images, (K, D, D).

    >>> class_covariances(torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 0]), 1)
    tensor([[[1., 0.],
             [0., 0.]]])
    """
    result = torch.zeros(count, z.shape[1], z.shape[1], dtype=z.dtype)
    for row in range(count):
        own = z[targets == row].double()
        if len(own):
            own = own - own.mean(dim=0)
            result[row] = (own.T @ own / len(own)).to(z.dtype)
    return result


def form_of(statistics: Tensors) -> Covariance | None:
    """Return which form these tensors are; None if there are none."""
    if not statistics:
        return None
    if "factors" in statistics:
        return Covariance("low-rank", statistics["factors"].shape[1])
    return Covariance(next(name for name in ("full", "diagonal", "shared") if name in statistics))


def dense(statistics: Tensors, count: int) -> torch.Tensor:
    """Return the covariances of `count` classes, (K, D, D), whatever form they are kept in."""
    if "full" in statistics:
        return statistics["full"]
    if "diagonal" in statistics:
        return torch.diag_embed(statistics["diagonal"])
    if "shared" in statistics:
        return statistics["shared"].expand(count, -1, -1)
    factors, rest = statistics["factors"], statistics["rest"]
    return factors.mT @ factors + torch.diag_embed(rest[:, None].expand(-1, factors.shape[2]))


def joined(
    old: Tensors, new: Tensors, *, counts: tuple[int, int], again: Sequence[tuple[int, int]], fresh: Sequence[int]
) -> Tensors:
    """Return the statistics of old and new classes in one store.

    Args:
        old, new: of the two sets of classes, in the same form.
        counts: images behind the old classes that stay, and behind the new ones: they weigh shared covariances.
        again: (old row, new row) of classes that stand in both: they take the new values.
        fresh: rows of `new` that are appended.

    Raises:
        InputError: if the forms differ, or one side kept nothing.
    """
    if form_of(old) != form_of(new):
        raise InputError(
            f"earlier tasks kept {_said(old)} of every class, and this one keeps {_said(new)}. Old images are gone, so "
            "that cannot change between tasks: set the read-out and drift back, or start a new model."
        )
    if "shared" in old:
        share = counts[1] / max(sum(counts), 1)
        return {"shared": torch.lerp(old["shared"], new["shared"], share)}
    result = {}
    for name, values in old.items():
        values = values.clone()
        for row, other in again:
            values[row] = new[name][other]
        result[name] = torch.cat([values, new[name][list(fresh)]])
    return result


def refreshed(
    statistics: Tensors,
    counts: torch.Tensor,
    targets: Sequence[int],
    added: torch.Tensor,
    added_counts: torch.Tensor,
    shift: torch.Tensor,
) -> Tensors:
    """Return the statistics after more images of some classes: their covariance about the mean of all their images.

        Sigma = (n Sigma_old + m Sigma_added + n m / (n + m) d d') / (n + m),   d = mu_old - mean_added

    Args:
        statistics: of K classes.
        counts: (K,) n, images behind each.
        rows: R of the classes.
        added: (R, D, D) covariances of the images that came, about their own mean.
        added_counts: (R,) m, how many there are of each.
        shift: (R, D) d.
    """
    form = form_of(statistics)
    if form is None or not len(targets):
        return statistics
    n, m = counts[list(targets)].double(), added_counts.double()
    d = shift.double()
    more = m[:, None, None] * added.double() + (n * m / (n + m))[:, None, None] * d[:, :, None] * d[:, None, :]
    if form.form == "shared":
        total = counts.double().sum()
        shared = (total * statistics["shared"].double() + more.sum(dim=0)) / (total + m.sum())
        return {"shared": shared.to(statistics["shared"].dtype)}
    some = {name: values[list(targets)] for name, values in statistics.items()}
    merged = (n[:, None, None] * dense(some, len(targets)).double() + more) / (n + m)[:, None, None]
    short = form.shorten(merged.to(shift.dtype), counts[list(targets)] + added_counts)
    result = {name: values.clone() for name, values in statistics.items()}
    for name, values in short.items():
        result[name][list(targets)] = values
    return result


def _said(statistics: Tensors) -> str:
    form = form_of(statistics)
    return "only the mean" if form is None else f"a covariance ({form.form})"
