"""Speed, measured side by side: `make bench`, one file per case.

Every case runs ours and an alternative in turn, in one run, several times, and gives the median of the ratios with its
spread: on a shared machine a time means little, a ratio of neighbors means something. What a case compares computes
the same thing; `tests/benchmarks/test_same.py` checks that, and no test checks a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from protodrift.errors import InputError, did_you_mean

from . import embedding, growth, pipeline, predict, sdc, training, tree, triplet
from .harness import Result, Setup

Case = Callable[[Setup], Iterator[Result]]

CASES: dict[str, Case] = {
    "training": training.run,
    "embedding": embedding.run,
    "sdc": sdc.run,
    "triplet": triplet.run,
    "pipeline": pipeline.run,
    "tree": tree.run,
    "predict": predict.run,
    "growth": growth.run,
}
"""The cases in the order in which they run."""


def choose(names: Sequence[str]) -> dict[str, Case]:
    """Return some cases by name, in the order of the table; all of them if no name is given.

    Raises:
        InputError: for an unknown name.
    """
    for name in names:
        if name not in CASES:
            raise InputError(f"there is no benchmark {name!r}. {did_you_mean(name, CASES)}")
    return {name: case for name, case in CASES.items() if not names or name in names}
