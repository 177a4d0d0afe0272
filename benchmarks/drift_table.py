"""Puts the cells of several `drift_estimators.py` runs into one table: what was chosen on, and what is reported.

    python -m benchmarks.drift_table eleven.json ten.json cub.json --choose cifar100-ten cifar100-eleven:E-FT,E-LwF \
        --default "gated SDC 0.3" --json results/drift.json

Cells of seed 0 in the settings after `--choose` (RECIPE, or RECIPE:METHODS) are where estimator, constants and gate may
be looked for; all others are reported. `--default` is set beside SDC with the same sigma in every cell.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.compare import LEAST_GAP, Cell, summarize, table


def chosen_on(cell: Cell, settings: Sequence[str]) -> bool:
    """Return whether a cell is one of those that constants may be chosen on."""
    for text in settings:
        recipe, _, methods = text.partition(":")
        if cell.seed == 0 and cell.setting == recipe and (not methods or cell.method in methods.split(",")):
            return True
    return False


def narrow(cells: Sequence[Cell], *, large: bool) -> str:
    """Return `compare.table`, with only the columns of settings whose mean gap is large, or only of the others."""
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in table(cells).splitlines()]
    heads = list(dict.fromkeys((c.setting, c.method) for c in cells))
    gaps = [np.mean([c.gap for c in cells if (c.setting, c.method) == head]) for head in heads]
    kept = [6 + i for i, gap in enumerate(gaps) if (gap >= LEAST_GAP) == large]
    columns = [0, 1, 2, 3, 4, 5, *kept] if large else [0, *kept]
    return "\n".join("| " + " | ".join(row[i] for i in columns) + " |" for row in rows)


def against(cells: Sequence[Cell], one: str, other: str) -> str:
    """Return a table: the gap closed by two estimators in every setting and method, seeds pooled, and the difference.

    The interval of the difference is over seeds: twice the standard error of their differences. In settings with a
    small gap, points instead.
    """
    lines = [
        f"| setting | method | seeds | gap, points | {other} | {one} | difference |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for setting, method in dict.fromkeys((c.setting, c.method) for c in cells):
        own = [
            {c.seed: c for c in cells if (c.setting, c.method, c.estimator) == (setting, method, name)}
            for name in (one, other)
        ]
        seeds = sorted(own[0])
        gap = float(np.mean([own[0][seed].gap for seed in seeds]))
        values = [np.array([mine[seed].gain for seed in seeds]) for mine in own]
        if gap >= LEAST_GAP:
            shares = [float(value.sum()) / (gap * len(seeds)) for value in values]
            text = [f"{shares[1]:.2f}", f"{shares[0]:.2f}"]
            differences, unit, form = (values[0] - values[1]) / gap, "", "+.2f"
        else:
            text = [f"{100 * float(value.mean()):+.1f} pt" for value in reversed(values)]
            differences, unit, form = 100 * (values[0] - values[1]), " pt", "+.1f"
        error = 2 * differences.std(ddof=1) / len(seeds) ** 0.5 if len(seeds) > 1 else float("nan")
        noise = "" if np.isnan(error) else f" ± {error:{form[1:]}}"
        lines.append(
            f"| {setting} | {method} | {len(seeds)} | {100 * gap:.1f} | {text[0]} | {text[1]} | "
            f"{differences.mean():{form}}{noise}{unit} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--choose", nargs="*", default=[])
    parser.add_argument("--default", default="")
    parser.add_argument("--sdc", default="SDC 0.3")
    parser.add_argument("--json", type=Path, help="write all cells here, one per line")
    args = parser.parse_args()
    cells = [Cell(**one) for file in args.files for one in json.loads(file.read_text())]
    parts = {
        "Chosen on": [c for c in cells if chosen_on(c, args.choose)],
        "Reported": [c for c in cells if not chosen_on(c, args.choose)],
    }
    for name, own in parts.items():
        if own:
            pooled = summarize(own)[0].pooled
            print(f"## {name}: {len({(c.setting, c.method, c.seed) for c in own})} trainings, {pooled} with a gap of "
                  f"{100 * LEAST_GAP:.0f} points or more\n\n{narrow(own, large=True)}\n\n"
                  f"The settings with smaller gaps, points:\n\n{narrow(own, large=False)}\n")  # fmt: skip
    if args.default:
        print(f"## {args.default} against {args.sdc}\n\n{against(parts['Reported'], args.default, args.sdc)}\n")
        worst = min((c for c in cells if c.estimator == args.default), key=lambda c: c.gain)
        print(
            f"Worst cell of {args.default}: {worst.setting} {worst.method} seed {worst.seed}, {100 * worst.gain:+.2f}."
        )
    if args.json:
        lines = (
            json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in asdict(c).items()}) for c in cells
        )
        args.json.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
