"""Case c: semantic drift compensation, against the machine's matrix product, the broadcast form and a loop.

Eqs. 9-11 are two matrix products, K x N distances and K x D weighted sums: 4 K N D operations. Everything else (exp,
maxima, sums of weights) is not counted, so the rate is what SDC makes of the machine.

The naive forms run in processes of their own, with PyTorch's own settings; the broadcast form also in ours, which keeps
freed memory: much of its time is the system handing out gigabytes anew.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Iterator
from multiprocessing.connection import Connection

import torch

from protodrift.drift import semantic_drift

from .elsewhere import Elsewhere
from .harness import (
    Result,
    Setup,
    Side,
    clocked,
    compared,
    interleaved,
    peak_memory,
    quartiles,
    reaches,
)

D = 512
SIGMA = 0.3
OURS, GEMM = "protodrift", "matrix product"
BROADCAST, LOOP = "broadcast (K, N, D)", "loop over prototypes"
BROADCAST_HERE = f"{BROADCAST}, our memory settings"
HERE = (
    "The same broadcast form in our process, which keeps freed memory: most of what makes it slow in a plain script is "
    "the system handing out gigabytes anew (CPU time of one thread: 1.75 s there, 0.39 s here)."
)
SIZES = ((100, 5_000), (1_000, 20_000), (10_000, 10_000))
"""K prototypes, N images."""

LARGE = (10_000, 1_000_000)
BUDGET = 8 * 2**30  # bytes beside the inputs, issue 5


def run(setup: Setup) -> Iterator[Result]:
    """Measure SDC."""
    side = 1024 if setup.quick else 2048
    a, b = torch.randn(2, side, side, generator=torch.Generator().manual_seed(0))
    out = torch.empty(side, side)
    product = clocked(lambda: torch.mm(a, b, out=out))
    for k, n in SIZES[: 2 if setup.quick else None]:
        name = f"K = {k:,}, N = {n:,}, D = {D}"
        setup.say(f"sdc: {name}")
        case = problem(k, n)
        ours = clocked(semantic_drift, *case, SIGMA)
        seconds = interleaved({OURS: ours, GEMM: product}, setup.rounds(7))
        rate = {"gflops": round(operations(k, n) / statistics.median(seconds[OURS]) / 1e9, 1)}
        rate["gflops_of_matrix_product"] = round(2 * side**3 / statistics.median(seconds[GEMM]) / 1e9, 1)
        aim = ">= 0.75" if k >= 1000 else ""
        scale = operations(k, n) / (2 * side**3)
        yield compared(
            "sdc", name, seconds, OURS, GEMM, aim=aim, unit="of its rate", scale=scale, numbers=rate
        )  # fmt: skip
    k, n = (100, 1_000) if setup.quick else SIZES[0]
    case = problem(k, n)
    name = f"K = {k:,}, N = {n:,}, D = {D}"
    setup.say(f"sdc: {name}, against the broadcast form and a loop")
    with Elsewhere(naive_side, "broadcast", k, n) as broad, Elsewhere(naive_side, "looped", k, n) as loop:
        sides: dict[str, Side] = {OURS: clocked(lambda: semantic_drift(*case, SIGMA))}
        sides[BROADCAST_HERE] = clocked(lambda: broadcast(*case, SIGMA))
        seconds = interleaved({**sides, BROADCAST: broad, LOOP: loop}, setup.rounds(5))
    yield compared("sdc", name, seconds, OURS, BROADCAST, aim=">= 50")
    yield compared("sdc", name, seconds, OURS, BROADCAST_HERE, aim=">= 50", note=HERE)
    yield compared("sdc", name, seconds, OURS, LOOP)
    yield memory(setup)


def memory(setup: Setup) -> Result:
    """Measure the memory of a large problem beside its inputs, in a process of its own, and its rate on the way."""
    k, n = (1_000, 100_000) if setup.quick else LARGE
    name = f"K = {k:,}, N = {n:,}, D = {D}: memory"
    need = 2.2 * n * D * 4
    free = _free_memory()
    if free and free < need + BUDGET / 4:
        return Result("sdc", name, OURS, "", None, aim="<= 8", note=f"needs {need / 2**30:.1f} GiB of free memory.")
    setup.say(f"sdc: {name} ({4 * k * n * D / 1e12:.1f} Tflop)")
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_large, args=(theirs, k, n, torch.get_num_threads()), daemon=True)
    process.start()
    theirs.close()
    try:
        grown, seconds, gflops = pipe.recv()
    except EOFError:
        return Result("sdc", name, OURS, "", None, aim="<= 8", note="the process was ended: out of memory.")
    finally:
        process.join()
    gib = grown / 2**30
    rate = operations(k, n) / seconds / 1e9
    numbers = {"gib": gib, "seconds": seconds, "gflops": rate, "gflops_of_matrix_product": gflops}
    return Result(
        "sdc", name, OURS, "its inputs", gib, gib, gib, 1, "GiB more", "<= 8", reaches(gib, "<= 8"), "", numbers
    )  # fmt: skip


def _large(pipe: Connection, k: int, n: int, threads: int) -> None:
    torch.set_num_threads(threads)
    prototypes, z_old, z_new = problem(k, n)
    side = 2048
    a = torch.randn(side, side)
    out = torch.empty(side, side)
    product = clocked(lambda: torch.mm(a, a, out=out))
    before = interleaved({GEMM: product}, 5)[GEMM]
    held = reset_peak()
    seconds = clocked(lambda: semantic_drift(prototypes, z_old, z_new, SIGMA))()
    grown = peak_since_reset() - held
    both = before + interleaved({GEMM: product}, 5)[GEMM]
    pipe.send((grown, seconds, 2 * side**3 / quartiles(both)[1] / 1e9))


def reset_peak() -> int:
    """Let the system count the peak of memory from here on, where it can (Linux); return the memory held now."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
            file.write("5")
    except OSError:
        pass  # then the peak is that of the whole process, and what is measured from here may be too small
    return peak_since_reset()


