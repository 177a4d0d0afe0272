"""Case a: a training step, against loops that people write by hand and against Avalanche.

All sides see the same batches and draw triplets by the same rule; they train the same network with Adam.

- ours: `trainer.train_network` (Triplet, no penalty), images in memory, crop and flip.
- the plain loop: a `Dataset`, a `DataLoader` with its defaults, crop and flip image by image as torchvision does it,
  `nn.TripletMarginLoss`, default memory layout; in a process of its own, with PyTorch's own settings.
- the best loop: channels last, crop and flip as one gather a batch, distances once, nothing written down; in our
  process, so with our settings.
- Avalanche's `Naive` strategy, with a triplet loss and its own random batches; in a process of its own.

Seconds are those of the epochs: what is done once per task (copying the network, the check for collapse) is no step.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from protodrift.common.seeding import generator
from protodrift.data.batches import class_balanced_batches
from protodrift.data.examples import Examples
from protodrift.data.views import CropFlip
from protodrift.methods import Method
from protodrift.networks.build import in_layout
from protodrift.networks.embedder import Embedder
from protodrift.objectives import Triplet
from protodrift.objectives.metric import valid_triplets
from protodrift.training.config import Training
from protodrift.training.trainer import Trained, train_network

from .elsewhere import Elsewhere
from .harness import Result, Setup, Side, compared, interleaved, skipped
from .material import network_for, pictures

OURS, PLAIN, BEST, AVALANCHE = "protodrift", "plain loop", "best loop", "Avalanche naive"
MARGIN, RATE, DECAY, PAD = 0.2, 1e-4, 2e-4, 4
EPOCHS = 2  # the first one of every run is warm-up: optimizer state, memory


@dataclass(frozen=True)
class Work:
    """What is trained: the network, side of the images, images in a batch, batches timed, whether augmented."""

    backbone: str
    side: int
    batch: int
    steps: int
    augment: bool = True

    @property
    def examples(self) -> Examples:
        """The images: as many as fill the batches of one epoch."""
        classes = max(4, self.batch // 8)
        return pictures(classes, self.steps * self.batch // classes, self.side, noise=150)

    def network(self, examples: Examples) -> Embedder:
        """The network to start from."""
        return network_for(self.backbone, examples.images)

    def batches(self, rows: torch.Tensor, epoch: int) -> list[torch.Tensor]:
        """The batches of one epoch, as our trainer draws them."""
        return list(
            class_balanced_batches(
                rows,
                batch_size=self.batch,
                images_per_class=8,
                epoch="full",
                generator=generator(0, "batches", 1, epoch),
            )
        )


WORKS = {
    "ResNet-32, 32 x 32, batch 32": Work("resnet32", 32, 32, 8),
    "ResNet-32, 32 x 32, batch 128": Work("resnet32", 32, 128, 2),
    "ResNet-18, 64 x 64, batch 32": Work("resnet18", 64, 32, 4),
}


def run(setup: Setup) -> Iterator[Result]:
    """Measure training steps."""
    missing = why_no_avalanche()
    for name, work in list(WORKS.items())[: 1 if setup.quick else None]:
        setup.say(f"training: {name}")
        with Elsewhere(plain_side, work) as plain, Elsewhere(avalanche_side, work) as avalanche:
            sides: dict[str, Side] = {OURS: our_side(work), PLAIN: plain, BEST: best_side(work)}
            if not missing:
                sides[AVALANCHE] = avalanche
            seconds = interleaved(sides, setup.rounds(5))
        per = {"images_per_second": round(work.steps * work.batch / min(seconds[OURS]), 1)}
        yield compared("training", name, seconds, OURS, BEST, aim=">= 0.97", numbers=per)
        yield compared("training", name, seconds, OURS, PLAIN, aim=">= 1.2", numbers=per)
        if missing:
            yield skipped("training", name, OURS, AVALANCHE, missing, aim=">= 1.3")
        else:
            yield compared("training", name, seconds, OURS, AVALANCHE, aim=">= 1.3", numbers=per)


# -- ours -------------------------------------------------------------------------------------------------------------


def our_losses(work: Work, epochs: int = EPOCHS) -> tuple[list[float], float]:
    """Train with our trainer; return the mean loss of each epoch, and the seconds of all but the first."""
    examples = work.examples
    return _our_losses(work, examples, work.network(examples), epochs)


def _our_losses(work: Work, examples: Examples, network: Embedder, epochs: int) -> tuple[list[float], float]:
    ticks: list[float] = []
    trained = train_network(
        Trained(network),
        examples,
        task=1,
        method=Method(Triplet(margin=MARGIN)),
        training=Training(epochs=epochs, learning_rate=RATE, weight_decay=DECAY, batch_size=work.batch),
        augment=CropFlip(PAD, mode="zeros") if work.augment else None,
        seed=0,
        on_progress=lambda at: ticks.append(time.perf_counter()),
    )
    return [epoch["loss"] for epoch in trained.history], ticks[-1] - ticks[0]


def our_side(work: Work) -> Side:
    """Return our trainer as a side."""
    examples = work.examples
    network = work.network(examples)
    return lambda: _our_losses(work, examples, network, EPOCHS)[1]


# -- by hand ----------------------------------------------------------------------------------------------------------


class PlainImages(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Images one by one: to float, padded, cropped, mirrored, standardized."""

    def __init__(self, images: torch.Tensor, rows: torch.Tensor, network: Embedder, augment: bool) -> None:
        self.images, self.rows, self.augment = images, rows, augment
        self.mean, self.std = network.standardize.mean, network.standardize.std

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        """Return a random view of image i, and its class."""
        image = self.images[i].float()
        if self.augment:
            side = image.shape[1]
            padded = F.pad(image, (PAD,) * 4)
            top, left = (int(torch.randint(0, 2 * PAD + 1, (1,))) for _ in range(2))
            image = padded[:, top : top + side, left : left + side]
            if float(torch.rand(1)) < 0.5:
                image = image.flip(2)
        return (image - self.mean) / self.std, int(self.rows[i])


