"""What a recipe is: an experiment as frozen, validated data, and how single values of it are set by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..config import Config, encode, number, optional, whole
from ..data import Dataset
from ..errors import InputError, did_you_mean
from ..methods import Method
from ..stages import Network
from ..tasks import TaskStream
from ..trainer import Training


@dataclass(frozen=True)
class Recipe(Config):
    """An experiment: data, split, network, training, methods.

    Args:
        name: what it is called.
        about: one line: which table or figure it is.
        data: a named dataset ("digits"), or "folder": the folder given at run time.
        tasks, first, step: how the classes are cut into tasks, as for `TaskStream`.
        classes: the tasks spelled out instead.
        class_order: the seed of the class order; None: sorted. It is not the training seed.
        size: side of images read from a folder.
        test_fraction: share of each class held out for testing, where the data has no test part of its own.
        network: the network.
        training: how metric objectives are trained.
        classifier_training: how objectives that classify are trained; None: the same.
        rows: the methods by name, in the order of the table.
        table: the paper's table whose numbers stand beside ours, such as "table5_eleven_tasks/cifar100", or "".
    """

    name: str
    about: str
    data: str
    rows: tuple[tuple[str, Method], ...]
    tasks: int | None = None
    first: int | None = None
    step: int | None = None
    classes: tuple[tuple[str | int, ...], ...] | None = None
    class_order: int | None = None
    size: int = 32
    test_fraction: float = 0.2
    network: Network = Network()
    training: Training = Training()
    classifier_training: Training | None = None
    table: str = ""

    rules: ClassVar = {
        "tasks": optional(whole(1)),
        "first": optional(whole(1)),
        "step": optional(whole(1)),
        "class_order": optional(whole(0)),
        "size": whole(8),
        "test_fraction": number(0.01, 0.9),
    }

    @property
    def methods(self) -> dict[str, Method]:
        """The methods by name."""
        return dict(self.rows)

    def only(self, names: list[str]) -> Recipe:
        """Return the recipe with some of its methods, in the order given."""
        for name in names:
            if name not in self.methods:
                raise InputError(f"recipe {self.name!r} has no method {name!r}. {did_you_mean(name, self.methods)}")
        return replace(self, rows=tuple((name, self.methods[name]) for name in dict.fromkeys(names)))

    def stream(self, dataset: Dataset) -> TaskStream:
        """Cut a dataset into this recipe's tasks."""
        return TaskStream(
            dataset, self.tasks, first=self.first, step=self.step, classes=self.classes, class_order=self.class_order
        )

    def resolved(self) -> dict[str, Any]:
        """Return everything, JSON-able, as `protodrift show` prints it."""
        document: dict[str, Any] = encode(self)
        document["rows"] = {name: encode(method) for name, method in self.rows}
        return document


def with_settings(recipe: Recipe, settings: Mapping[str, str]) -> Recipe:
    """Return the recipe with single values changed, as by `--set sigma=0.2 --set EWC.gamma=1e6`.

    A name is a field of the recipe or of anything in it. Where several kinds of things have a field of that name, say
    which: `EWC.gamma`, `training.epochs`.

    Raises:
        InputError: for an unknown or ambiguous name, with what was probably meant, or a value that does not fit.
    """
    for key, text in settings.items():
        owners = sorted({owner for owner, name in _fields(recipe) if key in (name, f"{owner}.{name}")})
        if not owners:
            known = {f"{owner}.{name}" for owner, name in _fields(recipe)} | {name for _, name in _fields(recipe)}
            raise InputError(f"recipe {recipe.name!r} has no setting {key!r}. {did_you_mean(key, known)}")
        if len(owners) > 1:
            choices = ", ".join(f"{owner}.{key}" for owner in owners)
            raise InputError(f"setting {key!r} is not clear: say which of {choices}.")
        recipe = _changed(recipe, "recipe", owners[0], key.rsplit(".", 1)[-1], _value(text))
    return recipe


_FIXED = ("name", "about", "rows", "data", "table")


def _fields(config: Config, owner: str = "recipe") -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(config):
        if owner == "recipe" and field.name in _FIXED:
            continue
        value = getattr(config, field.name)
        if isinstance(value, Config):
            yield from _fields(value, field.name if owner == "recipe" else type(value).__name__)
        elif isinstance(value, tuple) and value and all(isinstance(item, Config) for item in value):
            for item in value:
                yield from _fields(item, type(item).__name__)
        elif owner != "Method":  # an axis is not a plain value: other methods are other rows
            yield owner, field.name
    if isinstance(config, Recipe):
        for _, method in config.rows:
            yield from _fields(method, "Method")


def _changed(config: Any, here: str, owner: str, name: str, value: Any) -> Any:
    """Return a copy of a tree of configs in which every `owner` has `name` set to `value`."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        old = getattr(config, field.name)
        if here == owner and field.name == name:
            changes[name] = value
        elif isinstance(old, Config):
            changes[field.name] = _changed(
                old, field.name if here == "recipe" else type(old).__name__, owner, name, value
            )
        elif field.name == "rows":
            changes["rows"] = tuple((row, _changed(method, "Method", owner, name, value)) for row, method in old)
        elif isinstance(old, tuple) and old and all(isinstance(item, Config) for item in old):
            changes[field.name] = tuple(_changed(item, type(item).__name__, owner, name, value) for item in old)
    return replace(config, **changes)


def _value(text: str) -> Any:
    """Read a value as JSON if it is JSON (0.2, 1e7, true, null), else as the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
