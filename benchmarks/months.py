"""What a model answers month after month: classes arrive in tasks, and photos of strangers come with the test photos.

python -m benchmarks.months PHOTOS --cache DIR              PHOTOS: a folder of class folders, or a .csv of path,label
python -m benchmarks.months list flowers102 DIR OUT.csv     the photos of a dataset by name, as such a .csv

The network of `protodrift learn` stays as it is, so every photo is embedded once and the embeddings are kept in DIR;
all else is the library's own code: the classifier that `learn` would choose learns them, and `evaluate` measures it.
The order of classes, strangers and the split of each class are drawn from the seed. Beside it stands a logistic
regression that sees the embeddings of all months at once; its strength is chosen by cross-validation on the photos to
learn.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from protodrift import IncrementalClassifier
from protodrift.common import seeding
from protodrift.data.datasets import find_dataset
from protodrift.data.datasets.base import PhotoDataset
from protodrift.data.datasets.registry import get_dataset
from protodrift.data.folder import Found, find_photos, photo_spec, read_photos
from protodrift.metrics import expected_calibration_error
from protodrift.model.defaults import choose
from protodrift.model.evaluate import Evaluation, Part, evaluate
from protodrift.networks.build import build_embedder
from protodrift.networks.embedder import embed

_AT_ONCE = 256  # photos decoded at a time


def listed(name: str, data: Path, out: Path) -> None:
    """Write the photos of a dataset as a .csv of path,label."""
    dataset = get_dataset(name)
    assert isinstance(dataset, PhotoDataset), f"{name} has no photo files"
    folder = find_dataset(name, data)
    photos = dataset.scan(folder)
    rows = [f"{(folder / path).resolve()},{label}" for path, label in (*photos.train, *photos.test)]
    out.write_text("path,label\n" + "\n".join(rows) + "\n")


def embedded(found: Found, size: int, cache: Path) -> tuple[np.ndarray, list[str]]:
    """Return (N, D) unit embeddings by the network of `learn`, and N labels; computed once for each list of photos."""
    names = json.dumps([size, [(str(path), label) for path, label in found.files]])
    file = cache / f"{found.name}-{hashlib.sha256(names.encode()).hexdigest()[:12]}.npz"
    if not file.exists():
        clf = choose(None, found.classes, {"size": size, "train": False}).classifier
        network = build_embedder(clf.backbone, photo_spec(size), embedding_dim=None, weights=clf.weights).eval()
        parts, labels = [], []
        for start in range(0, len(found.files), _AT_ONCE):
            photos = read_photos(Found(found.name, found.files[start : start + _AT_ONCE], ()), size)
            parts.append(embed(network, photos.examples.images).numpy())
            labels += photos.examples.labels
            print(f"embedded {len(labels)} of {len(found.files)}", flush=True)
        cache.mkdir(parents=True, exist_ok=True)
        with file.with_suffix(".new").open("wb") as stream:
            np.savez(stream, z=np.concatenate(parts), labels=np.array(labels))
        file.with_suffix(".new").rename(file)
    kept = np.load(file)
    return kept["z"], kept["labels"].tolist()


def thinned(found: Found, classes: int, photos: int) -> Found:
    """Return some classes and at most so many photos of each, drawn once for all seeds: they share the embeddings."""
    names = list(found.classes)
    if len(names) < classes:
        raise SystemExit(f"{found.name} has {len(names)} classes, {classes} are needed")
    generator = seeding.generator(0, "thinned")
    kept: list[int] = []
    for i in torch.randperm(len(names), generator=generator)[:classes].tolist():
        own = [at for at, (_, label) in enumerate(found.files) if label == names[i]]
        kept += [own[at] for at in torch.randperm(len(own), generator=generator)[:photos].tolist()]
    return Found(found.name, tuple(found.files[at] for at in sorted(kept)), ())


@dataclass(frozen=True)
class Months:
    """What is learned and asked: positions in the photos.

    Attributes:
        learn: for each month the photos to learn.
        test: for each month the test photos of its classes.
        strangers: test photos of classes that no month brings.
    """

    learn: list[np.ndarray]
    test: list[np.ndarray]
    strangers: np.ndarray


def drawn(labels: list[str], tasks: int, classes: int, seed: int) -> Months:
    """Draw the order of the classes, and which half of the photos of each is learned; the other half is to test.

    Args:
        labels: N labels; those of the classes beyond tasks x classes are strangers.
        tasks, classes: how many months, and classes in each.
        seed: from which all of it follows.
    """
    names = sorted(set(labels))
    generator = seeding.generator(seed, "months")
    order = [names[i] for i in torch.randperm(len(names), generator=generator).tolist()]
    sides: list[tuple[np.ndarray, np.ndarray]] = []
    all_labels = np.array(labels)
    for name in order:
        members = np.flatnonzero(all_labels == name)
        members = members[torch.randperm(len(members), generator=generator).numpy()]
        half = len(members) // 2
        sides.append((members[:half], members[half:]))
    known = [sides[start : start + classes] for start in range(0, tasks * classes, classes)]
    return Months(
        *([np.concatenate([pair[side] for pair in month]) for month in known] for side in (0, 1)),  # type: ignore[arg-type]
        np.concatenate([pair[1] for pair in sides[tasks * classes :]]),
    )


class AsItIs(nn.Module):
    """The backbone of embeddings that are there already: x -> x. A network must have a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the embeddings."""
        return x * self.one


def learner(classes: dict[str, int], size: int) -> IncrementalClassifier:
    """Return the classifier that `learn` would choose, for embeddings in the place of photos."""
    clf = choose(None, classes, {"size": size, "train": False}).classifier
    return clf.set_params(backbone=AsItIs(), weights=None, standardize="none")


def month_by_month(z: np.ndarray, labels: list[str], months: Months, size: int) -> Iterator[tuple[Any, Evaluation]]:
    """Yield the classifier after each month, and what `evaluate` finds on test photos so far and on strangers."""
    named = np.array(labels)
    clf = learner({}, size)
    for count, learn in enumerate(months.learn, 1):
        clf.partial_fit(z[learn], named[learn].tolist())
        test = np.concatenate([*months.test[:count], months.strangers])
        yield clf, evaluate(clf, z[test], named[test].tolist())


def joint(z: np.ndarray, labels: list[str], months: Months, count: int) -> float:
    """Return the accuracy of a logistic regression on the photos of the first `count` months together."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    named = np.array(labels)
    learn, test = np.concatenate(months.learn[:count]), np.concatenate(months.test[:count])
    search = GridSearchCV(LogisticRegression(max_iter=300), {"C": [10.0, 30.0, 100.0, 300.0]}, cv=3)
    return float(search.fit(z[learn], named[learn]).score(z[test], named[test]))


