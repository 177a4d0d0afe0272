"""The source of what is defined in a notebook, where a module has no file."""

from __future__ import annotations

import dis
import linecache
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

_PLAIN = (bool, int, float, str, bytes, type(None))
_CODE = (ModuleType, type, FunctionType, BuiltinFunctionType)


def defining_cells(cls: Any) -> list[str]:
    """Return the source of every notebook cell that defines a class or function, or one of the notebook that it uses.

    `inspect.getsource` finds functions of a notebook, but not classes: a class is found by its methods. Numbers and
    strings of the notebook that they use are listed with their values. Sorted, so that the order in which cells were
    run does not matter; empty, if no source is known or a value of another kind is used, which could change unseen.
    """
    names = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    cells: set[str] = set()
    seen: set[int] = set()
    waiting: list[Any] = [cls]
    while waiting:
        for function in _functions(waiting.pop()):
            if id(function) in seen or function.__globals__ is not names:  # dataclasses adds functions of its own
                continue
            seen.add(id(function))
            cells.add("".join(linecache.getlines(function.__code__.co_filename)))
            for name in names.keys() & set(_names(function.__code__)):
                value = names[name]
                if isinstance(value, _PLAIN):
                    cells.add(f"{name} = {value!r}")
                elif not isinstance(value, _CODE):
                    return []
                elif getattr(value, "__module__", None) == cls.__module__:
                    waiting.append(value)
    return sorted(cells - {""})


def _functions(value: Any) -> Iterator[FunctionType]:
    """Yield a function, or those in the body of a class."""
    for one in vars(value).values() if isinstance(value, type) else [value]:
        inner = getattr(one, "fget", None) or getattr(one, "__func__", one)  # a property, a classmethod
        if isinstance(inner, FunctionType):
            yield inner


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names in a function, and in functions inside of it."""
    # Not co_names: attributes are among them, and `self.z_old` is not the notebook's z_old.
    yield from (one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
