"""Weights held in proportion to their importance: the form that EWC and MAS share (Eqs. 5 and 6)."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from ..errors import ImportanceWarning, InputError
from .base import Context, Penalty, Step, Tensors, trainable

Named = Mapping[str, torch.Tensor]


def quadratic_penalty(theta: Named, theta_old: Named, importance: Named) -> torch.Tensor:
    """Return sum_p 1/2 I_p (theta_p - theta_p^{t-1})^2 (Eqs. 5 and 6), a scalar.

    Args:
        theta: the weights, by name, with gradient.
        theta_old: the weights to stay near to, of the same shapes.
        importance: I >= 0, of the same shapes. What is in `theta` only is not held.

    >>> theta, old = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([0.0, 0.0])}
    >>> quadratic_penalty(theta, old, {"w": torch.tensor([2.0, 3.0])})
    tensor(7.)
    """
    terms = [
        (importance[name].to(now.device) * (now - theta_old[name].detach().to(now.device)).square()).sum()
        for name, now in theta.items()
        if name in theta_old and name in importance
    ]
    return 0.5 * torch.stack(terms).sum() if terms else torch.zeros(())


@dataclass(frozen=True)
class Importance(Penalty):
    """L_C = sum_p 1/2 I_p (theta_p - theta_p^{t-1})^2: weights are held in proportion to their importance I_p.

    EWC (Eq. 5, I = Fisher information F) and MAS (Eq. 6, I = sensitivity Omega) differ only in how I is measured. The
    anchor theta^{t-1} is the old network itself; it is not stored twice.
    """

    stores: ClassVar[str] = "an importance for every weight"
    names_weights: ClassVar[bool] = True

    @property
    @abstractmethod
    def accumulate(self) -> bool:
        """Whether importances are summed over tasks; else the last task's replace the older ones."""

    @abstractmethod
    def importance(self, context: Context) -> Tensors:
        """Return I_p >= 0 for every trainable weight, by name, on the CPU."""

    def start_task(self, context: Context, penalty_state: Tensors, network: nn.Module) -> Tensors:
        """Check that there is an importance for every trainable weight of the old network (a new head has none)."""
        missing = [name for name in trainable(context.network) if name not in penalty_state]
        if missing:
            raise InputError(
                f"{type(self).__name__} needs importances measured after the task before, but this model has none: it "
                "learned that task with another penalty. Use this penalty from the first task on."
            )
        # What has no importance is not held at all. A gradient of zero would not leave it alone: Adam makes whole steps
        # of the weight decay that it adds, and in two epochs the head of an older task loses half its length.
        return {name: value for name, value in penalty_state.items() if bool(value.any())}

    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return sum_p 1/2 I_p (theta_p - theta_p^{t-1})^2."""
        return quadratic_penalty(dict(step.network.named_parameters()), self.anchor(step, state), state)

    def anchor(self, step: Step, state: Tensors) -> Tensors:
        """Return theta^{t-1} by name."""
        return dict(step.network_old.named_parameters())

    def end_task(self, context: Context, penalty_state: Tensors, state: Tensors) -> Tensors:
        """Measure the importances on the finished task."""
        importance = self.importance(context)
        if not any(bool(value.any()) for value in importance.values()):
            warnings.warn(
                f"{type(self).__name__}: all importances after task {context.task} are zero, so this penalty holds "
                "nothing in the next task. The loss may already be zero on every batch: try a larger margin.",
                ImportanceWarning,
                stacklevel=2,
            )
        if not self.accumulate:
            return importance
        return {
            name: value + penalty_state[name] if name in penalty_state else value for name, value in importance.items()
        }
