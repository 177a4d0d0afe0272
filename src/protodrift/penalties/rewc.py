"""R-EWC: EWC in a network whose layers are rotated until their Fisher information is nearly diagonal."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import nn
from torch.func import functional_call

from .base import Context, Step, Tensors
from .ewc import EWC

WIDEST = 4096  # a rotation is a dense matrix of width x width, and so is its eigenproblem


@dataclass(frozen=True)
class REWC(EWC):
    """Rotated EWC (Liu et al., Rotate your Networks, ICPR 2018).

    EWC holds weights one by one: it takes the Fisher information for diagonal, which it is not. The Fisher information
    of a layer y = W x is E[(g x^T)(g x^T)^T] with g = dL/dy; it is nearer to a diagonal one in axes in which the
    entries of x, and those of g, are uncorrelated. With E[x x^T] = U1^T S1 U1 and E[g g^T] = U2 S2 U2^T,

        W = U2 W' U1,   W' = U2^T W U1^T,   L_C = sum_p 1/2 F'_p (W'_p - W'_p^{t-1})^2,

    F' measured in W'. A convolution is rotated in its channels, at every place of its kernel alike (1x1 convolutions
    before and after it); x and g are then those of all positions. All other weights (biases, batch norm) are held by
    plain EWC. After a task U1, U2 and F' are measured on its images and kept; in the next task W' is what is trained;
    then the layers become plain ones again.

    Rotated are linear and convolutional layers at most 4096 wide, the embedding head too. Left plain are the
    classification heads (an old head has no gradient g in later tasks, so nothing that says how to turn it), grouped
    convolutions, and layers or weights used under two names. It goes with LwF and other penalties that look at answers;
    beside another penalty on weights (EWC, MAS, SI) the names would mean two things.

    Args:
        gamma: trade-off; 1e7 belongs, as for EWC, to F' of mini-batches of 32 (the authors' code: 100, for F' of single
            images). However small it is, this is not fine-tuning: Adam's steps depend on the axes. Only 0 is.
        fisher: as for EWC.
        accumulate: sum F' over all tasks: the older ones' are turned into the new axes first (the diagonal of the
            turned diagonal matrix). The authors' code has the last task's only.
    """

    stores: ClassVar[str] = "an importance for every weight and two rotations for every layer"
    turns_weights: ClassVar[bool] = True

    def start_task(self, context: Context, penalty_state: Tensors, network: nn.Module) -> Tensors:
        """Rotate the network about to be trained, and the old weights that it is compared with."""
        state = dict(super().start_task(context, penalty_state, network))
        old = dict(context.network.named_parameters())
        for name, u1, u2 in _layers(penalty_state):
            weight = old[f"{name}.weight"].detach()
            state[f"old:{name}.weight"] = turn(weight, u2.T.to(weight), u1.T.to(weight)).contiguous()
        rotate(network, penalty_state)
        return state

    def anchor(self, step: Step, state: Tensors) -> Tensors:
        """Return theta^{t-1} by name, W'^{t-1} for rotated layers."""
        rotated = {name.removeprefix("old:"): value for name, value in state.items() if name.startswith("old:")}
        return {**super().anchor(step, state), **rotated}

    def merge(self, network: nn.Module, state: Tensors) -> None:
        """Put the plain layers back, with W = U2 W' U1."""
        for name, module in list(network.named_modules()):
            if isinstance(module, Rotated):
                _put(network, name, module.merged())

    def end_task(self, context: Context, penalty_state: Tensors, state: Tensors) -> Tensors:
        """Measure U1, U2, and F' in the axes that they give; without a loss to measure with, keep what was known."""
        if context.missing_signal():
            return super().end_task(context, penalty_state, state)
        rotations = measure_rotations(context)
        network = copy.deepcopy(context.network)
        rotate(network, rotations)
        fisher = super().end_task(context.with_network(network), turn_fisher(penalty_state, rotations), state)
        return {**fisher, **rotations}


