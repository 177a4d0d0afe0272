"""Where images come from: arrays, folders, named sets; and how they become batches.

Names are imported when first used: looking into a dataset's folder does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Augmentation": "views",
    "AutoAugment": "augment",
    "ColorJitter": "augment",
    "Composed": "views",
    "CropFlip": "views",
    "Cutout": "augment",
    "Dataset": "examples",
    "Examples": "examples",
    "InputSpec": "arrays",
    "RandomCropFlip": "views",
    "ResizedCropFlip": "views",
    "TrivialAugment": "augment",
    "class_balanced_batches": "batches",
    "load_digits": "datasets.digits",
    "load_folder": "folder",
    "read_image": "images",
    "read_images": "arrays",
    "read_labels": "arrays",
    "scan_folder": "scan",
}

__all__ = list(_HOMES)

if TYPE_CHECKING:
    from .arrays import InputSpec as InputSpec
    from .arrays import read_images as read_images
    from .arrays import read_labels as read_labels
    from .augment import AutoAugment as AutoAugment
    from .augment import ColorJitter as ColorJitter
    from .augment import Cutout as Cutout
    from .augment import TrivialAugment as TrivialAugment
    from .batches import class_balanced_batches as class_balanced_batches
    from .datasets.digits import load_digits as load_digits
    from .examples import Dataset as Dataset
    from .examples import Examples as Examples
    from .folder import load_folder as load_folder
    from .images import read_image as read_image
    from .scan import scan_folder as scan_folder
    from .views import Augmentation as Augmentation
    from .views import Composed as Composed
    from .views import CropFlip as CropFlip
    from .views import RandomCropFlip as RandomCropFlip
    from .views import ResizedCropFlip as ResizedCropFlip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
