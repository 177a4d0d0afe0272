"""Runs `protodrift bench` in full and writes results/benchmarks.json, results/benchmarks.md and the curve of growth.

    make bench                                  about a quarter of an hour on two cores; nothing else should run
    python benchmarks/run.py --quick --out DIR  to see that it works

Avalanche is compared with where it is installed; `make bench` tries to.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from protodrift.common.machine import wait_briefly

if __name__ == "__main__":  # not in the processes of plain sides, which start from this file too
    wait_briefly()  # as the command line does, before torch is imported

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> int:
    from protodrift import bench
    from protodrift.cli.bench import measure, text
    from protodrift.common.tensorfiles import replace_file

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="which; none: all")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    chosen = list(bench.choose(args.cases))
    results, interrupted = measure(chosen, quick=args.quick, repeats=args.repeats, threads=args.threads)
    facts = bench.machine()
    print(text(results))
    settings = {"cases": chosen, "quick": args.quick, "repeats": args.repeats, "finished": not interrupted}
    document = bench.as_json(results, facts, settings)
    args.out.mkdir(parents=True, exist_ok=True)
    replace_file(args.out / "benchmarks.json", (json.dumps(document, indent=1) + "\n").encode())
    curve = next((one.numbers["curve"] for one in results if "curve" in one.numbers), None)
    drawn = curve is not None and draw(curve, args.out / "benchmarks_growth.png")
    replace_file(args.out / "benchmarks.md", page(document, bench.as_markdown(results), curve, drawn).encode())
    return 130 if interrupted else 0


def page(document: dict[str, Any], table: str, curve: list[dict[str, Any]] | None, drawn: bool) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in document["machine"].items())
    size = "the quick sizes" if document["settings"]["quick"] else "the full sizes"
    lines = [
        "# Speed, side by side",
        "",
        f"Measured by `make bench` with {size}: {machine}.",
        "",
        "Both sides of a line ran in turn in one run; the ratio is the median over rounds, with its quartiles. `x`:",
        "how many times as fast ours is. What each side does stands at the top of its file in `src/protodrift/bench/`;",
        "that both compute the same is tested in `tests/bench`. Times, rates and the number of rounds are in",
        "`benchmarks.json`. What costs what: [docs/cost.md](../docs/cost.md).",
        "",
        table,
        "",
    ]
    rates = [one for one in document["results"] if "images_per_second" in one["numbers"] or "gflops" in one["numbers"]]
    if rates:
        lines += [
            "## Rates",
            "",
            "For the formulas of docs/cost.md, on this machine.",
            "",
            "| what | rate |",
            "|---|---|",
        ]
        said = set()
        for one in rates:
            images, gflops = one["numbers"].get("images_per_second"), one["numbers"].get("gflops")
            rate = f"{images:,.0f} images/s" if images else f"{gflops:.0f} Gflop/s"
            what = f"{one['case']}, {one['name']}" + (f", {one['what']}" if one["what"] != "protodrift" else "")
            if what not in said:
                lines.append(f"| {what} | {rate} |")
            said.add(what)
        lines.append("")
    if curve:
        lines += ["## One more task beside many classes", ""]
        if drawn:
            lines += ["![Seconds of one more task by the number of known classes](benchmarks_growth.png)", ""]
        lines += [
            "| known classes | s | of it SDC and read-out, s | memory, MiB | saving, s | model, MB |",
            "|---:|---:|---:|---:|---:|---:|",
        ]
        for point in curve:
            cells = [
                f"{point['classes']:,}",
                f"{point['seconds']:.2f}",
                f"{point['seconds_of_sdc_and_readout']:.2f}",
                f"{point['ram_bytes'] / 2**20:.0f}",
                f"{point['seconds_saving']:.2f}",
                f"{point['model_bytes'] / 1e6:.1f}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def draw(curve: list[dict[str, Any]], file: Path) -> bool:
    """Draw seconds by known classes with the charts of the report; a browser turns them into a picture."""
    from protodrift.report.page import style
    from protodrift.report.svg import line_chart

    seconds = [point["seconds"] for point in curve]
    terms = [point["seconds_of_sdc_and_readout"] for point in curve]
    chart = line_chart(
        {
            "one more task": seconds,
            "SDC, read-out": terms,
            "all else": [whole - part for whole, part in zip(seconds, terms, strict=True)],
        },
        [f"{point['classes']:,}" for point in curve],
        "seconds",
        x_label="known classes",
        unit=" s",
        decimals=2,
        include=(0.0,),
    )
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"no picture of the growth: none of {', '.join(BROWSERS)} is installed.", file=sys.stderr)
        return False
    with tempfile.TemporaryDirectory() as folder:
        html = Path(folder) / "page.html"
        html.write_text(
            f"<!doctype html><style>{style()} body, main {{ margin: 8px; padding: 0 }}</style><main>{chart}</main>"
        )
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += ["--force-device-scale-factor=2", "--window-size=760,480", f"--screenshot={Path(folder) / 'p.png'}"]
        done = subprocess.run([*command, html.as_uri()], capture_output=True, timeout=120, check=False)
        if done.returncode or not (Path(folder) / "p.png").exists():
            print("no picture of the growth: the browser could not draw it.", file=sys.stderr)
            return False
        shutil.copyfile(Path(folder) / "p.png", file)
    return True


if __name__ == "__main__":
    sys.exit(main())
