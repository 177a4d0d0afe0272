"""How much memory and time a task of many embeddings takes when they lie in shards on disk.

    python -m benchmarks.streams --scratch DIR --out results/streams.json

Makes --vectors pairs of unit vectors (z_old, z_new) of --width numbers in shards, then computes the prototypes of their
classes and moves as many old prototypes by SDC, each in a process of its own: `VmHWM` of /proc is the most memory it
ever had, mapped pages of the shards included. An idle process (imports only) is measured too, and the drift of a few
prototypes is computed a second time by numpy in float64, from the equations, in two passes: the largest difference is
printed. Linux only. One thread; on a shared machine CPU time is the number to trust.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

from protodrift.common.machine import usable_cpus

SIGMA = 0.3
CHUNK = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", required=True, type=Path, help="for shards: 8 bytes x vectors x width")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--classes", default="1000,10000")
    parser.add_argument("--keep", action="store_true", help="leave the shards where they are")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        print(json.dumps(STEPS[args.step](args)))
        return
    args.scratch.mkdir(parents=True, exist_ok=True)
    result = {
        "command": "python -m benchmarks.streams --scratch DIR "
        f"--vectors {args.vectors} --width {args.width} --classes {args.classes}",
        "machine": f"{platform.machine()}, {usable_cpus()} cores shared with other work, 1 thread",
        "pairs_bytes": 8 * args.vectors * args.width,
        "idle": run(args, "idle", 1),
    }
    for count in map(int, args.classes.split(",")):
        result[f"{count} classes"] = {
            step: show(count, step, run(args, step, count)) for step in ("write", "prototypes", "one pass", "check")
        }
        if not args.keep:
            shutil.rmtree(folder(args.scratch, count))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


def show(count: int, step: str, found: dict[str, float]) -> dict[str, float]:
    print(f"{count} classes, {step}: {found}", flush=True)
    return found


def run(args: argparse.Namespace, step: str, count: int) -> dict[str, float]:
    """Run one step in a process of its own, and return what it says and its peak resident set."""
    command = [sys.executable, __file__, "--scratch", str(args.scratch), "--step", step, "--classes", str(count)]
    command += ["--vectors", str(args.vectors), "--width", str(args.width)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def folder(scratch: Path, count: int) -> Path:
    return scratch / f"{count}.shards"


def measured(work):
    """Return a step that says its time and its peak memory beside its own findings."""

    def step(args: argparse.Namespace) -> dict[str, float]:
        import numpy  # noqa: F401  imports are no part of the time
        import torch

        import benchmarks.shards  # noqa: F401

        torch.set_num_threads(1)
        wall, cpu = time.perf_counter(), time.process_time()
        found = work(args) or {}
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        peak_bytes = 1024 * int(peak.split()[1])
        return {"seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1), "peak_bytes": peak_bytes, **found}

    return step


def pairs(vectors: int, width: int, count: int):
    """Yield (rows, z_old, z_new): images about the mean of their class, which all move by a rotation and a bit more."""
    import torch
    from torch.nn.functional import normalize

    means = centers(width, count)
    g = torch.Generator().manual_seed(2)
    tilt = 0.01 * torch.randn(width, width, generator=g)
    turn = torch.linalg.matrix_exp(tilt - tilt.T)
    for start in range(0, vectors, CHUNK):
        rows = torch.arange(start, min(start + CHUNK, vectors)) % count
        z_old = normalize(means[rows] + 0.02 * torch.randn(len(rows), width, generator=g), dim=1)
        z_new = normalize(z_old @ turn + 0.002 * torch.randn(len(rows), width, generator=g), dim=1)
        yield rows, z_old, z_new


def centers(width: int, count: int):
    import torch
    from torch.nn.functional import normalize

    return normalize(torch.randn(count, width, generator=torch.Generator().manual_seed(1)), dim=1)


def idle(args: argparse.Namespace) -> None:
    """Only what is imported."""


def write(args: argparse.Namespace) -> dict[str, float]:
    """Write the shards."""
    from benchmarks.shards import Shards, ShardWriter

    count = int(args.classes)
    target = folder(args.scratch, count)
    if target.exists():
        shutil.rmtree(target)
    with ShardWriter(target, args.width, classes=range(count)) as writer:
        for rows, z_old, z_new in pairs(args.vectors, args.width, count):
            writer.write(rows, z_old=z_old, z_new=z_new)
    return {"shards": len(Shards(target))}


def one_pass(args: argparse.Namespace) -> None:
    """Prototypes of `count` new classes and the drift of `count` old ones, checksums included."""
    import torch

    from benchmarks.shards import Shards, update_from_shards
    from protodrift import SDC
    from protodrift.prototypes.store import Prototypes

    count = int(args.classes)
    near = torch.randn(count, args.width, generator=torch.Generator().manual_seed(3))
    old = torch.nn.functional.normalize(centers(args.width, count) + 0.02 * near, dim=1)
    labels = tuple(range(-count, 0))
    known = Prototypes(labels, old, torch.ones(count, dtype=torch.long), torch.ones(count, dtype=torch.long))
    shards = Shards(folder(args.scratch, count))
    new, _ = update_from_shards(known, shards, SDC(SIGMA), task=2)
    some = chosen(count)
    torch.save({"old": old[some], "moved": new.means[some]}, folder(args.scratch, count) / "some.pt")


def chosen(count: int):
    import torch

    return torch.linspace(0, count - 1, 16).long()


def check(args: argparse.Namespace) -> dict[str, float]:
    """Compare what was moved with Eq. 10 by numpy."""
    import torch

    from benchmarks.shards import Shards

    where = folder(args.scratch, int(args.classes))
    some = torch.load(where / "some.pt", weights_only=True)
    drift = naive(Shards(where), some["old"])
    difference = (some["moved"] - some["old"] - drift).abs().max()
    return {"largest_difference": float(difference), "mean_drift": float(torch.linalg.vector_norm(drift, dim=1).mean())}


def naive(shards, prototypes):
    """Return Eq. 10 by numpy in float64: first the largest weight of each prototype, then the sums."""
    import numpy as np
    import torch

    mu = prototypes.double().numpy()

    def log_weights(z):
        return -((mu[:, None, :] - z[None, :, :]) ** 2).sum(axis=2) / (2 * SIGMA**2)

    peak = np.full(len(mu), -np.inf)
    total, moved = np.zeros(len(mu)), np.zeros_like(mu)
    for last in (False, True):
        for piece in shards.pieces(rows=512):
            z_old, z_new = (piece[name].double().numpy() for name in ("z_old", "z_new"))
            log_w = log_weights(z_old)
            if not last:
                peak = np.maximum(peak, log_w.max(axis=1))
                continue
            w = np.exp(log_w - peak[:, None])
            total += w.sum(axis=1)
            moved += w @ (z_new - z_old)
    return torch.from_numpy(moved / total[:, None])


def prototypes_only(args: argparse.Namespace) -> None:
    """Prototypes alone: what reading, checking and summing takes without the kernel."""
    from benchmarks.shards import Shards, update_from_shards

    update_from_shards(None, Shards(folder(args.scratch, int(args.classes))), None, task=1)


STEPS = {
    "idle": measured(idle),
    "write": measured(write),
    "one pass": measured(one_pass),
    "prototypes": measured(prototypes_only),
    "check": measured(check),
}


if __name__ == "__main__":
    main()
