"""A saved model."""

from __future__ import annotations

import pytest


@pytest.fixture
def model(two_clouds, tmp_path):
    """The directory of a saved model."""
    return two_clouds.save(tmp_path / "birds")
