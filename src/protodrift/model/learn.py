"""Learning from photos into a model directory: all or nothing, and an interrupted task goes on where it stopped.

    with locked_model("birds") as model:              # no other process can write to birds/ now
        plan = plan_task(model, find_photos("photos/2026-11"))
        learned = learn_task(plan)                    # birds/ has one more version, or is what it was

While the network trains, its last finished epoch is kept beside the model, in `birds.learning/`: weights, no images.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ..common import files
from ..common.labels import Label, sorted_labels
from ..common.progress import Reporter, silent
from ..data.folder import Found, Photos, read_photos
from ..distributed.world import World, current
from ..distributed.writing import SharedCheckpoint
from ..errors import InputError, ModelFileError, RunError, StaleError
from ..experiments.store import EpochCheckpoint, Store
from ..learner import IncrementalClassifier
from ..methods import training_name
from ..training.checkpoint import Checkpoint
from ..training.state import LearnerState, check_new_classes
from . import versions
from .defaults import Choice, choose
from .facts import photo_size
from .format import encode_param

KEPT_VERSIONS = 5
"""How many versions stay on disk; one task less can be undone."""


@dataclass(frozen=True)
class ModelDirectory:
    """A model directory that this process may learn into.

    Attributes:
        path: the directory.
        world: the ranks that learn together; the first one writes.
        classifier: the model in it, or None if there is none yet.
        current: the version that `classifier` was read from, or None.
        held: the directory, if its lock is held here.
    """

    path: Path
    world: World
    classifier: IncrementalClassifier | None = None
    current: versions.Current | None = None
    held: files.Held | None = None

    @property
    def state(self) -> LearnerState | None:
        """What the model has learned, or None."""
        return None if self.classifier is None else self.classifier.state_

    @property
    def next_task(self) -> int:
        """The number of the next task, counted from 1."""
        return 1 if self.state is None else len(self.state.tasks) + 1

    @property
    def labels(self) -> tuple[Label, ...]:
        """The classes that the model knows."""
        return () if self.state is None else self.state.prototypes.labels


def unfinished(path: Path) -> Path:
    """Return where an interrupted task of a model is kept: beside it, by whatever name the model is called."""
    path = path.resolve()  # "." has no name
    return path.with_name(f"{path.name}.learning")


def has_unfinished(path: str | Path) -> bool:
    """Return whether an interrupted task lies beside a model."""
    return any((unfinished(Path(path)) / "epochs").glob("learn-*"))


def read_model(path: str | Path) -> ModelDirectory:
    """Read a model directory without locking or making anything; it may be missing."""
    path, world = Path(path), current()
    versions.check_target(path)
    if not (path / "CURRENT").exists():
        return ModelDirectory(path, world)
    saved = versions.read(path)
    return ModelDirectory(path, world, IncrementalClassifier.from_saved(saved, path), saved.current)


@contextlib.contextmanager
def locked_model(path: str | Path) -> Iterator[ModelDirectory]:
    """Lock a model directory, made if it is missing, for as long as a task takes; read the model in it.

    Raises:
        ModelFileError: if it is something else, damaged, locked by another process, or cannot be written.
    """
    path, world = Path(path), current()
    if not world.is_first:
        world.on_first(lambda: None)  # the first rank holds the lock for all
        yield read_model(path)
        return
    versions.check_target(path)
    missing = not path.exists()
    with contextlib.ExitStack() as stack:
        try:
            files.make_directory(path)
            held = stack.enter_context(files.locked(path))
        except OSError as error:  # of these two only: `versions.write` explains its own
            raise versions.unwritable(path, error) from error
        try:
            world.on_first(lambda: None)
            yield replace(read_model(path), held=held)
        finally:
            if missing:  # an interrupted first task leaves nothing behind
                with contextlib.suppress(OSError, ModelFileError):
                    held.check()  # what is there now may be another process's
                    if not (path / "CURRENT").exists():
                        _remove_empty(path)


def _remove_empty(path: Path) -> None:
    for stale in path.glob("versions/.new-*"):
        shutil.rmtree(stale)
    with contextlib.suppress(FileNotFoundError):
        (path / "versions").rmdir()
    (path / ".lock").unlink(missing_ok=True)
    path.rmdir()


def check_onto(model: ModelDirectory, version: int | None) -> None:
    """Refuse a model whose current version is not the wanted one (0: no version yet; None: any).

    Raises:
        StaleError: naming both.
    """
    now = 0 if model.current is None else model.current.version
    if version is not None and version != now:
        raise StaleError(
            f"{model.path} is {model.current or 'a new model'}, not version {version}. Nothing was learned."
        )


@dataclass(frozen=True)
class Plan:
    """A task that is ready to be learned.

    Attributes:
        model: the model directory.
        found, photos: what was found, and what could be read.
        choice: the classifier that will learn, with the parameters chosen for these photos.
        new: photos per new class.
        refreshed: photos per known class that takes part.
        skipped_known: photos of known classes that are passed over.
    """

    model: ModelDirectory
    found: Found
    photos: Photos
    choice: Choice
    new: dict[str, int]
    refreshed: dict[str, int]
    skipped_known: int

    @property
    def trains(self) -> bool:
        """Whether the network may be trained."""
        return bool(self.new) and self.choice.classifier.schedule.trains(self.model.next_task)

    @property
    def case_variants(self) -> list[tuple[str, str]]:
        """New classes that differ only in case from a known one, and that one."""
        known = {str(label).casefold(): str(label) for label in self.model.labels}
        return [(label, known[label.casefold()]) for label in self.new if label.casefold() in known]


@dataclass(frozen=True)
class Learned:
    """What learning a task did.

    Attributes:
        classifier: the model now.
        version: the number of the version that was written.
        resumed: the epoch after which an interrupted training went on; 0 if it began anew.
    """

    classifier: IncrementalClassifier
    version: int
    resumed: int


def plan_task(
    model: ModelDirectory,
    found: Found,
    *,
    known: Literal["error", "skip", "refresh"] = "error",
    options: dict[str, Any] | None = None,
    ram: int | None = None,
    reporter: Reporter = silent,
) -> Plan:
    """Read the photos, and choose how to learn from them; nothing is written.

    Args:
        model: the model directory.
        found: the photos.
        known: what to do with photos of classes that the model knows.
        options: override what `defaults.choose` would choose; None keeps its choice.
        ram: bytes of decoded photos held in memory; None: a share of what there is.
        reporter: shows progress.

    Raises:
        InputError: if there is nothing to learn, or a class is known and `known` is "error".
    """
    if model.state is not None:
        photo_size(model.state.spec, model.path)
        check_new_classes(model.state, sorted_labels(found.classes), "refresh")  # labels of one kind
    known_labels = frozenset(model.labels)
    again = [label for label in found.classes if label in known_labels]
    if again and known == "error":
        names = ", ".join(repr(label) for label in again[:3]) + (" and others" if len(again) > 3 else "")
        raise InputError(
            f"{model.path} knows {names} already ({len(again)} of {len(found.classes)} classes). Add --known skip to "
            "pass over their photos, or --known refresh to merge them into what is known."
        )
    skipped = 0
    if known == "skip":
        skipped = sum(found.classes[label] for label in again)
        found = found.only(lambda label: label not in known_labels)
        if not found.files:
            raise InputError("nothing to learn: all classes are known. --known refresh would merge their photos.")
    choice = _choose(model, found, again, options or {})
    with reporter.reading("reading photos", len(found.files)) as on_file:
        # In an unlinked temporary file, if they do not fit: photos must not outlive the task, whatever ends it.
        photos = read_photos(found, choice.size, on_file, ram=ram, folder=model.path)
    counts = Counter(photos.examples.labels)
    parts: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for label in sorted_labels(counts):
        parts[label in known_labels][str(label)] = counts[label]
    return Plan(model, found, photos, choice, *parts, skipped)


def _choose(model: ModelDirectory, found: Found, again: list[str], options: dict[str, Any]) -> Choice:
    wanted = {name: value for name, value in options.items() if value is not None}
    if model.state is not None:
        size = model.state.spec.shape[1]
        if wanted.get("size", size) != size:
            raise InputError(
                f"{model.path} was made for photos of {size} x {size}; --size cannot change that. Leave it away."
            )
    return choose(model.classifier, found.classes, wanted, again)


def learn_task(plan: Plan, reporter: Reporter = silent) -> Learned:
    """Learn, and write a new version; on any error the model is what it was.

    On several ranks all of them learn, from the same photos; the first one writes.

    Raises:
        StaleError: if somebody else has written to the model meanwhile.
        ModelFileError, RunError: if the disk is full or cannot be written, or the directory was exchanged.
        DivergedError: if training met a loss that is not finite.
    """
    model, clf, world = plan.model, plan.choice.classifier, plan.model.world
    key = task_key(plan)
    world.agree("the photos, the model or the threads", key)
    # A network that is left as it is needs no place beside the model.
    own = _checkpoint(model.path, key) if world.is_first and plan.trains else None
    checkpoint: Checkpoint = SharedCheckpoint(world, own)
    resumed = checkpoint.load()
    with reporter.training(training_name(clf.method, model.next_task)) as on_progress:
        clf.state_ = clf.learned_from(
            model.state,
            plan.photos.spec,
            plan.photos.examples,
            on_progress=on_progress,
            checkpoint=checkpoint,
            source=plan.found.name,
        )

    def write() -> int:
        made = versions.write(model.path, *clf.files(), onto=model.current, held=model.held, keep=KEPT_VERSIONS)
        shutil.rmtree(unfinished(model.path), ignore_errors=True)
        return made.version

    return Learned(clf, world.on_first(write), 0 if resumed is None else int(resumed[0]["epoch"]))


def _checkpoint(path: Path, key: str) -> EpochCheckpoint:
    """Return where the last finished epoch is kept; those of other tasks are removed."""
    folder = unfinished(path)
    try:
        store = Store(folder)
    except RunError as error:
        raise RunError(
            f"cannot make {folder}, where the last finished epoch is kept while the network trains: "
            f"{getattr(error.__cause__, 'strerror', None) or error}. Make {folder.parent} writable, or keep the model "
            "in a folder that is."
        ) from error
    checkpoint = store.checkpoint("learn", key)
    own = {folder.name for folder in checkpoint._folders()}
    for other in store.epochs.iterdir():
        if other.name not in own:
            shutil.rmtree(other, ignore_errors=True)
    return checkpoint


def task_key(plan: Plan) -> str:
    """Return a hash of everything that a training depends on: a checkpoint of another task is never resumed."""
    before = "" if plan.model.current is None else plan.model.current.manifest_sha256
    params = {name: encode_param(value) for name, value in plan.choice.classifier.get_params(deep=False).items()}
    examples = plan.photos.examples
    facts = [before, params, list(examples.labels), torch.__version__, torch.get_num_threads()]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for part in examples.images.split(256):
        digest.update(part.clone().numpy().tobytes())  # a copy of this part: images may lie in a file
    return digest.hexdigest()
