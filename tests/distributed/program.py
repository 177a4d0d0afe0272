"""What one rank does in these tests. Run as `python program.py OUT SCENARIO...`; writes OUT/<size>-<rank>.pt."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn

from protodrift import SDC, IncrementalClassifier, distributed
from protodrift.data import Dataset, load_digits
from protodrift.data.arrays import InputSpec
from protodrift.data.examples import Examples
from protodrift.data.tasks import TaskStream
from protodrift.data.views import CropFlip
from protodrift.distributed import passes
from protodrift.distributed.batches import check_agreement
from protodrift.distributed.passes import merged
from protodrift.distributed.world import World
from protodrift.drift import Gated, LocalLinear, Ridge
from protodrift.errors import InputError, ProtodriftError, RunError
from protodrift.experiments.engines.ranks import compute_together
from protodrift.experiments.setup import Network
from protodrift.experiments.store import Store
from protodrift.experiments.tree import Tree
from protodrift.methods import METHODS, Method, Schedule
from protodrift.networks.build import build_embedder, embedding_options
from protodrift.objectives import RotatedSoftmax, Triplet, triplet_loss
from protodrift.objectives.metric import EmbeddingLoss, Reduction
from protodrift.penalties import EWC, MAS, FeatureDistillation, LwF, Penalty, rewc
from protodrift.prototypes import ClassSums
from protodrift.readouts import StreamingLDA
from protodrift.training import trainer
from protodrift.training.config import Training
from protodrift.training.context import TaskContext
from protodrift.training.trainer import Trained

sys.path.append(str(Path(__file__).parents[2]))  # a program finds its own folder only
from tests.own_parts import OwnMeanShift, OwnMedianShift, OwnProduct

STEPS = 20
CLASSES = 4


class WithDropout(nn.Module):
    """A backbone of the user's, with batch norm and dropout of vectors and of maps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6, momentum=None), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(),
            nn.Linear(6 * 64, 24), nn.BatchNorm1d(24, affine=False), nn.Dropout(0.3), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def rows_of_digits(classes: list[int], count: int = 30) -> Examples:
    digits = load_digits().train.of_classes(classes)
    keep = torch.cat([torch.tensor([i for i, y in enumerate(digits.labels) if y == c][:count]) for c in classes])
    return digits.at(keep)


def in_color(examples: Examples) -> Examples:
    """Three channels, so that there is something to mirror and crop."""
    x = examples.images.float()
    return Examples(torch.cat([x, x.flip(2), x.flip(3)], dim=1), examples.labels)


@contextlib.contextmanager
def watched(found: dict[str, torch.Tensor], name: str):
    """Keep gradients and weights of every step; stop after STEPS of them."""
    plain = trainer._Run.step
    number = 0

    def step(self, step):
        nonlocal number
        result = plain(self, step)
        number += 1
        if number <= STEPS:
            found[f"{name}/{number}/loss"] = torch.tensor(result, dtype=torch.float64)
            for key, weight in self.network.named_parameters():
                found[f"{name}/{number}/weight/{key}"] = weight.detach().clone()
                if weight.grad is not None:
                    found[f"{name}/{number}/gradient/{key}"] = weight.grad.clone()
            for key, value in self.network.named_buffers():
                found[f"{name}/{number}/buffer/{key}"] = value.clone()
        return result

    trainer._Run.step = step
    try:
        yield
    finally:
        trainer._Run.step = plain


