"""Covariances of the classes of a store: joined with those of new classes, and refreshed by more images."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..common.covariance import Tensors, dense, form_of
from ..errors import InputError


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
            f"earlier tasks kept {_named(old)} of every class, and this one keeps {_named(new)}. Old images are gone, "
            "so that cannot change between tasks: set the read-out and drift back, or start a new model."
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
        targets: R of the classes.
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


def _named(statistics: Tensors) -> str:
    form = form_of(statistics)
    return "only the mean" if form is None else f"a covariance ({form.form})"
