"""Objects that are not configurations, such as a module, a loss or a function of the user's: what they are known by.

A run directory never holds code. It holds the name of such an object and a digest of its source, its settings and its
weights, so that its results are never taken for those of another one.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

import numpy as np
import torch

from ..errors import InputError
from .cells import defining_cells
from .config import Config, text

_PACKAGE = __name__.partition(".")[0]
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis))
_VALUES = (torch.dtype, torch.device, torch.Size, torch.memory_format, slice, range, Path, np.dtype, np.generic)
_UNSEEN = ("training", "forward", "_forward_hooks", "_backward_hooks")  # of a module: its mode says nothing of it


@dataclass(frozen=True)
class Outside(Config):
    """Stands for an object in the files of a run.

    Args:
        name: its class or function, with the module that defines it.
        digest: of its source, settings and weights.
    """

    name: str
    digest: str
    rules: ClassVar = {"name": text, "digest": text}


def outside(value: Any) -> Outside:
    """Return what an object is known by.

    Raises:
        InputError: if its source cannot be read, or it holds something that has no lasting content, such as a file.

    >>> outside(torch.nn.Linear(2, 1).requires_grad_(False)).name
    'torch.nn.modules.linear.Linear'
    >>> one, other = torch.nn.ReLU(), torch.nn.ReLU(inplace=True)
    >>> outside(one) == outside(torch.nn.ReLU()), outside(one) == outside(other)
    (True, False)
    """
    if isinstance(value, Outside):
        return value
    digest = hashlib.sha256()
    for piece in _pieces(value, {}):
        digest.update(piece)
        digest.update(b"\0")
    named = value if isinstance(value, (type, FunctionType)) else type(value)
    return Outside(f"{named.__module__}.{named.__qualname__}", digest.hexdigest()[:32])


def _pieces(value: Any, seen: dict[int, int]) -> Iterator[bytes]:
    """Yield the content of an object, piece by piece; what was seen before is named by its number."""
    if isinstance(value, (*_PLAIN, *_VALUES)):
        yield repr(value).encode()
        return
    if id(value) in seen:
        yield f"seen {seen[id(value)]}".encode()
        return
    seen[id(value)] = len(seen)
    if isinstance(value, torch.Tensor):
        yield from _array(value.detach().cpu().contiguous(), str(value.dtype), bool(value.requires_grad))
    elif isinstance(value, np.ndarray):
        yield repr((value.shape, value.dtype.str)).encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, torch.Generator):
        yield from _pieces(value.get_state(), seen)
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for key, item in value.items():
            yield from _pieces(key, seen)
            yield from _pieces(item, seen)
    elif isinstance(value, (tuple, list)):
        yield f"sequence {len(value)}".encode()
        for item in value:
            yield from _pieces(item, seen)
    elif isinstance(value, (set, frozenset)):
        yield repr(sorted(map(repr, value))).encode()
    elif isinstance(value, functools.partial):
        yield from _pieces((value.func, value.args, value.keywords), seen)
    elif isinstance(value, MethodType):
        yield from _pieces((value.__func__, value.__self__), seen)
    elif isinstance(value, (type, FunctionType)):
        yield from _code(value)
        if isinstance(value, FunctionType):
            yield from _pieces((value.__defaults__, value.__kwdefaults__), seen)
            yield from _pieces([cell.cell_contents for cell in value.__closure__ or ()], seen)
    elif callable(value) and not hasattr(value, "__dict__") and hasattr(value, "__qualname__"):
        yield f"built in {value.__qualname__}".encode()
    else:
        yield from _object(value, seen)


def _array(tensor: torch.Tensor, kind: str, trained: bool) -> Iterator[bytes]:
    yield repr((tuple(tensor.shape), kind, trained)).encode()
    plain = tensor.view(torch.uint8) if tensor.ndim and tensor.numel() else tensor.reshape(-1).view(torch.uint8)
    yield plain.numpy().tobytes()


def _object(value: Any, seen: dict[int, int]) -> Iterator[bytes]:
    """Yield the code of an object's class, and its attributes."""
    yield from _code(type(value))
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ()) if hasattr(value, name)]
    attributes = {name: getattr(value, name) for name in slots} | dict(getattr(value, "__dict__", {}))
    if not attributes and not hasattr(value, "__dict__") and " at 0x" in repr(value):
        raise InputError(
            f"{type(value).__qualname__} has no content that a run could know it by. Give a function or an object with "
            "plain attributes."
        )
    for name in sorted(attributes):
        if name not in _UNSEEN:
            yield name.encode()
            yield from _pieces(attributes[name], seen)


def _code(value: Any) -> Iterator[bytes]:
    """Yield the name of a class or function, and for those that are not installed a digest of their source."""
    yield f"{value.__module__}.{value.__qualname__}".encode()
    for one in getattr(value, "__mro__", (value,)):
        if not _is_installed(sys.modules.get(one.__module__)):
            yield source_digest(one).encode()


def source_digest(value: Any) -> str:
    """Return a hash of the module that defines a class or function, and of those beside it that it uses.

    What is called there counts too; installed packages do not. In a notebook it is a hash of the cells.

    Raises:
        InputError: if the source cannot be read.
    """
    try:
        found = sorted(_own_modules(sys.modules[value.__module__]).items())
        return hashlib.sha256(repr([(name, inspect.getsource(module)) for name, module in found]).encode()).hexdigest()
    except (AttributeError, OSError, TypeError, KeyError):  # AttributeError: a notebook has no __file__
        pass
    cells = defining_cells(value)
    if cells:
        return hashlib.sha256(repr(cells).encode()).hexdigest()
    raise InputError(
        f"the source of {value.__qualname__} cannot be read, so its results could not be told from those of another "
        "one of that name. Define it in a file, and import it."
    )


def _own_modules(module: ModuleType) -> dict[str, ModuleType]:
    """Return a module and those from its folder, or below, that it and they use, by name."""
    folder = Path(module.__file__ or "").resolve().parent
    found: dict[str, ModuleType] = {}
    waiting = [module]
    while waiting:
        one = waiting.pop()
        if one.__name__ in found:
            continue
        found[one.__name__] = one
        for value in list(vars(one).values()):
            other = (
                value if isinstance(value, ModuleType) else sys.modules.get(getattr(value, "__module__", None) or "")
            )
            if isinstance(other, ModuleType) and _is_beside(other, folder):
                waiting.append(other)
    return found


def _is_beside(module: ModuleType, folder: Path) -> bool:
    """Whether a module lies in a folder or below, and is neither protodrift's nor installed, as in a .venv there."""
    return folder in _file(module).parents and not _in_packages(module) and not _is_ours(module)


def _is_installed(module: ModuleType | None) -> bool:
    """Whether code is Python's, protodrift's or that of an installed package."""
    if module is None:
        return False
    if _is_ours(module) or _in_packages(module):
        return True
    if not getattr(module, "__file__", None):
        return module.__name__ != "__main__"  # built in; a notebook has no file either
    return Path(sysconfig.get_paths()["stdlib"]).resolve() in _file(module).parents


def _in_packages(module: ModuleType) -> bool:
    return bool({"site-packages", "dist-packages"} & set(_file(module).parts))


def _is_ours(module: ModuleType) -> bool:
    return module.__name__.partition(".")[0] == _PACKAGE


def _file(module: ModuleType) -> Path:
    return Path(getattr(module, "__file__", None) or "").resolve()
