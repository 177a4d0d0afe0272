"""Drift estimators x read-outs on the same trainings: two axes, every pair.

    python -m benchmarks.drift_readouts cifar100-ten --budget drift --data DATA --store RUN --json READOUTS.json
    python -m benchmarks.drift_readouts --table READOUTS.json ...

Accuracy over all seen classes after the last task. Covariances of every class are moved along with the means by the
estimators that say how (the others translate a class and leave its covariance). The oracle knows true means and
covariances. What this computes is taken out of the store again:
covariances of a hundred classes, 512 x 512 each, are 100 MB per task.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.compare import ESTIMATORS, carrying, read_out
from protodrift.cli.run import add_budget, add_settings, chosen_recipe
from protodrift.common.covariance import Covariance
from protodrift.drift import Drift, Oracle
from protodrift.errors import InputError
from protodrift.experiments.run import load_data
from protodrift.experiments.store import Store
from protodrift.methods import with_drift
from protodrift.readouts import Bayes, Mahalanobis, NearestClassMean, Readout, RidgeClassifier

DRIFTS: dict[str, Drift | None] = {
    "none": None,
    **{name: ESTIMATORS[name] for name in ("SDC 0.3", "SDC 0.2", "gated local linear", "AdaGauss")},
    **{name: ESTIMATORS[name] for name in ("DPCR", "DPCR projecting first")},
    "oracle": Oracle(),
}
READOUTS: dict[str, Readout] = {
    "nearest mean": NearestClassMean(),
    "Mahalanobis": Mahalanobis(),
    "Bayes": Bayes(),
    "ridge": RidgeClassifier(covariance=Covariance()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?")
    parser.add_argument("--table", nargs="*", metavar="JSON", help="only print what was measured as Markdown tables")
    parser.add_argument("--data", help="where the data is, as for protodrift run")
    add_budget(parser)
    add_settings(parser)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--methods", default="E-FT")
    parser.add_argument("--drifts", help="names separated by commas; all, if not given")
    parser.add_argument("--store", help="a run directory whose trainings are read out")
    parser.add_argument("--json", help="write what was measured here")
    args = parser.parse_args()
    if args.table is not None:
        print(tables([row for path in args.table for row in json.loads(Path(path).read_text())]))
        return
    if args.recipe is None:
        parser.error("which recipe? (or --table)")
    torch.set_num_threads(args.threads)
    drifts = list(DRIFTS) if args.drifts is None else args.drifts.split(",")
    if unknown := [name for name in drifts if name not in DRIFTS]:
        parser.error(f"there is no drift {unknown[0]!r} here; there are: {', '.join(DRIFTS)}")
    recipe = chosen_recipe(args)
    stream = recipe.stream(load_data(recipe, args.data))
    store = None if args.store is None else Store(args.store)
    rows: list[dict[str, Any]] = []
    before = set() if store is None else {info.name for info in store.listing()}
    for seed in map(int, args.seeds.split(",")):
        tree = recipe.tree(stream, seed=seed, store=store)
        for name, training in recipe.methods.items():
            for drift_name in drifts:
                method = with_drift(training, DRIFTS[drift_name])
                for readout_name, accuracy in read_out(tree, method, READOUTS).items():
                    rows.append(
                        {
                            "setting": recipe.name,
                            "budget": recipe.budget,
                            "method": name,
                            "seed": seed,
                            "readout": readout_name,
                            "drift": drift_name,
                            "overall": accuracy,
                        }
                    )
                    print(json.dumps(rows[-1]), flush=True)
                if store is not None:
                    keys = [tree.stage("readout", carrying(method), task).key for task in range(1, len(stream) + 1)]
                    made = {f"readout-{key[:24]}" for key in keys}
                    for info in store.listing():
                        if info.name in made - before:
                            store.remove(info.name)
            if args.json:
                Path(args.json).write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def tables(rows: list[dict[str, Any]]) -> str:
    """Return one Markdown table for each setting and method: drift x read-out, mean accuracy over seeds in percent."""
    parts = []
    for key in dict.fromkeys((row["setting"], row["budget"], row["method"]) for row in rows):
        own = [row for row in rows if (row["setting"], row["budget"], row["method"]) == key]
        heads = list(dict.fromkeys(row["readout"] for row in own))
        seeds = sorted({row["seed"] for row in own})
        said = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        lines = [f"{key[0]}, {key[2]}, budget `{key[1]}`, {said}:", "", f"| drift | {' | '.join(heads)} |"]
        lines.append("|---|" + "---:|" * len(heads))
        for drift in dict.fromkeys(row["drift"] for row in own):
            cells = []
            for head in heads:
                found = [row["overall"] for row in own if row["drift"] == drift and row["readout"] == head]
                cells.append(f"{100 * sum(found) / len(found):.1f}")
            lines.append(f"| {drift} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
