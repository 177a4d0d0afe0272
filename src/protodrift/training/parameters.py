"""What the parameters of a classifier may be: one table of rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from sklearn.utils import check_random_state
from torch import nn

from ..common.config import Rule, flag, number, one_of, optional, whole
from ..data.views import Augmentation
from ..distributed import launched
from ..drift import Drift
from ..errors import InputError, did_you_mean
from ..methods import Schedule
from ..networks.build import BACKBONES
from ..networks.standardize import standardization
from ..readouts import Readout
from .config import Training

Known = Literal["error", "skip", "refresh"]
"""What `partial_fit` does with images of classes that were learned before."""


def _temperature(value: Any) -> str | None:
    return None if value == "auto" else number(above=0)(value)


def _backbone(value: Any) -> str | None:
    if isinstance(value, nn.Module) or (isinstance(value, str) and value in BACKBONES):
        return None
    if isinstance(value, str):
        return f"is unknown. {did_you_mean(value, BACKBONES)}"
    return "must be a name or an nn.Module"


def _device(value: Any) -> str | None:
    try:
        torch.empty(0, device=value)
    except (RuntimeError, AssertionError, TypeError) as error:
        return f"cannot be used here ({error}). Use device='cpu'."
    return None


def _schedule(value: Any) -> str | None:
    if isinstance(value, Schedule) and value.start == "initial":
        return (
            "trains a network of its own for every task, and this classifier keeps one network. Run it as an "
            "experiment (protodrift run)."
        )
    return None


def _readout(value: Any) -> str | None:
    if isinstance(value, Readout) and value.needs_every_network:
        return (
            "asks the networks of all earlier tasks, and this classifier keeps one network. Run it as an experiment "
            "(protodrift run), or use another read-out."
        )
    return None


def _drift(value: Any) -> str | None:
    if isinstance(value, Drift) and value.evaluation_only:
        return "is for evaluation only: it needs old images, which a learner does not have. Use SDC() or None."
    return None


def _augment(value: Any) -> str | None:
    if value is None or isinstance(value, Augmentation) or (isinstance(value, str) and value == "auto"):
        return None
    return "must be 'auto', None or an Augmentation such as CropFlip()"


def _kind(kinds: type | tuple[type, ...], words: str) -> Rule:
    return lambda value: None if isinstance(value, kinds) else f"must be {words}"


RULES: dict[str, Rule] = {
    "backbone": _backbone,
    "embedding_dim": optional(whole(1)),
    "normalize": flag,
    "weights": _kind((str, Path, type(None)), "a name, a file or None"),
    "crop": optional(whole(1)),
    "standardize": standardization,
    "drift": _drift,
    "readout": _readout,
    "schedule": _schedule,
    "training": _kind(Training, "a Training object, e.g. Training(epochs=30)"),
    "augment": _augment,
    "image_size": whole(8),
    "held_out": number(0, 0.5),
    "temperature": _temperature,
    "unknown_rate": number(0, 1),
    "channels": one_of("auto", "first", "last"),
    "random_state": optional(whole(0)),
    "device": _device,
    "verbose": flag,
}
"""What each parameter may be; `Method` checks that a part is of the right kind."""


def seed_of(random_state: int | None) -> int:
    """Return the seed of a task: `random_state`; for None one that numpy's global generator draws.

    Raises:
        InputError: for None on several ranks, which would each draw another one.
    """
    if random_state is not None:
        return random_state
    if launched():
        raise InputError("random_state=None would draw another seed on every rank. Give a number.")
    return int(check_random_state(None).randint(2**31 - 1))


def refuse_arguments(method: str, others: Mapping[str, Any]) -> None:
    """Refuse arguments that `fit` and `partial_fit` do not have; a `sample_weight` of None is none.

    Raises:
        InputError: for sample weights.
        TypeError: for any other name.
    """
    for name, value in others.items():
        if name != "sample_weight":
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
        if value is not None:
            raise InputError(
                f"{method}: sample_weight is not supported. A prototype is the plain mean of its class's images, and "
                "batches are drawn by class. Leave images out, or give those twice that count twice."
            )
