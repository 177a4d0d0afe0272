"""What a stage is known by: its configuration, the source of a user's own parts, and the content of its images."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import torch

from ..common.config import Config, encode
from ..common.outside import outside, source_digest
from ..data.examples import Examples

_PACKAGE = __name__.partition(".")[0]
_HASHED = 256  # images at once: a copy of all of them may not fit in memory


def written(part: Any) -> Any:
    """Return a configuration as JSON; an object of the user's in it by its name and digest."""
    return encode(part, lambda value: outside(value).to_json())


def described(part: Any) -> Any:
    """Return a configuration as JSON, with a digest of the source of every class in it that is not protodrift's own.

    Such a class has no version number; without the digest, a changed one would be given the results of the old one.

    Raises:
        InputError: if the source of a class cannot be read.
    """
    sources = dict(_sources(part))
    return {"part": written(part), "sources": sources} if sources else written(part)


def _sources(part: Any) -> Iterator[tuple[str, str]]:
    if isinstance(part, (tuple, list)):
        for item in part:
            yield from _sources(item)
    if isinstance(part, Config):
        for cls in type(part).__mro__:
            if issubclass(cls, Config) and cls.__module__.partition(".")[0] != _PACKAGE:
                yield f"{cls.__module__}.{cls.__qualname__}", source_digest(cls)
        for field in dataclasses.fields(part):
            yield from _sources(getattr(part, field.name))


def fingerprint(examples: Examples) -> str:
    """Return a hash of images and labels."""
    digest = hashlib.sha256(repr((tuple(examples.images.shape), str(examples.images.dtype), examples.labels)).encode())
    for part in examples.images.split(_HASHED):
        digest.update(part.clone(memory_format=torch.contiguous_format).numpy().tobytes())
    return digest.hexdigest()