def train(
    found: dict[str, torch.Tensor],
    name: str,
    method: Method,
    *,
    color: bool = False,
    batch: int = 30,
    images: int = 30,
    epochs: int = 7,
    clip: float | None = None,
) -> None:
    """Two tasks in float64: every step of both is kept, and what penalties keep after each."""
    first, second = rows_of_digits([0, 1, 2, 3], images), rows_of_digits([4, 5, 6], images)
    backbone: str | nn.Module = "convnet"
    if color:
        torch.manual_seed(1)
        first, second, backbone = in_color(first), in_color(second), WithDropout()
    spec = InputSpec(tuple(first.images.shape[1:]), "free", 0.0, float(first.images.max()))
    network = build_embedder(backbone, spec, **embedding_options(method.objective, 16, True), seed=3)
    network.standardize.fit(first.images)
    training = Training(epochs=epochs, learning_rate=1e-3, batch_size=batch, images_per_class=5, clip=clip)
    trained = Trained(network.double().eval())
    augment = CropFlip(pad=1) if color else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task, data in enumerate((first, second), 1):
            with watched(found, f"{name}/task{task}"):
                common = {"task": task, "method": method, "seed": 5, "world": distributed.current()}
                after = trainer.train_network(trained, data, training=training, augment=augment, **common)
                trained = trainer.consolidate(after, trained, data, **common)
            for number, kept in enumerate(trained.penalty_state):
                for key, value in kept.items():
                    if not key.startswith(("U1:", "U2:")):
                        found[f"{name}/kept{task}/{number}/{key}"] = value
            if trained.exemplars is not None:
                found[f"{name}/memory{task}"] = trained.exemplars.images.double()


