"""The page of `protodrift evaluate --html`: every mistake with its photo, each class, and what is taken for what."""

from __future__ import annotations

import base64
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ..common.files import shown
from ..common.labels import Label, sorted_labels
from ..model.evaluate import Answer, Evaluation
from .page import Section, asset, render, template

THUMBNAIL = 128
"""Pixels of a side."""

MATRIX_CLASSES = 60
"""So many rows and columns the matrix has at most: those with the most mistakes."""

_KINDS = (
    ("wrong", "Taken for another class", "Photos of known classes, the surest mistakes first."),
    ("called unknown", "Known, but called unknown", "Photos of known classes; the nearest class is said first."),
    ("stranger named", "Strangers that were given a class", "Photos of classes never learned, the surest first."),
    ("stranger found", "Strangers that were found", "Photos of classes never learned, and called unknown: no mistake."),
)

_DISTANCE = "Distance: how far from the nearest class, where 1 is as far as nearly all photos of that class are."


def evaluation_page(
    result: Evaluation,
    files: Sequence[Path],
    images: torch.Tensor,
    tasks: Mapping[Label, int],
    facts: Mapping[str, str],
) -> str:
    """Return a whole HTML document about what a model was asked and answered.

    Args:
        result: what was measured on N photos.
        files: N paths.
        images: (N, 3, H, W) uint8, the photos as the model saw them.
        tasks: the task in which each known class was learned.
        facts: how it was made, for the foot of the page.

    Raises:
        InputError: if what makes pages is not installed.
    """
    parts: Any = template("evaluation.html").module
    sections = []
    if result.all is not None:
        sections.append(Section("In numbers", [parts.parts(_parts(result), result.never_learned)]))
    groups: dict[str, list[int]] = {}
    for row, one in enumerate(result.answers):
        groups.setdefault(one.verdict, []).append(row)
    field = [parts.filter()]
    for verdict, title, note in _KINDS:
        rows = sorted(groups.get(verdict, []), key=lambda row: -result.answers[row].top[0][1])
        if rows:
            cards = parts.photos([_card(result.answers[row], files[row], images[row]) for row in rows])
            said = f"{note} {_DISTANCE}" if field else note
            sections.append(Section(f"{title}: {len(rows):,}", [*field, cards], said))
            field = []
    note = "Press a heading to sort. Accuracy counts the class that was nearest, also where a photo was called unknown."
    sections.append(Section("Classes", [parts.classes(_class_rows(result, tasks))], note))
    columns, lines, note = _matrix(result)
    if lines:
        sections.append(Section("What is taken for what", [parts.confusion(columns, lines)], note))
    sections[-1] = Section(
        sections[-1].title,
        [*sections[-1].body, parts.assets(asset("evaluation.css"), asset("evaluation.js"))],
        sections[-1].note,
    )
    return render("What the model gets wrong", _intro(result), sections, facts, _findings(result))


def _parts(result: Evaluation) -> list[tuple[str, Any]]:
    return [("all known", result.all), ("of earlier tasks", result.old), ("of the last task", result.new)]


def _intro(result: Evaluation) -> str:
    wrong = sum(one.verdict == "wrong" for one in result.answers)
    return (
        f"{len(result.answers):,} photos were asked about; {wrong:,} of them were taken for another class. Nothing on "
        "this page is loaded from anywhere: it can be mailed and kept. It holds small copies of the photos it shows."
    )


def _findings(result: Evaluation) -> list[str]:
    found = []
    if result.all is not None:
        found.append(
            f"{100 * result.all.accuracy:.1f} % of {result.all.images:,} photos of known classes named rightly."
        )
    if result.never_learned:
        share = f"{100 * result.found_unknown:.1f} %"
        found.append(f"{share} of {result.never_learned:,} photos of classes never learned called unknown.")
    return found


def _card(one: Answer, file: Path, image: torch.Tensor) -> dict[str, Any]:
    # An answer that is none names no class wrongly; the classes that were near are said all the same.
    names = [str(one.truth), *(str(name) for name, _ in one.top[:1]), shown(file)]
    return {
        "truth": str(one.truth),
        "unknown": one.unknown,
        "top": one.top,
        "novelty": one.novelty if math.isfinite(one.novelty) else None,
        "file": shown(file),
        "name": shown(file.name),
        "search": " ".join(names).lower(),
        "picture": thumbnail(image),
    }


def thumbnail(image: torch.Tensor) -> str:
    """Return a small copy of a (3, H, W) uint8 image as a URL that holds it."""
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"


def _class_rows(result: Evaluation, tasks: Mapping[Label, int]) -> list[dict[str, Any]]:
    """Return what the table of classes says, the least accurate first, strangers last."""
    of: dict[Label, list[Answer]] = {}
    for one in result.answers:
        of.setdefault(one.truth, []).append(one)
    rows = []
    for label, own in of.items():
        given = Counter(str(one.top[0][0]) for one in own if not one.unknown and one.top[0][0] != label)
        mostly, times = given.most_common(1)[0] if given else (None, 0)
        rows.append(
            {
                "label": str(label),
                "task": tasks.get(label),
                "photos": len(own),
                "accuracy": sum(one.top[0][0] == label for one in own) / len(own) if label in tasks else None,
                "unknown": sum(one.unknown for one in own) / len(own),
                "confidence": sum(one.top[0][1] for one in own) / len(own),
                "mostly": mostly,
                "times": times,
            }
        )
    return sorted(rows, key=lambda row: (2 if row["accuracy"] is None else row["accuracy"], row["label"]))


def _matrix(result: Evaluation) -> tuple[list[str], list[dict[str, Any]], str]:
    """Return names of columns, rows of cells, and a note; classes without a mistake are left out."""
    given = Counter((one.truth, None if one.unknown else one.top[0][0]) for one in result.answers)
    photos = Counter(one.truth for one in result.answers)
    strangers = {one.truth for one in result.answers if not one.known}
    mistakes: Counter[Label] = Counter()
    for (truth, answer), n in given.items():
        if answer != truth:
            mistakes.update({label: n for label in (truth, answer) if label is not None})
    most = sorted_labels(label for label, _ in mistakes.most_common(MATRIX_CLASSES))
    known = [label for label in most if label not in strangers]
    columns: list[Label | None] = [*known, None]
    rows = []
    for label in [*known, *(label for label in most if label in strangers)]:
        if photos[label]:
            cells = [
                {
                    "count": given[label, answer],
                    "share": given[label, answer] / photos[label],
                    "right": answer == (None if label in strangers else label),
                }
                for answer in columns
            ]
            rows.append({"label": str(label), "photos": photos[label], "cells": cells})
    left = len({*photos, *mistakes}) - len(most)
    note = "Rows: the true class; strangers are the last. Columns: the answer. Blue: right. Orange: wrong."
    if left:
        why = "without a mistake" if len(mistakes) <= MATRIX_CLASSES else "with no mistake or few"
        note += f" {left} classes {why} are left out."
    return ["unknown" if name is None else str(name) for name in columns], rows, note
