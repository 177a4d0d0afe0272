"""What a process of ours does for speed before it trains or embeds. Results have the same bits with and without.

The command line does it at the start of its verbs, and so do the workers of an engine. `import protodrift` does not:
there the process is the user's, who may call `protodrift.common.machine.tune()`.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # the names and numbers of glibc's malloc.h
_KEPT = 2**31 - 1  # bytes; the largest that mallopt takes
_SPIN = "1000"  # rounds that an idle thread waits awake


WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Variables that say how idle OpenMP threads wait."""


def wait_briefly() -> None:
    """Let idle OpenMP threads go to sleep soon; to be called before torch is imported. A choice of the user's stays.

    PyTorch's threads meet hundreds of times in a training step. A thread that sleeps at once has to be woken each
    time (a step of ResNet-32, batch 32, two threads: 124 ms); one that waits awake for long takes the core from
    whoever else needs it (by default 87 ms on a quiet machine, 322 ms beside one busy process). Waiting briefly is near
    the best of both: 92 and 260 ms, against 124 and 222 of sleeping at once.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ["GOMP_SPINCOUNT"] = _SPIN


def tune(threads: int | None = None) -> str:
    """Set this process up for training and embedding; return what was chosen, in words.

    Args:
        threads: of each computation. None: torch's own choice, but no more than the CPUs that this process may use:
            torch counts those of the machine, and in a container with a share of them its threads would wait for each
            other. A choice made by OMP_NUM_THREADS stays. The number is part of a stage's key.
    """
    import torch

    kept = keep_memory()
    if threads is not None:
        torch.set_num_threads(threads)
    elif "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > usable_cpus():
        torch.set_num_threads(usable_cpus())
    count = torch.get_num_threads()
    said = f"{count} thread{'s' if count > 1 else ''} on {usable_cpus()} usable CPUs"
    return said + (", memory of one step kept for the next" if kept else "")


def keep_memory() -> bool:
    """Let the C library keep freed memory for the next tensors; return whether it does.

    By default glibc asks the system for every large tensor anew and gives it back when it is freed. The system then
    hands out each page with a fault, and clears it, in every training step: a seventh of the time where it was measured
    (EfficientNet-Lite0 at 96 x 96). With this, up to 2 GiB at the end of the heap stay with the process; its peak there
    was a seventh higher (1.9 for 1.6 GB), and did not grow with time. Other C libraries, and a process whose user has
    set MALLOC_* himself, are left alone.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # Both are needed: from the heap, not mapped one by one; and the heap is not cut back after each step.
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT))


def usable_cpus(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many CPUs this process may use: its affinity, and the share that its container is given.

    Args:
        root: where Linux shows control groups.
    """
    here = getattr(os, "sched_getaffinity", None)
    count = len(here(0)) if here is not None else os.cpu_count() or 1
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((root / name).read_text() for name in files).split()[:2]
            if float(quota) > 0 and float(period) > 0:  # "max" and -1: no limit
                count = min(count, math.ceil(float(quota) / float(period)))
        except (OSError, ValueError):
            continue
    return max(1, count)
