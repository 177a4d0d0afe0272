"""The rows of the paper's tables as methods, from the constants that a recipe chooses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...drift import SDC, Drift, Oracle
from ...errors import InputError
from ...methods import METHODS, BatchNorm, Method, Schedule, with_drift
from ...objectives import Objective
from ...penalties import EWC, MAS, LwF, Penalty

Rows = dict[str, Method]
Penalties = dict[str, tuple[Penalty, ...]]

PAPER_PENALTIES: Penalties = {  # Sec. 5
    "E-FT": (),
    "E-LwF": (LwF(gamma=1.0),),
    "E-EWC": (EWC(gamma=1e7),),
    "E-MAS": (MAS(gamma=1e6),),
}

CPU_PENALTIES: Penalties = {
    # For few full passes at larger rates than the paper's: chosen on validation images, results/*_search.md.
    "E-FT": (),
    "E-LwF": (LwF(gamma=0.1),),
    "E-EWC": (EWC(gamma=1e6),),
    "E-MAS": (MAS(gamma=0.1),),
}

SOFTMAX = ("FT", "FT*", "LwF", "EWC", "MAS")
EXEMPLARS = ("iCaRL-CNN", "iCaRL-NME", "Rebalance")


BUDGETS = {
    "paper": "the paper's epochs",
    "cpu": "for two cores",
    "drift": "ten minutes per training, to compare drift estimators",
    "frontier": "the best that is known for two cores, and what it must be compared with",
}


def check_budget(budget: str, *others: str) -> None:
    """Refuse a budget that there is not: "paper" and "cpu" are there, and the others that a recipe has."""
    known = [name for name in BUDGETS if name in ("paper", "cpu", *others)]
    if budget not in known:
        choices = ", ".join(f"{name!r} ({BUDGETS[name]})" for name in known)
        raise InputError(f"unknown budget {budget!r}: choose from {choices}.")


def frozen_rows(objective: Objective, batch_norm: BatchNorm = "frozen") -> Rows:
    """Return E-Pre, SLDA and E-Fix: the network as it is before the first task, by two read-outs, and after it."""
    base = Method(objective)
    before = replace(base, schedule=Schedule(train="none", batch_norm=batch_norm))
    return {
        "E-Pre": before,
        "SLDA": replace(before, readout=METHODS["SLDA"].readout),
        "E-Fix": replace(base, schedule=Schedule(train="first", batch_norm=batch_norm)),
    }


def embedding_rows(
    objective: Objective,
    penalties: Mapping[str, tuple[Penalty, ...]],
    drift: Drift = SDC(),
    *,
    batch_norm: BatchNorm = "frozen",
    oracle: bool = True,
) -> Rows:
    """Return every E-method plain, with drift compensation, and with the oracle's prototypes.

    Args:
        objective: the metric loss.
        penalties: name -> what holds the old knowledge, such as `{"E-FT": (), "E-EWC": (EWC(1e7),)}`.
        drift: how prototypes are moved in the rows `NAME+SDC`.
        batch_norm: what running statistics do after the first task.
        oracle: whether to add the rows `NAME+oracle`: the ceiling of any compensation, on the same training.
    """
    rows: Rows = {}
    for name, penalty in penalties.items():
        rows[name] = Method(objective, penalty, schedule=Schedule(batch_norm=batch_norm))
        rows[f"{name}+SDC"] = with_drift(rows[name], drift)
        if oracle:
            rows[f"{name}+oracle"] = with_drift(rows[name], Oracle())
    return rows


def named_rows(
    names: Iterable[str],
    penalties: Mapping[str, tuple[Penalty, ...]] | None = None,
    *,
    batch_norm: BatchNorm = "frozen",
) -> Rows:
    """Return methods of the table of methods, with penalties and batch-norm policy of this recipe."""
    rows: Rows = {}
    for name in names:
        method = METHODS[name]
        rows[name] = replace(
            method,
            penalty=(penalties or {}).get(name, method.penalties),
            schedule=replace(method.schedule, batch_norm=batch_norm),
        )
    return rows
