"""Add your own backbone: any module that maps a batch of images to (N, features)."""

from __future__ import annotations

import tempfile

import torch
from torch import nn

from protodrift import IncrementalClassifier, Training
from protodrift.data import load_digits


class Mine(nn.Module):
    """Two convolutions and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (N, 32)."""
        return self.layers(x).mean(dim=(2, 3))


digits = load_digits()
clf = IncrementalClassifier(Mine(), embedding_dim=16, training=Training(epochs=2, learning_rate=1e-3))
for classes in ((0, 1), (2, 3)):
    part = digits.train.of_classes(classes)
    clf.partial_fit(part.images, list(part.labels))

# Code is never stored in a model: give the same kind of module again when loading.
with tempfile.TemporaryDirectory() as folder:
    again = IncrementalClassifier.load(clf.save(f"{folder}/model"), backbone=Mine())
test = digits.test.of_classes(range(4))
print(f"accuracy on four classes: {again.score(test.images, list(test.labels)):.1%}")
