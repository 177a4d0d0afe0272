"""The last finished epoch of a training, to go on from there after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from ..penalties import Tensors

Snapshot = tuple[dict[str, Any], dict[str, Tensors]]
"""JSON-able facts, and named tensors by file."""


class Checkpoint(Protocol):
    """Where a training keeps its last finished epoch."""

    def load(self) -> Snapshot | None:
        """Return what was saved last, or None."""

    def save(self, data: dict[str, Any], tensors: dict[str, Tensors]) -> None:
        """Replace what was saved; all or nothing."""


def snapshot(
    network: nn.Module, optimizer: torch.optim.Optimizer, states: Sequence[Tensors], history: list[dict[str, float]]
) -> Snapshot:
    """Return everything that the next epoch depends on: weights, the optimizer's and the penalties' states, history."""
    moments = {
        f"{i}.{name}": value
        for i, weight in enumerate(network.parameters())
        for name, value in optimizer.state[weight].items()
    }
    penalties = {f"penalty{i}": state for i, state in enumerate(states)}
    tensors = {"network": dict(network.state_dict()), "optimizer": moments, **penalties}
    return {"epoch": len(history), "history": history}, tensors


def restore(
    tensors: dict[str, Tensors], network: nn.Module, optimizer: torch.optim.Optimizer, penalties: int
) -> tuple[Tensors, ...]:
    """Bring network and optimizer back to a snapshot, and return the states of so many penalties."""
    network.load_state_dict(tensors["network"])
    for i, weight in enumerate(network.parameters()):
        for name in ("step", "exp_avg", "exp_avg_sq", "momentum_buffer"):  # Adam's and SGD's
            if f"{i}.{name}" in tensors["optimizer"]:
                value = tensors["optimizer"][f"{i}.{name}"]
                # In the layout of the weight, as the optimizer made it: it decides which loop runs, and the last bits.
                like = value.clone() if name == "step" else torch.empty_like(weight).copy_(value)
                optimizer.state[weight][name] = like.detach()
    return tuple(tensors[f"penalty{i}"] for i in range(penalties))
