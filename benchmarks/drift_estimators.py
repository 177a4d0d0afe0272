"""Every drift estimator on the same trainings: gap closed and prototype error.

python benchmarks/drift_estimators.py digits --seeds 0,1,2
python benchmarks/drift_estimators.py cifar100-eleven --data DATA --store RUN   # reads out the trainings in RUN
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from protodrift.compare import ESTIMATORS, compare, table
from protodrift.recipes import get_recipe
from protodrift.runs import load_data
from protodrift.store import Store

METHODS = ["E-FT", "E-LwF", "E-EWC", "E-MAS"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--data", help="where the data is, as for protodrift run")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--estimators", default="", help="names from compare.ESTIMATORS, all if empty")
    parser.add_argument("--metric", default="mean", choices=["A", "overall", "mean"])
    parser.add_argument("--store", help="a run directory whose trainings are used, and where new ones go")
    parser.add_argument("--json", help="write all cells here")
    args = parser.parse_args()
    recipe = get_recipe(args.recipe)
    chosen = [name for name in args.estimators.split(",") if name] or list(ESTIMATORS)
    methods = {name: recipe.methods[name] for name in args.methods.split(",")}
    stream = recipe.stream(load_data(recipe, args.data))
    store = None if args.store is None else Store(args.store)
    cells = []
    for seed in map(int, args.seeds.split(",")):
        tree = recipe.tree(stream, seed=seed, store=store)
        estimators = {name: ESTIMATORS[name] for name in chosen}
        cells += compare(tree, methods, estimators, setting=recipe.name, metric=args.metric)
        print(table(cells), flush=True)
        if args.json:
            Path(args.json).write_text(json.dumps([asdict(cell) for cell in cells], indent=1))


if __name__ == "__main__":
    main()
