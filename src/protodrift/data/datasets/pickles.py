"""Pickles of numbers and names, read without running anything.

CIFAR-100 is published as pickles that Python 2 wrote. A pickle is a program: unpickling the ordinary way runs whatever
it names. Here only plain containers, text, bytes, numbers and numpy arrays can come out of one.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
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


class _DType:
    """A type of numbers: what a pickle says of it never reaches numpy's own reader, which believes all of it."""

    __slots__ = ("plain",)

    def __init__(self, plain: np.dtype[Any]) -> None:
        self.plain = plain

    def __setstate__(self, state: Any) -> None:
        """Take the byte order, which is all that numpy writes for numbers; a sub-array would read beyond the data."""
        order = state[1] if isinstance(state, tuple) and len(state) == 8 else None
        order = order.decode("latin1") if isinstance(order, bytes) else order
        if not isinstance(order, str) or order not in ("<", ">", "|", "=") or not _is_plain(state):
            raise _Forbidden(f"an array of {self.plain} with a description that numbers do not have")
        self.plain = self.plain.newbyteorder(order)  # type: ignore[arg-type]


def _is_plain(state: tuple[Any, ...]) -> bool:
    version, _, subarray, names, fields, *numbers = state
    whole = all(type(number) is int for number in (version, *numbers))
    return whole and subarray is names is fields is None and [version, *numbers] == [3, -1, -1, 0]


class _Array(np.ndarray[Any, np.dtype[Any]]):
    """An array that fills itself only with plain numbers, and as many of them as there are bytes."""

    def __setstate__(self, state: Any, /) -> None:
        _, shape, dtype, fortran, content = state if isinstance(state, tuple) and len(state) == 5 else [None] * 5
        if (
            not isinstance(shape, tuple)
            or not all(type(length) is int and length >= 0 for length in shape)
            or not isinstance(dtype, _DType)
            or not isinstance(fortran, int)
            or not isinstance(content, bytes)
        ):
            raise _Forbidden("an array in a form that numpy does not write")
        if math.prod(shape) * dtype.plain.itemsize != len(content):
            raise ValueError(f"an array of {len(content)} bytes cannot be {dtype.plain} of shape {shape}")
        # numpy's own annotation asks for a numpy bool, which numpy then refuses.
        super().__setstate__((1, shape, dtype.plain, bool(fortran), content))  # type: ignore[arg-type]


def _array(kind: Any, shape: Any, code: Any) -> _Array:
    """Return an empty array, whatever subclass is asked for; its content follows in the pickle."""
    # `_screen` relies on this: what a function was called with is never deep.
    if not isinstance(kind, str) or not _is_empty(shape) or not isinstance(code, (bytes, str)):
        raise _Forbidden("an array in a form that numpy does not write")
    return _Array((0,), "b")


def _is_empty(shape: Any) -> bool:
    return isinstance(shape, tuple) and len(shape) == 1 and type(shape[0]) is int and shape[0] == 0


def _dtype(code: Any, align: Any = False, copy: Any = True) -> _DType:
    """Return a type of numbers. No objects: an array of objects would be a pickle inside the pickle."""
    if not isinstance(code, (bytes, str)) or not isinstance(align, int) or not isinstance(copy, int):
        raise _Forbidden("an array in a form that numpy does not write")
    result = np.dtype(code.decode("ascii") if isinstance(code, bytes) else code)
    if result.kind not in "buif":
        raise _Forbidden(f"an array of {result}")
    return _DType(result)


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


_TUPLES = {ord(op.code) for op in pickletools.opcodes if op.name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")}
_PUTS = {ord(op.code) for op in pickletools.opcodes if op.name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")}
_PUT, _LONG_BINPUT, _REDUCE, _STOP = b"prR."
_LINES = {ord(op.code): 1 for op in pickletools.opcodes if op.arg and op.arg.n == pickletools.UP_TO_NEWLINE}
_LINES |= {ord("c"): 2, ord("i"): 2}  # a module and a name
_FIXED = {ord(op.code): op.arg.n if op.arg else 0 for op in pickletools.opcodes if not op.arg or op.arg.n >= 0}
_COUNTED = {  # bytes of the length that goes before the content
    ord(op.code): {
        pickletools.TAKEN_FROM_ARGUMENT1: 1,
        pickletools.TAKEN_FROM_ARGUMENT4: 4,
        pickletools.TAKEN_FROM_ARGUMENT4U: 4,
        pickletools.TAKEN_FROM_ARGUMENT8U: 8,
    }[op.arg.n]
    for op in pickletools.opcodes
    if op.arg and op.arg.n < pickletools.UP_TO_NEWLINE
}
MOST_TUPLES = 1_000  # CIFAR-100's files have three, beside those that functions are called with


def _screen(content: bytes) -> None:
    """Refuse a pickle that would end the process by what it builds, before any of it is built.

    Python's hash of a tuple in a tuple in a tuple ... has no bound on its depth: a million of them as a key of a
    dictionary is a crash that nothing can catch. The depth is at most the number of tuples, not counting those that a
    function is called with: the functions above take none that are deep. And a memo with a gap is allocated whole.

    Unlike `pickletools.genops`, this steps over texts without decoding them, which of an image file takes seconds.
    """
    at, tuples, pending = 0, 0, False
    while at < len(content):
        op = content[at]
        if pending and op not in _PUTS:
            pending = False
            tuples += op != _REDUCE
            if tuples > MOST_TUPLES:
                raise _Forbidden(f"more than {MOST_TUPLES:,} tuples")
        start = at + 1
        if op in _FIXED:
            at = start + _FIXED[op]
        elif op in _COUNTED:
            at = start + _COUNTED[op]
            at += int.from_bytes(content[start:at], "little")
        elif op in _LINES:
            at = start
            for _ in range(_LINES[op]):
                at = content.find(b"\n", at) + 1 or len(content)
        else:
            raise ValueError(f"byte {at} is {op}, which is no instruction of a pickle")
        if op == _STOP:
            return
        if op in _TUPLES:
            pending = True
        elif op in (_PUT, _LONG_BINPUT):
            index = int(content[start:at]) if op == _PUT else int.from_bytes(content[start:at], "little")
            if index > start:  # whoever writes a pickle numbers what it keeps one by one
                raise _Forbidden(f"a memo of {index:,} entries")
    raise ValueError("it ends too early")


def read_pickle(path: str | Path) -> Any:
    """Read a pickle of plain containers, text, bytes, numbers and numpy arrays of numbers; strings become bytes.

    The arrays are of a subclass of numpy's: `np.asarray` makes them plain.

    Raises:
        InputError: if it names anything else (nothing of it is run), is cut off, or is no pickle.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        _screen(content)
        return _Reader(io.BytesIO(content), encoding="bytes").load()
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
