"""What a stage is known by: its configuration, the source of a user's own parts, and the content of its images."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..common.config import Config, encode
from ..data.examples import Examples
from ..errors import InputError

_PACKAGE = __name__.partition(".")[0]
_HASHED = 256  # images at once: a copy of all of them may not fit in memory


def described(part: Any) -> Any:
    """Return a configuration as JSON, with a digest of the source of every class in it that is not protodrift's own.

    Such a class has no version number; without the digest, a changed one would be given the results of the old one.

    Raises:
        InputError: if the source of a class cannot be read.
    """
    sources = dict(_sources(part))
    return {"part": encode(part), "sources": sources} if sources else encode(part)


def _sources(part: Any) -> Iterator[tuple[str, str]]:
    if isinstance(part, (tuple, list)):
        for item in part:
            yield from _sources(item)
    if isinstance(part, Config):
        for cls in type(part).__mro__:
            if issubclass(cls, Config) and cls.__module__.partition(".")[0] != _PACKAGE:
                yield f"{cls.__module__}.{cls.__qualname__}", _source_digest(cls)
        for field in dataclasses.fields(part):
            yield from _sources(getattr(part, field.name))


def _source_digest(cls: type) -> str:
    """Return a hash of the module that defines a class, and of those beside it that it uses.

    What a part calls there counts too; installed packages do not. In a notebook it is a hash of the class alone.
    """
    try:
        found = sorted(_own_modules(sys.modules[cls.__module__]).items())
        return hashlib.sha256(repr([(name, inspect.getsource(module)) for name, module in found]).encode()).hexdigest()
    except (OSError, TypeError, KeyError):
        pass
    try:
        return hashlib.sha256(inspect.getsource(cls).encode()).hexdigest()
    except (OSError, TypeError):
        pass
    raise InputError(
        f"the source of {cls.__qualname__} cannot be read, so its results could not be told from those of another "
        "class of that name. Define it in a file, and import it."
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
    file = Path(getattr(module, "__file__", None) or "").resolve()
    installed = {"site-packages", "dist-packages"} & set(file.parts)
    return folder in file.parents and not installed and module.__name__.partition(".")[0] != _PACKAGE


def fingerprint(examples: Examples) -> str:
    """Return a hash of images and labels."""
    digest = hashlib.sha256(repr((tuple(examples.images.shape), str(examples.images.dtype), examples.labels)).encode())
    for part in examples.images.split(_HASHED):
        digest.update(part.clone(memory_format=torch.contiguous_format).numpy().tobytes())
    return digest.hexdigest()
