"""Time and memory of discriminant analysis in 12,800 dimensions: two tasks of 5,000 images, 100 classes.

python -m benchmarks.wide_readout [DIMENSIONS]
"""

from __future__ import annotations

import resource
import sys
import time

import torch

from protodrift.readouts import StreamingLDA, View


def peak() -> str:
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB at most"


def main(size: int = 12_800, images: int = 5000, classes: int = 100) -> None:
    draw = torch.Generator().manual_seed(0)
    means = torch.rand(classes, size, generator=draw)
    readout, kept = StreamingLDA(shrinkage=0.01), {}
    print(f"{torch.get_num_threads()} threads, {size} dimensions; before: {peak()}")
    for task in range(2):
        targets = torch.arange(images) % (classes // 2) + task * (classes // 2)
        z = torch.randn(images, size, generator=draw).mul_(0.3).add_(means[targets]).abs_()
        start = time.perf_counter()
        kept = readout.learn(kept, z, targets, task + 1, 0)
        print(f"task {task + 1}: {time.perf_counter() - start:.1f} s, {peak()}")
    start = time.perf_counter()
    right = readout.predict(View(z[:2000], means, readout_state=kept)) == targets[:2000]
    print(f"2,000 answers: {time.perf_counter() - start:.1f} s, {peak()}, {100 * right.double().mean():.1f} % right")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
