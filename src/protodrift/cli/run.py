"""`protodrift run`: run a recipe, or go on where it stopped."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

_EPILOG = """\
examples:
  protodrift run digits                                       every method on digits, into runs/digits
  protodrift run digits --methods E-FT,E-FT+SDC --seeds 0,1,2
  protodrift run digits --set sigma=0.2 --set training.epochs=4 --out runs/sigma0.2
  protodrift run folder --data photos --tasks 6               any folder of class folders

results.json holds what the last command named; stages of earlier commands are reused, so another method or seed is
cheap to add.
A run that was interrupted, by Ctrl-C, a crash or a power cut, goes on where it stopped: type the same command again.
"""


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "run",
        help="run a recipe, or go on where it stopped",
        description="Runs a recipe as a tree of stages. What is on disk is not computed again.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", metavar="NAME", help="a name from `protodrift recipes`")
    parser.add_argument("--data", metavar="DIR", help="the data folder, for recipes that need one")
    parser.add_argument("--methods", metavar="A,B", help="some of the recipe's methods (default: all)")
    parser.add_argument("--seeds", type=_seeds, default=(0,), metavar="0,1,2", help="training seeds (default: 0)")
    parser.add_argument("--skip-bad-images", action="store_true", help="leave out images that cannot be decoded")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of each computation (default: torch's choice)"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="processes that compute stages at the same time, one thread each unless --threads says more (default: 1)",
    )
    add_budget(parser)
    parser.add_argument("--tasks", type=int, metavar="N", help="cut the classes into N tasks; short for --set tasks=N")
    add_settings(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: runs/NAME)")
    parser.set_defaults(run=run)


def add_budget(parser: argparse.ArgumentParser) -> None:
    """Add `--budget`."""
    parser.add_argument(
        "--budget",
        metavar="B",
        help="for recipes of the paper: 'paper' (its epochs) or 'cpu' (what two cores finish; the default)",
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add `--set key=value`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="change one value, e.g. sigma=0.2, EWC.gamma=1e6, training.epochs=5; can be repeated",
    )


def settings_of(args: argparse.Namespace) -> dict[str, str]:
    """Return the `--set` options as a mapping."""
    from ..errors import InputError

    result = {}
    for text in args.settings:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise InputError(f"--set {text!r} is not of the form KEY=VALUE, for example --set sigma=0.2.")
        result[key] = value
    return result


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"seeds are whole numbers with commas between, as in 0,1,2; got {text!r}"
        ) from None
    if min(seeds) < 0:
        raise argparse.ArgumentTypeError(f"a seed is 0 or more; got {text!r}")
    return seeds


def run(args: argparse.Namespace) -> int:
    """Run it, and print the table."""
    from .. import runs
    from ..errors import InputError
    from ..progress import reporting
    from ..recipes import get_recipe, with_settings
    from ..report import summary_text

    for option in ("jobs", "threads"):
        if getattr(args, option) is not None and getattr(args, option) < 1:
            raise InputError(f"--{option} must be 1 or more; got {getattr(args, option)}.")
    if args.threads is not None or args.jobs > 1:
        import torch

        torch.set_num_threads(args.threads or 1)
    settings = settings_of(args)
    if args.tasks is not None:
        settings["tasks"] = str(args.tasks)
    recipe = get_recipe(args.recipe, args.budget)
    if args.methods:
        recipe = recipe.only([name.strip() for name in args.methods.split(",")])
    recipe = with_settings(recipe, settings)  # after the choice: a name must be clear among the methods that run
    out = args.out or Path("runs") / recipe.name
    command = "protodrift " + shlex.join(sys.argv[1:])
    with reporting() as reporter:
        document = runs.run(
            recipe,
            out,
            seeds=args.seeds,
            data=args.data,
            skip_bad_images=args.skip_bad_images,
            jobs=args.jobs,
            reporter=reporter,
            command=command,
        )
    print(summary_text(document))
    print(
        f"\n{len(recipe.methods)} methods x {len(document['tasks'])} tasks x {len(args.seeds)} seeds rest on "
        f"{document['trainings']} trainings of a task.\nwrote {out / 'results.json'}"
    )
    return 0
