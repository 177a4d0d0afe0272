"""Expert Gate (Aljundi, Chakravarty and Tuytelaars, CVPR 2017): an expert per task, and autoencoders that choose it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from ..common import seeding
from ..common.config import number, whole
from ..errors import InputError
from .base import Readout, Tensors, View


@dataclass(frozen=True)
class ExpertGate(Readout):
    """The image goes to the task whose autoencoder reconstructs it best; that task's own network names the class.

    A gate is undercomplete and has one hidden layer. It sees the initial network's features, standardized by its own
    task and squashed: x = sigmoid((z - mean_t) / std_t), x' = sigmoid(W' relu(W x + b) + b'), and it is trained on its
    task to make er_t = |x - x'|^2 small. The gate's confidence is p_t = softmax_t(-er_t / temperature).

    Every expert starts from the initial network (`Schedule(start="initial")`); the paper's starts from the expert of
    the most related task, which transfers more.

    Args:
        hidden: code size, at most half the features, or nothing would have to be left out. Its default and that of the
            temperature are not checked against the paper.
        temperature: of the confidence.
        epochs, learning_rate: of the gate's training (Adam, batches of 32).
    """

    stores: ClassVar[str] = "a network and an autoencoder for every task"
    hidden: int = 100
    temperature: float = 2.0
    epochs: int = 50
    learning_rate: float = 1e-3
    rules: ClassVar = {
        "hidden": whole(1),
        "temperature": number(above=0),
        "epochs": whole(1),
        "learning_rate": number(above=0),
    }
    uses_prototypes: ClassVar[bool] = False
    needs_every_network: ClassVar[bool] = True
    needs_heads: ClassVar[bool] = True

    def learn(self, readout_state: Tensors, z: torch.Tensor, targets: torch.Tensor, task: int, seed: int) -> Tensors:
        """Train the task's gate on the initial network's features of its images, (N, D)."""
        mean, std = z.mean(dim=0), z.std(dim=0, correction=0)
        std = torch.where(std > 1e-6, std, torch.ones_like(std))  # a feature that is always the same stays so
        x = squashed(z, mean, std)
        code = max(1, min(self.hidden, z.shape[1] // 2))
        with seeding.global_seed(seed, "gate", task):
            encoder, decoder = nn.Linear(z.shape[1], code).to(z), nn.Linear(code, z.shape[1]).to(z)
            optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=self.learning_rate)
            for _ in range(self.epochs):
                for batch in torch.randperm(len(x)).split(32):
                    optimizer.zero_grad()
                    loss = (decoder(encoder(x[batch]).relu()).sigmoid() - x[batch]).square().sum(dim=1).mean()
                    loss.backward()
                    optimizer.step()
        gate = {"mean": mean, "std": std, "encoder.weight": encoder.weight, "encoder.bias": encoder.bias}
        gate.update({"decoder.weight": decoder.weight, "decoder.bias": decoder.bias})
        return {**readout_state, **{f"gate{task}.{name}": tensor.detach() for name, tensor in gate.items()}}

    def confidences(self, errors: torch.Tensor) -> torch.Tensor:
        """Return p_t = softmax_t(-er_t / temperature), (N, T) -> (N, T)."""
        return (-errors / self.temperature).softmax(dim=1)

    def scores(self, view: View) -> torch.Tensor:
        """Return the chosen expert's log-probabilities, and -inf for the classes of all other tasks, (N, K)."""
        if view.z_of_task is None or view.logits_of_task is None:
            raise InputError("ExpertGate needs the networks of all tasks; here only the last one is at hand.")
        chosen = reconstruction_errors(view.z_of_task(0), view.readout_state).argmin(dim=1)
        experts = [view.logits_of_task(task) for task in range(1, 1 + _gates(view.readout_state))]
        parts = [logits[-1].log_softmax(dim=1) for logits in experts]  # an expert's own head is its last
        parts = [part.masked_fill((chosen != t)[:, None], -torch.inf) for t, part in enumerate(parts)]
        return torch.cat(parts, dim=1)


def squashed(z: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Return sigmoid((z - mean) / std), (N, D) -> (N, D) in (0, 1)."""
    return ((z - mean) / std).sigmoid()


def reconstruction_errors(z: torch.Tensor, readout_state: Tensors) -> torch.Tensor:
    """Return er_t = |x - x'|^2 by every task's gate, (N, D) -> (N, T); its argmin is the task chosen (0: the first).

    Args:
        z: (N, D) features by the initial network.
        readout_state: what `ExpertGate.learn` kept.
    """
    errors = []
    for t in range(1, 1 + _gates(readout_state)):
        gate = {
            name.removeprefix(f"gate{t}."): tensor
            for name, tensor in readout_state.items()
            if name.startswith(f"gate{t}.")
        }
        x = squashed(z, gate["mean"], gate["std"])
        code = F.linear(x, gate["encoder.weight"], gate["encoder.bias"]).relu()
        errors.append((F.linear(code, gate["decoder.weight"], gate["decoder.bias"]).sigmoid() - x).square().sum(dim=1))
    return torch.stack(errors, dim=1)


def _gates(readout_state: Tensors) -> int:
    return sum(name.endswith(".mean") for name in readout_state)
