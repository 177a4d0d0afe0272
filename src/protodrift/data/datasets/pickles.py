"""CIFAR-100's pickles, which Python 2 wrote, read without running anything of them.

A pickle is a program: unpickling the ordinary way runs whatever it names. Here it can name four things, and none of
them is numpy's own reader, which believes what a file says of its arrays.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...errors import InputError


class _Refused(pickle.UnpicklingError):
    pass


class _UInt8:
    """Stands in for `numpy.dtype`: images are bytes, and nothing else is read."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in (b"u1", "u1"):
            raise _Refused(f"an array of {code!r}")

    def __setstate__(self, state: Any) -> None:
        pass  # byte order and layout, which bytes do not have


class _Array:
    """Stands in for an array of bytes."""

    def __init__(self, *_: Any) -> None:
        self.value = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, _, fortran, content = state
        self.value = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,  # numpy 1 and Python 2
    ("numpy._core.multiarray", "_reconstruct"): _Array,  # numpy 2
    ("numpy", "ndarray"): "ndarray",  # only ever an argument of the one above
    ("numpy", "dtype"): _UInt8,
    ("_codecs", "encode"): str.encode,  # bytes, as Python 3 writes them for Python 2
}


class _Reader(pickle._Unpickler):  # the one in Python: gaps in a memo cannot take memory, as they can in C
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    metastack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def load_setitems(self) -> None:
        """Refuse keys that are no names before they are hashed: the hash of a deep tuple ends the process."""
        items = self.pop_mark()
        for key in items[::2]:
            if not isinstance(key, (bytes, str)):
                raise _Refused(f"a dictionary with a key of type {type(key).__name__}")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def load_setitem(self) -> None:
        """Do the same for one item."""
        self.metastack.append(self.stack[:-2])
        self.stack = self.stack[-2:]
        self.load_setitems()

    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.SETITEM[0]] = load_setitem
    del dispatch[pickle.DICT[0]]  # the older way to make one, which the published files do not use


def read_pickle(path: Path) -> dict[str, Any]:
    """Return a dictionary of lists, numbers, bytes and uint8 arrays; its keys as text.

    Raises:
        InputError: if the file names anything else (nothing of it is run), is cut off, or is no such pickle.
    """
    try:
        with open(path, "rb") as file:
            content = _Reader(file, encoding="bytes").load()
    except FileNotFoundError:
        raise InputError(f"there is no file {path}.") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}.") from None
    except _Refused as error:
        raise InputError(
            f"{path} is refused: it asks for {error}, and the published file holds only images and names. Nothing of "
            "it was run. Get the file again from its publisher."
        ) from None
    except Exception as error:  # a damaged pickle makes the reader raise nearly anything
        raise InputError(
            f"{path} is damaged: it cannot be read as a pickle ({error}). Get it again from its publisher."
        ) from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}, not CIFAR-100's dictionary.")
    return {
        key.decode(errors="replace") if isinstance(key, bytes) else str(key): (
            value.value if isinstance(value, _Array) else value
        )
        for key, value in content.items()
    }
