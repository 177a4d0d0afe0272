"""Runs, read from their directories: which of them are compared, how they were made, and what they found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..experiments import samples as pictures
from ..experiments.run import read_results
from ..experiments.samples import Picture
from .summary import Document, Summaries, summaries


@dataclass(frozen=True)
class Run:
    """One run, read.

    Attributes:
        label: what it is called in this report.
        document: its results.
        pictures: its embeddings by method; those that it has.
        missing: why it has none, in a sentence, or "".
    """

    label: str
    document: Document
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    missing: str = ""


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Read run directories; one that is given twice counts once.

    Raises:
        RunError: if one has no results, or such that cannot be read.
    """
    unique = list(dict.fromkeys(Path(path).resolve() for path in paths))
    labels = _labels([path if path.is_dir() else path.parent for path in unique])
    return [_read_run(path, label) for path, label in zip(unique, labels, strict=True)]


def _labels(folders: Sequence[Path]) -> list[str]:
    """Return what to call each folder: as much of the end of its path as tells it from the others."""
    for length in range(1, max((len(folder.parts) for folder in folders), default=1) + 1):
        labels = ["/".join(folder.parts[-length:]) for folder in folders]
        if len(set(labels)) == len(labels):
            return labels
    return [str(folder) for folder in folders]  # two files of one folder


def _read_run(path: Path, label: str) -> Run:
    document = read_results(path)
    folder = path if path.is_dir() else path.parent
    missing = f"{label} has no folder of pictures: methods with SDC, and two or more tasks, make one."
    try:
        found = pictures.read(folder)
    except RunError as error:
        found, missing = {}, str(error)
    missing = "" if found else missing
    ours = {(e.get("method"), e.get("seed")) for e in document.get("results") or () if isinstance(e, dict)}
    return Run(label, document, {n: p for n, p in found.items() if (n, p.seed) in ours}, missing)


@dataclass(frozen=True)
class Group:
    """Runs that can be compared: the same data, cut into the same tasks."""

    runs: tuple[Run, ...]
    summaries: Summaries

    @property
    def title(self) -> str:
        """What it is called: its recipes."""
        return ", ".join(dict.fromkeys(str(run.document.get("recipe", run.label)) for run in self.runs))

    def pictures(self) -> list[Picture]:
        """All pictures, called as in the tables; fine-tuning first."""
        found = []
        for one in self.summaries.values():
            own = next((run for run in self.runs if run.label == one.run), None)
            if own is not None and one.method_name in own.pictures:
                picture = replace(own.pictures[one.method_name], method=one.name)
                found.append((bool(one.method.penalties), picture))
        return [picture for _, picture in sorted(found, key=lambda item: item[0])]


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """Put runs on the same data, cut into the same tasks, together, in the order in which they were given."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        first = next(iter(run.document.get("results") or [{}]))
        counts = first.get("test_counts") if isinstance(first, dict) else None
        found.setdefault(json.dumps([run.document.get("data"), run.document.get("tasks"), counts]), []).append(run)
    return [
        Group(tuple(own), summaries([run.document for run in own], [run.label for run in own]))
        for own in found.values()
    ]


def facts(runs: Sequence[Run]) -> dict[str, str]:
    """Return how the results were made, for the foot of a page."""
    result: dict[str, str] = {}
    for run in runs:
        prefix = f"{run.label}: " if len(runs) > 1 else ""
        result.update({prefix + name: value for name, value in _facts(run.document).items() if value})
    return result


def _facts(document: Document) -> dict[str, str]:
    made = document.get("environment") or {}
    entries: list[dict[str, Any]] = list(document.get("results") or [])
    tasks: list[list[Any]] = list(document.get("tasks") or [])
    written = "; ".join(", ".join(map(str, task)) for task in tasks)
    if sum(map(len, tasks)) > 40:
        written = f"{len(tasks)}, of {', '.join(str(len(task)) for task in tasks)} classes"
    longest = max(entries, key=lambda entry: entry.get("seconds") or 0, default={})
    time = f"{longest.get('seconds', 0):.1f} s for {longest.get('method')}, the longest of one method and seed"
    if document.get("seconds") is not None:
        time = f"{document['seconds']:.0f} s"
    versions = [f"{name} {made[name]}" for name in ("protodrift", "torch", "python") if made.get(name)]
    machine = f"{made.get('machine', '')}, {made.get('cpus', '?')} CPUs, {made.get('threads', '?')} threads"
    return {
        "command": str(document.get("command") or ""),
        "data": f"{document.get('data', '')}, {document.get('split', '')}".strip(", "),
        "tasks": written,
        "seeds": ", ".join(dict.fromkeys(str(entry.get("seed")) for entry in entries)),
        "trainings": f"{document.get('trainings')} of one task each" if document.get("trainings") else "",
        "time": time if entries else "",
        "commit": str(made.get("commit") or ""),
        "versions": ", ".join(versions),
        "machine": machine if made else "",
    }
