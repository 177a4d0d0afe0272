"""Where images come from: arrays, folders, named sets; and how they become batches."""

from .arrays import InputSpec, read_images, read_labels
from .batches import class_balanced_batches
from .dataset import Dataset, Examples
from .digits import load_digits
from .folder import load_folder, read_image, scan_folder
from .transforms import CropFlip

__all__ = [
    "CropFlip",
    "Dataset",
    "Examples",
    "InputSpec",
    "class_balanced_batches",
    "load_digits",
    "load_folder",
    "read_image",
    "read_images",
    "read_labels",
    "scan_folder",
]