def sums(found: dict[str, torch.Tensor], world: World) -> None:
    """What ranks send each other: shares of any size, also empty ones; prototypes and SDC from shares."""
    g = torch.Generator().manual_seed(0)
    for count in (0, 1, 5, 8):
        rows = torch.randn(count, 3, generator=g)
        found[f"sums/gathered{count}"] = world.gather(rows[world.own(count)], count, "test")
        found[f"sums/expected{count}"] = rows
        for rank, block in enumerate(world.blocks_on_first(rows[world.own(count)], count, "test")):
            found[f"sums/block{rank} of {count}"] = block
    parts = [torch.full((2, 2), float(world.rank + 1)), torch.tensor([float(world.rank)])]
    world.sum(parts, "test")
    found["sums/summed"] = torch.cat([part.flatten() for part in parts])
    data, files = world.on_first(lambda: ({"epoch": 3}, {"a": {"x": torch.arange(3), "none": torch.empty(0, 2)}}))
    found["sums/sent"] = files["a"]["x"] * data["epoch"]
    found["sums/nothing"] = files["a"]["none"]
    prototypes = torch.randn(4, 5, generator=g)
    for count in (1, 60):  # of one image, all ranks but one have none
        z_old = torch.randn(count, 5, generator=g)
        z_new, rows = z_old + torch.randn(count, 5, generator=g), torch.randint(3, (count,), generator=g)
        z_old[: count // 2] += 500  # on the first ranks all weights underflow beside the others'
        own = world.own(count)
        fitted = SDC(0.3).fit_sums(prototypes, merged(world, SDC(0.3).sums(prototypes, z_old[own], z_new[own])))
        moved, diagnostics = fitted.explain(prototypes)
        found[f"sums/moved{count}"], found[f"sums/samples{count}"] = moved, diagnostics["effective_samples"]
        sums = merged(world, ClassSums.of(z_new[own], rows[own], 3))
        found[f"sums/means{count}"], found[f"sums/counts{count}"] = sums.means(), sums.counts


def rotations(found: dict[str, torch.Tensor], world: World) -> None:
    """What R-EWC measures its axes from. The axes themselves turn freely where eigenvalues are equal."""
    data = rows_of_digits([0, 1, 2])
    spec = InputSpec(tuple(data.images.shape[1:]), "free", 0.0, float(data.images.max()))
    network = build_embedder("convnet", spec, embedding_dim=16, seed=3)
    network.standardize.fit(data.images)
    context = TaskContext(network.double().eval(), Triplet(), data.images, data.targets_of((0, 1, 2)), 1, 5, world)
    plain, rewc._axes = rewc._axes, lambda covariance: covariance
    try:
        for name, covariance in rewc.measure_rotations(context).items():
            found[f"rotations/{name}"] = covariance / covariance.trace()
    finally:
        rewc._axes = plain


def refusals(found: dict[str, torch.Tensor], world: World) -> None:
    """Errors that all ranks must meet, whoever made them."""

    def full_disk() -> None:
        raise RunError("the disk is full")

    def different() -> None:
        world.agree("the photos", f"photos {world.rank}")

    def other_weights() -> None:
        check_agreement(world, nn.Linear(2, 2))  # drawn from an unseeded generator

    torch.manual_seed(world.rank)
    for name, call in (("disk", lambda: world.on_first(full_disk)), ("data", different), ("weights", other_weights)):
        try:
            call()
        except RunError as error:
            found[f"refusals/{name}"] = torch.tensor(list(str(error).encode()))


LESSONS = {
    "sdc": {"drift": SDC(0.3)},
    "ridge": {"drift": Ridge()},
    "gated": {"drift": Gated(SDC(0.3))},
    "local": {"drift": Gated(LocalLinear())},
    "own sums": {"drift": OwnMeanShift(), "readout": OwnProduct()},
    "own gathered": {"drift": OwnMedianShift()},
    "slda": {"drift": None, "readout": StreamingLDA(), "schedule": Schedule(train="first")},
}
"""Tasks of a classifier. SDC and SLDA declare sums; for the others every rank gathers the embeddings."""


def tasks(found: dict[str, torch.Tensor], world: World) -> None:
    """A classifier that learns two tasks, then sees known classes again: drift, read-out, calibration from shares."""
    torch.manual_seed(world.rank)  # the ranks' own backbones begin with different weights: the first one's count
    for name, options in LESSONS.items():
        training = Training(epochs=1, learning_rate=1e-4, batch_size=30, images_per_class=5)
        clf = IncrementalClassifier("convnet", embedding_dim=16, training=training, held_out=0.2, **options)
        before = world.sent["passes"]
        for classes in ([0, 1, 2, 5, 6], [3, 4]):  # of two classes the gate makes clusters
            data = rows_of_digits(classes)
            clf.partial_fit(data.images, data.labels)
        found[f"tasks/{name}/sent"] = torch.tensor(world.sent["passes"] - before)
        found[f"tasks/{name}/drift"] = clf.drift_.vectors
        again = rows_of_digits([7, 0, 3])
        for number, seen in enumerate((again, again.of_classes([0, 3]))):  # with a new class, and without one
            clf.partial_fit(seen.images, seen.labels, known="refresh")
            state = clf.state_
            found[f"tasks/{name}/prototypes{number}"] = state.prototypes.means
            found[f"tasks/{name}/counts{number}"] = state.prototypes.counts
            found[f"tasks/{name}/quantiles{number}"] = state.calibration.quantiles
            found[f"tasks/{name}/drift{number}"] = clf.drift_.vectors
            for key, value in (*state.readout_state.items(), *clf.drift_.diagnostics.items()):
                found[f"tasks/{name}/{key}{number}"] = value
    own = IncrementalClassifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), training=Training(epochs=0))
    own.partial_fit(data.images, data.labels)
    found["tasks/own/prototypes"] = own.state_.prototypes.means


