"""What ranks send each other, and how long a step takes: one training on random images, counted and timed.

    python -m benchmarks.ranks
    torchrun --nproc_per_node=2 benchmarks/ranks.py --backbone resnet32 --side 32 --batch 64

Bytes are what a rank gives to collective operations, by kind (`World.sent`), and what really went over loopback in all,
headers and both directions of all ranks included (counted by the system: run it where nothing else uses loopback, for
example under `unshare -n sh -c "ip link set lo up; ..."`).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from protodrift.data.arrays import InputSpec
from protodrift.data.examples import Examples
from protodrift.distributed import joined
from protodrift.distributed.passes import can_merge, embedded_share, merged
from protodrift.methods import METHODS
from protodrift.networks.build import build_embedder
from protodrift.prototypes.store import ClassSums, Prototypes
from protodrift.prototypes.update import compensate
from protodrift.training import trainer
from protodrift.training.config import Training
from protodrift.training.trainer import Trained, consolidate, train_network


def loopback() -> int:
    """Return the bytes sent over loopback so far, as this process's network counts them."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[8])
    return 0


STEPS: list[None] = []


def count_steps() -> None:
    plain = trainer._Run.step

    def step(self, step):
        STEPS.append(None)
        return plain(self, step)

    trainer._Run.step = step


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--backbone", default="resnet32")
    options.add_argument("--side", type=int, default=32)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--images", type=int, default=640)
    options.add_argument("--classes", type=int, default=10)
    options.add_argument("--method", default="E-EWC+SDC")
    args = options.parse_args()
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (args.images, 3, args.side, args.side), generator=draw, dtype=torch.uint8)
    data = Examples(images, tuple(i % args.classes for i in range(args.images)))
    spec = InputSpec(tuple(images.shape[1:]), "uint8", 0.0, 255.0)
    training = Training(epochs=1, batch_size=args.batch, images_per_class=max(2, args.batch // args.classes))
    method = METHODS[args.method]
    with joined() as world:
        network = build_embedder(args.backbone, spec)
        network.standardize.fit(images)
        trained = Trained(network.eval())
        count_steps()

        def measured(what: str, work, *, by_step: bool = False) -> None:
            world.wait()
            STEPS.clear()
            sent, calls, wire, started = dict(world.sent), dict(world.calls), loopback(), time.perf_counter()
            work()
            world.wait()
            seconds = time.perf_counter() - started
            times = len(STEPS) if by_step else 1
            kinds = {kind: round((count - sent.get(kind, 0)) / times) for kind, count in world.sent.items()}
            number = {kind: round((count - calls.get(kind, 0)) / times, 2) for kind, count in world.calls.items()}
            if world.is_first:
                row = {"ranks": world.size, "what": what, "seconds": round(seconds / times, 4), "bytes": kinds}
                row |= {"messages": number, "wire": round((loopback() - wire) / times)}
                print(json.dumps(row))

        def train(task: int, rows: Examples) -> None:
            nonlocal trained
            trained = train_network(trained, rows, task=task, method=method, training=training, augment=None, seed=0)

        def close(first: Trained, before: Trained) -> None:
            nonlocal trained
            trained = consolidate(first, before, data, task=1, method=method, seed=0)

        previous = trained
        if world.is_first:
            weights = sum(weight.numel() for weight in network.parameters())
            print(json.dumps({"backbone": args.backbone, "weights": weights, "weight bytes": 4 * weights}))
        measured("a step, batch norm trained", lambda: train(1, data), by_step=True)
        measured("importances", lambda: close(trained, previous))

        later = Examples(images, tuple(args.classes + i % args.classes for i in range(args.images)))
        old_network = trained.network
        measured("a step, batch norm frozen, with penalty", lambda: train(2, later), by_step=True)
        assert can_merge(method)
        classes = tuple(range(args.classes))
        rows = torch.tensor([i % args.classes for i in range(args.images)])[world.own(args.images)]

        def merge() -> None:
            z_old, z_new = (embedded_share(world, n, images) for n in (old_network, trained.network))
            sums = merged(world, ClassSums.of(z_new, rows, len(classes)))
            prototypes = Prototypes.from_sums(classes, sums, 1)
            drift_sums = merged(world, method.drift.sums(prototypes.means, z_old, z_new))
            compensate(prototypes, method.drift.fit_sums(prototypes.means, drift_sums))

        measured("prototypes and SDC of a task", merge)


if __name__ == "__main__":
    main()
