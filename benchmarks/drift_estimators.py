"""Every drift estimator on the same trainings: gap closed and prototype error.

python -m benchmarks.drift_estimators digits --seeds 0,1,2
python -m benchmarks.drift_estimators cifar100-eleven --data DATA --store RUN   # reads out the trainings in RUN
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.compare import ESTIMATORS, PROBING, compare, table
from protodrift.cli.run import add_budget, add_settings, chosen_recipe
from protodrift.errors import InputError
from protodrift.experiments.run import load_data
from protodrift.experiments.store import Store

METHODS = ["E-FT", "E-LwF", "E-EWC", "E-MAS"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--data", help="where the data is, as for protodrift run")
    add_budget(parser)
    add_settings(parser)
    parser.add_argument("--tasks", type=int, help="only the first N tasks of the stream")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--estimators", default="", help="names from compare.ESTIMATORS (all, if empty) and PROBING")
    parser.add_argument("--metric", default="mean", choices=["A", "overall", "mean"])
    parser.add_argument("--store", help="a run directory whose trainings are used, and where new ones go")
    parser.add_argument("--json", help="write all cells here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    recipe = chosen_recipe(args)
    chosen = [name for name in args.estimators.split(",") if name] or list(ESTIMATORS)
    known = {**ESTIMATORS, **PROBING}
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"there is no estimator {unknown[0]!r}; there are: {', '.join(known)}")
    stream = recipe.stream(load_data(recipe, args.data))
    if args.tasks:
        stream = stream[: args.tasks]
    store = None if args.store is None else Store(args.store)
    cells = []
    for seed in map(int, args.seeds.split(",")):
        tree = recipe.tree(stream, seed=seed, store=store)
        estimators = {name: known[name] for name in chosen}
        cells += compare(tree, recipe.methods, estimators, setting=recipe.name, metric=args.metric)
        print(table(cells), flush=True)
        if args.json:
            Path(args.json).write_text(json.dumps([asdict(cell) for cell in cells], indent=1))


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
