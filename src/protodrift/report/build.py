"""A report of runs: what is read of them, which of them are compared, and which figures a page shows in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, RunError, did_you_mean
from ..exemplars import Everything
from ..experiments import samples as pictures
from ..experiments.run import read_results
from ..experiments.samples import Picture
from . import formats
from .figures import (
    accuracy_curves,
    caption,
    class_distances,
    confusion_matrices,
    distance_curves,
    final_bars,
)
from .figures_drift import drift_field, drift_panels, tsne_map
from .page import Section, render, results_table
from .plots import NAMED
from .summary import Document, Summaries, Summary, comparable, pairs, summaries
from .svg import escape

FORMATS = ("html", "csv", "json", "md", "latex")

_NOT_FLAT = "Figs. 4 and 8, drift arrows in two dimensions: they need a 2-D embedding, as in the recipe digits-2d."

PAIRS = 6
"""Trainings whose prototypes are drawn class by class; a page of more is not read."""


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
    found: dict[str, Picture] = {}
    missing = ""
    try:
        found = pictures.read(folder)
    except RunError as error:
        missing = str(error)
    if not found and not missing:
        missing = f"{label} has no folder of pictures: methods with SDC, and two or more tasks, make one."
    entries = document.get("results")
    ours = {(e.get("method"), e.get("seed")) for e in entries if isinstance(e, dict)} if entries else set()
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
    """Put runs that can be compared together, in the order in which they were given."""
    result = []
    for positions in comparable([run.document for run in runs]):
        own = tuple(runs[i] for i in positions)
        result.append(Group(own, summaries([run.document for run in own], [run.label for run in own])))
    return result


def report(runs: Sequence[Run], format: str = "html") -> str:
    """Return a report of runs in one of the `FORMATS`."""
    if format not in FORMATS:
        raise InputError(f"unknown format {format!r}. {did_you_mean(format, FORMATS)}")
    if not runs:
        raise InputError("there are no results to report: name at least one run directory.")
    groups = groups_of(runs)
    tables = [group.summaries for group in groups]
    if format == "csv":
        return formats.to_csv(tables)
    if format == "json":
        return formats.to_json(tables, facts(runs))
    if format == "md":
        return formats.to_markdown(tables)
    if format == "latex":
        return formats.to_latex(tables)
    sections, absent = [], []
    flat = any(picture.panels is not None for group in groups for picture in group.pictures())
    for group in groups:
        own, missing = sections_of(group)
        prefix = f"{group.title}: " if len(groups) > 1 else ""
        sections += [Section(prefix + section.title, section.html, section.note) for section in own]
        absent += [(prefix, sentence) for sentence in missing]
    told = [prefix + sentence for prefix, sentence in absent if not (flat and sentence == _NOT_FLAT)]
    if told:
        items = "".join(f"<p>{escape(sentence)}</p>" for sentence in told)
        sections.append(Section("What is not shown", f'<div class="note">{items}</div>'))
    title = " · ".join(dict.fromkeys(group.title for group in groups))
    return render(title, _intro(runs), sections, facts(runs))


def _intro(runs: Sequence[Run]) -> str:
    about = dict.fromkeys(str(run.document.get("about", "")).strip() for run in runs)
    return "\n\n".join(f"{text[:1].upper()}{text[1:]}." for text in about if text)


# -- the sections of a page -------------------------------------------------------------------------------------------


def sections_of(group: Group) -> tuple[list[Section], list[str]]:
    """Return the sections of a group, and in sentences what could not be shown."""
    table, found = group.summaries, group.pictures()
    sections = [Section("Results", results_table(table))]
    missing: list[str] = []
    tasks = len(next(iter(table.values())).tasks)
    sections.append(_accuracy(table))
    if tasks < 2:
        return sections, ["One task: there is no forgetting and no drift to draw."]
    if tasks > 2:
        sections.append(_forgetting(table))
    else:
        missing.append("Curves of forgetting and distance: two tasks give one number each, which the table shows.")
    sections.append(_at_the_end(table))
    both = pairs(table)
    if both or (tasks > 2 and _with_distances(table)):
        sections.append(_distances(table, both))
    if both and any(one.confusion is None for one in both[0]):
        missing.append("Fig. 9, what is taken for what: too many classes for a matrix.")
    elif both:
        sections.append(_confusion(both))
    else:
        missing.append("Figs. 5 and 9, with and without SDC: they need a method with SDC and the same without it.")
    missing += [f"Figs. 1, 3, 4 and 8: {run.missing}" for run in group.runs if run.missing]
    if found:
        text = "How the images of the last task drift while it is learned, and what SDC makes of it (Fig. 3)."
        sections.append(Section("The drift vector field", drift_field(*found[:PAIRS]), text))
        flat = [picture for picture in found if picture.panels is not None]
        if flat:
            sections.append(_panels(flat))
        else:
            missing.append(_NOT_FLAT)
        sections.append(Section("All classes at the end, by t-SNE", tsne_map(found[0])))
    return sections, missing


def _accuracy(table: Summaries) -> Section:
    values = [100 * v for one in table.values() for v in one.average_accuracy.mean.tolist() if np.isfinite(v)]
    ends = (min(values, default=0.0), max(values, default=100.0))
    charts = [
        _titled(kind, accuracy_curves(part, include=ends), many=len(kinds(table)) > 1)
        for kind, part in kinds(table).items()
    ]
    text = "How much of everything learned so far is still recognized, as more classes come (Figs. 2, 6, 7 and 10)."
    return Section("Average accuracy after each task, A_k", "".join(charts), text)


def _forgetting(table: Summaries) -> Section:
    values = [100 * v for one in table.values() for v in one.average_forgetting.mean.tolist() if np.isfinite(v)]
    ends = (min([0.0, *values]), max([0.0, *values]))
    charts = [
        _titled(kind, accuracy_curves(part, "average_forgetting", include=ends), many=len(kinds(table)) > 1)
        for kind, part in kinds(table).items()
    ]
    text = "How far the accuracy on old tasks has fallen from its best, on average; lower is better (Fig. 7)."
    return Section("Average forgetting, F_k", "".join(charts), text)


def _titled(title: str, figure: str, *, many: bool) -> str:
    return f"<h3>{escape(title)}</h3>{figure}" if many else figure


def kinds(table: Summaries) -> dict[str, dict[str, Summary]]:
    """Return the methods by what they learn with: a chart of thirty lines cannot be read."""
    result: dict[str, dict[str, Summary]] = {
        "Embedding networks": {},
        "Classifying heads": {},
        "With exemplars": {},
    }
    embedding, heads, exemplars = result
    for name, one in table.items():
        method = one.method
        if method.exemplars is not None and not isinstance(method.exemplars, Everything):
            result[exemplars][name] = one
        else:
            result[heads if method.objective.classifies else embedding][name] = one
    return {kind: part for kind, part in result.items() if part}


def _at_the_end(table: Summaries) -> Section:
    names = bar_names(table)
    text = "Accuracy on each task after the last one: which tasks were forgotten, and which never learned (Fig. 11)."
    return Section("Every task at the end", final_bars(table, names), text)


def bar_names(table: Summaries) -> list[str]:
    """Return which methods the bars compare: a fixed network (E-Fix), and the best method without and with SDC."""
    rank = {name: float(one.average_accuracy.mean[-1]) for name, one in table.items()}
    fixed = [name for name, one in table.items() if one.method.schedule.train == "first"]
    both = pairs(table)
    if both:
        plain, moved = max(both, key=lambda pair: rank[pair[1].name])
        return [*fixed[:1], plain.name, moved.name]
    others = sorted(
        (n for n, one in table.items() if n not in fixed[:1] and not one.is_upper_bound), key=lambda n: -rank[n]
    )
    return [*fixed[:1], *others[:2]] or list(table)[:3]


def _with_distances(table: Summaries) -> dict[str, Summary]:
    return {name: one for name, one in table.items() if np.isfinite(one.old_prototype_distance.mean).any()}


def _distances(table: Summaries, both: Sequence[tuple[Summary, Summary]]) -> Section:
    html = ""
    if len(next(iter(table.values())).tasks) > 2:
        # One chart a kind: the features of a classifying network have a scale of their own.
        parts = {kind: _with_distances(part) for kind, part in kinds(table).items() if _with_distances(part)}
        html = "".join(_titled(kind, distance_curves(part), many=len(parts) > 1) for kind, part in parts.items())
    if both:
        shown = both[:PAIRS]
        top = max(float(np.nanmax([0.0, *one.prototype_distance.mean.ravel()])) for pair in shown for one in pair)
        html += "".join(class_distances(*pair, top=top) for pair in shown)
        left = f" Of {len(both)} trainings the first {PAIRS}." if len(both) > PAIRS else ""
        html += caption(
            "Each thin line is one class, one color a task; the bold line is the mean of all old classes. "
            f"Of each pair the first is without, the second with SDC; all panels on one axis (Fig. 5).{left}"
        )
    text = (
        "The drift that is left: how far a stored prototype is from where its class really is now (Fig. 5). "
        "The oracle, and networks that are not trained any more, have none by construction."
    )
    return Section("Distance of prototypes to the true class means", html, text)


def _confusion(both: Sequence[tuple[Summary, Summary]]) -> Section:
    plain, moved = both[0]
    seeds = f", summed over {len(plain.seeds)} seeds" if len(plain.seeds) > 1 else ""
    edge = "" if len(plain.classes) <= NAMED else " At the edge: the numbers of the tasks."
    html = f"<figure>{confusion_matrices(plain, moved)}" + caption(
        f"Rows are true classes, columns what they were taken for{seeds}; lines separate the tasks, "
        "the stronger the color, the larger the share of a row. Classes that drifted away from their "
        f"prototypes are off the diagonal (Fig. 9).{edge}"
    )
    text = "Which classes are taken for which after the last task, without and with SDC (Fig. 9)."
    return Section("Confusion before and after SDC", html + "</figure>", text)


def _panels(found: Sequence[Picture]) -> Section:
    first, second = found[0].tasks[:2]
    html = "".join(f"<h3>{escape(picture.method)}</h3>{drift_panels(picture)}" for picture in found[:PAIRS])
    text = (
        f"{len(first)} classes, then {len(second)} more, in an embedding of two dimensions (Figs. 4 and 8). "
        "Circles: prototypes as they were saved. Triangles: moved by SDC, along the dotted arrows. Stars: where the "
        "classes really are now."
    )
    return Section("Drift in two dimensions", html, text)


# -- facts ------------------------------------------------------------------------------------------------------------


def facts(runs: Sequence[Run]) -> dict[str, str]:
    """Return how the results were made, for the foot of a page."""
    result: dict[str, str] = {}
    for run in runs:
        prefix = f"{run.label}: " if len(runs) > 1 else ""
        result.update({prefix + name: value for name, value in _facts(run.document).items() if value})
    return result


def _written_tasks(tasks: Sequence[Sequence[Any]]) -> str:
    if sum(map(len, tasks)) <= 40:
        return "; ".join(", ".join(map(str, task)) for task in tasks)
    return f"{len(tasks)}, of {', '.join(str(len(task)) for task in tasks)} classes"


def _facts(document: Document) -> dict[str, str]:
    made = document.get("environment") or {}
    entries: list[dict[str, Any]] = list(document.get("results") or [])
    tasks: list[list[Any]] = list(document.get("tasks") or [])
    seeds = dict.fromkeys(str(entry.get("seed")) for entry in entries)
    longest = max(entries, key=lambda entry: entry.get("seconds") or 0, default={})
    versions = [f"{name} {made[name]}" for name in ("protodrift", "torch", "python") if made.get(name)]
    time = f"{longest.get('seconds', 0):.1f} s for {longest.get('method')}, the longest of one method and seed"
    if document.get("seconds") is not None:
        time = f"{document['seconds']:.0f} s"
    return {
        "command": str(document.get("command") or ""),
        "data": f"{document.get('data', '')}, {document.get('split', '')}".strip(", "),
        "tasks": _written_tasks(tasks),
        "seeds": ", ".join(seeds),
        "trainings": f"{document.get('trainings')} of one task each" if document.get("trainings") else "",
        "time": time if entries else "",
        "commit": str(made.get("commit") or ""),
        "versions": ", ".join(versions),
        "machine": ", ".join(
            [str(made.get("machine", "")), f"{made.get('cpus', '?')} CPUs", f"{made.get('threads', '?')} threads"]
        )
        if made
        else "",
    }
