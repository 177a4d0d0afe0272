"""Configuration objects: their rules, what is refused, their JSON, and options by name."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar

import numpy as np
import pytest

from protodrift.common.config import Config, decode, encode, nested, number, with_nested
from protodrift.drift import SDC, Drift
from protodrift.errors import InputError


@dataclass(frozen=True)
class Inner(Config):
    """A part with one option."""

    size: float = 1.0
    rules: ClassVar = {"size": number(above=0)}


@dataclass(frozen=True)
class Outer(Config):
    """A part with parts."""

    inner: Inner = Inner()
    several: tuple[Inner, ...] = ()
    name: str | None = None


def test_a_configuration_survives_json_and_numpys_numbers():
    made = Outer(Inner(np.float32(2)), (Inner(3), Inner(4)), "x")
    assert encode(made) == {
        "type": "Outer",
        "inner": {"type": "Inner", "size": 2.0},
        "several": [{"type": "Inner", "size": 3}, {"type": "Inner", "size": 4}],
        "name": "x",
    }
    assert decode(encode(made)) == made
    assert type(made.inner.size) is float


def test_a_configuration_is_frozen_and_checked():
    with pytest.raises(FrozenInstanceError):
        Inner().size = 2.0
    with pytest.raises(InputError, match=r"Inner: size=0 must be greater than 0"):
        Inner(0)


def test_a_class_that_is_no_dataclass_is_refused_when_an_object_is_made():
    class Shifted(Config):
        def __init__(self, by):
            self.by = by  # Shifted(1) == Shifted(5) would be true

    with pytest.raises(InputError, match=r"Shifted is .* not a frozen dataclass: write @dataclass\(frozen=True\)"):
        Shifted(1)


def test_a_class_that_lacks_an_abstract_method_is_refused_when_an_object_is_made():
    @dataclass(frozen=True)
    class Half(Config):
        @abstractmethod
        def fit(self):
            """Fit."""

    with pytest.raises(TypeError, match=r"abstract method '?fit"):
        Half()


def test_a_part_of_ones_own_cannot_take_the_name_of_one_that_is_there():
    with pytest.raises(InputError, match=r"protodrift.drift.sdc has a SDC already.*such as MySDC"):
        type("SDC", (Drift,), {"__module__": "__main__"})
    assert decode(SDC().to_json()) == SDC()


def test_options_by_name_as_deep_as_there_are_parts():
    params = {"part": Outer(Inner(2.0)), "other": 5}
    assert nested(params) == {
        "part": Outer(Inner(2.0)),
        "part__inner": Inner(2.0),
        "part__inner__size": 2.0,
        "part__several": (),
        "part__name": None,
        "other": 5,
    }
    changed = with_nested(params, {"part__inner__size": 3.0, "part__name": "y", "other": 6}, "Owner")
    assert changed == {"part": Outer(Inner(3.0), name="y"), "other": 6}
    assert params["part"] == Outer(Inner(2.0))
