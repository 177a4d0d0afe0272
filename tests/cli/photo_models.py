"""Small folders of real image files and small models, for tests of commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from protodrift import IncrementalClassifier, Schedule, StreamingLDA

COLORS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220), "white": (240, 240, 240)}


def photos(root: Path, *classes: str, count: int = 6, seed: int = 0) -> Path:
    """Write `count` noisy pictures of each color to root/<class>/; a class without a color is gray."""
    rng = np.random.RandomState(seed)
    for name in classes:
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            noise = rng.randint(-20, 20, (40, 40, 3))
            pixels = np.clip(np.array(COLORS.get(name, (90, 90, 90))) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{seed}-{i}.png")
    return root


def frozen_model(path: Path, *folders: Path) -> Path:
    """Save a model whose network is never trained, one task per folder of class folders."""
    clf = IncrementalClassifier(
        "convnet",
        embedding_dim=None,
        schedule=Schedule(train="none"),
        readout=StreamingLDA(shrinkage=0.01),
        image_size=32,
        temperature="auto",
    )
    for folder in folders:
        files = sorted(folder.rglob("*.png"))
        clf.partial_fit(files, [file.parent.name for file in files]).save(path)
    return path