def declared(found: dict[str, torch.Tensor], world: World) -> None:
    """SDC and SLDA from sums that ranks merge, in float64."""
    g = torch.Generator().manual_seed(2)
    for classes, count in ((6, 90), (2, 40), (1, 3), (1, 1)):  # of one image, all ranks but one have none
        z_old = torch.randn(count, 5, generator=g, dtype=torch.float64)
        rows = torch.arange(count) * classes // count * 2  # every second class has no image; shares have few classes
        z_new = z_old @ torch.randn(5, 5, generator=g, dtype=torch.float64) + rows[:, None]
        prototypes = torch.randn(4, 5, generator=g, dtype=torch.float64)
        own = world.own(count)
        name = f"declared/{classes} {count}"
        sums = merged(world, SDC(0.9).sums(prototypes, z_old[own], z_new[own]))
        moved, values = SDC(0.9).fit_sums(prototypes, sums).explain(prototypes)
        found[f"{name}/moved"], found[f"{name}/samples"] = moved, values["effective_samples"]
        readout = StreamingLDA()
        scatter = merged(world, readout.sums(z_new[own], rows[own] + 3, 16))
        kept = readout.learn_sums({}, scatter, 1, 0)
        found[f"{name}/scatter"], found[f"{name}/count"] = kept["scatter"], kept["count"]
        whole = readout.learn({}, z_new, rows + 3, 1, 0), SDC(0.9).fit(z_old, z_new).transport(prototypes)
        found[f"{name}/whole scatter"], found[f"{name}/whole moved"] = whole[0]["scatter"], whole[1]


def stored(found: dict[str, torch.Tensor], world: World) -> None:
    """Embeddings that reach the first rank in blocks of 96 images, in a file and in memory."""
    passes.BLOCK = 96 * 16 * 4
    data = [rows_of_digits([0, 1, 2, 3], 100), rows_of_digits([4], 1), rows_of_digits([5, 6], 40)]
    network = build_embedder("convnet", InputSpec((1, 8, 8), "free", 0.0, 16.0), embedding_dim=16, seed=3).eval()
    parts = [one.images.float() for one in data]
    with tempfile.TemporaryDirectory() as folder:
        for name, place in (("file", Path(folder)), ("memory", None)):
            z = passes.embedded_on_first(world, network, parts, place)
            found[f"stored/{name}"] = z.clone()
            found[f"stored/{name} twice"] = passes.joined(world, [z, z], place).clone()
        left = list(Path(folder).iterdir())
    found["stored/left"] = torch.tensor(len(left))


