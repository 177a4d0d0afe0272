"""`protodrift run`: run a recipe, or go on where it stopped."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .arguments import Commands, add_command, add_imports, add_label_by, add_ram, whole_number

if TYPE_CHECKING:
    from ..experiments.engines import Engine
    from ..experiments.recipe import Recipe

_EPILOG = """\
examples:
  protodrift run digits                                       every method on digits, into runs/digits
  protodrift run digits --methods E-FT,E-FT+SDC --seeds 0,1,2
  protodrift run digits --set sigma=0.2 --set training.epochs=4 --out runs/sigma0.2
  protodrift run digits --methods E-FT+SDC --sweep drift.sigma=0.1,0.2,0.3      one training, three read-outs
  protodrift run digits --methods E-FT --sweep 'drift=null,SDC,LocalLinear'      parts by name; yours: --import
  protodrift show digits --toml > mine.toml; protodrift run mine.toml
  protodrift run folder --data photos --tasks 6               any folder of class folders
  protodrift run digits --jobs 2                              stages in two processes
  torchrun --nproc_per_node=2 -m protodrift run digits        each training over two processes
  protodrift run digits --engine ray --address 10.0.0.1:6379 --out /nfs/runs/digits

Runs into one directory add up: results.json holds every method and seed that was run there.
A run that was interrupted, by Ctrl-C, a crash or a power cut, goes on where it stopped: type the same command again.
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "run",
        run,
        help="run a recipe, or go on where it stopped",
        description="Runs a recipe as a tree of stages. What is on disk is not computed again.",
        epilog=_EPILOG,
        on_ranks=True,
    )
    parser.add_argument(
        "recipe", metavar="NAME", help="a name from `protodrift recipes`, or a .toml or .json file as `show` prints it"
    )
    parser.add_argument("--data", metavar="DIR", help="the data folder, for recipes that need one")
    add_label_by(parser)
    parser.add_argument("--methods", metavar="A,B", help="some of the recipe's methods (default: all)")
    parser.add_argument("--seeds", type=seeds, default=(0,), metavar="0,1,2", help="training seeds (default: 0)")
    parser.add_argument("--skip-bad-images", action="store_true", help="leave out images that cannot be decoded")
    parser.add_argument(
        "--threads", type=whole_number(1), metavar="N", help="threads of each computation (default: torch's choice)"
    )
    parser.add_argument(
        "--jobs",
        type=whole_number(1),
        metavar="N",
        help="processes that compute stages at the same time, one thread each unless --threads says more (default: 1; "
        "with --engine ray as many as fit)",
    )
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="who computes stages: this machine (default), or Ray (pip install 'protodrift[ray]')",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="with --engine ray: a cluster that is there, or 'auto' (default: one on this machine, for this run)",
    )
    parser.add_argument(
        "--gpus-per-stage", type=float, default=0.0, metavar="G", help="with --engine ray: compute on so many GPUs"
    )
    add_ram(parser, "images of a folder")
    add_budget(parser)
    parser.add_argument("--tasks", type=int, metavar="N", help="cut the classes into N tasks; short for --set tasks=N")
    add_settings(parser)
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="a row for each value of something that methods are made of, e.g. drift.sigma=0.1,0.2 or drift=SDC,Ridge",
    )
    parser.add_argument(
        "--device", default="auto", help="auto (CUDA if there is one; the default), cpu, cuda, cuda:1, ..."
    )
    add_imports(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: runs/NAME)")


def add_budget(parser: argparse.ArgumentParser) -> None:
    """Add `--budget`."""
    parser.add_argument(
        "--budget",
        metavar="B",
        help="for recipes of the paper: 'paper' (its epochs) or 'cpu' (what two cores finish; the default); some have "
        "'drift' (small trainings, to compare drift estimators) or 'frontier' (the best that two cores reach)",
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add `--set key=value`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="change one value, e.g. sigma=0.2, EWC.gamma=1e6, training.epochs=5, or a part of every method, e.g. "
        "drift=LocalLinear, 'penalty=EWC(1e5)'; can be repeated",
    )


def settings_of(args: argparse.Namespace) -> dict[str, str]:
    """Return the `--set` options as a mapping."""
    return settings_in(args.settings)


def settings_in(texts: Iterable[str]) -> dict[str, str]:
    """Return texts of the form KEY=VALUE as a mapping."""
    from ..errors import InputError

    result = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise InputError(f"{text!r} is not of the form KEY=VALUE, for example --set sigma=0.2.")
        result[key] = value
    return result


def chosen_recipe(args: argparse.Namespace, sweeps: Iterable[str] = (), **more: str) -> Recipe:
    """Return the recipe that `recipe`, `--budget`, `--methods` and `--set` name, with `sweeps` and `more` settings."""
    from ..experiment import recipe_of
    from ..experiments.settings import swept, with_settings

    recipe = recipe_of(args.recipe, args.budget, args.data, getattr(args, "label_by", None))
    all_methods = recipe.methods
    if args.methods:
        recipe = recipe.only([name.strip() for name in args.methods.split(",")])
    # After the choice: a name must be clear among the methods that run.
    recipe = with_settings(recipe, {**settings_of(args), **more}, all_methods)
    return swept(recipe, settings_in(sweeps), all_methods)


def seeds(text: str) -> tuple[int, ...]:
    """Return training seeds; an argparse type.

    >>> seeds("0,2,2")
    (0, 2)
    """
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"seeds are whole numbers with commas between, as in 0,1,2; got {text!r}"
        ) from None
    if min(found) < 0:
        raise argparse.ArgumentTypeError(f"a seed is 0 or more; got {text!r}")
    return found


def run(args: argparse.Namespace) -> int:
    """Run it, and print the table."""
    from ..common import machine
    from ..common.progress import reporting
    from ..distributed import current
    from ..errors import InputError
    from ..experiment import Experiment
    from ..report import summary_text

    if args.engine == "local" and (args.address is not None or args.gpus_per_stage):
        raise InputError("--address and --gpus-per-stage are for --engine ray.")
    several = (args.jobs or 1) > 1 or args.engine == "ray"
    tuned = machine.tune(args.threads or (1 if several else None))
    if args.ram is not None:
        os.environ["PROTODRIFT_RAM"] = str(args.ram)  # processes that compute stages read the data too
    recipe = chosen_recipe(args, args.sweep, **({} if args.tasks is None else {"tasks": str(args.tasks)}))
    experiment = Experiment.of_recipe(
        recipe, args.data, seeds=args.seeds, skip_bad_images=args.skip_bad_images, label_by=args.label_by
    )
    out = experiment.where(args.out)
    command = "protodrift " + shlex.join(sys.argv[1:])
    with reporting(current().is_first) as reporter:
        document = experiment.compute(
            out, jobs=args.jobs or 1, engine=_engine(args), device=args.device, reporter=reporter, command=command
        )
    if not document:
        return 0  # a rank that does not write
    print(summary_text(document))
    rows, seeds = ({entry[name] for entry in document["results"]} for name in ("method", "seed"))  # earlier ones too
    print(
        f"\n{len(rows)} methods x {len(document['tasks'])} tasks x {len(seeds)} seeds rest on "
        f"{document['trainings']} trainings of a task.\ncomputed with {tuned}\nwrote {out / 'results.json'}"
    )
    return 0


def _engine(args: argparse.Namespace) -> Engine | Literal["local"]:
    """Return the engine that was asked for; "local": the processes of this machine."""
    if args.engine == "local":
        return "local"
    from ..experiments.engines import RayEngine

    return RayEngine(args.address, args.jobs, args.gpus_per_stage)