def peak_since_reset() -> int:
    """Return the peak of resident memory since it was last reset, in bytes."""
    try:
        with open("/proc/self/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return peak_memory()


def _free_memory() -> int:
    try:
        with open("/proc/meminfo", encoding="utf-8") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 0


def operations(k: int, n: int, d: int = D) -> int:
    """Return the floating-point operations of the two matrix products."""
    return 4 * k * n * d


def problem(k: int, n: int, d: int = D, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return prototypes (K, D), z_old and z_new (N, D), of unit length; images lie around prototypes."""
    draw = torch.Generator().manual_seed(seed)
    prototypes = torch.nn.functional.normalize(torch.randn(k, d, generator=draw), dim=1)
    z_old = torch.empty(n, d)
    z_new = torch.empty(n, d)
    for start in range(0, n, 8192):  # in parts: nothing of the size of the inputs beside them
        at = slice(start, min(n, start + 8192))
        near = prototypes[torch.randint(0, k, (at.stop - at.start,), generator=draw)]
        z_old[at] = torch.nn.functional.normalize(near + 0.03 * torch.randn(near.shape, generator=draw), dim=1)
        z_new[at] = torch.nn.functional.normalize(z_old[at] + 0.01 * torch.randn(near.shape, generator=draw), dim=1)
    return prototypes, z_old, z_new


def naive_side(form: str, k: int, n: int) -> Side:
    """Return a naive form as a side, "broadcast" or "looped"."""
    case = problem(k, n)
    compute = {"broadcast": broadcast, "looped": looped}[form]
    return clocked(lambda: compute(*case, SIGMA))


def broadcast(prototypes: torch.Tensor, z_old: torch.Tensor, z_new: torch.Tensor, sigma: float) -> torch.Tensor:
    """Return the drift as the equations are first written down: a (K, N, D) tensor of differences."""
    difference = z_old[None] - prototypes[:, None]
    weights = torch.exp(-difference.square().sum(dim=2) / (2 * sigma**2))
    delta = z_new - z_old
    return (weights[:, :, None] * delta[None]).sum(dim=1) / weights.sum(dim=1, keepdim=True)


def looped(prototypes: torch.Tensor, z_old: torch.Tensor, z_new: torch.Tensor, sigma: float) -> torch.Tensor:
    """Return the drift by a loop over prototypes."""
    delta = z_new - z_old
    result = []
    for mu in prototypes:
        weights = torch.exp(-(z_old - mu).square().sum(dim=1) / (2 * sigma**2))
        result.append((weights[:, None] * delta).sum(dim=0) / weights.sum())
    return torch.stack(result)
