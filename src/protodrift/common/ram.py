"""How much memory decoded images may take; bytes in words. No torch here: the command line asks before it is there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..errors import InputError

SHARE_OF_MEMORY = 4
"""Decoded images may take one part in so many of this machine's memory; more of them go to a file."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def ram_budget(wanted: int | None = None) -> int:
    """Return how many bytes of decoded images are held in memory.

    Args:
        wanted: what the caller says; None: $PROTODRIFT_RAM (such as 8G), or a quarter of the memory there is: the
            machine's, or the container's if that is less.
    """
    if wanted is not None:
        return wanted
    said = os.environ.get("PROTODRIFT_RAM")
    if said:
        try:
            return parse_bytes(said)
        except ValueError as error:
            raise InputError(f"PROTODRIFT_RAM: {error}.") from None
    total = 8 * 2**30
    with contextlib.suppress(AttributeError, ValueError, OSError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # "max", where there is no limit
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total // SHARE_OF_MEMORY


def parse_bytes(text: str) -> int:
    """Return a number of bytes from words such as 8G, 500M or 1.5T.

    >>> parse_bytes("1.5G"), parse_bytes("0")
    (1610612736, 0)
    """
    plain = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = plain[-1:] if plain[-1:] in ("K", "M", "G", "T") else ""
    try:
        value = float(plain.removesuffix(unit)) * _UNITS[unit]
        if not 0 <= value < 2**63:
            raise ValueError
    except ValueError:
        raise ValueError(f"a number of bytes is needed, such as 8G or 500M; got {text!r}") from None
    return int(value)


def size_text(count: int) -> str:
    """Return a number of bytes as people read it.

    >>> size_text(1), size_text(999), size_text(20_500_000)
    ('1 byte', '999 bytes', '20.5 MB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return "1 byte" if count == 1 else f"{count} bytes"
