"""Datasets by name, in the ordinary layout of their publishers; found, checked, downloaded, decoded once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import NamedDataset
from .check import Check, check_dataset
from .download import prepare_dataset
from .registry import DATASETS, find_dataset

if TYPE_CHECKING:
    from .load import load_dataset as load_dataset

__all__ = [
    "DATASETS",
    "Check",
    "NamedDataset",
    "check_dataset",
    "find_dataset",
    "load_dataset",
    "prepare_dataset",
]


def __getattr__(name: str) -> Any:
    if name == "load_dataset":  # the only part that needs torch
        from .load import load_dataset

        return load_dataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
