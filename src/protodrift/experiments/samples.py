"""What a report draws embeddings from: a sample of them, kept beside the results of a run.

RUN/pictures/manifest.json          which methods, their classes, checksums
RUN/pictures/0.safetensors, ...     one file a method with SDC: embeddings, prototypes, true means
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from ..common.files import sync_directory
from ..common.labels import Label
from ..common.tensorfiles import Tensors
from ..errors import InputError, ModelFileError, RunError
from ..methods import Method
from .store import read_checked, write_checked
from .tree import Tree

FORMAT_VERSION = 1

PER_CLASS = 60
"""Images kept of a class: more would hide the markers of a picture."""

IN_ALL = 600
"""Images kept of one kind, whatever the number of classes."""


@dataclass(frozen=True)
class Panels:
    """The second task in a 2-D embedding (Figs. 4 and 8); all (., 2), images are training images.

    Attributes:
        first, rows_first: task 1's images after task 1, and the rows of their classes.
        current, rows_current: task 2's images through that same network.
        both, rows_both: images of both tasks after task 2.
        saved, moved, true: (K1, 2) the prototypes of task 1: as saved, compensated, and their true means after task 2.
    """

    first: torch.Tensor
    rows_first: torch.Tensor
    current: torch.Tensor
    rows_current: torch.Tensor
    both: torch.Tensor
    rows_both: torch.Tensor
    saved: torch.Tensor
    moved: torch.Tensor
    true: torch.Tensor


@dataclass(frozen=True)
class Picture:
    """The last task of one method with SDC: N sampled training images of it, M test images of all tasks.

    Attributes:
        method: its name in the run.
        seed: the seed it was trained with.
        tasks: the classes of each task; a row counts through all of them.
        z_old, z_new: (N, D) images of the last task before and after it; rows: (N,) of their classes.
        z_test, rows_test: (M, D) and (M,) test images of all tasks after the last one.
        saved, moved, true: (K, D) the K old classes: prototypes before and after this task's compensation, true means.
        new: (K', D) prototypes of the classes of the last task.
        panels: for a 2-D embedding, else None.
    """

    method: str
    seed: int
    tasks: tuple[tuple[Label, ...], ...]
    z_old: torch.Tensor
    z_new: torch.Tensor
    rows: torch.Tensor
    z_test: torch.Tensor
    rows_test: torch.Tensor
    saved: torch.Tensor
    moved: torch.Tensor
    true: torch.Tensor
    new: torch.Tensor
    panels: Panels | None = None

    @property
    def classes(self) -> tuple[Label, ...]:
        """All labels in task order."""
        return tuple(label for task in self.tasks for label in task)


_TENSORS = ("z_old", "z_new", "rows", "z_test", "rows_test", "saved", "moved", "true", "new")


def take(tree: Tree, name: str, method: Method) -> Picture:
    """Take a method's picture.

    Args:
        tree: the stages of a stream of two or more tasks.
        name: what the method is called.
        method: a method whose drift can be drawn (`Drift.draws`), such as SDC.

    Raises:
        InputError: if there is no drift to draw.
    """
    last = len(tree.stream)
    if last < 2:
        raise InputError("a picture of drift needs a second task: a stream of one task has no drift.")
    if method.drift is None or not method.drift.draws:
        raise InputError(
            f"a picture of drift needs an estimator that can be drawn (`Drift.draws`), such as SDC(sigma=0.3), got "
            f"drift={method.drift!r}."
        )
    classes, space = tree.stream.classes, method.readout.space
    task, embeddings = tree.stream[last - 1], tree.embeddings(method, last)
    prototypes = tree.prototypes(method, last).means
    rows, tested = task.data.targets_of(classes), _test_rows(tree)
    some, some_tested = sample(rows), sample(tested)
    old = len(classes) - len(task.classes)
    return Picture(
        name,
        tree.seed,
        tree.stream.task_classes,
        z_old=space(embeddings.z_old[some]),
        z_new=space(embeddings.z_new[some]),
        rows=rows[some],
        z_test=space(embeddings.z_test[some_tested]),
        rows_test=tested[some_tested],
        saved=tree.prototypes(method, last - 1).means,
        moved=prototypes[:old],
        true=embeddings.true_means[:old],
        new=prototypes[old:],
        panels=_panels(tree, method) if prototypes.shape[1] == 2 and method.exemplars is None else None,
    )


def _test_rows(tree: Tree) -> torch.Tensor:
    tests = [task.test for task in tree.stream]
    return torch.cat([test.targets_of(tree.stream.classes) for test in tests if test is not None])


def _panels(tree: Tree, method: Method) -> Panels:
    first, second, space = tree.stream[0], tree.stream[1], method.readout.space
    classes, count = tree.stream.classes, len(first.classes)
    rows_first, rows_current = first.data.targets_of(classes), second.data.targets_of(classes)
    rows_both = torch.cat([rows_first, rows_current])
    some_first, some_current, some_both = sample(rows_first), sample(rows_current), sample(rows_both)
    after = tree.embeddings(method, 2)
    both = torch.cat([tree.z_train(method, 2, of_task=1), after.z_new])
    return Panels(
        first=space(tree.embeddings(method, 1).z_new[some_first]),
        rows_first=rows_first[some_first],
        current=space(after.z_old[some_current]),
        rows_current=rows_current[some_current],
        both=space(both[some_both]),
        rows_both=rows_both[some_both],
        saved=tree.prototypes(method, 1).means,
        moved=tree.prototypes(method, 2).means[:count],
        true=after.true_means[:count],
    )


def sample(rows: torch.Tensor, per_class: int = PER_CLASS, in_all: int = IN_ALL) -> torch.Tensor:
    """Return positions, in order: of every class evenly the same share, at most `per_class`, at most `in_all` in all.

    >>> sample(torch.tensor([0, 0, 0, 0, 1, 1]), per_class=2)
    tensor([0, 2, 4, 5])
    """
    found = rows.unique().tolist()
    share = min(per_class, max(1, in_all // max(1, len(found))))
    chosen = []
    for row in found[:in_all]:
        own = (rows == row).nonzero()[:, 0]
        step = max(1.0, len(own) / share)
        chosen.append(own[[int(i * step) for i in range(min(len(own), share))]])
    return torch.cat(chosen).sort().values if chosen else rows[:0]


# -- on disk ----------------------------------------------------------------------------------------------------------


def keep(run_directory: Path, tree: Tree, methods: Mapping[str, Method]) -> None:
    """Write the pictures of all methods whose drift can be drawn into a run directory, unless they are there already.

    The caller holds the lock of the directory.
    """
    wanted = {name: method for name, method in methods.items() if method.drift is not None and method.drift.draws}
    if len(tree.stream) < 2 or not wanted:
        return
    _clear(run_directory)
    there: dict[str, Picture] = {}
    with contextlib.suppress(RunError):  # damaged ones are taken again
        there = read(run_directory)
        if _same(there, tree, wanted):
            return
    others = [picture for name, picture in there.items() if name not in wanted and picture.seed == tree.seed]
    write(run_directory, [*others, *(take(tree, name, method) for name, method in wanted.items())])


def _same(there: Mapping[str, Picture], tree: Tree, wanted: Mapping[str, Method]) -> bool:
    """Whether pictures show exactly these prototypes: asks for nothing that a finished run has not on disk."""
    if not set(wanted) <= set(there) or any(picture.seed != tree.seed for picture in there.values()):
        return False
    last = len(tree.stream)
    for name, method in wanted.items():
        means = torch.cat([there[name].moved, there[name].new])
        if not torch.equal(means, tree.prototypes(method, last).means):
            return False
    return True


def write(run_directory: Path, pictures: Iterable[Picture]) -> None:
    """Write pictures whole, in place of those that are there."""
    target, draft, gone = (run_directory / name for name in ("pictures", ".pictures-new", ".pictures-gone"))
    _clear(run_directory)
    listed, tensors = [], {}
    for i, picture in enumerate(pictures):
        tensors[str(i)] = _packed(picture)
        tasks = [list(task) for task in picture.tasks]
        listed.append({"method": picture.method, "seed": picture.seed, "tasks": tasks, "file": str(i)})
    manifest = {"format": "protodrift-pictures", "format_version": FORMAT_VERSION, "pictures": listed}
    write_checked(draft, manifest, tensors)
    if target.exists():
        target.rename(gone)
    draft.rename(target)  # killed just before this, a run has no pictures: the next `protodrift run` takes them again
    sync_directory(run_directory)
    shutil.rmtree(gone, ignore_errors=True)


def _clear(run_directory: Path) -> None:
    """Remove what a process that was killed has left; the caller holds the lock."""
    for stale in (*run_directory.glob(".pictures-*"), *run_directory.glob(".new-.pictures-*")):
        shutil.rmtree(stale, ignore_errors=True)


def read(run_directory: Path) -> dict[str, Picture]:
    """Read the pictures of a run by the names of their methods; none if there are none.

    Raises:
        RunError: if they are damaged, or of another format.
    """
    folder = run_directory / "pictures"
    if not folder.is_dir():
        return {}
    try:
        manifest, tensors = read_checked(folder)
        if manifest["format_version"] != FORMAT_VERSION:
            raise RunError(f"{folder} has format version {manifest['format_version']!r}, not {FORMAT_VERSION}.")
        found = [_unpacked(described, tensors[described["file"]]) for described in manifest["pictures"]]
    except (ModelFileError, KeyError, TypeError) as error:
        raise RunError(f"{folder} is damaged ({error}). `protodrift run` makes it again.") from None
    return {picture.method: picture for picture in found}


def _packed(picture: Picture) -> Tensors:
    result = {name: getattr(picture, name) for name in _TENSORS}
    if picture.panels is not None:
        result.update({f"panels.{name}": value for name, value in vars(picture.panels).items()})
    return result


def _unpacked(described: Mapping[str, Any], tensors: Tensors) -> Picture:
    panels = None
    if "panels.first" in tensors:
        panels = Panels(**{field.name: tensors[f"panels.{field.name}"] for field in fields(Panels)})
    tasks = tuple(tuple(task) for task in described["tasks"])
    own = {name: tensors[name] for name in _TENSORS}
    return Picture(described["method"], described["seed"], tasks, **own, panels=panels)
