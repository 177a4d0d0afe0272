"""Learning from photos into a model directory: all or nothing, and an interrupted lesson goes on where it stopped.

    with workplace("birds") as place:            # nobody else can write to birds/ now
        plan = prepare(place, find_photos("photos/2026-11"))
        outcome = carry_out(plan)                # birds/ has one more version, or is what it was

The last finished epoch of a training under way is kept beside the model, in `birds.learning/`: weights, no images.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..common import files
from ..common.labels import sorted_labels
from ..common.progress import Reporter, silent
from ..data.arrays import InputSpec
from ..data.examples import Examples
from ..data.photos import Found, Photos, read_photos
from ..distributed.world import current
from ..distributed.writing import SharedCheckpoint
from ..errors import InputError, RunError
from ..experiments.store import EpochCheckpoint, Store
from ..learner import IncrementalClassifier
from ..training.state import LearnerState
from ..training.task import check_new_classes
from ..training.trainer import Checkpoint
from . import versions
from .defaults import Choice, choose
from .format import encode_param

KEPT_VERSIONS = 5
"""How many lessons can be undone is one less."""


@dataclass(frozen=True)
class Place:
    """A model directory that this process may write to.

    Attributes:
        path: the directory.
        classifier: the model in it, or None if there is none yet.
        version: the number of its current version; 0 if there is none.
    """

    path: Path
    classifier: IncrementalClassifier | None
    version: int

    @property
    def unfinished(self) -> Path:
        """Where the last finished epoch of a training under way is kept."""
        return unfinished(self.path)


def unfinished(path: Path) -> Path:
    """Return where an interrupted lesson of a model is kept: beside it, by whatever name it is called."""
    path = path.resolve()  # "." has no name
    return path.with_name(f"{path.name}.learning")


def look(path: str | Path) -> Place:
    """Return a model directory for looking only: nothing is locked or made."""
    path = Path(path)
    versions.check_target(path)
    if not (path / "CURRENT").exists():
        return Place(path, None, 0)
    return Place(path, IncrementalClassifier.load(path), versions.read_current(path).version)


@contextlib.contextmanager
def workplace(path: str | Path) -> Iterator[Place]:
    """Lock a model directory, made if it is missing, for as long as a lesson takes; load what is in it.

    Raises:
        ModelFileError: if it is something else, damaged, locked by another process, or cannot be written.
    """
    path, world = Path(path), current()
    if not world.is_first:
        world.on_first(lambda: None)  # the first rank holds the lock for all
        yield look(path)
        return
    versions.check_target(path)
    missing = not path.exists()
    try:
        with contextlib.ExitStack() as held:
            try:
                path.mkdir(parents=True, exist_ok=True)
                held.enter_context(files.locked(path))
            except OSError as error:  # of these two only: who writes a version explains what that meets
                raise versions.unwritable(path, error) from error
            world.on_first(lambda: None)
            yield look(path)
    finally:
        if missing and not (path / "CURRENT").exists():  # an interrupted first lesson leaves nothing behind
            with contextlib.suppress(OSError):
                _remove_empty(path)


def _remove_empty(path: Path) -> None:
    for stale in path.glob("versions/.new-*"):
        shutil.rmtree(stale)
    with contextlib.suppress(FileNotFoundError):
        (path / "versions").rmdir()
    (path / ".lock").unlink(missing_ok=True)
    path.rmdir()


@dataclass(frozen=True)
class Plan:
    """A lesson that is ready to be carried out.

    Attributes:
        place: the model.
        found, photos: what was found, and what could be read.
        learner: the classifier that will learn, with the parameters chosen for these photos.
        choice: what was chosen, in words.
        new: images of each new class.
        refreshed: images of each known class that take part.
        skipped_known: images of known classes that are passed over.
    """

    place: Place
    found: Found
    photos: Photos
    learner: IncrementalClassifier
    choice: Choice
    new: dict[str, int]
    refreshed: dict[str, int]
    skipped_known: int

    @property
    def trains(self) -> bool:
        """Whether the network may be trained."""
        task = 1 if self.state is None else len(self.state.tasks) + 1
        return bool(self.new) and self.learner.schedule.trains(task)

    @property
    def alike(self) -> list[tuple[str, str]]:
        """New classes that differ only in case from a known one, and that one."""
        labels = () if self.state is None else self.state.prototypes.labels
        known = {str(label).casefold(): str(label) for label in labels}
        return [(label, known[label.casefold()]) for label in self.new if label.casefold() in known]

    @property
    def examples(self) -> Examples:
        """The images that take part."""
        return self.photos.examples

    @property
    def state(self) -> LearnerState | None:
        """What was known before."""
        return None if self.place.classifier is None else self.place.classifier.state_


@dataclass(frozen=True)
class Outcome:
    """What a lesson did.

    Attributes:
        classifier: the model now.
        version: the number of the version that was written.
        resumed: the epoch after which an interrupted training went on; 0 if it began anew.
    """

    classifier: IncrementalClassifier
    version: int
    resumed: int


def known_classes(place: Place, found: Found) -> list[str]:
    """Return which classes of the photos the model knows already."""
    if place.classifier is None:
        return []
    known = set(place.classifier.state_.prototypes.labels)
    return [label for label in found.classes if label in known]


def prepare(
    place: Place,
    found: Found,
    *,
    known: str = "error",
    options: dict[str, Any] | None = None,
    ram: int | None = None,
    reporter: Reporter = silent,
) -> Plan:
    """Read the photos, and choose how to learn from them; nothing is written.

    Args:
        place: the model.
        found: the photos.
        known: what to do with photos of classes that the model knows: "error", "skip" or "refresh".
        options: what the user wants otherwise than `defaults.choose` would; None values are not wanted otherwise.
        ram: bytes of decoded photos held in memory; None: a share of what there is.
        reporter: shows progress.

    Raises:
        InputError: if there is nothing to learn, or a class is known and `known` is "error".
    """
    state = None if place.classifier is None else place.classifier.state_
    if state is not None:
        if not _of_photos(state.spec):
            raise InputError(f"{place.path} was made for {state.spec}, not for photos. Use the Python API for it.")
        check_new_classes(state, sorted_labels(found.classes), "refresh")  # labels of one kind
    again = known_classes(place, found)
    if again and known == "error":
        names = ", ".join(repr(label) for label in again[:3]) + (" and others" if len(again) > 3 else "")
        raise InputError(
            f"{place.path} knows {names} already ({len(again)} of {len(found.classes)} classes). Add --known skip to "
            "pass over their photos, or --known refresh to merge them into what is known."
        )
    passed = sum(found.classes[label] for label in again) if known == "skip" else 0
    if known == "skip":
        found = found.only(lambda label: label not in set(again))
        if not found.files:
            raise InputError("nothing to learn: all classes are known. --known refresh would merge their photos.")
    wanted = {name: value for name, value in (options or {}).items() if value is not None}
    size = state.spec.shape[1] if state is not None else None
    if size is not None and wanted.get("size", size) != size:
        raise InputError(
            f"{place.path} was made for photos of {size} x {size}; --size cannot change that. Leave it away."
        )
    choice = choose(place.classifier, found.classes, wanted, again)
    with reporter.reading("reading photos", len(found.files)) as on_file:
        # In an unlinked file, if they do not fit: photos must not outlive the task, whatever ends it.
        photos = read_photos(found, choice.size, on_file, ram=ram, folder=place.path)
    counts = dict.fromkeys(sorted_labels(photos.examples.labels), 0)
    for label in photos.examples.labels:
        counts[label] += 1
    new = {str(label): n for label, n in counts.items() if label not in set(again)}
    refreshed = {str(label): n for label, n in counts.items() if label in set(again)}
    return Plan(place, found, photos, choice.classifier, choice, new, refreshed, passed)


def _of_photos(spec: InputSpec) -> bool:
    return spec.is_image and spec.shape[0] == 3 and spec.shape[1] == spec.shape[2] and spec.scale == "uint8"


def carry_out(plan: Plan, reporter: Reporter = silent) -> Outcome:
    """Learn, and write a new version; on any error the model is what it was.

    On several ranks all of them learn, from the same photos; the first one writes.

    Raises:
        ModelFileError, RunError: if the disk is full or cannot be written.
        DivergedError: if training met a loss that is not finite.
    """
    path, clf = plan.place.path, plan.learner
    state, world = plan.state, current()
    key = lesson_key(plan)
    world.agree("the photos, the model or the threads", key)
    # A network that is left as it is needs no room beside the model.
    own = _own_checkpoint(plan, key) if world.is_first and plan.trains else None
    checkpoint: Checkpoint = SharedCheckpoint(world, own)
    resumed = checkpoint.load()
    task = 1 if state is None else len(state.tasks) + 1
    with reporter.training(clf._validated_method(), task) as on_progress:
        clf.state_ = clf.learned_from(
            state,
            plan.photos.spec,
            plan.examples,
            on_progress=on_progress,
            checkpoint=checkpoint,
            source=plan.found.name,
        )

    def write() -> int:
        version = versions.write(path, *clf.files(), keep=KEPT_VERSIONS, is_locked=True)
        shutil.rmtree(plan.place.unfinished, ignore_errors=True)
        return version

    return Outcome(clf, world.on_first(write), 0 if resumed is None else int(resumed[0]["epoch"]))


def _own_checkpoint(plan: Plan, key: str) -> EpochCheckpoint:
    place = plan.place.unfinished
    try:
        store = Store(place)
    except RunError as error:
        raise RunError(
            f"cannot make {place}, where the last finished epoch is kept while the network trains: "
            f"{getattr(error.__cause__, 'strerror', None) or error}. Make {place.parent} writable, or keep the model "
            "in a folder that is."
        ) from error
    checkpoint = store.checkpoint("learn", key)
    _drop_others(store, checkpoint)
    return checkpoint


def lesson_key(plan: Plan) -> str:
    """Return a hash of everything that a training depends on: a checkpoint of another lesson is never taken up."""
    digest = hashlib.sha256()
    before = versions.read_current(plan.place.path).manifest_sha256 if plan.place.version else ""
    params = {name: encode_param(value) for name, value in plan.learner.get_params(deep=False).items()}
    facts = [before, params, list(plan.examples.labels), torch.__version__, torch.get_num_threads()]
    digest.update(json.dumps(facts, sort_keys=True).encode())
    for part in plan.examples.images.split(256):
        digest.update(part.clone().numpy().tobytes())  # a copy of this part: images may lie in a file
    return digest.hexdigest()


def _drop_others(store: Store, checkpoint: EpochCheckpoint) -> None:
    own = {folder.name for folder in checkpoint._folders()}
    for folder in store.epochs.iterdir():
        if folder.name not in own:
            shutil.rmtree(folder, ignore_errors=True)


def has_unfinished(path: str | Path) -> bool:
    """Return whether an interrupted lesson lies beside a model."""
    return any((unfinished(Path(path)) / "epochs").glob("learn-*"))