def by_chance(confidence: np.ndarray, draws: int = 100) -> float:
    """Return the mean calibration error of answers that are right as often as they say: what chance alone does."""
    generator = np.random.default_rng(0)
    errors = [
        expected_calibration_error(confidence, generator.random(len(confidence)) < confidence) for _ in range(draws)
    ]
    return float(np.mean(errors))


def row_of(part: Part, answers: np.ndarray) -> dict[str, float]:
    """Return the numbers of a table's row."""
    return {
        "photos": part.images,
        "accuracy": 100 * part.accuracy,
        "calibration_error": 100 * part.calibration_error,
        "by_chance": 100 * by_chance(answers),
        "false_unknown": 100 * part.false_unknown,
        "auroc": part.auroc,
    }


def measured(z: np.ndarray, labels: list[str], months: Months, size: int, jointly: bool) -> dict[str, Any]:
    """Return what was measured: for each month all classes so far, and at the end each task."""
    result: dict[str, Any] = {"months": [], "tasks": []}
    for count, (clf, found) in enumerate(month_by_month(z, labels, months, size), 1):
        known = np.array([one.top[0][1] for one in found.answers if one.known])
        assert found.all is not None
        left_out = clf.tasks_[-1].held_out
        result["months"].append(
            {
                **row_of(found.all, known),
                "strangers_found": 100 * found.found_unknown,
                "left_out": None if left_out is None else 100 * left_out[1],
                "joint": 100 * joint(z, labels, months, count) if jointly else None,
                "false_unknown_of_tasks": [
                    100 * f([p.false_unknown for p in found.per_task.values()]) for f in (min, max)
                ],
                "worst_calibration_error": 100 * max(p.calibration_error for p in found.per_task.values()),
            }
        )
        print(json.dumps(result["months"][-1]), flush=True)
    where = {label: i for i, test in enumerate(months.test, 1) for label in np.array(labels)[test]}
    for number, part in found.per_task.items():
        own = np.array([one.top[0][1] for one in found.answers if where.get(one.truth) == number])
        result["tasks"].append(row_of(part, own))
    return result


def table(rows: list[dict[str, Any]], first: str, columns: list[str]) -> str:
    """Return rows as a Markdown table."""
    lines = [f"| {first} | " + " | ".join(name.replace("_", " ") for name in columns) + " |"]
    lines.append("|---:" * (1 + len(columns)) + "|")
    for number, row in enumerate(rows, 1):
        cells = [_cell(name, row[name]) for name in columns]
        lines.append(f"| {number} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(name: str, value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(f"{one:.1f}" for one in value)
    return (
        ""
        if value is None
        else f"{value:d}"
        if isinstance(value, int)
        else f"{value:.3f}"
        if name == "auroc"
        else f"{value:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--tasks", type=int, default=7)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--strangers", type=int, default=20)
    parser.add_argument("--photos-per-class", type=int, default=30)
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[0])
    parser.add_argument("--no-joint", action="store_true", help="without the logistic regression, which takes longest")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    wanted = given.tasks * given.classes + given.strangers
    found = thinned(find_photos(given.photos), wanted, 2 * given.photos_per_class)
    z, labels = embedded(found, given.size, given.cache)
    results = {}
    for seed in given.seeds:
        months = drawn(labels, given.tasks, given.classes, seed)
        results[seed] = measured(z, labels, months, given.size, not given.no_joint)
        print(f"\n## {given.photos.name}, seed {seed}: all classes known after each month\n")
        every = ["photos", "accuracy", "joint", "left_out", "calibration_error", "by_chance", "false_unknown"]
        print(
            table(
                results[seed]["months"],
                "month",
                [*every, "false_unknown_of_tasks", "worst_calibration_error", "strangers_found", "auroc"],
            )
        )
        print("\nAfter the last month, task by task:\n")
        own = ["photos", "accuracy", "calibration_error", "by_chance", "false_unknown", "auroc"]
        print(table(results[seed]["tasks"], "task", own), flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    import sys

    if sys.argv[1:2] == ["list"]:
        listed(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
