"""Drifts whose right answer is known."""

import pytest
import torch


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def cloud():
    """400 images of 5 classes in 8 dimensions, and 6 prototypes that are none of them."""
    centers = 2 * draw(5, 8, seed=1)
    labels = torch.arange(5).repeat_interleave(80)
    z_old = centers[labels] + 0.5 * draw(400, 8, seed=2)
    prototypes = centers[[0, 1, 2, 3, 4, 0]] + 0.7 * draw(6, 8, seed=3)
    return prototypes, z_old, labels


@pytest.fixture
def turned():
    """A rotation of 8 dimensions."""
    return torch.linalg.qr(draw(8, 8, seed=4)).Q


@pytest.fixture
def stretched():
    """Any linear map of 8 dimensions, not far from the identity."""
    return torch.eye(8, dtype=torch.float64) + 0.3 * draw(8, 8, seed=5)