def bare(network: Embedder, layout: torch.memory_format) -> nn.Module:
    """Return backbone and head alone, in a memory layout: what a script would hold."""
    copied = copy.deepcopy(network)
    return in_layout(nn.Sequential(copied.backbone, copied.head), layout)


def plain_losses(work: Work, epochs: int = EPOCHS) -> tuple[list[float], float]:
    """Train by the plain loop; return the mean loss of each epoch, and the seconds of all but the first."""
    examples = work.examples
    return _plain_losses(work, examples, work.network(examples), epochs)


def _plain_losses(work: Work, examples: Examples, network: Embedder, epochs: int) -> tuple[list[float], float]:
    rows = torch.tensor(examples.labels)
    data = PlainImages(examples.images, rows, network, work.augment)
    model = bare(network, torch.contiguous_format).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=DECAY)
    criterion = nn.TripletMarginLoss(margin=MARGIN)
    means, ticks = [], []
    for epoch in range(1, epochs + 1):
        batches = [batch.tolist() for batch in work.batches(rows, epoch)]
        draw = generator(0, "mining", 1, epoch)
        losses = []
        for images, labels in torch.utils.data.DataLoader(data, batch_sampler=batches):
            z = F.normalize(model(images), dim=1)
            a, p, n = valid_triplets(labels, draw)
            loss = criterion(z[a], z[p], z[n])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        means.append(sum(losses) / len(losses))
        ticks.append(time.perf_counter())
    return means, ticks[-1] - ticks[0]


def plain_side(work: Work) -> Side:
    """Return the plain loop as a side."""
    examples = work.examples
    network = work.network(examples)
    return lambda: _plain_losses(work, examples, network, EPOCHS)[1]


def best_losses(work: Work, epochs: int = EPOCHS) -> tuple[list[float], float]:
    """Train by the best loop; return the mean loss of each epoch, and the seconds of all but the first."""
    examples = work.examples
    return _best_losses(work, examples, work.network(examples), epochs, keep=True)


