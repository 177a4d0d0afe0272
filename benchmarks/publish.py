"""Writes what a run measured into results/: the numbers as compact JSON, and its table with the columns of the issue.

    python -m benchmarks.publish RUN [RUN ...] results/cifar100_eleven

Several runs are of one recipe: other seeds, or other rows. The JSON is a run's `results.json` with floats rounded to
five digits; `tests/test_results.py` compares the pages in results/ with it. The Markdown table goes to standard output,
to be put into the page beside what there is to say.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from protodrift.experiments.run import read_results
from protodrift.report.paper import paper_table


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return value


def without_places(command: str) -> str:
    """Return the command without the folders of the machine it ran on."""
    return re.sub(r"--(data|out) \S+", lambda match: f"--{match[1]} {'DIR' if match[1] == 'data' else 'RUN'}", command)


def by_method(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    table: dict[str, list[dict[str, Any]]] = {}
    for entry in document["results"]:
        table.setdefault(entry["method"], []).append(entry)
    return table


def mean(entries: list[dict[str, Any]], value: Any) -> str:
    """Return mean ± standard deviation over seeds, in percent."""
    values = np.array([value(entry) for entry in entries], dtype=float)
    spread = f" ± {100 * values.std(ddof=1):.1f}" if len(values) > 1 else ""
    return f"{100 * values.mean():.1f}{spread}"


def later(entry: dict[str, Any]) -> float:
    """Return the mean accuracy on tasks 2 to T after the last task."""
    return float(np.mean(entry["accuracy_matrix"][-1][1:]))


def merged(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one document with the results of all of them, rows in the order in which they come, and all commands."""
    first = documents[0]
    for other in documents[1:]:
        for key in ("recipe", "tasks", "split", "data"):
            if other[key] != first[key]:
                raise SystemExit(f"error: these runs differ in {key!r}: {first[key]} and {other[key]}.")
    results = [entry for document in documents for entry in document["results"]]
    rows = [(entry["method"], entry["seed"]) for entry in results]
    if twice := [row for row in rows if rows.count(row) > 1]:
        raise SystemExit(f"error: {twice[0][0]} with seed {twice[0][1]} is in two runs. Name each run once.")
    order = list(dict.fromkeys(method for method, _ in rows))
    results.sort(key=lambda entry: (order.index(entry["method"]), entry["seed"]))
    return {**first, "command": "; ".join(document["command"] for document in documents), "results": results}


def markdown(document: dict[str, Any]) -> str:
    tasks = len(document["tasks"])
    printed = paper_table(document["table"])
    later_tasks = "task 2" if tasks == 2 else f"tasks 2-{tasks}"
    head = [
        "method",
        "all classes",
        "paper",
        f"A_{tasks}",
        "just learned",
        "first task",
        later_tasks,
        f"F_{tasks}",
        "distance",
    ]
    if tasks == 1:
        head = ["method", "all classes"]
    lines = ["| " + " | ".join(name.replace("_", "\\_") for name in head) + " |"]
    lines.append("|---|" + "---:|" * (len(head) - 1))
    for name, entries in by_method(document).items():
        cells = [name.replace("*", "\\*"), mean(entries, lambda e: e["overall_accuracy"][-1])]
        if tasks > 1:
            paper = printed.rows[name][-1] if printed and name in printed.rows else np.nan
            distances = [entry["old_prototype_distance"][-1] for entry in entries]
            known = [d for d in distances if d is not None]
            cells += [
                f"{100 * paper:.1f}" if np.isfinite(paper) else "–",
                mean(entries, lambda e: e["average_accuracy"][-1]),
                mean(entries, lambda e: np.mean(e["new_task_accuracy"][1:])),
                mean(entries, lambda e: e["accuracy_matrix"][-1][0]),
                mean(entries, later),
                mean(entries, lambda e: e["average_forgetting"][-1]),
                f"{np.mean(known):.3f}" if known else "–",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("target", type=Path, help="such as results/cifar100_eleven; .json is added")
    args = parser.parse_args()
    document = rounded(merged([read_results(run) for run in args.runs]))
    document["command"] = without_places(document["command"])
    args.target.with_suffix(".json").write_text(json.dumps(document, separators=(",", ":")) + "\n")
    print(markdown(document))


if __name__ == "__main__":
    main()
