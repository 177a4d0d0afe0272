"""`protodrift demo`: the main job, on data that comes with the install."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import Commands, add_command, whole_number

if TYPE_CHECKING:
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
    from ..report import drift_panels, results_text, summaries

    started = time.perf_counter()
    machine.tune()
    args.out.mkdir(parents=True, exist_ok=True)  # before the work, so that a wrong path fails at once
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
        figures = {name: drift_panels(take(flat, name, pictures.methods[name])) for name in ("E-FT+SDC", "E-EWC+SDC")}
    trainings = tree.trainings(recipe.methods)
    command = f"protodrift demo --seed {args.seed}"
    document = results_document(recipe, stream.task_classes, stream.split, results.values(), trainings, command)
    table = summaries([document])
    print(f"\n{results_text(table)}\n")
    print(
        f"{len(results)} methods x {len(stream)} tasks took {trainings} trainings of a task: methods that begin alike\n"
        "share the beginning, and a drift estimator is a read-out, not a training."
    )
    replace_file(args.out / "results.json", (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
    seconds = time.perf_counter() - started
    _write_report(args, tree, table, figures, seconds)
    print(f"wrote {args.out / 'report.html'} and {args.out / 'results.json'} in {seconds:.0f} s")
    return 0


def _write_report(
    args: argparse.Namespace, tree: Tree, table: dict[str, Summary], figures: dict[str, str], seconds: float
) -> None:
    import torch

    from .. import __version__
    from ..report import Section, accuracy_curves, distance_curves, render, results_table, write

    sections = [
        Section("All methods", results_table(table), _TABLE_NOTE),
        Section("Average accuracy after each task, A_k", accuracy_curves(table)),
        Section("Distance of old prototypes to the true class means", distance_curves(table), _DISTANCE_NOTE),
    ]
    for name, figure in figures.items():
        sections.append(Section(f"Drift in two dimensions: {name}", figure, _PICTURE_NOTE))
    facts = {
        "command": f"protodrift demo --seed {args.seed}",
        "data": f"{tree.stream}",
        "class order": ", ".join(str(label) for label in tree.stream.classes),
        "seed": str(args.seed),
        "trainings": f"{tree.computed['train']} of one task each, in {seconds:.0f} s altogether",
        "versions": f"protodrift {__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads",
    }
    write(args.out / "report.html", render("Learning ten digits, two at a time", _INTRO, sections, facts))


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

_DISTANCE_NOTE = "The length of the drift that is left. The oracle, E-Fix, E-Pre and E-Joint have none by construction."

_PICTURE_NOTE = """\
The paper's Fig. 4, drawn from a separate run with a 2-D embedding. Circles: prototypes as they were saved. \
Triangles: moved by SDC, along the dotted arrows. Stars: where the classes really are now. The settings of this \
picture were chosen to be readable."""
