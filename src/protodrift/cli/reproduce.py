"""`protodrift reproduce`: a table or figure of the paper, claim by claim."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .arguments import Commands, add_command, whole_number
from .run import add_budget, seeds

_EPILOG = """\
examples:
  protodrift reproduce TABLE1 --data DIR                      runs its recipes, or reads what is in runs/ already
  protodrift reproduce FIG7 --data DIR --seeds 0,1,2 --out /big/runs
  protodrift reproduce TABLE1 --runs results/cub200_six.json  only reads runs, or their results.json
  protodrift reproduce all --runs runs/* --format md          every claim, as Markdown

What was not measured is called "not run"; a recipe whose data or weights are not there is passed over with a warning.
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "reproduce",
        run,
        help="judge the paper's claims of a table or figure: ours, the paper's, pass or fail",
        description="Runs what a table or figure of the paper needs, and compares every claim with the paper's number: "
        "sign and size, against a stated tolerance.",
        epilog=_EPILOG,
    )
    parser.add_argument("place", metavar="NAME", help="TABLE1 to TABLE5, FIG2, FIG4 to FIG11, or all")
    parser.add_argument(
        "--runs", type=Path, nargs="+", metavar="RUN", help="read these runs, one for each recipe, and run nothing"
    )
    parser.add_argument("--data", metavar="DIR", help="the data directory")
    parser.add_argument("--seeds", type=seeds, default=(0,), metavar="0,1,2", help="training seeds (default: 0)")
    parser.add_argument("--threads", type=whole_number(1), metavar="N", help="threads (default: torch's choice)")
    parser.add_argument("--jobs", type=whole_number(1), default=1, metavar="N", help="processes (default: 1)")
    add_budget(parser)
    parser.add_argument("--device", default="auto", help="auto (the default), cpu, cuda, ...")
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), metavar="DIR", help="where run directories are, or are made (runs)"
    )
    parser.add_argument("--format", choices=("text", "md"), default="text", help="of the table (default: text)")


def run(args: argparse.Namespace) -> int:
    """Run or read, and print the claims."""
    from ..experiments.run import read_results
    from ..report.claims import by_recipe, claims_markdown, claims_of, claims_text, judge_all, rows_needed

    claims = claims_of(args.place)
    if args.runs:
        documents: Mapping[str, Any] = by_recipe(read_results(path) for path in args.runs)
    else:
        documents = _measured(args, rows_needed(claims))
    judged = judge_all(claims, documents)
    print(claims_markdown(judged) if args.format == "md" else claims_text(judged))
    return 0


def _measured(args: argparse.Namespace, needed: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return the results of every recipe that can be run here; a warning says which cannot."""
    from ..common import machine
    from ..errors import InputError, RunError
    from ..experiments.recipes import get_recipe
    from ..experiments.run import read_results

    machine.tune(args.threads or (1 if args.jobs > 1 else None))
    found: dict[str, Any] = {}
    refused: list[InputError] = []
    for name, rows in needed.items():
        recipe, out = get_recipe(name, args.budget), args.out / name
        still = [row for row, method in recipe.methods.items() if method.schedule.train != "all"]
        wanted = [row for row in recipe.methods if row in {*rows, *still}]  # what stands still tells who has learned
        try:
            there = read_results(out)
            have = {(entry["method"], entry["seed"]) for entry in there["results"]}
            if {(row, seed) for row in wanted for seed in args.seeds} <= have:
                found[name] = there
                continue
        except RunError:
            pass  # nothing finished there yet: `_run` says what is wrong with a directory that cannot be used
        try:
            found[name] = _run(args, recipe.only(wanted), out)
        except InputError as error:
            refused.append(error)
            print(f"protodrift: warning: {name} is not run: {error}", file=sys.stderr)
    if not found and refused:
        raise InputError(f"nothing of {args.place} can be run here: see above.")
    return found


def _run(args: argparse.Namespace, recipe: Any, out: Path) -> dict[str, Any]:
    from ..common.progress import reporting
    from ..experiment import Experiment

    experiment = Experiment.of_recipe(recipe, args.data, seeds=args.seeds)
    command = "protodrift " + shlex.join(sys.argv[1:])
    with reporting(True) as reporter:
        return experiment.compute(
            out, jobs=args.jobs, engine="local", device=args.device, reporter=reporter, command=command
        )
