"""`protodrift demo`: the main job, on data that comes with the install."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..stages import MethodResult, Tree

_EPILOG = """\
examples:
  protodrift demo                        digits in five tasks; writes protodrift-demo/report.html
  protodrift demo --seed 3 --out /tmp/d  another seed, another folder
"""


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "demo",
        help="learn digits in five tasks with every method of the paper, and write a report",
        description="Learns scikit-learn's digits in five tasks of two classes: every E-method of the paper with and "
        "without drift compensation, beside the oracle and joint training. Takes about a minute.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, default=Path("protodrift-demo"), help="folder for report.html, results.json"
    )
    parser.add_argument("--seed", type=_seed, default=0, help="seed of weights, batches and mining (default 0)")
    parser.set_defaults(run=run)


def _seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"a seed is 0 or more, got {value}")
    return value


def run(args: argparse.Namespace) -> int:
    """Train, print the table, write the report."""
    from ..recipes import digits
    from ..report import results_text
    from ..saving import replace_file

    started = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)  # before the work, so that a wrong path fails at once
    tree = digits.tree(args.seed, verbose=True)
    methods = digits.methods()
    print(f"{tree.stream}, seed {args.seed}")
    results = tree.run(methods)
    tasks = len(tree.stream)
    print()
    print(results_text(results))
    print()
    print(
        f"{len(methods)} methods x {tasks} tasks took {tree.computed['train']} trainings: methods that begin alike share "
        "the beginning,\nand a drift estimator is a read-out, not a training."
    )
    replace_file(args.out / "results.json", _json(tree, results).encode())
    _write_report(args, tree, results, time.perf_counter() - started)
    print(f"wrote {args.out / 'report.html'} and results.json in {time.perf_counter() - started:.0f} s")
    return 0


def _json(tree: Tree, results: dict[str, MethodResult]) -> str:
    document = {
        "dataset": tree.stream.dataset.name,
        "split": tree.stream.split,
        "tasks": [list(classes) for classes in tree.stream.task_classes],
        "seed": tree.seed,
        "trainings": tree.computed["train"],
        "results": [result.to_json() for result in results.values()],
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
