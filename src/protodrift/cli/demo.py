"""`protodrift demo`: the main job, on data that comes with the install."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import Commands, add_command, whole_number

if TYPE_CHECKING:
    from ..experiments.samples import Picture
    from ..experiments.tree import Tree
    from ..report import Summary

_ROWS = ["E-Pre", "E-Fix"]
_ROWS += [f"E-{name}{drift}" for name in ("FT", "LwF", "EWC", "MAS") for drift in ("", "+SDC", "+oracle")]
_ROWS += ["E-Joint"]

_EPILOG = """\
examples:
  protodrift demo                        digits in five tasks; writes protodrift-demo/report.html
  protodrift demo --seed 3 --out /tmp/d  another seed, another folder
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "demo",
        run,
        help="learn digits in five tasks with every method of the paper, and write a report",
        description="Learns scikit-learn's digits in five tasks of two classes: every E-method of the paper with and "
        "without drift compensation, beside the oracle and joint training. Takes ten seconds to a minute.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--out", type=Path, default=Path("protodrift-demo"), help="folder for report.html, results.json"
    )
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, help="seed of weights, batches and mining (default 0)"
    )


def run(args: argparse.Namespace) -> int:
    """Train, print the table, write the report."""
    from ..common import machine
    from ..common.files import replace_file
    from ..common.progress import reporting
    from ..data import load_digits
    from ..experiments.recipes import get_recipe
    from ..experiments.run import results_document
    from ..experiments.samples import take
    from ..experiments.tree import Tree
    from ..report import results_text, summaries

    started = time.perf_counter()
    machine.tune()
    args.out.mkdir(parents=True, exist_ok=True)  # before the work, so that a wrong path fails at once
    draws = _can_draw()
    recipe, pictures = get_recipe("digits").only(_ROWS), get_recipe("digits-2d")
    stream = recipe.stream(load_digits())
    print(f"{stream}, seed {args.seed}", flush=True)
    with reporting() as reporter:
        tree = Tree(stream, training=recipe.training, seed=args.seed, reporter=reporter)
        results = tree.run(recipe.methods)
        flat = Tree(
            pictures.stream(stream.dataset),
            network=pictures.network,
            training=pictures.training,
            seed=args.seed,
            reporter=reporter,
        )
        shown = ("E-FT+SDC", "E-EWC+SDC") if draws else ()
        taken = [take(flat, name, pictures.methods[name]) for name in shown]
    trainings = tree.trainings(recipe.methods)
    command = f"protodrift demo --seed {args.seed}"
    document = results_document(recipe, stream.task_classes, stream.split, results.values(), command)
    table = summaries([document])
    print(f"\n{results_text(table)}\n")
    print(
        f"{len(results)} methods x {len(stream)} tasks took {trainings} trainings of a task: methods that begin alike\n"
        "share the beginning, and a drift estimator is a read-out, not a training."
    )
    replace_file(args.out / "results.json", (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
    written = [args.out / "results.json"]
    if draws:
        written.insert(0, args.out / "report.html")
        _write_report(written[0], tree, table, taken, time.perf_counter() - started)
    print(f"wrote {' and '.join(map(str, written))} in {time.perf_counter() - started:.0f} s")
    return 0


def _can_draw() -> bool:
    """Return whether charts can be drawn; if not, say what to install."""
    from ..errors import InputError
    from ..report import require_charts

    try:
        require_charts()
    except InputError as error:
        print(f"protodrift: no page, only the table: {error}", file=sys.stderr)
        return False
    return True


def _write_report(out: Path, tree: Tree, table: dict[str, Summary], taken: list[Picture], seconds: float) -> None:
    import torch

    from .. import __version__
    from ..report import Section, finding, render, results_table, write
    from ..report.sections import accuracy_section, distance_section, flat_section

    sections = [
        Section("All methods", [results_table(table)], _TABLE_NOTE),
        accuracy_section(table),
        *distance_section(table),
        flat_section(taken, "A separate run, whose settings were chosen to be readable."),
    ]
    facts = {
        "command": f"protodrift demo --seed {tree.seed}",
        "data": f"{tree.stream}",
        "class order": ", ".join(str(label) for label in tree.stream.classes),
        "seed": str(tree.seed),
        "trainings": f"{tree.computed['train']} of one task each, in {seconds:.0f} s altogether",
        "versions": f"protodrift {__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads",
    }
    write(out, render("Learning ten digits, two at a time", _INTRO, sections, facts, [finding(table)]))


_INTRO = """\
An embedding network learns two digits, then two more, and never sees the first ones again. Every class is one \
prototype, its mean embedding; an image gets the class of the nearest prototype. When the network learns, it moves, \
and old prototypes no longer fit. Semantic drift compensation (SDC) measures how the current images moved and moves \
the old prototypes along.

Digits are a smoke test, not a headline: they are so easy that a random network (E-Pre) or one that stops learning \
after the first task (E-Fix) does well. Compare each method with its own +SDC row, and with the oracle, which looks \
at the old images to find the true class means: that gap is what drift costs. The settings were \
chosen so that there is drift to see; SDC does not gain in every setting."""

_TABLE_NOTE = """\
A_k is the mean accuracy over the k tasks learned so far; "overall" is the accuracy over all test images; F is \
the average forgetting. Oracle and E-Joint use old images and are bounds, not competitors."""
