"""Pickles of numbers and names, read without running anything.

CIFAR-100 is published as pickles that Python 2 wrote. A pickle is a program: unpickling the ordinary way runs whatever
it names. Here only plain containers, text, bytes, numbers and numpy arrays can come out of one.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError


class _Forbidden(pickle.UnpicklingError):
    pass


class _StandIn:
    """A function that a pickle may call, and may do nothing else with."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *args: Any) -> Any:
        return self._make(*args)

    def __setstate__(self, state: Any) -> None:
        raise _Forbidden("a change of this reader")


def _array(kind: Any, shape: Any, code: Any) -> np.ndarray:
    """Return an empty array, whatever subclass is asked for; its content follows in the pickle."""
    return np.ndarray.__new__(np.ndarray, (0,), "b")


def _dtype(code: Any, align: Any = False, copy: Any = True) -> np.dtype[Any]:
    """Return a type of numbers. No objects: an array of objects would be a pickle inside the pickle."""
    # Always a copy: what follows in the pickle changes it, and numpy shares its own.
    result = np.dtype(code.decode("ascii") if isinstance(code, bytes) else str(code), copy=True)
    if result.kind not in "buif":
        raise _Forbidden(f"an array of {result}")
    return result


def _bytes(text: Any, encoding: Any = "latin1") -> bytes:
    """Return bytes as Python 3 writes them in an old pickle protocol."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise _Forbidden(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _StandIn(_array),  # numpy 1 and Python 2
    ("numpy._core.multiarray", "_reconstruct"): _StandIn(_array),  # numpy 2
    ("numpy", "ndarray"): "ndarray",  # only ever an argument of the one above
    ("numpy", "dtype"): _StandIn(_dtype),
    ("_codecs", "encode"): _StandIn(_bytes),
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _Forbidden(f"{module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise _Forbidden(f"a persistent object {pid!r}")


def read_pickle(path: str | Path) -> Any:
    """Read a pickle of plain containers, text, bytes, numbers and numpy arrays of numbers; strings become bytes.

    Raises:
        InputError: if it names anything else (nothing of it is run), is cut off, or is no pickle.
    """
    path = Path(path)
    try:
        return _Reader(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except _Forbidden as error:
        raise InputError(
            f"{path} is refused: it asks for {error}, and the published file holds only numbers and names. Nothing of "
            "it was run. Get the file again from its publisher."
        ) from None
    except FileNotFoundError:
        raise InputError(f"there is no file {path}.") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}.") from None
    except Exception as error:  # a damaged pickle makes the reader raise nearly anything
        raise InputError(
            f"{path} is damaged: it cannot be read as a pickle ({error}). Get it again from its publisher."
        ) from None
