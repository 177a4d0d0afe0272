"""`protodrift transport`: stored embeddings into the space of an upgraded model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.tables import text_table
from .arguments import Commands, add_command, whole_number
from .text import percent, plural

if TYPE_CHECKING:
    from ..vectors import HeldOutReport, Recalls, Transported

_EPILOG = """\
examples:
  protodrift transport --pairs-old A.npy --pairs-new B.npy --vectors store.npy --out moved.npy
  protodrift transport --pairs-old A.npy --pairs-new B.npy --vectors items.parquet --column embedding --out new.parquet
  protodrift transport --pairs-old A.npy --pairs-new B.npy --vectors flat.faiss --out new.faiss --reembed 10000

A.npy and B.npy hold the same items, row by row, through the old and the new model: a few thousand that were embedded
again. Recall@k is measured on pairs that the map was not fitted on; in a larger store it is lower.
Parquet and FAISS need:  pip install 'protodrift[vectors]'
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "transport",
        run,
        help="move stored embeddings into the space of an upgraded model",
        description="Moves a store of embeddings from a sample of pairs, without embedding the rest again.",
        epilog=_EPILOG,
    )
    parser.add_argument("--pairs-old", metavar="A.npy", type=Path, required=True, help="(N, D_old) by the old model")
    parser.add_argument("--pairs-new", metavar="B.npy", type=Path, required=True, help="(N, D_new) by the new model")
    parser.add_argument("--vectors", metavar="STORE", type=Path, required=True, help=".npy, .parquet or .faiss (flat)")
    parser.add_argument(
        "--out", metavar="NEW", type=Path, required=True, help="the new store; its ending is the format"
    )
    parser.add_argument(
        "--column", metavar="NAME", help="column of a Parquet file that holds the vectors, if several could"
    )
    parser.add_argument(
        "--metric", choices=("l2", "ip", "cosine"), help="of your searches (default: the index's, or l2)"
    )
    parser.add_argument(
        "--reembed", metavar="N", type=whole_number(0), default=0, help="write the N rows worth re-embedding first"
    )
    parser.add_argument("--no-uncertainty", action="store_true", help="do not estimate how far each vector may be off")
    parser.add_argument("--held-out", metavar="SHARE", type=float, default=0.2, help="of the pairs (default: 0.2)")
    parser.add_argument(
        "--seed", metavar="N", type=whole_number(0), default=0, help="of the held-out pairs (default: 0)"
    )
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Move the store, and say how well it was done."""
    from ..common.progress import counting
    from ..vectors import transport

    with counting() as on_progress:
        result = transport(
            args.pairs_old,
            args.pairs_new,
            args.vectors,
            args.out,
            metric=args.metric,
            uncertainty=not args.no_uncertainty,
            reembed=args.reembed,
            column=args.column,
            held_out=args.held_out,
            seed=args.seed,
            force=args.force,
            on_progress=on_progress,
        )
    print(json.dumps(_as_json(result), indent=2) if args.json else _as_text(result))
    return 0


def _as_text(result: Transported) -> str:
    report = result.report
    kind = result.dtype_new if result.dtype_old == result.dtype_new else f"{result.dtype_old} -> {result.dtype_new}"
    sizes = f"{result.width_old} -> {result.width_new} numbers, {kind}"
    lines = [
        f"moved {plural(result.count, 'vector')} to {result.out}: {sizes}",
        f"by {report.chosen}, the best of {len(report.tried)} on held-out pairs",
        "",
        f"found of the new model's neighbors ({report.metric}), among {plural(report.vectors, 'held-out vector')}:",
        text_table(_rows(report), ["", *_head(report)], right=range(1, 1 + len(_head(report)))),
    ]
    recovered = report.recovered(max(report.moved.at))
    if recovered is not None:
        lines.append(
            f"gap from unmoved to re-embedded recovered: {percent(recovered)} of Recall@{max(report.moved.at)}"
        )
    lines.append(
        f"distance to the true vector: {report.residual:.3g} (the new mean: {report.residual_of_mean:.3g}); the "
        f"uncertainty has rank correlation {report.uncertainty_rank:.2f} with it"
    )
    if result.uncertainty:
        lines.append(f"uncertainty of each vector: {result.uncertainty}")
    if result.reembed:
        lines.append(f"rows worth re-embedding first: {result.reembed}")
    if result.dropped:
        lines.append(f"not kept: {result.dropped}; the format of {result.out.name} cannot hold them")
    return "\n".join(lines)


def _head(report: HeldOutReport) -> list[str]:
    ks = sorted(report.moved.at)
    return [f"Recall@{k}" for k in ks] + [f"nearest in {k}" for k in ks if k > 1]


def _rows(report: HeldOutReport) -> list[list[object]]:
    ks = sorted(report.moved.at)

    def row(name: str, one: Recalls | None) -> list[object]:
        if one is None:
            return [name, *["-"] * len(_head(report))]
        return [name, *(percent(one.at[k]) for k in ks), *(percent(one.first_at[k]) for k in ks if k > 1)]

    return [
        row("old queries, old vectors", report.old),
        row("new queries, unmoved", report.unmoved),
        row("new queries, moved", report.moved),
        ["re-embedded (by definition)", *[percent(1.0)] * len(_head(report))],
    ]


def _as_json(result: Transported) -> dict[str, Any]:
    report = result.report

    def part(one: Recalls | None) -> dict[str, Any] | None:
        return None if one is None else {"recall": one.at, "nearest_within": one.first_at}

    return {
        "out": str(result.out),
        "vectors": result.count,
        "dimensions": [result.width_old, result.width_new],
        "dtype": [result.dtype_old, result.dtype_new],
        "chosen": report.chosen.to_json(),
        "tried": [{"drift": drift.to_json(), "recall_at_10": score} for drift, score in report.tried],
        "metric": report.metric,
        "held_out_vectors": report.vectors,
        "old": part(report.old),
        "unmoved": part(report.unmoved),
        "moved": part(report.moved),
        "gap_recovered": {k: report.recovered(k) for k in report.moved.at},
        "residual": report.residual,
        "residual_of_mean": report.residual_of_mean,
        "uncertainty_rank_correlation": report.uncertainty_rank,
        "uncertainty_ratio": report.uncertainty_ratio,
        "uncertainty": None if result.uncertainty is None else str(result.uncertainty),
        "reembed": None if result.reembed is None else str(result.reembed),
        "not_carried_along": result.dropped,
    }
