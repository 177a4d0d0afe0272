"""The sections of a page: which figures are shown of a group of runs, in which order, and what is said about them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..experiments.samples import Picture
from .drift_figures import drift_field, drift_panels, drift_text, field_text, tsne_map
from .figures import NAMED, class_distances, confusion_matrices, curves, final_bars, looks
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
        sections.append(_forgetting(table))
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
        sections.append(_field(found[:PAIRS]))
        flat = [picture for picture in found if picture.panels is not None]
        if flat:
            sections.append(flat_section(flat[:PAIRS]))
        else:
            missing.append(NOT_FLAT)
        sections.append(_tsne(found[0]))
    return sections, missing


def kinds(table: Summaries) -> dict[str, dict[str, Summary]]:
    """Return the methods by what they learn with: a chart of thirty lines cannot be read."""
    result: dict[str, dict[str, Summary]] = {}
    for name, one in table.items():
        result.setdefault(one.kind, {})[name] = one
    return result


# -- curves -----------------------------------------------------------------------------------------------------------


def accuracy_section(table: Summaries) -> Section:
    """Return the curves of A_k."""
    text = "How much of everything learned so far is still recognized, as more classes come (Figs. 2, 6, 7 and 10)."
    drawn = _by_kind("accuracy", table, "average_accuracy")
    return Section("Average accuracy after each task", [*drawn, f'<p class="note">{_explained(table)}</p>'], text)


def _forgetting(table: Summaries) -> Section:
    text = "How far the accuracy on old tasks has fallen from its best, on average; lower is better (Fig. 7)."
    return Section("Average forgetting", _by_kind("forgetting", table, "average_forgetting"), text)


def _by_kind(stem: str, table: Summaries, metric: str) -> list[str | Figure]:
    """Return one figure per kind of method, each on its own axis; what is 0 by construction is left out."""
    parts = {kind: _drawn(part, metric) for kind, part in kinds(table).items()}
    parts = {kind: part for kind, part in parts.items() if part}
    styles = looks(table)
    several = len(parts) > 1
    return [
        Figure(
            f"{stem}_{kind.split()[-1].lower()}" if several else stem,
            curves(part, metric, styles),
            title=kind if several else "",
        )
        for kind, part in parts.items()
    ]


def _drawn(table: Summaries, metric: str) -> dict[str, Summary]:
    return {name: one for name, one in table.items() if np.nanmax([0.0, *np.abs(getattr(one, metric).mean)]) > 1e-6}


def _explained(table: Summaries) -> str:
    rows = list(table.values())
    tells = any(one.is_compensated for one in rows)
    trained = [one for one in rows if one.method.schedule.train == "all"]
    told = [
        (True, "One color per training"),
        (len(trained) < len(rows), "gray: a network that stays as it is"),
        (tells, "solid: prototypes compensated"),
        (tells and any(one.method.drift is None and not one.is_joint for one in trained), "dashed: not compensated"),
        (any(one.is_upper_bound for one in rows), "dotted: upper bound that sees old images"),
    ]
    bars = " Error bars: standard deviation over seeds." if has_seeds(table) else ""
    axes = " Each chart has its own axis." if len(kinds(table)) > 1 else ""
    return (
        f"{'; '.join(text for there, text in told if there)}.{bars}{axes} The legend gives the value after the last "
        "task. A click on a name singles it out, another takes that back; the pointer on a marker tells its numbers."
    )


# -- the last task ----------------------------------------------------------------------------------------------------


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


def distance_section(table: Summaries) -> list[Section]:
    """Return the curves of the distances, and the distances of the classes; none if nothing drifts."""
    body: list[str | Figure] = []
    if number_of_tasks(table) > 2:
        body += _by_kind("distance", table, "old_prototype_distance")
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


def _confusion(plain: Summary, moved: Summary) -> Section:
    seeds = f", summed over {len(plain.seeds)} seeds" if len(plain.seeds) > 1 else ""
    edge = "" if len(plain.classes) <= NAMED else " At the edge: the numbers of the tasks."
    caption = (
        f"Rows are true classes, columns what they were taken for{seeds}; lines separate the tasks, the stronger the "
        f"color, the larger the share of a row. Classes that drifted away from their prototypes are off the "
        f"diagonal (Fig. 9).{edge}"
    )
    text = "Which classes are taken for which after the last task, without and with SDC (Fig. 9)."
    figure = Figure("confusion", confusion_matrices(plain, moved), caption)
    return Section("Confusion before and after SDC", [figure], text)


# -- embeddings -------------------------------------------------------------------------------------------------------


def _field(found: Sequence[Picture]) -> Section:
    text = "How the images of the last task drift while it is learned, and what SDC makes of it (Fig. 3)."
    figure = Figure("drift_field", drift_field(*found), field_text(*found))
    return Section("The drift vector field", [figure], text)


def flat_section(found: Sequence[Picture], note: str = "") -> Section:
    """Return the drift of two tasks in an embedding of two dimensions, one figure per method."""
    first, second = found[0].tasks[:2]
    text = (
        f"{len(first)} classes, then {len(second)} more, in an embedding of two dimensions (Figs. 4 and 8). "
        "Circles: prototypes as they were saved. Triangles: moved by SDC, along the dotted arrows. Stars: where the "
        f"classes really are now. {note}"
    )
    body = [
        Figure(f"drift_2d_{picture.method}", drift_panels(picture), drift_text(picture), picture.method)
        for picture in found
    ]
    return Section("Drift in two dimensions", body, text.strip())


def _tsne(picture: Picture) -> Section:
    text = (
        f"{picture.method}: t-SNE of a sample of {len(picture.z_test)} test images after task {len(picture.tasks)}, "
        "embedded together with the old prototypes before and after compensation and the true means (Fig. 1). t-SNE "
        "keeps neighborhoods, not distances: look at which cloud a marker sits in, not at the length of an arrow."
    )
    return Section("All classes at the end, by t-SNE", [Figure("tsne", tsne_map(picture), text)])
