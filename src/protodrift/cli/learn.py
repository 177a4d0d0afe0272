"""`protodrift learn`: create a model from photos, or teach it new classes."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import TYPE_CHECKING

from .arguments import Commands, add_command, add_model, add_photos, whole_number
from .text import percent, plural, span, time_text

if TYPE_CHECKING:
    from ..data.folder import Found, Photos
    from ..model.learn import Learned, ModelDirectory, Plan

_EPILOG = """\
examples:
  protodrift learn birds photos/2026-10                    make a model from photos/2026-10/<class>/<photo>
  protodrift learn birds photos/2026-11                    teach it the classes of the next month
  protodrift learn birds list.csv                          lines of path,label instead of folders
  protodrift learn birds photos --classes leaf             folders in folders, photos/2026-10/<class>/<photo>
  protodrift learn birds photos/2026-12 --dry-run          say what would be learned, and change nothing
  protodrift learn birds photos/2027-01 --known refresh    some classes are known: merge their photos
  torchrun --nproc_per_node=2 -m protodrift learn birds photos/2027-02    over two processes

A task is all or nothing: after an error, Ctrl-C or a power cut the model is what it was. The same command goes on
where it stopped. Photos are not kept: a model holds weights, prototypes and statistics.
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "learn",
        run,
        help="create a model from a folder of photos, or teach it new classes",
        description="Learns the classes of a folder of class folders (or a CSV of path,label) into a model directory.",
        epilog=_EPILOG,
        on_ranks=True,
    )
    add_model(parser, "model directory; made if it is missing")
    add_photos(parser)
    parser.add_argument(
        "--known",
        choices=("error", "skip", "refresh"),
        default="error",
        help="photos of known classes: an error (default), pass over, or merge into what is known",
    )
    parser.add_argument(
        "--onto",
        type=_onto,
        metavar="VERSION",
        help="refuse if another version than this one is current (0: none yet); 'latest': if somebody else writes to "
        "the model meanwhile, learn the task again on top of that (default: refuse to write then)",
    )
    parser.add_argument("--dry-run", action="store_true", help="read everything, learn nothing, change nothing")
    parser.add_argument(
        "--size", type=whole_number(1), metavar="PIXELS", help="side of a photo as the network sees it (new models)"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--train", dest="train", action="store_true", default=None, help="train the network on the photos (new models)"
    )
    mode.add_argument(
        "--frozen", dest="train", action="store_false", help="leave the pretrained network as it is (new models)"
    )
    parser.add_argument(
        "--epochs", type=whole_number(1), metavar="N", help="passes over the photos, where the network trains"
    )
    parser.add_argument(
        "--seed", type=whole_number(0), metavar="N", help="seed of all random draws (new models; default 0)"
    )


def _onto(text: str) -> int | str:
    return text if text == "latest" else whole_number(0)(text)


def run(args: argparse.Namespace) -> int:
    """Learn, and print a summary."""
    from ..data.folder import find_photos
    from ..errors import StaleError
    from ..model.learn import locked_model, read_model

    found = find_photos(args.data, label_by=args.label_by)
    if args.dry_run:
        _learn(args, read_model(args.model), found)
        return 0
    started = time.perf_counter()
    done = None
    while done is None:
        try:
            with locked_model(args.model) as model:
                done = _learn(args, model, found)
        except StaleError as error:
            if args.onto != "latest":
                raise
            print(f"learning again on top of what somebody else wrote: {error}")
    if done is not None:
        with contextlib.suppress(BrokenPipeError):  # the model is written: a reader that went away changes nothing
            _print_summary(args, *done, time.perf_counter() - started)
    return 0


def _learn(args: argparse.Namespace, model: ModelDirectory, found: Found) -> tuple[Plan, Learned, list[str]] | None:
    import warnings

    from ..common import machine
    from ..common.progress import reporting
    from ..errors import CollapseWarning, ImportanceWarning
    from ..model.learn import check_onto, learn_task, plan_task

    check_onto(model, None if args.onto == "latest" else args.onto)
    options = {name: getattr(args, name) for name in ("size", "train", "epochs", "seed")}
    print(_model_line(model))
    print(f"{args.data}: {_classes_text(found.classes)}", flush=True)
    with reporting(not args.quiet and model.world.is_first) as reporter:
        plan = plan_task(model, found, known=args.known, options=options, ram=args.ram, reporter=reporter)
    _print_reading(found, plan.photos, plan)
    print(plan.choice.description, flush=True)
    if args.dry_run:
        print(f"dry run: would learn {_plan_text(plan)}. Nothing was changed.")
        return None
    with reporting(not args.quiet and model.world.is_first) as reporter, warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        reporter.note(f"computing with {machine.tune()}")
        learned = learn_task(plan, reporter)
    # The summary itself says what the others warn of.
    shown = [str(one.message) for one in raised if issubclass(one.category, CollapseWarning | ImportanceWarning)]
    return plan, learned, shown


