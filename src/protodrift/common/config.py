"""Frozen configuration: what a method *is*, apart from what it has learned.

`EWC(gamma=1e7)`, `SDC(sigma=0.3)`, `Triplet(margin=0.2)` and their like are `Config` objects: immutable, comparable,
hashable, printable, and written to JSON as `{"type": "EWC", "gamma": 10000000.0}`. They hold no tensors: Fisher
matrices, old weights and fitted estimators live in the learner's state.

Each class declares the rules of its fields in one table, `rules`, and they are checked when it is made.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from abc import ABCMeta
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..errors import InputError, UnknownPartError, did_you_mean

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


def check_signatures(cls: type) -> None:
    """Refuse a class whose methods cannot be called as those of the base class of this package that they replace.

    Raises:
        InputError: naming the method, its signature and the one that is expected.

    >>> class Base:
    ...     def fit(self, z_old, z_new, targets=None): ...
    >>> Base.__module__ = "protodrift.example"
    >>> class Mine(Base):
    ...     def fit(self, z): ...
    >>> check_signatures(Mine)
    Traceback (most recent call last):
        ...
    protodrift.errors.InputError: Mine.fit(self, z) does not take what Base.fit is given. Write def fit(self, z_old,
    z_new, targets=None).
    """
    package = __name__.partition(".")[0]
    bases = [base for base in reversed(cls.__mro__[1:]) if base.__module__.partition(".")[0] == package]
    for name, own in vars(cls).items():
        base = next((base for base in bases if name in vars(base)), None)
        if base is None or name.startswith("_") or not isinstance(own, FunctionType):
            continue
        given = vars(base)[name]
        if isinstance(given, property):
            raise InputError(f"{cls.__name__}.{name} is read without being called: write @property above def {name}.")
        if isinstance(given, FunctionType) and not _takes(own, given):
            raise InputError(
                f"{cls.__name__}.{name}{_bare(own)} does not take what {base.__name__}.{name} is given. Write def "
                f"{name}{_bare(given)}."
            )


def _takes(own: FunctionType, given: FunctionType) -> bool:
    """Whether a function takes all arguments of another one, and only those it must have, by position."""
    signature, parameters = inspect.signature(own), inspect.signature(given).parameters.values()
    named = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in placed if p.default is p.empty]
    try:
        signature.bind(*placed, **named)
        signature.bind(*needed, **{name: p for name, p in named.items() if p.default is p.empty})
    except TypeError:
        return False
    return True


def _bare(function: FunctionType) -> inspect.Signature:
    """Return a signature without annotations."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=bare, return_annotation=signature.empty)


_REGISTRY: dict[str, type[Config]] = {}


@dataclasses.dataclass(frozen=True)
class Config(metaclass=ABCMeta):  # noqa: B024, its children have abstract methods
    """Base of all configuration objects. Subclasses are frozen dataclasses and register themselves by name.

    Raises:
        InputError: when an object is made whose class is no frozen dataclass, or whose options break the rules; when
            a class is defined whose methods cannot be called as those of its base class.
        TypeError: when an object is made whose class lacks an abstract method.
    """

    rules: ClassVar[Mapping[str, Rule]] = {}
    stores: ClassVar[str] = ""
    """What a method with this part has to keep between tasks, in words."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_signatures(cls)
        there = _REGISTRY.get(cls.__name__)
        package = __name__.partition(".")[0]
        if there is not None and there.__module__ != cls.__module__ and there.__module__.partition(".")[0] == package:
            raise InputError(
                f"{there.__module__} has a {cls.__name__} already. Models and runs know parts by name, and would take "
                f"yours for it: give it another, such as My{cls.__name__}."
            )
        _REGISTRY[cls.__name__] = cls

    def __new__(cls: type[C], *args: Any, **kwargs: Any) -> C:
        """Make an object of a class that is a frozen dataclass itself."""
        if "__dataclass_fields__" not in vars(cls):  # its options would be in no comparison, hash, print or file
            raise InputError(
                f"{cls.__name__} is a configuration but not a frozen dataclass: write @dataclass(frozen=True) above "
                "the class and its options as fields, such as `scale: float = 1.0`, instead of an __init__."
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, value in self.options().items():
            if isinstance(value, np.generic):
                object.__setattr__(self, name, plain(value))
        check(type(self).__name__, self.rules, self.options())

    def options(self) -> dict[str, Any]:
        """Return the options by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def to_json(self, outside: Callable[[Any], Any] | None = None) -> dict[str, Any]:
        """Return a JSON-able dict from which `decode` makes an equal object; `outside` as for `encode`."""
        return {"type": type(self).__name__, **{name: encode(value, outside) for name, value in self.options().items()}}


def encode(value: Any, outside: Callable[[Any], Any] | None = None) -> Any:
    """Turn configs, tuples and plain values into what JSON can hold.

    Args:
        value: what to write.
        outside: writes an object that is none of these; None: it is refused.
    """
    if isinstance(value, Config):
        return value.to_json(outside)
    if isinstance(value, (tuple, list)):
        return [encode(item, outside) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if outside is not None:
        return outside(value)
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
    return build(registered(data.get("type")), {key: decode(value) for key, value in data.items() if key != "type"})


def registered(name: Any) -> type[Config]:
    """Return the class of configurations of a name; one that is not known is an error that says what to import."""
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"unknown configuration type {name!r}.")
    if name not in _REGISTRY:
        near = did_you_mean(name, _REGISTRY)
        raise UnknownPartError(
            f"unknown configuration type {name!r}: import the module that defines {name} (--import MODULE; in Python "
            f"before this call).{f' {near}' if near.startswith('Did') else ''}"
        )
    return _REGISTRY[name]


def build(cls: type[C], values: Mapping[str, Any]) -> C:
    """Make a `cls` from named values; an unknown name is an error that guesses what was meant."""
    known = {f.name for f in dataclasses.fields(cls)}
    for name in values:
        if name not in known:
            raise InputError(f"{cls.__name__} has no option {name!r}. {did_you_mean(name, known)}")
    return cls(**values)


def nested(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters and the options of those that are configurations, as scikit-learn names them.

    The value of "drift" is there, and as "drift__sigma" that of its option `sigma`; and so on, as deep as there are
    configurations.
    """
    result = dict(params)
    for name, value in params.items():
        if isinstance(value, Config):
            result.update({f"{name}__{option}": inner for option, inner in nested(value.options()).items()})
    return result


def with_nested(params: Mapping[str, Any], changes: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return parameters with some of them changed, each named as in `nested`.

    Raises:
        InputError: for a name that there is not, with the nearest one, and for values that break a rule.
    """
    result, inner = dict(params), dict[str, dict[str, Any]]()
    for key, value in changes.items():
        name, _, option = key.partition("__")
        if name not in params:
            raise InputError(f"{owner} has no parameter {name!r}. {did_you_mean(name, params)}")
        if option:
            inner.setdefault(name, {})[option] = plain(value)
        else:
            result[name] = plain(value)
    for name, options in inner.items():  # after the parts themselves: drift=SDC() and drift__sigma=0.2 may come at once
        part = result[name]
        if not isinstance(part, Config):
            raise InputError(
                f"{owner}: {name} is {part!r}, which has no option {next(iter(options))!r}. Set {name} to one object "
                "that has it."
            )
        result[name] = build(type(part), with_nested(part.options(), options, type(part).__name__))
    return result
