"""The table of cases, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..errors import InputError, did_you_mean
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


def choose(names: Sequence[str]) -> dict[str, Case]:
    """Return some cases by name, in the order of the table; none named: all.

    Raises:
        InputError: for a name that there is not.
    """
    for name in names:
        if name not in CASES:
            raise InputError(f"there is no benchmark {name!r}. {did_you_mean(name, CASES)}")
    return {name: case for name, case in CASES.items() if not names or name in names}
