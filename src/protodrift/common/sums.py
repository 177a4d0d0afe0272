"""Sums over images that merge: what a part declares so that its images may lie in pieces.

A mean, a covariance or a kernel estimate over all images follows from sums over parts of them. A part that declares
such sums (`Drift.sums`, `Readout.sums`) can be computed where its images lie: on several ranks, in files, in a stream.
It knows nothing of where that is; one function merges the sums of all pieces (`distributed.passes.merged`).
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from functools import reduce
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

S = TypeVar("S", bound="Sums")


@dataclasses.dataclass(frozen=True)
class Sums(ABC):
    """Named tensors over a set of images. Subclasses are frozen dataclasses whose fields are all tensors.

    The sums over no images have the same shapes as any others, so that every piece has something to merge.
    """

    @abstractmethod
    def merge(self: S, other: S) -> S:
        """Return the sums over both sets of images, which are disjoint."""

    def pack(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name, to be sent or stored."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def merged(pieces: list[S]) -> S:
    """Return the sums over all pieces, merged in their order; there is at least one."""
    return reduce(lambda one, other: one.merge(other), pieces)
