"""What all cases share: sides that run in turn, ratios with their spread, and what is said about the machine."""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from protodrift.common.machine import environment

Side = Callable[[], float]
"""One side of a comparison: does its work once and returns the seconds that count."""

AT_LEAST, AT_MOST = ">=", "<="


@dataclass(frozen=True)
class Setup:
    """How to measure.

    Attributes:
        quick: smaller sizes and fewer rounds: to see that it works, not to publish.
        repeats: rounds of each comparison; None: as many as the case thinks right.
        say: hears a line of progress.
    """

    quick: bool = False
    repeats: int | None = None
    say: Callable[[str], None] = lambda text: None

    def rounds(self, usual: int) -> int:
        """Return how many rounds to measure where a case would take `usual`."""
        return self.repeats or (min(usual, 3) if self.quick else usual)


@dataclass(frozen=True)
class Result:
    """One line of the table.

    Attributes:
        case: the case it belongs to.
        name: what was done.
        what, against: the two sides.
        ratio: the median over rounds: how many times as fast as the other side, unless `unit` says otherwise.
        low, high: its quartiles over rounds.
        rounds: how many.
        unit: what the ratio is: "x" (times as fast), or a word.
        aim: as in ">= 1.2"; "": none.
        met: whether the median reaches the aim; None: no aim, or not measured.
        note: what a reader has to know; for a side that could not run, why.
        numbers: further numbers by name, such as images per second.
    """

    case: str
    name: str
    what: str
    against: str
    ratio: float | None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    unit: str = "x"
    aim: str = ""
    met: bool | None = None
    note: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)


def clocked(work: Callable[..., object], *args: Any, often: int = 1) -> Side:
    """Return a side that counts all the time of a piece of work, `work(*args)`, done so often."""

    def side() -> float:
        started = time.perf_counter()
        for _ in range(often):
            work(*args)
        return time.perf_counter() - started

    return side


def interleaved(sides: Mapping[str, Side], rounds: int, warmup: int = 1) -> dict[str, list[float]]:
    """Run all sides in turn, A B C A B C ..., and return the seconds of each round by side.

    Rounds of warm-up are run and not counted. Every second round goes backwards, so that no side is always the one
    that runs after a certain other.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-warmup, rounds):
        order = list(sides.items())
        for name, side in order if number % 2 == 0 else reversed(order):
            taken = side()
            if number >= 0:
                seconds[name].append(taken)
    return seconds


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile.

    >>> quartiles([5.0, 1.0, 2.0, 4.0, 3.0])
    (2.0, 3.0, 4.0)
    """
    if len(values) == 1:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def reaches(ratio: float, aim: str) -> bool:
    """Say whether a ratio reaches an aim such as ">= 1.2".

    >>> reaches(1.3, ">= 1.2"), reaches(0.4, "<= 0.333")
    (True, False)
    """
    sign, _, number = aim.partition(" ")
    return ratio >= float(number) if sign == AT_LEAST else ratio <= float(number)


def compared(
    case: str,
    name: str,
    seconds: Mapping[str, Sequence[float]],
    what: str,
    against: str,
    *,
    aim: str = "",
    unit: str = "x",
    scale: float = 1.0,
    inverse: bool = False,
    note: str = "",
    numbers: Mapping[str, Any] | None = None,
) -> Result:
    """Return the ratio of two sides that ran in turn.

    Args:
        seconds: of each side, as `interleaved` gives them; the keys `what` and `against` are compared.
        scale: work of `what` over work of `against`, where they differ.
        inverse: give our time over theirs, instead of how many times as fast ours is.
    """
    ratios = [scale * b / a for a, b in zip(seconds[what], seconds[against], strict=True)]
    if inverse:
        ratios = [1 / ratio for ratio in ratios]
    low, middle, high = quartiles(ratios)
    times = {"seconds": round(statistics.median(seconds[what]), 6)}
    times["seconds_against"] = round(statistics.median(seconds[against]), 6)
    return Result(
        case, name, what, against, middle, low, high, len(ratios), unit, aim, reaches(middle, aim) if aim else None,
        note, {**times, **(numbers or {})},
    )  # fmt: skip


def skipped(case: str, name: str, what: str, against: str, why: str, aim: str = "") -> Result:
    """Return the line of a comparison that could not be made."""
    return Result(case, name, what, against, None, aim=aim, note=why)


def peak_memory() -> int:
    """Return the most memory that this process has had resident, in bytes; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def machine() -> dict[str, Any]:
    """Describe where the numbers come from."""
    return {**environment(), "instructions": torch.backends.cpu.get_cpu_capability(), "system": platform.system()}
