"""NaN and infinity are refused where a part returns them, by its name: later nobody knows where they came from."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..errors import NotFiniteError

_AT_ONCE = 2**20  # values


def name_of(part: object) -> str:
    """Return what to call a part in a message: the name of its class.

    >>> name_of(torch.nn.ReLU())
    'ReLU'
    """
    return type(part).__name__


def check_finite(part: object, what: str, values: torch.Tensor | Mapping[str, torch.Tensor]) -> None:
    """Refuse what a part returned if it is not finite.

    Args:
        part: whose it is.
        what: what it is, in words, for the message.
        values: a tensor, or named tensors; whole numbers are always finite.

    Raises:
        NotFiniteError: naming the part.

    >>> check_finite(torch.nn.ReLU(), "its output", torch.tensor([1.0, torch.nan]))
    Traceback (most recent call last):
    protodrift.errors.NotFiniteError: ReLU returned NaN or infinity in its output (1 of 2 values). Nothing was ...
    """
    named = values if isinstance(values, Mapping) else {"": values}
    for name, value in named.items():
        rows = max(1, _AT_ONCE * len(value) // max(1, value.numel())) if value.ndim else 1
        parts = value.split(rows) if value.ndim else (value,)  # embeddings may be a file beyond memory
        wrong = sum(int((~torch.isfinite(part)).sum()) for part in parts) if value.is_floating_point() else 0
        if not wrong:
            continue
        which = f"{what} {name!r}" if name else what
        raise NotFiniteError(
            f"{name_of(part)} returned NaN or infinity in {which} ({wrong} of {value.numel()} values). Nothing was "
            "changed. Look in it for a division by zero, a logarithm of zero or an overflow, and in the inputs for "
            "extreme values."
        )


def check_scores(part: object, scores: torch.Tensor) -> torch.Tensor:
    """Return a read-out's (N, K) scores; -inf is a class that must not win, NaN and +inf are refused."""
    if bool((scores < torch.inf).all()):  # false for NaN
        return scores
    check_finite(part, "its scores", torch.where(scores == -torch.inf, 0.0, scores))
    return scores