def _best_losses(
    work: Work, examples: Examples, network: Embedder, epochs: int, keep: bool
) -> tuple[list[float], float]:
    rows = torch.tensor(examples.labels)
    images = F.pad(examples.images, (PAD,) * 4) if work.augment else examples.images
    channels_last = images.permute(0, 2, 3, 1).contiguous()
    mean, std = (part.flatten() for part in (network.standardize.mean, network.standardize.std))
    model = bare(network, torch.channels_last).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=DECAY)
    across = torch.arange(work.side)
    views = generator(0, "views")
    means, ticks = [], []
    for epoch in range(1, epochs + 1):
        draw = generator(0, "mining", 1, epoch)
        losses = []
        for batch in work.batches(rows, epoch):
            if work.augment:
                top, left = torch.randint(0, 2 * PAD + 1, (2, len(batch), 1), generator=views)
                columns = left + across
                columns = torch.where(torch.rand(len(batch), 1, generator=views) < 0.5, columns.flip(1), columns)
                view = channels_last[batch[:, None, None], (top + across)[:, :, None], columns[:, None, :]]
            else:
                view = channels_last[batch]
            seen = (view.float() - mean) / std
            z = F.normalize(model(seen.permute(0, 3, 1, 2)), dim=1)
            a, p, n = valid_triplets(rows[batch], draw)
            distances = torch.cdist(z, z)
            loss = F.relu(distances[a, p] - distances[a, n] + MARGIN).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if keep:
                losses.append(float(loss.detach()))
        means.append(sum(losses) / len(losses) if losses else 0.0)
        ticks.append(time.perf_counter())
    return means, ticks[-1] - ticks[0]


def best_side(work: Work) -> Side:
    """Return the best loop as a side."""
    examples = work.examples
    network = work.network(examples)
    return lambda: _best_losses(work, examples, network, EPOCHS, keep=False)[1]


# -- Avalanche --------------------------------------------------------------------------------------------------------


def why_no_avalanche() -> str:
    """Return why Avalanche cannot be compared with, or "" if it can."""
    try:
        import_torchvision()
        import_module("avalanche.training.supervised")
    except ImportError as error:
        return f"Avalanche is not installed ({error}); `pip install avalanche-lib`, for this comparison only."
    except Exception as error:  # torchvision beside another build of torch: RuntimeError and more
        return f"Avalanche is installed and cannot be imported: {str(error).splitlines()[0]}"
    return ""


_DECLARED: list[torch.library.Library] = []


def import_torchvision() -> None:
    """Import torchvision, which Avalanche imports, also where its compiled part belongs to another build of torch.

    Its Python part then only misses that two operators are declared. Nobody calls them here: images are tensors.
    """
    try:
        import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)  # they are gone with it
        import_module("torchvision")


class AllTriplets(nn.Module):
    """The triplet loss of a batch of embeddings and classes, with the triplets of all sides."""

    def __init__(self) -> None:
        super().__init__()
        self.draw = generator(0, "mining", 1, 1)

    def forward(self, raw: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the mean over the triplets."""
        z = F.normalize(raw, dim=1)
        a, p, n = valid_triplets(rows, self.draw)
        return F.triplet_margin_loss(z[a], z[p], z[n], margin=MARGIN)


def avalanche_side(work: Work) -> Side:
    """Return Avalanche's naive strategy as a side: one experience, EPOCHS epochs, nothing logged."""
    import_torchvision()
    plugins: Any = import_module("avalanche.training.plugins")
    scenarios: Any = import_module("avalanche.benchmarks.scenarios.dataset_scenario")
    datasets: Any = import_module("avalanche.benchmarks.utils")
    strategies: Any = import_module("avalanche.training.supervised")
    examples = work.examples
    network = work.network(examples)
    data = PlainImages(examples.images, torch.tensor(examples.labels), network, work.augment)
    data.targets = list(examples.labels)  # type: ignore[attr-defined]
    stream = scenarios.benchmark_from_datasets(train=[datasets.as_classification_dataset(data)])

    def side() -> float:
        model = bare(network, torch.contiguous_format)
        ticks: list[float] = []

        class Clock(plugins.SupervisedPlugin):  # type: ignore[misc]
            def after_training_epoch(self, strategy: Any, **_: Any) -> None:
                ticks.append(time.perf_counter())

        strategy = strategies.Naive(
            model=model,
            optimizer=torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=DECAY),
            criterion=AllTriplets(),
            train_mb_size=work.batch,
            train_epochs=EPOCHS,
            plugins=[Clock()],
            evaluator=plugins.EvaluationPlugin(),
        )
        strategy.train(stream.train_stream[0])
        return ticks[-1] - ticks[0]

    return side