class Rotated(nn.Module):
    """A linear or convolutional layer that is trained as W' = U2^T W U1^T; its parameters keep their names.

    Args:
        layer: the plain layer, weight (O, I, ...).
        u1: (I, I) orthogonal.
        u2: (O, O) orthogonal.
    """

    u1: torch.Tensor
    u2: torch.Tensor

    def __init__(self, layer: nn.Linear | nn.Conv2d, u1: torch.Tensor, u2: torch.Tensor) -> None:
        super().__init__()
        # Not in the state dict: they are constants of the task, which `start_task` has from the penalty's state.
        self.register_buffer("u1", u1.to(layer.weight), persistent=False)
        self.register_buffer("u2", u2.to(layer.weight), persistent=False)
        # Only W' is trained; the plain layer waits in a tuple, where the network does not see it as a part.
        self.weight = nn.Parameter(turn(layer.weight.detach(), self.u2.T, self.u1.T))
        self.bias = layer.bias
        self.plain = (layer,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the plain layer's output with W = U2 W' U1."""
        out: torch.Tensor = functional_call(self.plain[0], {"weight": turn(self.weight, self.u2, self.u1)}, (x,))
        return out

    @torch.no_grad()
    def merged(self) -> nn.Linear | nn.Conv2d:
        """Return the plain layer with the trained weights, in the memory layout that it always had."""
        (layer,) = self.plain
        layer.weight.copy_(turn(self.weight, self.u2, self.u1))
        return layer


def turn(weight: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return left W right, for a convolution at every place of its kernel: (O, O), (O, I, ...), (I, I)."""
    if weight.ndim == 2:
        return left @ weight @ right
    turned = torch.einsum("po,oihw,ij->pjhw", left, weight, right)
    return turned.contiguous(memory_format=torch.channels_last)  # as `networks.build` lays weights out


def turn_fisher(penalty_state: Tensors, rotations: Tensors) -> Tensors:
    """Return an older F' in new axes: the diagonal of the turned diagonal matrix, (A * A) F' (B * B)."""
    result = {name: value for name, value in penalty_state.items() if not name.startswith(("U1:", "U2:"))}
    before = {name: (u1, u2) for name, u1, u2 in _layers(penalty_state)}
    for name, u1, u2 in _layers(rotations):
        # A layer that was plain until now (it had no gradient) was rotated by nothing.
        u1_old, u2_old = before.get(name, (torch.eye(len(u1)), torch.eye(len(u2))))
        if f"{name}.weight" in penalty_state:
            a, b = u2.T @ u2_old, u1_old @ u1.T
            result[f"{name}.weight"] = turn(penalty_state[f"{name}.weight"], a.square(), b.square()).contiguous()
    return result


def rotatable(network: nn.Module) -> dict[str, nn.Linear | nn.Conv2d]:
    """Return the layers that R-EWC rotates, by name."""
    uses = Counter(id(module) for _, module in network.named_modules(remove_duplicate=False))
    ties = Counter(id(weight) for _, weight in network.named_parameters(remove_duplicate=False))
    return {
        name: module
        for name, module in network.named_modules()
        # Exactly these types: a subclass may do other things with its weight.
        if type(module) in (nn.Linear, nn.Conv2d)
        and isinstance(module, (nn.Linear, nn.Conv2d))
        and not name.startswith("heads.")
        and getattr(module, "groups", 1) == 1
        and module.weight.requires_grad
        and max(module.weight.shape[:2]) <= WIDEST
        and uses[id(module)] == ties[id(module.weight)] == 1
    }


def rotate(network: nn.Module, rotations: Tensors) -> None:
    """Replace the layers that have rotations by `Rotated` ones, in place."""
    for name, u1, u2 in _layers(rotations):
        layer = network.get_submodule(name)
        assert isinstance(layer, (nn.Linear, nn.Conv2d))
        _put(network, name, Rotated(layer, u1, u2))


def measure_rotations(context: Context) -> Tensors:
    """Return U1, (I, I), and U2, (O, O), of every layer that is rotated, as "U1:<layer>" and "U2:<layer>"."""
    layers = rotatable(context.network)
    if not layers:  # all of them frozen, or of other kinds: what is left is plain EWC
        return {}
    sides = {f"{end}:{name}": layer.weight.shape[at] for name, layer in layers.items() for end, at in _ENDS}
    covariance: Tensors = {}

    def add(key: str, vectors: torch.Tensor) -> None:
        vectors = vectors.detach()
        rows = vectors.movedim(-3, -1) if vectors.ndim == 4 else vectors  # channels last: every position is a row
        rows = rows.reshape(-1, rows.shape[-1])
        covariance[key] = covariance.get(key, 0) + (rows.T @ rows).double()

    def watch(name: str, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        add(f"U1:{name}", inputs[0])
        if output.requires_grad:
            output.register_hook(partial(add, f"U2:{name}"))

    watches = [layer.register_forward_hook(partial(watch, name)) for name, layer in layers.items()]
    try:
        for step in context.steps():
            if step.loss.requires_grad:  # else no valid triplet in this batch
                torch.autograd.grad(step.loss, [layer.weight for layer in layers.values()], allow_unused=True)
    finally:
        for handle in watches:
            handle.remove()
    # Another process may have seen a layer that this one has not: it had no batch, or no valid triplet.
    seen = torch.tensor([float(key in covariance) for key in sides], dtype=torch.float64)
    parts = {k: covariance.get(k, torch.zeros(n, n, dtype=torch.float64)).cpu() for k, n in sides.items()}
    total = context.reduce({"": seen, **parts})
    found = {key for key, count in zip(sides, total[""], strict=True) if count}
    result = {}
    for name in layers:
        if f"U1:{name}" in found and f"U2:{name}" in found:
            result[f"U1:{name}"] = _axes(total[f"U1:{name}"]).T.contiguous()
            result[f"U2:{name}"] = _axes(total[f"U2:{name}"])
    return result


_ENDS = (("U1", 1), ("U2", 0))  # a layer's weight is (O, I, ...)


def _layers(rotations: Tensors) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the name, U1 and U2 of every rotated layer."""
    for key, u1 in rotations.items():
        kind, _, name = key.partition(":")
        if kind == "U1":
            yield name, u1, rotations[f"U2:{name}"]


def _axes(covariance: torch.Tensor) -> torch.Tensor:
    """Return the eigenvectors as columns, that of the largest eigenvalue first, in float32 on the CPU."""
    vectors: torch.Tensor = torch.linalg.eigh(covariance).eigenvectors
    return vectors.flip(1).float().contiguous()


def _put(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(network.get_submodule(parent), last, module)
