"""A folder of safetensors files with a manifest: `manifest.json` lists the size and sha256 of every other file.

A folder is written beside its final name, synced and renamed: it is whole or not there. Every byte is covered by a
checksum, and nothing that is read is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file as load_mapped

from ..errors import ModelFileError
from . import files

Tensors = dict[str, torch.Tensor]

MAPPED = 2**26
"""Bytes from which on `read_folder(mapped=True)` memory-maps a file instead of reading it."""

_PART = 2**22  # bytes of a tensor that are held beside it while it is written

_DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.int32: "I32", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64",
}  # fmt: skip
_DTYPE_ORDER = list(_DTYPES)  # safetensors puts the last of these first


def write_folder(folder: Path, manifest: Mapping[str, Any], tensors: Mapping[str, Tensors]) -> str:
    """Write a folder of tensor files and a manifest with their checksums, all or nothing.

    Args:
        folder: must not exist; the caller syncs the directory that holds it.
        manifest: JSON-able; "files" is added.
        tensors: file name without ending -> its named tensors.

    Returns:
        The sha256 of the manifest.
    """
    draft = folder.with_name(f".new-{folder.name}")
    try:
        draft.mkdir()
        listed = {}
        for name, named in sorted(tensors.items()):
            digest, size = files.write_synced(draft / f"{name}.safetensors", packed_parts(named))
            listed[f"{name}.safetensors"] = {"sha256": digest, "bytes": size}
        digest, _ = files.write_synced(draft / "manifest.json", [packed_manifest({**manifest, "files": listed})])
        files.sync_directory(draft)
        os.rename(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return digest


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
    manifest = files.read_json(folder / "manifest.json", digest)
    listed = manifest.pop("files", None)
    if not isinstance(listed, dict):
        raise ModelFileError(f"{folder}/manifest.json is damaged: it does not list its files.")
    tensors = {}
    for name, facts in listed.items():
        # A name from a file is never trusted as a path.
        if not name.endswith(".safetensors") or Path(name).name != name or not isinstance(facts, dict):
            raise ModelFileError(f"{folder}/manifest.json is damaged: it lists a file {name!r}.")
        tensors[name.removesuffix(".safetensors")] = _read_tensors(folder / name, facts.get("sha256"), mapped)
    with files.reading(folder):
        extra = {p.name for p in folder.iterdir()} - set(listed) - {"manifest.json"}
    if extra and strict:
        raise ModelFileError(f"{folder} holds files that its manifest does not list: {sorted(extra)[:5]}. Remove them.")
    return manifest, tensors


def _read_tensors(path: Path, digest: Any, mapped: bool) -> Tensors:
    try:
        with files.reading(path):
            if mapped and path.stat().st_size >= MAPPED:
                files.check_sha256(path, files.file_sha256(path), digest)
                return load_mapped(path)
        content = files.read_bytes(path)
        files.check_sha256(path, hashlib.sha256(content).hexdigest(), digest)
        return load_tensors(content)
    except ModelFileError:
        raise
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelFileError(f"{path} is not a safetensors file: {error}") from None


def packed_parts(named: Tensors) -> Iterator[bytes]:
    """Yield the bytes of a safetensors file part by part; the same tensors always give the same bytes.

    They are the bytes of `safetensors.torch.save_file`, which is not used because it refuses tensors that share memory
    (tied weights, prototypes that did not move), because the checksum would have to be taken from what the disk gives
    back, and because its errors do not say which error of the disk they were.
    """
    order = sorted(named, key=lambda name: (-_DTYPE_ORDER.index(named[name].dtype), name))
    header, end = {}, 0
    for name in order:
        value = named[name]
        start, end = end, end + value.numel() * value.element_size()
        header[name] = {"dtype": _DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    held = bytearray(len(text).to_bytes(8, "little") + text)
    for name in order:
        value = named[name].detach()
        rows = value.reshape(1) if value.ndim == 0 else value
        size = max(1, rows[:1].numel() * rows.element_size())
        for part in rows.split(max(1, _PART // size)):
            held += part.cpu().contiguous().view(-1).view(torch.uint8).numpy().data
            if len(held) >= _PART:
                yield bytes(held)
                held.clear()
    yield bytes(held)


def packed(named: Tensors) -> bytes:
    """Return named tensors as the bytes of a safetensors file."""
    return b"".join(packed_parts(named))


def packed_manifest(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest as the bytes of its file."""
    return json.dumps(manifest, indent=1, allow_nan=False).encode()
