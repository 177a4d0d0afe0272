"""Case h: one more task while 100 to 10,000 classes are known: what grows, and with what.

A classifier that knows K classes (their prototypes are drawn, the rest is real) learns five more from 500 images. Two
terms must grow with K: SDC moves K prototypes, and images are compared with K prototypes when the read-out measures how
sure it is (distances, and the temperature that fits them). They are timed by themselves on the same sizes; what is left
should not depend on K.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from protodrift.common.geometry import squared_distances
from protodrift.data.examples import Examples
from protodrift.drift import SDC, semantic_drift
from protodrift.learner import IncrementalClassifier
from protodrift.prototypes.store import Prototypes
from protodrift.training.calibration import Calibration, fit_temperature
from protodrift.training.checking import FOLDS
from protodrift.training.config import Training
from protodrift.training.state import LearnedTask, LearnerState

from .elsewhere import Elsewhere
from .harness import Result, Setup, Side, clocked, compared, interleaved, quartiles
from .material import pictures
from .sdc import peak_since_reset, reset_peak

KNOWN = (100, 300, 1_000, 3_000, 10_000)
NEW, EACH, SIDE = 5, 100, 16


def run(setup: Setup) -> Iterator[Result]:
    """Measure one more task."""
    sizes = KNOWN[::2] if setup.quick else KNOWN
    clf = beginner()
    task = new_task()
    states = {size: knowing(clf.state_, size) for size in sizes}
    setup.say(f"growth: one more task beside {', '.join(f'{size:,}' for size in sizes)} classes")
    sides = {f"{size:,} classes": clocked(partial(one_more, clf, states[size], task)) for size in sizes}
    sides |= {f"terms {size:,} classes": clocked(partial(growing_terms, states[size], task)) for size in sizes}
    seconds = interleaved(sides, setup.rounds(5))
    with Elsewhere(memory_side, sizes) as memory:
        grown = {size: int(memory()) for size in sizes}
    curve = [measured(clf, states[size], task, seconds, grown[size], size) for size in sizes]
    least, most = (f"{size:,} classes" for size in (sizes[0], sizes[-1]))
    rest = {
        name: [max(a - b, 1e-9) for a, b in zip(seconds[name], seconds[f"terms {name}"], strict=True)]
        for name in (least, most)
    }
    yield compared("growth", "one more task", seconds, most, least, unit="of the time", inverse=True)
    yield compared(
        "growth", "one more task, without SDC and read-out", rest, most, least, unit="of the time", inverse=True,
        aim="<= 1.25", numbers={"curve": curve},
    )  # fmt: skip
    more = curve[-1]["ram_bytes"] - curve[0]["ram_bytes"]
    note = "Peak of resident memory while the task is learned, beside what was there before."
    name = f"one more task, memory at {most} beyond {least}"
    yield Result("growth", name, "protodrift", "", more / 2**20, unit="MiB more", note=note)
    per_class = (curve[-1]["model_bytes"] - curve[0]["model_bytes"]) / (sizes[-1] - sizes[0])
    note = "Embeddings of 512 numbers. Prototype, count, task, calibration, name; and what the last drift did to it."
    yield Result(
        "growth", "model directory, bytes per class", "protodrift", "", per_class, unit="bytes", note=note
    )  # fmt: skip


def measured(
    clf: IncrementalClassifier,
    state: LearnerState,
    task: Examples,
    seconds: dict[str, list[float]],
    memory: int,
    size: int,
) -> dict[str, Any]:
    """Return one point of the curve: time, memory, and the model on disk."""
    after = one_more(clf, state, task)
    learned = IncrementalClassifier(**clf.get_params(deep=False))
    learned.state_ = after
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        learned.save(Path(folder) / "model")
        saving = time.perf_counter() - started
        disk = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return {
        "classes": size,
        "seconds": quartiles(seconds[f"{size:,} classes"])[1],
        "seconds_of_sdc_and_readout": quartiles(seconds[f"terms {size:,} classes"])[1],
        "ram_bytes": memory,
        "seconds_saving": saving,
        "model_bytes": disk,
    }


def memory_side(sizes: Sequence[int]) -> Side:
    """Return a side that tells the memory (bytes) which one more task takes beside what is known, for size after size.

    In a process of its own: ours keeps freed memory, so its peak would not tell.
    """
    clf, task, left = beginner(), new_task(), list(sizes)

    def side() -> float:
        state = knowing(clf.state_, left.pop(0))
        before = reset_peak()
        one_more(clf, state, task)
        return float(peak_since_reset() - before)

    return side


def beginner(epochs: int = 3) -> IncrementalClassifier:
    """Return a classifier that has learned a first task, and takes so many epochs for the next."""
    first = new_task(seed=1, start=-NEW)
    clf = IncrementalClassifier("convnet", drift=SDC(), training=Training(epochs=epochs, learning_rate=1e-4))
    return clf.partial_fit(first.images, first.labels)


def new_task(seed: int = 2, start: int = 1_000_000) -> Examples:
    """Return the images of a task of new classes."""
    images = pictures(NEW, EACH, SIDE, seed=seed)
    return Examples(images.images, tuple(start + int(label) for label in images.labels))


def knowing(state: LearnerState, count: int) -> LearnerState:
    """Return what a learner would know after a first task of `count` classes; their prototypes are drawn."""
    draw = torch.Generator().manual_seed(0)
    size = state.prototypes.means.shape[1]
    means = 0.9 * torch.nn.functional.normalize(torch.randn(count, size, generator=draw), dim=1)
    labels = tuple(range(count))
    store = Prototypes(labels, means, torch.full((count,), EACH), torch.ones(count, dtype=torch.long))
    return replace(
        state,
        prototypes=store,
        trained=replace(state.trained, classes=labels),
        tasks=(LearnedTask(labels, (EACH,) * count, (), ""),),
        calibration=Calibration.unknown(count),
    )


def one_more(clf: IncrementalClassifier, state: LearnerState, task: Examples) -> LearnerState:
    """Learn a task beside what a state knows."""
    return clf.learned_from(state, state.spec, task)


def growing_terms(state: LearnerState, task: Examples) -> None:
    """Do what must grow with the number of classes, once: move prototypes, compare images with them, fit T.

    A task holds out one fold of the images after the other, and compares it for scores, distances, and relative ones.
    """
    draw = torch.Generator().manual_seed(0)
    means = state.prototypes.means
    rows = torch.randint(0, len(means), (len(task),), generator=draw)
    z = torch.nn.functional.normalize(means[rows] + 0.02 * torch.randn(len(task), means.shape[1], generator=draw))
    semantic_drift(means, z, z + 0.01, 0.3)
    scores = []
    for part in z.split(-(-len(z) // FOLDS)):
        for _ in range(3):
            near = squared_distances(part, means)
        scores.append(-near)
    fit_temperature(torch.cat(scores), rows)
