"""`protodrift bench`: how fast this is here, side by side with the alternatives."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .words import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..bench import Result

_EPILOG = """\
cases:
  training    a training step, against loops written by hand and Avalanche
  embedding   embedding images, against the plain eval loop
  sdc         drift compensation, against the machine's matrix product and the naive forms
  triplet     the triplet loss with its gradient, against pytorch-metric-learning
  pipeline    images from memory and from JPEG files, against Pillow one by one
  tree        nine rows of a recipe with shared stages, against one by one
  predict     answers, against the bare network
  growth      one more task beside 100 to 10,000 classes

examples:
  protodrift bench --quick                    all cases, small: two minutes or so
  protodrift bench sdc predict --threads 1    two cases on one thread
  protodrift bench --json benchmarks.json     all cases in full: a quarter of an hour on two cores
"""


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "bench",
        help="measure speed on this machine, side by side with the alternatives",
        description="Runs ours and an alternative in turn, several times, and prints the median of the ratios with "
        "its quartiles. Nothing else should run meanwhile.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="which; none: all")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, three rounds: to see that it works")
    parser.add_argument("--repeats", type=int, metavar="N", help="rounds of each comparison")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of PyTorch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, and print a table; after Ctrl-C, of what is finished."""
    from ..errors import InputError

    for option in ("repeats", "threads"):
        value = getattr(args, option)
        if value is not None and value < 1:
            raise InputError(f"--{option} must be 1 or more; got {value}.")
    from .. import bench

    chosen = bench.choose(args.cases)
    results, interrupted = measure(list(chosen), quick=args.quick, repeats=args.repeats, threads=args.threads)
    facts = bench.machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(text(results) if results else "nothing was finished.")
    if args.json is not None:
        settings = {"cases": list(chosen), "quick": args.quick, "repeats": args.repeats, "finished": not interrupted}
        document = bench.as_json(results, facts, settings)
        from ..common.tensorfiles import replace_file

        replace_file(args.json, (json.dumps(document, indent=1) + "\n").encode())
    return 130 if interrupted else 0


def measure(
    cases: Sequence[str], *, quick: bool = False, repeats: int | None = None, threads: int | None = None
) -> tuple[list[Result], bool]:
    """Run cases; return what they measured, and whether Ctrl-C ended them early."""
    from .. import bench
    from ..common import machine as settings

    print(settings.tune(threads), file=sys.stderr, flush=True)
    setup = bench.Setup(quick, repeats, lambda line: print(line, file=sys.stderr, flush=True))
    results: list[Result] = []
    try:
        for name in cases:
            for one in bench.CASES[name](setup):
                results.append(one)
                print("  " + "  ".join(cell for cell in bench.cells(one)[2:] if cell), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted; this is what is finished:", file=sys.stderr)
        return results, True
    return results, False


def text(results: Sequence[Result]) -> str:
    """Return an aligned table; notes below it, by number."""
    from ..bench import HEAD, cells

    notes = list(dict.fromkeys(one.note for one in results if one.note))
    rows = []
    for one in results:
        *row, last = cells(one)
        rows.append([*row, f"{last} [{notes.index(one.note) + 1}]".strip() if one.note else last])
    lines = [table(rows, HEAD, right=[4])]
    lines += [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    missed = sum(one.met is False for one in results)
    return "\n".join([*lines, f"{missed} of {sum(one.met is not None for one in results)} aims are missed."])
