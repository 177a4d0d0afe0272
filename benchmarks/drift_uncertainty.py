"""How honest the estimators' uncertainties are, and what the gate saves and misses, against the oracle.

    python -m benchmarks.drift_uncertainty measure cub200-six --budget drift --data DIR --store RUN --json cub.json
    python -m benchmarks.drift_uncertainty draw cub.json cifar.json --out results/drift_uncertainty

`measure` follows every old prototype of trainings that are in RUN through the tasks (`benchmarks.compare.movements`).
`draw` pools several of these files: a figure of predicted against true error (SVG), a table of how often the truth was
within the prediction, and one of what gates saved (a movement that would have hurt, held back) and missed (one that
would have helped, held back).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from benchmarks.compare import ESTIMATORS, Movement, movements
from protodrift.cli.run import add_budget, add_settings, chosen_recipe
from protodrift.errors import InputError
from protodrift.experiments.run import load_data
from protodrift.experiments.store import Store

GATES = {"gated SDC 0.3": "SDC 0.3", "gated local linear": "local linear", "gated GP": "GP"}
"""Estimators with a gate, and the same without it."""


def measure(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    recipe = chosen_recipe(args)
    stream = recipe.stream(load_data(recipe, args.data))
    stream = stream[: args.tasks] if args.tasks else stream
    estimators = {name: ESTIMATORS[name] for name in args.estimators.split(",")}
    found = []
    for seed in map(int, args.seeds.split(",")):
        tree = recipe.tree(stream, seed=seed, store=Store(args.store))
        for name, method in recipe.methods.items():
            found += movements(tree, {name: method}, estimators, setting=recipe.name)
            print(f"{recipe.name} {name} seed {seed}: {len(found)} movements", flush=True)
            lines = (json.dumps({k: _short(v) for k, v in asdict(one).items()}) for one in found)
            args.json.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def _short(value: object) -> object:
    return round(value, 5) if isinstance(value, float) else value


def draw(args: argparse.Namespace) -> None:
    found = [Movement(**one) for file in args.files for one in json.loads(file.read_text())]
    names = list(dict.fromkeys(one.estimator for one in found))
    sure = {name: [m for m in found if m.estimator == name and not math.isnan(m.predicted)] for name in names}
    sure = {name: own for name, own in sure.items() if own}
    args.out.with_suffix(".svg").write_text(figure(sure))
    print(reliability(sure), saves(found), sep="\n\n")


def reliability(sure: dict[str, list[Movement]]) -> str:
    """Return a table: how predicted and true errors go together."""
    lines = [
        "| estimator | prototypes | true / predicted, median | within 1x | within 2x | rank correlation |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, own in sure.items():
        ratio = np.array([m.error / max(m.predicted, 1e-12) for m in own])
        lines.append(
            f"| {name} | {len(own)} | {np.median(ratio):.2f} | {100 * (ratio <= 1).mean():.0f} % | "
            f"{100 * (ratio <= 2).mean():.0f} % | {_rank_correlation(own):.2f} |"
        )
    return "\n".join(lines)


def _rank_correlation(own: Sequence[Movement]) -> float:
    ranks = [np.argsort(np.argsort([getattr(m, what) for m in own])) for what in ("predicted", "error")]
    return float(np.corrcoef(*ranks)[0, 1])


def saves(found: Sequence[Movement]) -> str:
    """Return a table: every prototype with the gate beside the same prototype without it.

    Both go their own way through the tasks, so the errors compared are those after all tasks up to here.
    """
    lines = [
        "| gate | setting | moving hurt | of these saved | moving helped | of these missed | error, ungated -> gated |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for gated, plain in GATES.items():
        index = {_key(m): m for m in found if m.estimator == plain}
        pairs = [(m, index[_key(m)]) for m in found if m.estimator == gated and _key(m) in index]
        for setting in dict.fromkeys(m.setting for m, _ in pairs):
            own = [(g, p) for g, p in pairs if g.setting == setting]
            hurt = [(g, p) for g, p in own if p.error > p.error_none]
            helped = [(g, p) for g, p in own if p.error <= p.error_none]
            saved = sum(g.error < p.error for g, p in hurt)
            missed = sum(g.error > 1.1 * p.error for g, p in helped)
            means = [float(np.mean([m.error for m in side])) for side in zip(*own, strict=True)]
            lines.append(
                f"| {gated} | {setting} | {len(hurt)} | {saved} | {len(helped)} | {missed} | "
                f"{means[1]:.3f} -> {means[0]:.3f} |"
            )
    return "\n".join(lines)


def _key(m: Movement) -> tuple[object, ...]:
    return m.setting, m.method, m.seed, m.task, m.label


def figure(sure: dict[str, list[Movement]]) -> str:
    """Return an SVG: one panel an estimator, both axes logarithmic, dots a prototype, a step line the binned median."""
    values = [v for own in sure.values() for m in own for v in (m.predicted, m.error) if v > 0]
    low, high = math.log10(np.quantile(values, 0.002)), math.log10(max(values) * 1.05)
    side, gap, left, top = 250, 60, 60, 40
    colors = dict(zip(dict.fromkeys(m.setting for o in sure.values() for m in o), _COLORS, strict=False))
    width, height = left + len(sure) * (side + gap), top + side + 90
    parts = [f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for i, (name, own) in enumerate(sure.items()):
        x0 = left + i * (side + gap)
        parts.append(_panel(name, own, x0, top, side, low, high, colors))
    for i, (setting, color) in enumerate(colors.items()):
        x = left + 190 * i
        parts.append(f'<circle cx="{x}" cy="{height - 14}" r="4" fill="{color}"/>')
        parts.append(_text(x + 9, height - 10, setting, "start"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'{head} font-family="sans-serif" font-size="12">{"".join(parts)}</svg>\n'


_COLORS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1")


def _panel(
    name: str,
    own: Sequence[Movement],
    x0: float,
    y0: float,
    side: float,
    low: float,
    high: float,
    colors: dict[str, str],
) -> str:
    def at(value: float) -> float:
        return side * (math.log10(max(value, 10**low)) - low) / (high - low)

    parts = [
        f'<rect x="{x0}" y="{y0}" width="{side}" height="{side}" fill="none" stroke="#888"/>',
        f'<line x1="{x0}" y1="{y0 + side}" x2="{x0 + side}" y2="{y0}" stroke="#888" stroke-dasharray="4 3"/>',
        _text(x0 + side / 2, y0 - 10, name, "middle", "bold"),
        _text(x0 + side / 2, y0 + side + 34, "predicted error", "middle"),
    ]
    if x0 < 100:
        parts.append(
            f'<g transform="translate({x0 - 42} {y0 + side / 2}) rotate(-90)">{_text(0, 0, "true error", "middle")}</g>'
        )
    for tick in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0):
        if low <= math.log10(tick) <= high:
            parts.append(_text(x0 + at(tick), y0 + side + 16, f"{tick:g}", "middle"))
            parts.append(_text(x0 - 5, y0 + side - at(tick) + 4, f"{tick:g}", "end"))
    shown = [own[i] for i in np.random.default_rng(0).permutation(len(own))[:1500]]
    for m in shown:
        parts.append(
            f'<circle cx="{x0 + at(m.predicted):.1f}" cy="{y0 + side - at(m.error):.1f}" r="1.6" '
            f'fill="{colors[m.setting]}" fill-opacity="0.35"/>'
        )
    points = [f"{x0 + at(x):.1f},{y0 + side - at(y):.1f}" for x, y in _medians(own)]
    parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="#111" stroke-width="2"/>')
    return "".join(parts)


def _medians(own: Sequence[Movement], bins: int = 12) -> Iterable[tuple[float, float]]:
    """Yield median predicted and median true error of equally large bins of the predicted error."""
    ordered = sorted(own, key=lambda m: m.predicted)
    for part in np.array_split(np.arange(len(ordered)), min(bins, len(ordered))):
        chosen = [ordered[i] for i in part]
        yield float(np.median([m.predicted for m in chosen])), float(np.median([m.error for m in chosen]))


def _text(x: float, y: float, text: str, anchor: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="#222">{text}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("measure")
    one.add_argument("recipe")
    one.add_argument("--data")
    add_budget(one)
    add_settings(one)
    one.add_argument("--tasks", type=int)
    one.add_argument("--seeds", default="0")
    one.add_argument("--methods", default="E-FT,E-LwF,E-EWC,E-MAS")
    one.add_argument("--estimators", default=",".join((*GATES, *GATES.values())))
    one.add_argument("--threads", type=int, default=1)
    one.add_argument("--store", required=True)
    one.add_argument("--json", required=True, type=Path)
    one.set_defaults(run=measure)
    other = commands.add_parser("draw")
    other.add_argument("files", nargs="+", type=Path)
    other.add_argument("--out", required=True, type=Path)
    other.set_defaults(run=draw)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
