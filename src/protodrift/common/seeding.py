"""One seed, many independent streams of random numbers.

Every consumer names what it draws for: `generator(seed, "batches", task, epoch)`. So the batches of task 3 do not
depend on how many numbers a penalty or a miner drew before, all methods see the same batches, and a run that resumes
at an epoch draws what an undisturbed run draws there.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import torch


def derive(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose, by hashing: near seeds give unrelated streams.

    >>> derive(0, "batches", 1) == derive(0, "batches", 1), derive(0, "batches", 1) == derive(1, "batches", 1)
    (True, False)
    """
    digest = hashlib.sha256(repr((int(seed), *purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


@contextlib.contextmanager
def global_seed(seed: int, *purpose: str | int) -> Iterator[None]:
    """Seed torch's global generator inside the block (for layers such as dropout), and give it back as it was."""
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derive(seed, *purpose))
        yield
