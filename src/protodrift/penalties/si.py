"""SI: hold each weight in proportion to what it did for the loss on its way (Zenke et al., ICML 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from ..common.config import number, one_of
from ..errors import InputError
from .base import Context, Penalty, Step, Tensors, trainable
from .importance import quadratic_penalty


def path_integral(omega: torch.Tensor, gradient: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Return omega_p - g_p (theta_p after the step - theta_p before it): one step of their Eq. 3, all of one shape.

    >>> path_integral(torch.tensor([0.0]), torch.tensor([2.0]), torch.tensor([-0.5]))
    tensor([1.])
    """
    return omega - gradient * step


def si_importance(omega: torch.Tensor, moved: torch.Tensor, xi: float = 1e-3) -> torch.Tensor:
    """Return omega_p / (Delta_p^2 + xi), what a task adds to Omega (their Eq. 5), all of one shape.

    Args:
        omega: the path integral over the task.
        moved: Delta, the weights at the end of the task minus those at its start.
        xi: damps the importance of weights that hardly moved.

    >>> si_importance(torch.tensor([3.0]), torch.tensor([1.0]), xi=0.5)
    tensor([2.])
    """
    return omega / (moved.square() + xi)


@dataclass(frozen=True)
class SI(Penalty):
    """Synaptic intelligence: L_SI = sum_p Omega_p (theta_p - theta_p^{t-1})^2, without a factor 1/2 (their Eq. 4).

    While a task is trained, every weight collects its share of the loss's decrease, a path integral (their Eq. 3):
    omega_p = - sum over steps of g_p (theta_p(after the step) - theta_p(before it)), with g the gradient of the loss
    without L_SI. After the task (their Eq. 5, with Delta_p = theta_p(end) - theta_p(start)):
    Omega_p <- Omega_p + omega_p / (Delta_p^2 + xi).

    `weight.grad` is that of the total loss; the gradient of gamma * L_SI, 2 gamma Omega_p (theta_p - theta_p^{t-1}), is
    known and taken off. Other penalties beside SI stay in g: to SI they belong to the loss. Weight decay does not: Adam
    adds it after the gradient.

    Args:
        gamma: trade-off, their c, for which they use 0.01 to 1. Paths are short at small learning rates, and Omega with
            them: E-SI on the digits, at 1e-4, wants 1e3 (validation data).
        xi: damps the importance of weights that hardly moved. They use 1e-3 (CIFAR) and 0.1 (permuted MNIST).
        reading: of Eq. 5. "paper": as it stands; a weight whose steps raised the loss gets Omega < 0, and is pushed
            away. "released": the sum cut off at 0 after each task, as their code does.
    """

    gamma: float = 1.0
    xi: float = 1e-3
    reading: Literal["paper", "released"] = "paper"
    rules: ClassVar = {"gamma": number(0), "xi": number(above=0), "reading": one_of("paper", "released")}
    follows_path: ClassVar[bool] = True
    names_weights: ClassVar[bool] = True
    stores: ClassVar[str] = "an importance for every weight"

    def start_task(self, context: Context, penalty_state: Tensors, network: nn.Module) -> Tensors:
        """Begin the path: omega = 0, start = before = theta; `Omega` is what was kept (a new head has none)."""
        old = list(trainable(context.network)) if context.task > 1 else []
        if any(name not in penalty_state for name in old):
            raise InputError(
                "SI needs the path of every task, but this model learned the task before without it. Use this penalty "
                "from the first task on."
            )
        state = {f"Omega:{name}": penalty_state[name] for name in old}
        for name, theta in trainable(network).items():
            state[f"omega:{name}"] = torch.zeros_like(theta)
            state[f"start:{name}"] = theta.detach().clone()
            state[f"before:{name}"] = theta.detach().clone()
        return state

    def penalty(self, step: Step, state: Tensors) -> torch.Tensor:
        """Return sum_p Omega_p (theta_p - theta_p^{t-1})^2."""
        omega = {name.removeprefix("Omega:"): value for name, value in state.items() if name.startswith("Omega:")}
        theta, old = dict(step.network.named_parameters()), dict(step.network_old.named_parameters())
        return 2 * quadratic_penalty(theta, old, omega)

    @torch.no_grad()
    def after_step(self, step: Step, state: Tensors) -> None:
        """Add this step to the path: omega_p -= g_p (theta_p - theta_p before the step)."""
        for name, theta in trainable(step.network).items():
            if theta.grad is None:  # it had no part in this step, and did not move
                continue
            gradient, before = theta.grad, state[f"before:{name}"].to(theta.device)
            if f"Omega:{name}" in state:  # the task started at the old weights, so that `start` is theta^{t-1}
                away = before - state[f"start:{name}"].to(theta.device)
                gradient = gradient - 2 * self.gamma * state[f"Omega:{name}"].to(theta.device) * away
            state[f"omega:{name}"] = path_integral(state[f"omega:{name}"].to(theta.device), gradient, theta - before)
            state[f"before:{name}"] = theta.detach().clone()

    @torch.no_grad()
    def end_task(self, context: Context, penalty_state: Tensors, state: Tensors) -> Tensors:
        """Return Omega_p of every weight; a task that trained nothing (`state` is empty) adds nothing."""
        result = {}
        for name, theta in trainable(context.network).items():
            omega = penalty_state.get(name, torch.zeros_like(theta, device="cpu"))
            if f"omega:{name}" in state:
                moved = theta - state[f"start:{name}"].to(theta.device)
                omega = omega + si_importance(state[f"omega:{name}"].to(theta.device), moved, self.xi).cpu()
            # Plain layout, as it is after saving and loading: the layout decides the last bits of a sum.
            result[name] = (omega if self.reading == "paper" else omega.clamp(min=0)).contiguous()
        return result
