"""Frozen configuration: what a method *is*, apart from what it has learned.

`EWC(gamma=1e7)`, `SDC(sigma=0.3)`, `Triplet(margin=0.2)` and their like are `Config` objects: immutable, comparable,
hashable, printable, and written to JSON as `{"type": "EWC", "gamma": 10000000.0}`. They hold no tensors: Fisher
matrices, old weights and fitted estimators live in the learner's state.

Each class declares the rules of its fields in one table, `rules`, and they are checked when it is made.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..errors import InputError, did_you_mean

Rule = Callable[[Any], "str | None"]
"""A rule looks at a value and returns what is wrong with it, or None."""

C = TypeVar("C", bound="Config")


def number(low: float = -math.inf, high: float = math.inf, *, above: float | None = None) -> Rule:
    """Accept a finite real number in [low, high], and greater than `above` if that is given."""

    def rule(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
            return "must be a finite number"
        if above is not None and not value > above:
            return f"must be greater than {above:g}"
        if not low <= value <= high:
            return f"must be at least {low:g}" if high == math.inf else f"must be between {low:g} and {high:g}"
        return None

    return rule


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def whole(low: int, high: int | None = None) -> Rule:
    """Accept an int that is at least `low` (and at most `high`)."""

    def rule(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return "must be a whole number"
        if value < low or (high is not None and value > high):
            return f"must be at least {low}" if high is None else f"must be between {low} and {high}"
        return None

    return rule


PRECISIONS = ("float32", "bfloat16")  # in which a backbone may compute


def one_of(*choices: str) -> Rule:
    """Accept one of a few words; the message guesses which was meant."""

    def rule(value: Any) -> str | None:
        return None if value in choices else f"is unknown. {did_you_mean(value, choices)}"

    return rule


def text(value: Any) -> str | None:
    """Accept a str."""
    return None if isinstance(value, str) else "must be a text"


def flag(value: Any) -> str | None:
    """Accept True or False only: the string "False" is not False."""
    return None if isinstance(value, bool) else "must be True or False"


def part(kind: type[Config]) -> Rule:
    """Accept a configuration of one kind."""
    return lambda value: None if isinstance(value, kind) else f"must be a {kind.__name__}: set its own options"


def optional(inner: Rule) -> Rule:
    """Accept None, or what `inner` accepts."""
    return lambda value: None if value is None else inner(value)


def check(owner: str, rules: Mapping[str, Rule], values: Mapping[str, Any]) -> None:
    """Check `values` against a table of rules.

    Raises:
        InputError: naming the owner, the field, what was got and what is accepted.
    """
    for name, rule in rules.items():
        wrong = rule(values[name])
        if wrong:
            raise InputError(f"{owner}: {name}={values[name]!r} {wrong}")


def plain(value: Any) -> Any:
    """Return a number of numpy's, as a grid of parameters holds them, as the Python one it is; all else as it is."""
    return value.item() if isinstance(value, np.generic) else value


_REGISTRY: dict[str, type[Config]] = {}


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of all configuration objects. Subclasses are frozen dataclasses and register themselves by name."""

    rules: ClassVar[Mapping[str, Rule]] = {}
    stores: ClassVar[str] = ""
    """What a method with this part has to keep between tasks, in words."""
    added: ClassVar[frozenset[str]] = frozenset()
    """Options younger than the first release: written only where they differ from their default, so that what was
    stored before they came (runs, models) is still known by the same description."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        there = _REGISTRY.get(cls.__name__)
        package = __name__.partition(".")[0]
        if there is not None and there.__module__ != cls.__module__ and there.__module__.partition(".")[0] == package:
            raise InputError(
                f"{there.__module__} has a {cls.__name__} already. Models and runs know parts by name, and would take "
                f"yours for it: give it another, such as My{cls.__name__}."
            )
        _REGISTRY[cls.__name__] = cls

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, plain(value))
        check(type(self).__name__, self.rules, {f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    def to_json(self, *, complete: bool = False) -> dict[str, Any]:
        """Return a JSON-able dict from which `decode` makes an equal object; if `complete`, with every option."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        unset = {f.name for f in dataclasses.fields(self) if f.name in self.added and values[f.name] == f.default}
        return {
            "type": type(self).__name__,
            **{name: encode(value, complete) for name, value in values.items() if complete or name not in unset},
        }


def encode(value: Any, complete: bool = False) -> Any:
    """Turn configs, tuples and plain values into what JSON can hold; if `complete`, with every option."""
    if isinstance(value, Config):
        return value.to_json(complete=complete)
    if isinstance(value, (tuple, list)):
        return [encode(item, complete) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise InputError(
        f"{value!r} cannot be written to a model or run directory: only named configurations can. "
        "Pass the object again when loading."
    )


def decode(data: Any) -> Any:
    """Invert `encode`. Only registered `Config` classes are ever made, and only through their checks."""
    if isinstance(data, list):
        return tuple(decode(item) for item in data)
    if not isinstance(data, dict):
        return data
    name = data.get("type")
    if not isinstance(name, str) or name not in _REGISTRY:
        raise InputError(f"unknown configuration type {name!r}. {did_you_mean(name, _REGISTRY)}")
    return build(_REGISTRY[name], {key: decode(value) for key, value in data.items() if key != "type"})


def build(cls: type[C], values: Mapping[str, Any]) -> C:
    """Make a `cls` from named values; an unknown name is an error that guesses what was meant."""
    known = {f.name for f in dataclasses.fields(cls)}
    for name in values:
        if name not in known:
            raise InputError(f"{cls.__name__} has no option {name!r}. {did_you_mean(name, known)}")
    return cls(**values)