@contextlib.contextmanager
def most_memory(found: dict[str, torch.Tensor], name: str):
    """Keep how much memory of its own (no files) this process had at most beyond what it began with, in MB."""

    def own() -> float:
        return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1024

    before, most, done = own(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.002):
            most = max(most, own() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    found[name] = torch.tensor(most)


def large(found: dict[str, torch.Tensor], world: World) -> None:
    """An experiment with 200 MB of embeddings in each pass, on ranks: stages, then read-outs by the first rank."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200_000 + 2_000, 16, generator=g)
    y = (torch.arange(len(x)) % 10).tolist()
    x += 2 * torch.randn(10, 16, generator=g)[torch.tensor(y)]
    data = Dataset(x[2_000:].numpy(), y[2_000:], x[:2_000].numpy(), y[:2_000])
    rows = {name: METHODS[name] for name in ("E-FT", "E-FT+SDC")}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder) if world.is_first else None
        tree = Tree(
            TaskStream(data, tasks=2),
            network=Network("mlp", embedding_dim=512),
            training=Training(epochs=0),
            world=world,
            store=store,
        )
        with most_memory(found, "large/stages"):
            if not world.alone:
                compute_together(tree, rows)
        if world.is_first:
            with most_memory(found, "large/read-outs"):
                results = tree.run(rows)
            for name, result in results.items():
                found[f"large/{name}"] = torch.from_numpy(result.accuracy_matrix)


def diverge(found: dict[str, torch.Tensor], world: World) -> None:
    """One rank meets an error that the others do not."""
    if world.rank == 1:
        raise InputError("photos/ is not there")
    world.wait()


def hangs(found: dict[str, torch.Tensor], world: World) -> None:
    """One rank does not come to a step."""
    if world.rank == 1:
        time.sleep(300)
    world.sum([torch.zeros(1)], "test", hurry=True)


def blows_up(found: dict[str, torch.Tensor], world: World) -> None:
    """All ranks meet the same error at the same time."""
    data = rows_of_digits([0, 1, 2])
    training = Training(epochs=3, learning_rate=1e30, batch_size=30, optimizer="sgd")
    IncrementalClassifier("convnet", training=training).partial_fit(data.images, data.labels)


MOVING = Schedule(batch_norm="train")


@dataclass(frozen=True)
class Shaken(EmbeddingLoss):
    """A user's own objective: a triplet loss of embeddings with noise that `draw` draws for every batch."""

    def draw(self, targets: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.rand(len(targets), 1, generator=generator, dtype=torch.float64)

    def losses(self, z: torch.Tensor, targets: torch.Tensor, drawn: torch.Tensor, reduction: Reduction) -> torch.Tensor:
        return triplet_loss(z + 0.1 * drawn, targets, 1.0, reduction=reduction)


@dataclass(frozen=True)
class MeanLoss(Penalty):
    """A user's own penalty: it keeps the mean loss of an anchor, measured on ranks, and holds embeddings by it."""

    gamma: float = 1.0

    def penalty(self, step, state):
        return state["mean"] * (step.z - step.z_old).square().sum(dim=1).mean()

    def end_task(self, context, penalty_state, state):
        losses = [step.single_losses.detach() for step in context.steps()]
        own = torch.cat([torch.empty(0, dtype=torch.float64), *losses])
        total = context.reduce({"sum": own.sum()[None], "count": torch.tensor([len(own)])})
        return {"mean": total["sum"] / total["count"]}


TRAININGS = {
    "own parts": (Method(objective=Shaken(), penalty=MeanLoss()), {}),
    "as the field trains": (
        Method(
            RotatedSoftmax(),
            (LwF(gamma=10.0, over="all"), FeatureDistillation(gamma=10.0, distance="mse", projector=8)),
            schedule=Schedule(batch_norm="adapted"),
        ),
        {"batch": 23, "clip": 1.0},
    ),
    "E-FT": (METHODS["E-FT"], {}),
    "uneven": (replace(METHODS["E-LwF"], schedule=MOVING), {"batch": 23}),
    "views and dropout": (replace(METHODS["E-LwF"], schedule=MOVING), {"color": True}),
    "tiny": (replace(METHODS["E-LwF"], schedule=MOVING), {"batch": 4, "images": 3, "epochs": 14, "color": True}),
    "E-EWC": (replace(METHODS["E-EWC"], penalty=EWC(gamma=1e3)), {}),
    "single Fisher": (Method(penalty=EWC(gamma=1e3, fisher="single")), {}),
    "E-MAS": (replace(METHODS["E-MAS"], penalty=MAS(gamma=10.0)), {}),
    "released MAS": (Method(penalty=MAS(gamma=1e-3, reading="released")), {}),
    "E-SI": (METHODS["E-SI"], {}),
    "batch-hard": (Method(objective=Triplet(mining="semi-hard"), schedule=MOVING), {}),
    "LwF": (METHODS["LwF"], {}),
    "EWC": (METHODS["EWC"], {}),
    "LwM": (METHODS["LwM"], {}),
    "iCaRL-NME": (METHODS["iCaRL-NME"], {}),
    "Rebalance": (METHODS["Rebalance"], {}),
    "Joint": (METHODS["Joint"], {}),
}


def main() -> None:
    torch.set_num_threads(1)
    out, *scenarios = sys.argv[1:]
    found: dict[str, torch.Tensor] = {}
    if "hangs" in scenarios:
        distributed.world.STEP_TIMEOUT = timedelta(seconds=5)
    with distributed.joined() as world:
        for scenario in scenarios:
            if scenario in TRAININGS:
                method, options = TRAININGS[scenario]
                train(found, scenario, method, **options)
            else:
                globals()[scenario](found, world)
    torch.save(found, Path(out) / f"{world.size}-{world.rank}.pt")


if __name__ == "__main__":
    try:
        main()
    except ProtodriftError as error:
        sys.exit(f"error: {error}")
