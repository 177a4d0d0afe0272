"""The dataset that comes with the install: scikit-learn's 8x8 digits."""

from __future__ import annotations

import numpy as np

from ..examples import Dataset


def load_digits(test_fraction: float = 0.3, split_seed: int = 0) -> Dataset:
    """Return the 1,797 handwritten digits (8 x 8 gray, values 0..16 stretched to 0..255) with a seeded test part.

    A smoke test, never a headline: a random frozen network does well on it.

    >>> load_digits()
    Dataset('digits': 1258 training images of 10 classes, 539 test images)
    """
    from sklearn.datasets import load_digits as sklearn_digits

    bunch = sklearn_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return Dataset(images, bunch.target, name="digits").split(test_fraction, seed=split_seed)
