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


def trained_weights(network: nn.Module, states: Sequence[Tensors]) -> list[torch.Tensor]:
    """Return what a task's optimizer trains: the network's weights, then what penalties have that needs a gradient."""
    return [*network.parameters(), *(value for state in states for value in state.values() if value.requires_grad)]


def snapshot(
    network: nn.Module, optimizer: torch.optim.Optimizer, states: Sequence[Tensors], history: list[dict[str, float]]
) -> Snapshot:
    """Return everything that the next epoch depends on: weights, the optimizer's and the penalties' states, history."""
    moments = {
        f"{i}.{name}": value
        for i, weight in enumerate(trained_weights(network, states))
        for name, value in optimizer.state[weight].items()
        if value is not None  # the momentum of SGD without one
    }
    penalties = {f"penalty{i}": detached(state) for i, state in enumerate(states)}
    tensors = {"network": dict(network.state_dict()), "optimizer": moments, **penalties}
    return {"epoch": len(history), "history": history}, tensors


def detached(state: Tensors) -> Tensors:
    """Return a penalty's state as plain tensors."""
    return {name: value.detach() for name, value in state.items()}


def restore(
    tensors: dict[str, Tensors], network: nn.Module, optimizer: torch.optim.Optimizer, states: Sequence[Tensors]
) -> tuple[Tensors, ...]:
    """Bring network, optimizer and the penalties' states, as they are at a task's start, back to a snapshot."""
    network.load_state_dict(tensors["network"])
    for i, weight in enumerate(trained_weights(network, states)):
        for name in ("step", "exp_avg", "exp_avg_sq", "momentum_buffer"):  # Adam's and SGD's
            if f"{i}.{name}" in tensors["optimizer"]:
                value = tensors["optimizer"][f"{i}.{name}"]
                # In the layout of the weight, as the optimizer made it: it decides which loop runs, and the last bits.
                like = value.clone() if name == "step" else torch.empty_like(weight).copy_(value)
                optimizer.state[weight][name] = like.detach()
    return tuple(_restored(state, tensors[f"penalty{i}"]) for i, state in enumerate(states))


def _restored(state: Tensors, saved: Tensors) -> Tensors:
    """Return the saved state; what is trained stays the tensor that the optimizer knows, with the saved values."""
    trained = {name: value for name, value in state.items() if value.requires_grad}
    for name, value in trained.items():
        value.data.copy_(saved[name])
    return {**saved, **trained}
