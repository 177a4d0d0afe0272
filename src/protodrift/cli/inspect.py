"""`protodrift inspect`: what a model knows, what it went through, and what every byte in it is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.machine import size_text
from ..common.tables import text_table
from .arguments import Commands, add_command, add_model
from .text import json_text, percent, plural, span

if TYPE_CHECKING:
    from ..learner import IncrementalClassifier
    from ..model.audit import Audit

_EPILOG = """\
examples:
  protodrift inspect birds             tasks, classes, drift, files
  protodrift inspect birds --files     every file
  protodrift inspect birds --json
  protodrift inspect birds --card > birds.md    a model card, for whoever gets the model

Every byte in the directory is accounted for by a declared tensor or field: no photo can be hidden in it. Weights,
prototypes and statistics may still tell something about the photos that they were computed from.
Exit status: 1 if the directory holds something that is not part of the model.
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "inspect",
        run,
        help="show what a model knows and holds",
        description="Shows tasks, classes, photos and bytes per class, drift with its uncertainty, and every file.",
        epilog=_EPILOG,
    )
    add_model(parser)
    parser.add_argument("--files", action="store_true", help="list every file")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything as JSON")
    form.add_argument("--card", action="store_true", help="print a model card in Markdown")


def run(args: argparse.Namespace) -> int:
    """Check the directory, and print what is in it."""
    from ..learner import IncrementalClassifier
    from ..model.audit import audit
    from ..model.card import model_card

    clf = IncrementalClassifier.load(args.model)
    found = audit(args.model)
    facts = _facts(clf, found)
    if args.json:
        print(json_text(facts, 1))
    elif args.card:
        print(model_card(Path(args.model).resolve().name, found.versions[0], clf))
    else:
        _print(args, clf, facts, found)
    return 1 if found.foreign else 0


def _facts(clf: IncrementalClassifier, found: Audit) -> dict[str, Any]:
    from ..model.audit import class_bytes
    from ..model.facts import inspected

    return {
        "versions": list(found.versions),
        **inspected(clf, class_bytes(clf.state_)),
        "files": [{"file": f.name, "bytes": f.bytes, "what": f.what, "belongs": f.belongs} for f in found.files],
        "bytes": found.bytes,
        "accounted_versions": list(found.checked),
    }


def _print(args: argparse.Namespace, clf: IncrementalClassifier, facts: dict[str, Any], found: Audit) -> None:
    from ..common.files import shown

    state = clf.state_
    print(
        f"{args.model}: version {found.versions[0]}, {plural(len(state.prototypes), 'class')} in "
        f"{plural(len(state.tasks), 'task')}"
    )
    print(
        f"network: {facts['backbone']}, {facts['parameters'] / 1e6:.2f} million weights, embeddings of "
        f"{facts['embedding_dim']} numbers; made for {state.spec}"
    )
    readout = type(clf.readout).__name__
    if clf.schedule.train == "none":
        print(f"method: the network stays as it is, read-out {readout}\n")
    else:
        print(f"method: {type(clf.objective).__name__} objective, drift {clf.drift}, read-out {readout}\n")
    drifts = any(task["drift"] for task in facts["tasks"])  # where nothing drifts, nothing is said of it
    heads = ["task", "from", "classes", "photos", "epochs", "left-out", *["old moved by", "±"][: 2 * drifts]]
    print(text_table([row[: len(heads)] for row in _task_rows(facts)], heads, [0, 2, 3, 4, 5]))
    print()
    rows = []
    for one in facts["classes"]:
        limit = one["unknown_beyond"]
        rows.append(
            [
                shown(str(one["class"])),
                one["task"],
                one["images"],
                one["bytes"],
                "-" if limit is None else f"{limit:.3f}",
                *[_moves(facts, one["class"])][:drifts],
            ]
        )
    heads = ["class", "task", "photos", "bytes", "unknown beyond", *["moved since"][:drifts]]
    print(text_table(rows, heads, right=list(range(1, len(heads)))))
    print()
    _print_files(args, facts, found)


def _moves(facts: dict[str, Any], label: object) -> str:
    moved = [d["moved"] for task in facts["tasks"] for d in task["drift"] if d["class"] == label]
    return f"{sum(moved):.3f}" if moved else "-"


def _task_rows(facts: dict[str, Any]) -> list[list[object]]:
    from ..common.files import shown

    rows: list[list[object]] = []
    for number, task in enumerate(facts["tasks"], 1):
        moved = [d["moved"] for d in task["drift"]]
        unsure = [d["uncertainty"] for d in task["drift"] if d["uncertainty"] is not None]
        refreshed = f" (+{len(task['refreshed'])} refreshed)" if task["refreshed"] else ""
        rows.append(
            [
                number,
                shown(task["source"]) or "-",
                f"{len(task['classes'])}{refreshed}",
                sum(task["images"]) + sum(n for _, n in task["refreshed"]),
                task["epochs"] or "-",
                "-" if task["held_out"] is None else percent(task["held_out"][1]),
                span(moved, "{:.3f}") if moved else "-",
                span(unsure, "{:.3f}") if unsure else "-",
            ]
        )
    return rows


def _print_files(args: argparse.Namespace, facts: dict[str, Any], found: Audit) -> None:
    from ..common.files import shown
    from ..model.learn import has_unfinished, unfinished

    if args.files:
        print(text_table([[shown(f.name), f.bytes, f.what] for f in found.files], ["file", "bytes", "what"], right=[1]))
        print()
    older = len(found.versions) - 1
    undo = f"undo can go back {plural(older, 'task')}" if older else "nothing to undo"
    print(f"{plural(len(found.files), 'file')}, {size_text(found.bytes)}; {undo}")
    stored = facts["images_stored"]
    if len(found.checked) == len(found.versions):
        print(
            "every byte is accounted for: writing the model again gives the same files. "
            + (f"{plural(stored, 'photo')} of old tasks stored, as was asked for." if stored else "No photo is stored.")
        )
    else:
        left = [str(number) for number in found.versions if number not in found.checked]
        print(f"not accounted byte for byte: version {', '.join(left)} (a part of yours is needed)")
    print("weights, prototypes and statistics may still tell something about the photos they were computed from")
    for file in found.foreign:
        print(f"does not belong: {shown(file.name)}, {size_text(file.bytes)} ({file.what})")
    if has_unfinished(args.model):
        print(f"an interrupted task is kept in {unfinished(args.model)}: the same learn command goes on from there")
