"""This machine: its CPUs and RAM, what is installed, and settings of a process that make it faster.

The command line calls `tune` before it trains or embeds, and so do the workers of an engine; results have the same bits
with and without. `import protodrift` does not: there the process is the user's, who may call `tune` too. Nothing here
imports torch before it is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import InputError

# -- what there is ----------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """Return the versions of protodrift, torch and Python."""
    import torch

    return {"protodrift": __version__, "torch": torch.__version__, "python": platform.python_version()}


def environment() -> dict[str, Any]:
    """Return what a result depends on beside its configuration, JSON-able; no name of the machine and no path."""
    import torch

    return {
        **versions(),
        "machine": platform.machine(),
        "processor": processor(),
        "cpus": usable_cpus(),
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """Return the commit of the source tree this package runs from, or None for an installed package."""
    here = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def processor() -> str:
    """Return the processor's name as its maker writes it, where the system says it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


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


# -- RAM --------------------------------------------------------------------------------------------------------------

SHARE_OF_RAM = 4
"""Decoded images may take one part in so many of this machine's RAM; more of them are mapped from a file."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def device(wanted: str = "auto") -> str:
    """Return the device that a name stands for: "auto" is CUDA where torch finds one, else the CPU.

    Raises:
        InputError: if torch cannot use it here.
    """
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        message = str(error).splitlines()[0]
        raise InputError(f"device {wanted!r} cannot be used here ({message}). Use 'auto' or 'cpu'.") from None
    return wanted


def ram_budget(wanted: int | None = None) -> int:
    """Return how many bytes of decoded images are held in RAM.

    Args:
        wanted: the caller's choice; None: $PROTODRIFT_RAM (such as 8G), or a quarter of the RAM there is: the
            machine's, or the container's if that is less.
    """
    if wanted is not None:
        return wanted
    if variable := os.environ.get("PROTODRIFT_RAM"):
        try:
            return parse_bytes(variable)
        except ValueError as error:
            raise InputError(f"PROTODRIFT_RAM: {error}.") from None
    return total_ram() // SHARE_OF_RAM


def total_ram() -> int:
    """Return the bytes of RAM there are: the machine's, or the container's if that is less."""
    total = 8 * 2**30
    with contextlib.suppress(AttributeError, ValueError, OSError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # "max", where there is no limit
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def parse_bytes(text: str) -> int:
    """Return a number of bytes from words such as 8G, 500M or 1.5T.

    >>> parse_bytes("1.5G"), parse_bytes("0")
    (1610612736, 0)
    """
    plain = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = plain[-1:] if plain[-1:] in ("K", "M", "G", "T") else ""
    try:
        value = float(plain.removesuffix(unit)) * _UNITS[unit]
        if not 0 <= value < 2**63:
            raise ValueError
    except ValueError:
        raise ValueError(f"a number of bytes is needed, such as 8G or 500M; got {text!r}") from None
    return int(value)


def size_text(count: int) -> str:
    """Return a number of bytes as people read it.

    >>> size_text(1), size_text(999), size_text(20_500_000)
    ('1 byte', '999 bytes', '20.5 MB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return "1 byte" if count == 1 else f"{count} bytes"


# -- speed ------------------------------------------------------------------------------------------------------------

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
