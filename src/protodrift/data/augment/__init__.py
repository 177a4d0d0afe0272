"""Random changes of color and shape: Pillow's operations on batches, and the policies that draw them."""

from .policies import AutoAugment, ColorJitter, Cutout, TrivialAugment

__all__ = ["AutoAugment", "ColorJitter", "Cutout", "TrivialAugment"]
