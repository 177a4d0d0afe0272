"""Chooses constants of a recipe on validation images: a part of the training images, the test images are not looked at.

    python -m benchmarks.choose_constants cifar100-eleven --data DIR --out RUN --log results/search.json \\
        --methods E-FT,E-FT+SDC --try training.later_learning_rate=1e-6 --try training.later_learning_rate=1e-5

Every `--try` is one comma-separated set of settings, as for `protodrift run --set`. All of them share one store of
stages, so a warm-up or a first task that they agree on is trained once, and a search that was interrupted goes on.
Each result is added to the log: settings, method, accuracy over all seen classes, task mean, mean accuracy on tasks 2
to T, the same just after each was learned, and how far the old prototypes are from the true means.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from protodrift.cli.run import settings_in
from protodrift.common.progress import reporting
from protodrift.errors import InputError
from protodrift.experiments import run as runs
from protodrift.experiments.recipes import get_recipe, with_settings
from protodrift.experiments.results import MethodResult
from protodrift.experiments.store import Store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--data")
    parser.add_argument("--budget")
    parser.add_argument("--out", required=True, help="where stages are kept")
    parser.add_argument("--log", required=True, type=Path, help="JSON file that results are added to")
    parser.add_argument("--methods", required=True)
    parser.add_argument("--tasks", type=int, help="only the first N tasks of the stream")
    parser.add_argument("--validation", default="0.1")
    parser.add_argument("--set", action="append", default=[], dest="always", help="a setting of every try")
    parser.add_argument("--try", action="append", default=[], dest="tries", help="one set of settings: a=1,b=2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    log = json.loads(args.log.read_text()) if args.log.exists() else []
    always = {"validation": args.validation, **settings_in(args.always)}
    dataset = None
    for text in args.tries or [""]:
        settings = {**always, **settings_in(part for part in text.split(",") if part)}
        recipe = get_recipe(args.recipe, args.budget).only(args.methods.split(","))
        recipe = with_settings(recipe, settings)
        dataset = dataset or runs.load_data(recipe, args.data)
        stream = recipe.stream(dataset)[: args.tasks] if args.tasks else recipe.stream(dataset)
        with reporting() as reporter:
            tree = recipe.tree(stream, seed=args.seed, store=Store(args.out), reporter=reporter)
            results = tree.run(recipe.methods)
        for name, result in results.items():
            entry = {
                "recipe": recipe.name,
                "tasks": len(stream),
                "settings": settings,
                "method": name,
                "seed": args.seed,
                **measured(result),
            }
            log = [old for old in log if {**old, **_name(entry)} != old] + [entry]
            print(json.dumps(entry), flush=True)
        args.log.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in log) + "\n]\n")


def measured(result: MethodResult) -> dict[str, float | None]:
    """Return what a row reached after the last task, in percent, and on tasks 2 to T just after each was learned."""
    matrix, distance = result.accuracy_matrix, float(result.old_prototype_distance[-1])
    numbers = {
        "all_classes": result.overall_accuracy[-1],
        "task_mean": result.average_accuracy[-1],
        "later_tasks": np.nanmean(matrix[-1, 1:]),
        "first_task": matrix[-1, 0],
        "just_learned": np.diag(matrix)[1:].mean(),
    }
    percent: dict[str, float | None] = {name: round(100 * float(value), 2) for name, value in numbers.items()}
    return {**percent, "old_prototype_distance": round(distance, 4) if np.isfinite(distance) else None}


def _name(entry: dict[str, object]) -> dict[str, object]:
    return {key: entry[key] for key in ("recipe", "tasks", "settings", "method", "seed")}


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
