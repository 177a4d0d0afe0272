"""The sections of a page: which figures are shown of a group of runs, in which order, and what is said about them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..experiments.samples import Picture
from .drift_figures import drift_field, drift_panels, drift_text, field_text, tsne_map
from .figures import NAMED, class_distances, confusion, curves, final_bars, looks
from .page import Figure, Section, results_table
from .runs import Group
from .summary import Summaries, Summary, has_seeds, number_of_tasks, pairs

PAIRS = 6
"""Trainings whose prototypes are drawn class by class; a page of more is not read."""

NOT_FLAT = "Figs. 4 and 8, drift arrows in two dimensions: they need a 2-D embedding, as in the recipe digits-2d."


def sections_of(group: Group) -> tuple[list[Section], list[str]]:
    """Return the sections of a group, and in sentences what could not be shown."""
    table, found = group.summaries, group.pictures()
    tasks, both = number_of_tasks(table), pairs(table)
    sections = [Section("Results", [results_table(table)]), accuracy_section(table)]
    if tasks < 2:
        return sections, ["One task: there is no forgetting and no drift to draw."]
    missing: list[str] = []
    if tasks > 2:
        text = "How far the accuracy on old tasks has fallen from its best, on average; lower is better (Fig. 7)."
        sections.append(Section("Average forgetting", _by_kind("forgetting", table, "average_forgetting"), text))
    else:
        missing.append("Curves of forgetting and distance: two tasks give one number each, which the table shows.")
    text = "Accuracy on each task after the last one: which tasks were forgotten, and which never learned (Fig. 11)."
    sections.append(Section("Every task at the end", [Figure("final", final_bars(table, bar_names(table)))], text))
    sections += distance_section(table)
    if both and any(one.confusion is None for one in both[0]):
        missing.append("Fig. 9, what is taken for what: too many classes for a matrix.")
    elif both:
        sections.append(_confusion(*both[0]))
    else:
        missing.append("Figs. 5 and 9, with and without SDC: they need a method with SDC and the same without it.")
    missing += [f"Figs. 1, 3, 4 and 8: {run.missing}" for run in group.runs if run.missing]
    if found:
        text = "How the images of the last task drift while it is learned, and what SDC makes of it (Fig. 3)."
        field = Figure("drift_field", drift_field(*found[:PAIRS]), field_text(*found[:PAIRS]))
        sections.append(Section("The drift vector field", [field], text))
        flat = [picture for picture in found if picture.panels is not None]
        sections += [flat_section(flat[:PAIRS])] if flat else []
        missing += [] if flat else [NOT_FLAT]
        sections.append(_tsne(found[0]))
    return sections, missing


def accuracy_section(table: Summaries) -> Section:
    """Return the curves of A_k."""
    text = "How much of everything learned so far is still recognized, as more classes come (Figs. 2, 6, 7 and 10)."
    drawn = _by_kind("accuracy", table, "average_accuracy", _explained(table))
    return Section("Average accuracy after each task", drawn, text)


def _by_kind(stem: str, table: Summaries, metric: str, caption: str = "") -> list[Figure]:
    """Return one figure per kind of method, as thirty lines in one chart cannot be read; the last has the caption.

    Each has its own axis, and methods whose values are all 0, as a fixed network's distances, are left out.
    """
    parts: dict[str, dict[str, Summary]] = {}
    for name, one in table.items():
        if np.nanmax([0.0, *np.abs(one[metric].mean)]) > 1e-6:
            parts.setdefault(one.kind, {})[name] = one
    styles, several, last = looks(table), len(parts) > 1, list(parts)[-1:]
    names = {kind: f"{stem}_{kind.split()[-1].lower()}" if several else stem for kind in parts}
    return [
        Figure(names[kind], curves(part, metric, styles), caption if [kind] == last else "", kind if several else "")
        for kind, part in parts.items()
    ]


def _explained(table: Summaries) -> str:
    rows = list(table.values())
    tells = any(one.is_compensated for one in rows)
    trained = [one for one in rows if not one.stays]
    told = [
        (True, "One color per training"),
        (len(trained) < len(rows), "gray: a network that stays as it is"),
        (tells, "solid: prototypes compensated"),
        (tells and any(one.method.drift is None and not one.is_joint for one in trained), "dashed: not compensated"),
        (any(one.is_upper_bound for one in rows), "dotted: upper bound that sees old images"),
    ]
    bars = " Error bars: standard deviation over seeds." if has_seeds(table) else ""
    axes = " Each chart has its own axis." if len({one.kind for one in rows}) > 1 else ""
    return (
        f"{'; '.join(text for there, text in told if there)}.{bars}{axes} The legend gives the value after the last "
        "task. A click on a name singles it out, another takes that back; the pointer on a marker tells its numbers."
    )


def bar_names(table: Summaries) -> list[str]:
    """Return which methods the bars compare: a fixed network (E-Fix), and the best method without and with SDC."""
    rank = {name: float(one["average_accuracy"].mean[-1]) for name, one in table.items()}
    fixed = [name for name, one in table.items() if one.method.schedule.train == "first"][:1]
    both = pairs(table)
    if both:
        return [*fixed, *(one.name for one in max(both, key=lambda pair: rank[pair[1].name]))]
    others = [name for name, one in table.items() if name not in fixed and not one.is_upper_bound]
    return [*fixed, *sorted(others, key=lambda name: -rank[name])[:2]] or list(table)[:3]


def distance_section(table: Summaries) -> list[Section]:
    """Return the curves of the distances, and the distances of the classes; none if nothing drifts."""
    body = _by_kind("distance", table, "old_prototype_distance") if number_of_tasks(table) > 2 else []
    both = pairs(table)
    if both:
        left = f" Of {len(both)} trainings the first {PAIRS}." if len(both) > PAIRS else ""
        caption = (
            "Each thin line is one class, one color per task; the bold line is the mean of all old classes, and the "
            "number its end. Of each pair the first is without, the second with SDC; all panels on one axis (Fig. 5). "
            f"A click in the legend singles out the classes of a task.{left}"
        )
        shown = [one for pair in both[:PAIRS] for one in pair]
        body.append(Figure("prototypes", class_distances(*shown), caption, "Class by class"))
    text = (
        "The drift that is left: how far a stored prototype is from where its class really is now (Fig. 5). "
        "The oracle, and networks that are not trained any more, have none by construction."
    )
    return [Section("Distance of prototypes to the true class means", body, text)] if body else []


def _confusion(*pair: Summary) -> Section:
    plain = pair[0]
    seeds = f", summed over {len(plain.seeds)} seeds" if len(plain.seeds) > 1 else ""
    edge = "" if len(plain.classes) <= NAMED else " At the edge: the numbers of the tasks."
    caption = (
        f"Rows are true classes, columns what they were taken for{seeds}; lines separate the tasks, the stronger the "
        "color, the larger the share of a row. Classes that drifted away from their prototypes are off the "
        f"diagonal (Fig. 9).{edge}"
    )
    text = "Which classes are taken for which after the last task, without and with SDC (Fig. 9)."
    counts = {one.name: one.confusion for one in pair if one.confusion is not None}
    right = {name: np.trace(matrix) / max(1, matrix.sum()) for name, matrix in counts.items()}
    matrices = {f"{name}: {100 * right[name]:.1f} % right": matrix for name, matrix in counts.items()}
    chart = confusion(matrices, plain.classes, [len(task) for task in plain.tasks])
    return Section("Confusion before and after SDC", [Figure("confusion", chart, caption)], text)


def flat_section(found: Sequence[Picture], note: str = "") -> Section:
    """Return the drift of two tasks in an embedding of two dimensions, one figure per method."""
    first, second = found[0].tasks[:2]
    text = (
        f"{len(first)} classes, then {len(second)} more, in an embedding of two dimensions (Figs. 4 and 8). "
        "Circles: prototypes as they were saved. Triangles: moved by SDC, along the dotted arrows. Stars: where the "
        f"classes really are now. {note}"
    )
    body = [Figure(f"drift_2d_{one.method}", drift_panels(one), drift_text(one), one.method) for one in found]
    return Section("Drift in two dimensions", body, text.strip())


def _tsne(picture: Picture) -> Section:
    text = (
        f"{picture.method}: t-SNE of a sample of {len(picture.z_test)} test images after task {len(picture.tasks)}, "
        "embedded together with the old prototypes before and after compensation and the true means (Fig. 1). t-SNE "
        "keeps neighborhoods, not distances: look at which cloud a marker sits in, not at the length of an arrow."
    )
    return Section("All classes at the end, by t-SNE", [Figure("tsne", tsne_map(picture), text)])
