"""Results as a table in the terminal, as a Markdown page, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from protodrift.common.tables import text_table

from .harness import Result

HEAD = ("case", "what", "ours", "against", "ratio", "quartiles", "aim", "met")


def cells(one: Result) -> list[str]:
    """Return one line of the table, one cell per word of `HEAD`."""
    if one.ratio is None:
        return [one.case, one.name, one.what, one.against, "-", "", one.aim, "not run"]
    spread = "" if one.low is None or one.rounds < 2 else f"{_number(one.low)}-{_number(one.high or 0)}"
    unit = "x" if one.unit == "x" else f" {one.unit}"
    met = "" if one.met is None else "yes" if one.met else "no"
    return [one.case, one.name, one.what, one.against, _number(one.ratio) + unit, spread, one.aim, met]


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _with_notes(results: Sequence[Result]) -> tuple[list[list[str]], list[str]]:
    """Return the cells of all results, the last one with the number of its note, and the notes."""
    notes = list(dict.fromkeys(one.note for one in results if one.note))
    rows = [cells(one) for one in results]
    for row, one in zip(rows, results, strict=True):
        if one.note:
            row[-1] = f"{row[-1]} [{notes.index(one.note) + 1}]".strip()
    return rows, notes


def as_text(results: Sequence[Result]) -> str:
    """Return an aligned table; notes below it, by number."""
    rows, notes = _with_notes(results)
    lines = [text_table(rows, HEAD, right=[4]), *(f"[{number}] {note}" for number, note in enumerate(notes, 1))]
    missed = sum(one.met is False for one in results)
    return "\n".join([*lines, f"{missed} of {sum(one.met is not None for one in results)} aims are missed."])


def as_markdown(results: Sequence[Result]) -> str:
    """Return a Markdown table; notes below it, by number."""
    rows, notes = _with_notes(results)
    for row, one in zip(rows, results, strict=True):
        if one.met is False:
            row[-1] = row[-1].replace("no", "**no**", 1)
    lines = [_row(HEAD), "|---|---|---|---|---:|---|---|---|", *map(_row, rows)]
    return "\n".join([*lines, "", *(f"{n}. {note}" for n, note in enumerate(notes, 1))])


def _row(row: Sequence[str]) -> str:
    return "| " + " | ".join(row) + " |"


def as_json(results: Sequence[Result], machine: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that was measured, JSON-able: one entry per comparison."""
    return {"machine": dict(machine), "settings": dict(settings), "results": [_rounded(asdict(one)) for one in results]}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def page(document: dict[str, Any], table: str, curve: list[dict[str, Any]] | None, picture: str | None) -> str:
    """Return results/benchmarks.md.

    Args:
        document: what `as_json` returns.
        table: what `as_markdown` returns.
        curve: the measured points of the case "growth", if it ran.
        picture: the file name of their picture, if it was drawn.
    """
    machine = ", ".join(f"{name} {value}" for name, value in document["machine"].items())
    size = "the quick sizes" if document["settings"]["quick"] else "the full sizes"
    lines = [
        "# Speed, side by side",
        "",
        f"Measured by `make bench` with {size}: {machine}.",
        "",
        "Both sides of a line ran in turn in one run; the ratio is the median over rounds, with its quartiles. `x`:",
        "how many times as fast ours is. What each side does stands at the top of its file in `benchmarks/speed/`;",
        "that both compute the same is tested in `tests/benchmarks`. Times, rates and the number of rounds are in",
        "`benchmarks.json`. What costs what: [docs/cost.md](../docs/cost.md).",
        "",
        table,
        "",
    ]
    if rates := _rates(document["results"]):
        lines += [
            "## Rates",
            "",
            "For the formulas of docs/cost.md, on this machine.",
            "",
            "| what | rate |",
            "|---|---|",
        ]
        lines += [_row(pair) for pair in rates.items()] + [""]
    if curve:
        lines += ["## One more task beside many classes", ""]
        if picture:
            lines += [f"![Seconds of one more task by the number of known classes]({picture})", ""]
        lines += [
            "| known classes | s | of it SDC and read-out, s | memory, MiB | saving, s | model, MB |",
            "|---:|---:|---:|---:|---:|---:|",
        ]
        for point in curve:
            row = [
                f"{point['classes']:,}",
                f"{point['seconds']:.2f}",
                f"{point['seconds_of_sdc_and_readout']:.2f}",
                f"{point['ram_bytes'] / 2**20:.0f}",
                f"{point['seconds_saving']:.2f}",
                f"{point['model_bytes'] / 1e6:.1f}",
            ]
            lines.append(_row(row))
        lines.append("")
    return "\n".join(lines)


def _rates(results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    rates: dict[str, str] = {}
    for one in results:
        images, gflops = one["numbers"].get("images_per_second"), one["numbers"].get("gflops")
        if images or gflops:
            what = f"{one['case']}, {one['name']}" + (f", {one['what']}" if one["what"] != "protodrift" else "")
            rates.setdefault(what, f"{images:,.0f} images/s" if images else f"{gflops:.0f} Gflop/s")
    return rates
