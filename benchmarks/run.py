"""Measures speed side by side with the alternatives; writes benchmarks.json, benchmarks.md and the curve of growth.

    make bench                                     all cases in full: a quarter of an hour on two cores
    make bench ARGS="--quick --out DIR"            all cases, small: two minutes or so
    make bench ARGS="sdc predict --threads 1"      two cases on one thread
    python -m benchmarks.run --help                the same without make

cases:
  training    a training step, against loops written by hand and Avalanche
  embedding   embedding images, against the plain eval loop
  sdc         drift compensation, against the machine's matrix product and the naive forms
  triplet     the triplet loss with its gradient, against pytorch-metric-learning
  pipeline    images from memory and from JPEG files, against Pillow one by one
  tree        nine rows of a recipe with shared stages, against one by one
  predict     answers, against the bare network
  growth      one more task beside 100 to 10,000 classes

Ours and an alternative run in turn, several times; the table gives the median of the ratios with its quartiles. Nothing
else should run meanwhile. Avalanche is compared with where it is installed; `make bench` tries to install it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protodrift.common.machine import wait_briefly

if TYPE_CHECKING:
    from .speed.harness import Result

if __name__ == "__main__":  # not in the processes of plain sides, which start from this file too
    wait_briefly()  # as the command line does, before torch is imported


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and write the files; after Ctrl-C, of what is finished."""
    from protodrift.common.files import replace_file
    from protodrift.errors import InputError

    from . import speed
    from .speed.harness import machine
    from .speed.tables import as_json, as_markdown, as_text, page

    parser = argparse.ArgumentParser(
        prog="benchmarks.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="which cases; all if none is named")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="where to write (results)")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, three rounds: to see that it works")
    parser.add_argument("--repeats", type=_positive, metavar="N", help="rounds of each comparison")
    parser.add_argument("--threads", type=_positive, metavar="N", help="threads of PyTorch")
    args = parser.parse_args(argv)
    try:
        chosen = list(speed.choose(args.cases))
    except InputError as error:
        parser.error(str(error))
    results, interrupted = measure(chosen, quick=args.quick, repeats=args.repeats, threads=args.threads)
    settings = {"cases": chosen, "quick": args.quick, "repeats": args.repeats, "finished": not interrupted}
    document = as_json(results, machine(), settings)
    print(", ".join(f"{name} {value}" for name, value in document["machine"].items()))
    print(as_text(results) if results else "nothing was finished.")
    args.out.mkdir(parents=True, exist_ok=True)
    replace_file(args.out / "benchmarks.json", (json.dumps(document, indent=1) + "\n").encode())
    curve = next((one.numbers["curve"] for one in results if "curve" in one.numbers), None)
    picture = draw(curve, args.out / "benchmarks_growth.png") if curve else None
    replace_file(args.out / "benchmarks.md", page(document, as_markdown(results), curve, picture).encode())
    return 130 if interrupted else 0


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more; got {number}")
    return number


def measure(
    cases: Sequence[str], *, quick: bool = False, repeats: int | None = None, threads: int | None = None
) -> tuple[list[Result], bool]:
    """Run cases; return what they measured, and whether Ctrl-C ended them early."""
    from protodrift.common.machine import tune

    from . import speed
    from .speed.harness import Setup
    from .speed.tables import cells

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    say(tune(threads))
    results: list[Result] = []
    try:
        for name in cases:
            for one in speed.CASES[name](Setup(quick, repeats, say)):
                results.append(one)
                say("  " + "  ".join(cell for cell in cells(one)[2:] if cell))
    except KeyboardInterrupt:
        say("interrupted; this is what is finished:")
        return results, True
    return results, False


def draw(curve: list[dict[str, Any]], file: Path) -> str | None:
    """Draw seconds by known classes as a PNG; return its name, or None where altair is not installed."""
    try:
        import altair
    except ImportError:
        print("no picture of the growth: altair is not installed (the extra `report` has it).", file=sys.stderr)
        return None
    points = []
    for point in curve:
        whole, part = point["seconds"], point["seconds_of_sdc_and_readout"]
        for what, seconds in {"one more task": whole, "SDC, read-out": part, "all else": whole - part}.items():
            points.append({"known classes": point["classes"], "seconds": seconds, "what": what})
    lines = altair.Chart(altair.Data(values=points)).mark_line(point=True)
    lines.encode(
        x=altair.X("known classes:O").axis(format=",", labelAngle=0),
        y="seconds:Q",
        color=altair.Color("what:N", sort=None),
    ).properties(width=640, height=360).save(file, scale_factor=2)
    return file.name


if __name__ == "__main__":
    sys.exit(main())