def _model_line(model: ModelDirectory) -> str:
    if model.state is None or model.current is None:
        return f"{model.path} is a new model"
    classes, tasks = plural(len(model.labels), "class"), plural(len(model.state.tasks), "task")
    return f"{model.path}: version {model.current.version}, {classes} in {tasks}"


def _classes_text(classes: dict[str, int]) -> str:
    photos = plural(sum(classes.values()), "photo")
    return f"{photos} of {plural(len(classes), 'class')}, {span(list(classes.values()))} each"


def _plan_text(plan: Plan) -> str:
    parts = [_classes_text(plan.new)] if plan.new else []
    if plan.refreshed:
        parts.append(f"refresh {plural(len(plan.refreshed), 'known class')}")
    return " and ".join(parts)


def _print_reading(found: Found, photos: Photos, plan: Plan) -> None:
    from ..common.files import shown
    from ..data.folder import same_pictures, summary_of

    if found.note:
        print(f"  note: {found.note}")
    passed = [*found.skipped, *photos.skipped]
    if passed:
        print(f"  passed over {plural(len(passed), 'file')}:")
        for line in summary_of(passed):
            print(f"    {line}")
    if plan.skipped_known:
        print(f"  passed over {plural(plan.skipped_known, 'photo')} of known classes")
    for new, known in plan.case_variants[:5]:
        print(
            f"  note: {new!r} is new; the model knows {known!r}. If they are one class, rename it to {known!r} and "
            "add --known refresh"
        )
    if len(plan.case_variants) > 5:
        print(f"  note: {len(plan.case_variants) - 5} more new classes differ only in case from known ones")
    for line in same_pictures(photos):
        print(f"  {line}")
    single = [label for label, count in plan.new.items() if count == 1]
    if single:
        names = ", ".join(shown(label) for label in single[:3])
        print(f"  note: one photo only of {names}{' and others' if len(single) > 3 else ''}: nothing to check it with")


def _print_summary(args: argparse.Namespace, plan: Plan, learned: Learned, warnings: list[str], seconds: float) -> None:
    for warning in warnings:
        print(f"warning: {warning}")
    state = learned.classifier.state_
    task = state.tasks[-1]
    if learned.resumed:
        print(f"went on after epoch {learned.resumed} of the interrupted task")
    done = [plural(len(plan.new), "new class")] if plan.new else []
    done += [f"{plural(len(plan.refreshed), 'class')} refreshed"] if plan.refreshed else []
    print(
        f"\nlearned {', '.join(done)} in {time_text(seconds)}: {plan.model.path} is version {learned.version} with "
        f"{plural(len(state.prototypes), 'class')}"
    )
    if task.note and learned.classifier.schedule.train != "none":
        print(f"  network            not trained: {task.note}")
    elif task.history:
        print(f"  network            trained {plural(len(task.history), 'epoch')}, loss {task.history[-1]['loss']:.3f}")
    if task.held_out is not None:
        images, accuracy = task.held_out
        print(
            f"  accuracy           {percent(accuracy)} on {plural(images, 'photo')} left out of this task, among all "
            f"{len(state.prototypes)} classes (photos taken at another place or day will do worse)"
        )
    elif plan.new:
        print("  accuracy           not known: too few photos to leave any out")
    if task.drift:
        moved = [one.moved for one in task.drift]
        unsure = [one.uncertainty for one in task.drift if one.uncertainty is not None]
        sure = f", may be off by {span(unsure, '{:.3f}')}" if unsure else ""
        print(f"  old prototypes     moved by {sum(moved) / len(moved):.3f} on average ({span(moved, '{:.3f}')}){sure}")
    elif learned.classifier.schedule.train == "none":  # nothing ever drifts: not a word about it
        if plan.refreshed:
            print(f"  known classes      {len(plan.refreshed)} took in their new photos")
    elif len(state.tasks) > 1:
        refreshed, stay = len(plan.refreshed), "stay: the network did not move"
        if refreshed == len(state.prototypes) - len(plan.new):
            stay = "took in their new photos; the network did not move"
        elif refreshed:
            stay = f"{refreshed} took in their new photos; the others {stay}"
        print(f"  old prototypes     {stay}")
    print(
        f"\nnext:  protodrift predict {args.model} PHOTO    protodrift inspect {args.model}    "
        f"protodrift undo {args.model}"
    )
    sys.stdout.flush()
