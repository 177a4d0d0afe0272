"""A folder of safetensors files with a manifest: `manifest.json` lists the size and sha256 of every other file.

A folder is written beside its final name, synced and renamed: it is whole or not there. Every byte is covered by a
checksum, and nothing that is read is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file as load_mapped

from ..errors import ModelFileError
from . import files
from .machine import size_text, total_ram

Tensors = dict[str, torch.Tensor]

MAPPED = 2**26
"""Bytes from which on `read_folder(mapped=True)` memory-maps a file instead of reading it."""

MOST_HEADER = 2**24
"""Bytes of the header of a tensor file: names and shapes of 100,000 tensors."""

_PART = 2**22  # bytes of a tensor that are held beside it while it is written

_DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.int32: "I32", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64",
}  # fmt: skip
_DTYPE_ORDER = list(_DTYPES)  # safetensors puts the last of these first


def write_folder(
    folder: Path, manifest: Mapping[str, Any], tensors: Mapping[str, Tensors], like: Path | None = None
) -> str:
    """Write a folder of tensor files and a manifest with their checksums, all or nothing.

    Args:
        folder: must not exist; the caller syncs the directory that holds it.
        manifest: JSON-able; "files" is added.
        tensors: file name without ending -> its named tensors.
        like: a folder on the same disk; what has the same bytes there is shared with it by a hard link, and takes no
            space of its own. Where the disk has no hard links it is written.

    Returns:
        The sha256 of the manifest.
    """
    draft = folder.with_name(f".new-{folder.name}")
    try:
        draft.mkdir()
        listed = {}
        for name, named in sorted(tensors.items()):
            file = f"{name}.safetensors"
            digest = None if like is None else _linked(like / file, draft / file, named)
            if digest is None:
                digest, _ = files.write_synced(draft / file, packed_parts(named))
            listed[file] = {"sha256": digest, "bytes": (draft / file).stat().st_size}
        digest, _ = files.write_synced(draft / "manifest.json", [packed_manifest({**manifest, "files": listed})])
        files.sync_directory(draft)
        os.rename(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return digest


def _linked(there: Path, here: Path, named: Tensors) -> str | None:
    """Give a file that holds exactly these tensors a second name; return its sha256, or None: there is no such file."""
    try:
        if not stat.S_ISREG(os.lstat(there).st_mode) or os.lstat(there).st_size != _size(named):
            return None
        digest = hashlib.sha256()
        for part in packed_parts(named):
            digest.update(part)
        # What the disk gives back now, not what was written once: damage must not spread to another version.
        if files.file_sha256(there) != digest.hexdigest():
            return None
        os.link(there, here)
        with files.open_regular(here) as opened:
            os.fsync(opened.fileno())  # whoever copied it here may not have
    except OSError:
        here.unlink(missing_ok=True)
        return None
    return digest.hexdigest()


def read_folder(
    folder: Path, digest: str | None, *, mapped: bool = False, strict: bool = True
) -> tuple[dict[str, Any], dict[str, Tensors]]:
    """Read a folder that `write_folder` wrote, and verify every byte of it.

    Args:
        folder: the folder.
        digest: the sha256 of its manifest; None if the caller checks the manifest in another way.
        mapped: memory-map files of `MAPPED` bytes or more. They are verified first, but others could change them
            later: for files of a run, which holds its lock, and not for models.
        strict: refuse files that the manifest does not list.

    Returns:
        The manifest without "files", and file name without ending -> its named tensors.

    Raises:
        UnreadableError: if the disk does not give a file.
        ModelFileError: if a file is missing or wrong.
    """
    file = folder / "manifest.json"
    content = files.read_bytes(file, files.MOST_JSON)
    if digest is not None:
        files.check_sha256(file, hashlib.sha256(content).hexdigest(), digest)
    manifest = files.parse_json(file, content)
    if strict:
        _check_manifest(file, manifest, content)
    listed = manifest.pop("files", None)
    if not isinstance(listed, dict):
        raise ModelFileError(f"{file} is damaged: it does not list its files.")
    for name, facts in listed.items():
        # A name from a file is never trusted as a path.
        if not re.fullmatch(r"\w+\.safetensors", name, re.ASCII) or not isinstance(facts, dict):
            raise ModelFileError(f"{file} is damaged: it lists a file {name!r}.")
    _check_sizes(folder, listed)
    tensors = {
        name.removesuffix(".safetensors"): _read_tensors(folder / name, facts.get("sha256"), mapped)
        for name, facts in listed.items()
    }
    with files.reading(folder):
        extra = {p.name for p in folder.iterdir() if not files.is_litter(p.name)} - set(listed) - {"manifest.json"}
    if extra and strict:
        raise ModelFileError(f"{folder} holds files that its manifest does not list: {sorted(extra)[:5]}. Remove them.")
    return manifest, tensors


def _check_manifest(file: Path, manifest: dict[str, Any], content: bytes) -> None:
    """Refuse a manifest with bytes that say nothing: a field twice, spaces, numbers that are none."""
    try:
        same = packed_manifest(manifest) == content
    except (ValueError, RecursionError):  # NaN and infinity
        same = False
    if not same:
        raise ModelFileError(f"{file} is damaged: it is not written as a manifest is (a field twice, spaces, NaN).")


def _check_sizes(folder: Path, listed: Mapping[str, Any]) -> None:
    """Refuse files of another size than listed, and more than the memory holds, before anything is read."""
    total = 0
    for name, facts in listed.items():
        with files.reading(folder / name):
            size = os.stat(folder / name).st_size
        if facts.get("bytes") != size:
            raise ModelFileError(
                f"the model is damaged: {folder / name} has {size} bytes instead of {facts.get('bytes')} (truncated "
                "or changed). Restore it from a backup."
            )
        total += size
    if total > total_ram():
        raise ModelFileError(
            f"{folder} has {size_text(total)}, and this machine has {size_text(total_ram())} of memory."
        )


def _read_tensors(path: Path, digest: Any, mapped: bool) -> Tensors:
    try:
        with files.reading(path):
            if mapped and path.stat().st_size >= MAPPED:
                files.check_sha256(path, files.file_sha256(path), digest)
                with files.open_regular(path) as file:
                    start = file.read(8 + MOST_HEADER)
                _check_header(path, start)
                tensors = load_mapped(path)
                _check_packed(path, tensors, start, path.stat().st_size)
                return tensors
        content = files.read_bytes(path)
        files.check_sha256(path, hashlib.sha256(content).hexdigest(), digest)
        _check_header(path, content)
        tensors = load_tensors(content)
        _check_packed(path, tensors, content, len(content))
    except ModelFileError:
        raise
    except MemoryError:
        raise ModelFileError(f"{path} does not fit in memory.") from None
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise ModelFileError(f"{path} is not a safetensors file: {error}") from None
    return tensors


def _check_header(path: Path, start: bytes) -> None:
    """Refuse a header that is too long before it is parsed."""
    if int.from_bytes(start[:8], "little") > MOST_HEADER:
        raise ModelFileError(f"{path} is not a safetensors file of ours: a header of more than {MOST_HEADER:,} bytes.")


def _check_packed(path: Path, tensors: Tensors, start: bytes, size: int) -> None:
    """Refuse a file that is not, byte for byte, what its tensors are written as: nothing lies in it beside them."""
    header = _header(tensors)
    if start[: len(header)] != header or size != _size(tensors):
        raise ModelFileError(f"{path} holds bytes that are no tensors (metadata, gaps, another order).")


def packed_parts(named: Tensors) -> Iterator[bytes]:
    """Yield the bytes of a safetensors file part by part; the same tensors always give the same bytes.

    They are the bytes of `safetensors.torch.save_file`, which is not used because it refuses tensors that share memory
    (tied weights, prototypes that did not move), because the checksum would have to be taken from what the disk gives
    back, and because its errors do not say which error of the disk they were.
    """
    held = bytearray(_header(named))
    for name in _order(named):
        value = named[name].detach()
        rows = value.reshape(1) if value.ndim == 0 else value
        size = max(1, rows[:1].numel() * rows.element_size())
        for part in rows.split(max(1, _PART // size)):
            held += part.cpu().contiguous().view(-1).view(torch.uint8).numpy().data
            if len(held) >= _PART:
                yield bytes(held)
                held.clear()
    yield bytes(held)


def _order(named: Tensors) -> list[str]:
    return sorted(named, key=lambda name: (-_DTYPE_ORDER.index(named[name].dtype), name))


def _header(named: Tensors) -> bytes:
    """Return the bytes of a safetensors file before its data."""
    header, end = {}, 0
    for name in _order(named):
        value = named[name]
        start, end = end, end + value.numel() * value.element_size()
        header[name] = {"dtype": _DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _size(named: Tensors) -> int:
    """Return how many bytes a safetensors file of these tensors has."""
    return len(_header(named)) + sum(value.numel() * value.element_size() for value in named.values())


_TRIANGLE = ".triangle"


def folded(named: Tensors) -> Tensors:
    """Return tensors for a file: symmetric matrices as `<name>.triangle`, the values on and above the diagonal.

    >>> folded({"a": torch.tensor([[1, 2], [2, 3]])})
    {'a.triangle': tensor([1, 2, 3])}
    """
    result = {}
    for name, value in named.items():
        if value.ndim == 2 and len(value) > 1 and value.shape[0] == value.shape[1] and torch.equal(value, value.T):
            row, column = torch.triu_indices(len(value), len(value))
            result[name + _TRIANGLE] = value[row, column]
        else:
            result[name] = value
    return result


def unfolded(named: Tensors) -> Tensors:
    """Return what `folded` was given.

    >>> unfolded({"a.triangle": torch.tensor([1, 2, 3])})
    {'a': tensor([[1, 2],
            [2, 3]])}
    """
    result = {}
    for name, value in named.items():
        if name.endswith(_TRIANGLE) and value.ndim == 1:
            size = (math.isqrt(8 * len(value) + 1) - 1) // 2
            row, column = torch.triu_indices(size, size)  # any other number of values is an error
            full = value.new_empty(size, size)
            full[row, column] = value
            full[column, row] = value
            result[name.removesuffix(_TRIANGLE)] = full
        else:
            result[name] = value
    return result


def packed(named: Tensors) -> bytes:
    """Return named tensors as the bytes of a safetensors file."""
    return b"".join(packed_parts(named))


def packed_manifest(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest as the bytes of its file."""
    return json.dumps(manifest, indent=1, allow_nan=False).encode()
