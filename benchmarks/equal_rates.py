"""Gives every row of a recipe the same search of its learning rate: one grid, one budget, chosen on validation images.

    python -m benchmarks.equal_rates cifar100-eleven --data DIR --out RUN --log results/cifar100_rates.json \\
        --methods E-Fix,E-FT,E-FT+SDC,FT,FT* --grid 1e-5 1e-3 --set training.epochs=2 ...

A rate is that of tasks 2 to T. Rates are half a decade apart: 1e-5, 3e-5, 1e-4 and so on. A row whose best rate is the
lowest or the highest that it tried goes on beyond it, at most `--beyond` steps; if the best is still at the edge, the
table says so. The best has the highest A_T on validation images, a share of the training images that no training saw.
The same trainings at the rates that were chosen are then read out on the test images. All rows must have the same
epochs and batches, whatever they are trained for. Stages are kept, so a search that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from protodrift.cli.run import settings_in
from protodrift.common.files import replace_file
from protodrift.common.progress import reporting
from protodrift.common.tables import markdown_table, markdown_text
from protodrift.errors import InputError
from protodrift.experiments import run as runs
from protodrift.experiments.recipe import Recipe
from protodrift.experiments.recipes import get_recipe, with_settings
from protodrift.experiments.store import Store

from .choose_constants import measured

_TRAININGS = ("training", "classifier_training", "exemplar_training")
_BUDGET = ("epochs", "later_epochs", "batch_size", "rate_schedule")

Entry = dict[str, Any]
"""What `choose_constants.measured` tells of one row."""


def place_of(rate: float) -> int:
    """Return the place of a rate on the grid.

    >>> place_of(1e-5), place_of(3e-5), place_of(1e-4)
    (-10, -9, -8)
    """
    digit, _, exponent = f"{rate:.0e}".partition("e")
    if digit not in ("1", "3") or float(f"{digit}e{exponent}") != rate:
        raise InputError(f"a rate of the grid is 1 or 3 times a power of ten, such as 3e-5; got {rate}.")
    return 2 * int(exponent) + (digit == "3")


def rate_at(place: int) -> float:
    """Return the rate at a place of the grid."""
    return float(f"{3 if place % 2 else 1}e{place // 2}")


def best_of(scores: Mapping[int, float]) -> int:
    """Return the place of the highest score; of equal ones the lowest rate, which moves the network least."""
    return min(scores, key=lambda place: (-scores[place], place))


def next_place(scores: Mapping[int, float], low: int, high: int) -> int | None:
    """Return the place beyond the edge that is best, if it is within low..high; None: there is nothing more to try."""
    best = best_of(scores)
    beyond = best - 1 if best == min(scores) else best + 1 if best == max(scores) else None
    return beyond if beyond is not None and low <= beyond <= high else None


def check_budget(recipe: Recipe) -> None:
    """Refuse a recipe whose kinds of rows are not trained equally long."""
    for name in _TRAININGS[1:]:
        other = getattr(recipe, name)
        for field in _BUDGET if other is not None else ():
            mine, theirs = getattr(recipe.training, field), getattr(other, field)
            if mine != theirs:
                raise InputError(
                    f"rows of one table need one budget: training.{field} is {mine}, {name}.{field} is {theirs}. "
                    f"Make them equal, as by --set {name}.{field}={mine}."
                )


def at_rate(recipe: Recipe, rate: float) -> Recipe:
    """Return the recipe with this rate in tasks 2 to T of all its trainings."""
    trainings = {name: getattr(recipe, name) for name in _TRAININGS}
    return replace(
        recipe, **{n: replace(one, later_learning_rate=rate) for n, one in trainings.items() if one is not None}
    )


def table(document: Mapping[str, Any]) -> str:
    """Return the rows on test images, each at the rate that was chosen for it."""
    lines = []
    for name, row in document["rows"].items():
        test = row["test"]
        rate = "–" if row["rate"] is None else f"{row['rate']:.0e}".replace("e-0", "e-") + ", edge" * row["edge"]
        numbers = [f"{test[key]:.1f}" for key in ("task_mean", "just_learned", "all_classes", "first_task")]
        lines.append([markdown_text(name), rate, *numbers])
    tasks = document["tasks"]
    head = ["method", "rate", markdown_text(f"A_{tasks}"), f"tasks 2-{tasks} just learned", "all classes", "first task"]
    return markdown_table(lines, head, range(2, len(head)))


def crossed(document: Mapping[str, Any]) -> str:
    """Return A_T on validation images of every row at every rate that it tried: what equal rates say."""
    rows = {n: {e["rate"]: e for e in row["tried"]} for n, row in document["rows"].items() if row["rate"] is not None}
    rates = sorted({rate for tried in rows.values() for rate in tried})

    def cell(entry: Entry | None) -> str:
        return "" if entry is None else f"{entry['task_mean']:.1f} / {entry['just_learned']:.1f}"

    lines = [[markdown_text(name), *(cell(tried.get(rate)) for rate in rates)] for name, tried in rows.items()]
    head = ["method", *(f"{rate:.0e}".replace("e-0", "e-") for rate in rates)]
    return markdown_table(lines, head, range(1, len(head)))


class Search:
    """The rows of a recipe at rates of the grid, on validation and on test images."""

    def __init__(self, recipe: Recipe, data: str | None, out: str, share: float, tasks: int | None, seed: int) -> None:
        check_budget(recipe)
        self.recipe, self.out, self.tasks, self.seed = recipe, out, tasks, seed
        self.parts = {"validation": replace(recipe, validation=share), "test": replace(recipe, held_out=share)}
        self.streams = {}
        for part, own in self.parts.items():
            stream = own.stream(runs.load_data(own, data))
            self.streams[part] = stream[:tasks] if tasks else stream

    def measure(self, part: str, names: Sequence[str], place: int) -> dict[str, Entry]:
        """Return what rows reach at one rate."""
        recipe = at_rate(self.parts[part].only(list(names)), rate_at(place))
        with reporting() as reporter:
            tree = recipe.tree(self.streams[part], seed=self.seed, store=Store(self.out), reporter=reporter)
            return {name: measured(result) for name, result in tree.run(recipe.methods).items()}

    def trains(self, name: str) -> bool:
        """Return whether a row trains its network after the first task, so that it has a rate."""
        return self.recipe.methods[name].schedule.train == "all"

    def run(self, low: int, high: int, beyond: int) -> dict[str, Any]:
        """Search, read out on test images, and return the document."""
        tried: dict[str, dict[int, Entry]] = {name: {} for name in self.recipe.methods}
        wanted = {place: list(tried) for place in range(low, high + 1)}
        while wanted:
            for place, names in wanted.items():
                for name, entry in self.measure("validation", names, place).items():
                    tried[name][place] = entry
            wanted = {}
            for name, entries in tried.items():
                scores = {place: entry["task_mean"] for place, entry in entries.items()}
                place = next_place(scores, low - beyond, high + beyond)
                if place is not None and self.trains(name):
                    wanted.setdefault(place, []).append(name)
        rows: dict[str, Any] = {}
        for name, entries in tried.items():
            scores = {place: entry["task_mean"] for place, entry in entries.items()}
            best, trains = best_of(scores), self.trains(name)
            rows[name] = {
                "rate": rate_at(best) if trains else None,
                "edge": trains and best in (min(scores), max(scores)),
                "tried": [{"rate": rate_at(place), **entries[place]} for place in sorted(entries)],
                "test": self.measure("test", [name], best)[name],
            }
        stream = self.streams["test"]
        return {"recipe": self.recipe.resolved(), "tasks": len(stream), "seed": self.seed, "rows": rows}


def main(argv: Sequence[str] | None = None) -> None:
    """Search, write the log, print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--data")
    parser.add_argument("--budget")
    parser.add_argument("--out", required=True, help="where stages are kept")
    parser.add_argument("--log", required=True, type=Path, help="JSON file to write")
    parser.add_argument("--methods", required=True)
    parser.add_argument("--tasks", type=int, help="only the first N tasks of the stream")
    parser.add_argument("--validation", type=float, default=0.2, help="share of the training images (0.2)")
    parser.add_argument("--grid", type=float, nargs=2, required=True, metavar=("LOW", "HIGH"))
    parser.add_argument("--beyond", type=int, default=2, help="steps beyond an edge of the grid that is best (2)")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="as for `protodrift run`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    recipe = get_recipe(args.recipe, args.budget).only(args.methods.split(","))
    recipe = with_settings(recipe, settings_in(args.settings))
    low, high = map(place_of, args.grid)
    search = Search(recipe, args.data, args.out, args.validation, args.tasks, args.seed)
    document = {**search.run(low, high, args.beyond), "settings": args.settings, "validation": args.validation}
    replace_file(args.log, (json.dumps(document, indent=1) + "\n").encode())
    print(table(document) + "\n" + crossed(document))


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
