"""Task streams: D^1, D^2, ... with disjoint sets of classes C^1, C^2, ... (Sec. 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import overload

import numpy as np

from ..common.labels import Label, sorted_labels
from ..errors import InputError
from .examples import Dataset, Examples


@dataclass(frozen=True)
class Task:
    """One task of a stream.

    Attributes:
        index: t, counted from 1 as in the paper.
        classes: C^t, sorted.
        data: D^t, the training examples.
        test: the test examples of C^t, or None.
    """

    index: int
    classes: tuple[Label, ...]
    data: Examples
    test: Examples | None

    def __repr__(self) -> str:
        return f"Task({self.index}: {len(self.classes)} classes, {len(self.data)} images)"


class TaskStream:
    """A dataset cut into tasks. It can be iterated again and again, nested, indexed and sliced.

    Args:
        dataset: the `Dataset` to cut.
        tasks: number of tasks of equal size; a remainder goes to the first task, as in `35 + 5x33`.
        first, step: classes in the first task and in each later one (a smaller last task takes what is left).
        classes: the tasks spelled out, as lists of labels; classes left out are left out.
        class_order: how the classes are ordered before the cut: None (sorted), a seed (numpy's
            `RandomState(seed).permutation`, the field's convention: 1993), or all labels in the wanted order.

    Exactly one of `tasks`, `first` with `step`, and `classes` is given.

    >>> from protodrift.data import load_digits
    >>> stream = TaskStream(load_digits(), tasks=4, class_order=1993)
    >>> stream
    TaskStream(digits: 10 classes in 4 tasks, 4 + 3x2)
    >>> stream[0].classes, len(stream[1:]), [task.index for task in stream[1:]]
    ((2, 4, 6, 7), 3, [2, 3, 4])
    """

    def __init__(
        self,
        dataset: Dataset,
        tasks: int | None = None,
        *,
        first: int | None = None,
        step: int | None = None,
        classes: Sequence[Sequence[Label]] | None = None,
        class_order: int | Sequence[Label] | None = None,
    ) -> None:
        given = (tasks is not None) + (first is not None or step is not None) + (classes is not None)
        if given != 1:
            raise InputError(
                "say how to cut the stream in one way: tasks=6, or first=50 with step=5, or classes=[[...], ...]."
            )
        self.dataset = dataset
        if classes is not None:
            if class_order is not None:
                raise InputError("classes=[[...], ...] already gives the order: drop class_order.")
            self.task_classes = _explicit(dataset, classes)
        else:
            order = ordered(dataset.classes, class_order)
            sizes = split_sizes(len(order), tasks=tasks, first=first, step=step)
            ends = np.cumsum(sizes)
            self.task_classes = tuple(
                sorted_labels(order[end - size : end]) for size, end in zip(sizes, ends, strict=True)
            )
        self._first_index = 1

    @property
    def classes(self) -> tuple[Label, ...]:
        """All classes in task order, sorted within a task."""
        return tuple(label for task in self.task_classes for label in task)

    @property
    def split(self) -> str:
        """The sizes of the tasks, as in `35 + 5x33`."""
        return format_split([len(task) for task in self.task_classes])

    def __len__(self) -> int:
        return len(self.task_classes)

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, item: int) -> Task: ...
    @overload
    def __getitem__(self, item: slice) -> TaskStream: ...
    def __getitem__(self, item: int | slice) -> Task | TaskStream:
        if isinstance(item, slice):
            start, _, stride = item.indices(len(self))
            if stride != 1:
                raise InputError("a stream can be sliced with step 1 only: its tasks have an order.")
            part = object.__new__(TaskStream)
            part.dataset, part.task_classes = self.dataset, self.task_classes[item]
            part._first_index = self._first_index + start
            return part
        position = range(len(self))[item]  # IndexError as of a list, negative indices too
        chosen = self.task_classes[position]
        test = self.dataset.test
        return Task(
            self._first_index + position,
            chosen,
            self.dataset.train.of_classes(chosen),
            None if test is None else test.of_classes(chosen),
        )

    def __repr__(self) -> str:
        return f"TaskStream({self.dataset.name}: {len(self.classes)} classes in {len(self)} tasks, {self.split})"


def split_sizes(
    count: int, *, tasks: int | None = None, first: int | None = None, step: int | None = None
) -> list[int]:
    """Return how many classes each task gets; every class is in one.

    >>> split_sizes(200, tasks=6), split_sizes(100, first=50, step=20)
    ([35, 33, 33, 33, 33, 33], [50, 20, 20, 10])
    """
    for name, value in (("tasks", tasks), ("first", first), ("step", step)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer))):
            raise InputError(f"{name}={value!r} must be a whole number of {'tasks' if name == 'tasks' else 'classes'}.")
    if tasks is not None:
        if not 1 <= tasks <= count:
            raise InputError(f"{count} classes cannot be cut into {tasks} tasks: a task needs at least one class.")
        return [count // tasks + count % tasks] + [count // tasks] * (tasks - 1)
    if first is None or step is None:
        raise InputError("first and step go together: first=50, step=5.")
    if not 1 <= first <= count or step < 1:
        raise InputError(
            f"first={first}, step={step} do not fit {count} classes: first is 1..{count}, step at least 1."
        )
    rest = count - first
    return [first] + [step] * (rest // step) + [rest % step] * (rest % step > 0)


def format_split(sizes: Sequence[int]) -> str:
    """Write task sizes shortly.

    >>> format_split([35, 33, 33, 33, 33, 33])
    '35 + 5x33'
    """
    runs = [(size, len(list(group))) for size, group in groupby(sizes)]
    return " + ".join(f"{times}x{size}" if times > 1 else f"{size}" for size, times in runs)


def ordered(classes: tuple[Label, ...], class_order: int | Sequence[Label] | None) -> list[Label]:
    """Return the classes in the order in which tasks are cut from them: sorted, seeded, or as given."""
    if class_order is None:
        return list(classes)
    if isinstance(class_order, (int, np.integer)):
        if not 0 <= class_order < 2**32:
            raise InputError(f"class_order={class_order} is no seed: it must be between 0 and {2**32 - 1}.")
        return [classes[i] for i in np.random.RandomState(int(class_order)).permutation(len(classes))]
    if isinstance(class_order, str):
        raise InputError(f"class_order={class_order!r} must be a seed or the labels in the wanted order.")
    order = [label.item() if isinstance(label, np.generic) else label for label in class_order]
    missing, extra = set(classes) - set(order), set(order) - set(classes)
    if missing or extra or len(order) != len(classes):
        raise InputError(
            f"class_order must name each of the {len(classes)} classes once; "
            f"missing {sorted(map(str, missing))[:5]}, unknown {sorted(map(str, extra))[:5]}, {len(order)} given."
        )
    return order


def _explicit(dataset: Dataset, classes: Sequence[Sequence[Label]]) -> tuple[tuple[Label, ...], ...]:
    known, seen = set(dataset.classes), set[Label]()
    result = []
    if isinstance(classes, (str, int, np.integer)):
        raise InputError(f"classes={classes!r} must be the classes of each task: classes=[[...], [...]].")
    if len(classes) == 0:
        raise InputError("classes=[] gives no task: name the classes of each task, classes=[[...], ...].")
    for t, given in enumerate(classes, 1):
        if isinstance(given, (str, int, np.integer)):
            raise InputError(f"task {t} of classes=... is {given!r}, not a list of labels: classes=[[...], [...]].")
        task = [label.item() if isinstance(label, np.generic) else label for label in given]
        if len(task) == 0:
            raise InputError(f"task {t} of classes=... is empty: a task needs at least one class.")
        for label in task:
            if not isinstance(label, (str, int)) or label not in known:
                raise InputError(f"task {t} names class {label!r}, which the dataset does not have.")
            if label in seen:
                raise InputError(f"class {label!r} stands twice in classes=...; tasks must not share classes.")
            seen.add(label)
        result.append(sorted_labels(task))
    return tuple(result)
