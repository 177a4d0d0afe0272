"""Where every byte of a model directory comes from: nothing may lie in it that no part of a model is made of.

A version passes if writing the model that was read from it gives the same bytes again: then its files hold the declared
tensors and fields, and nothing between or behind them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.labels import Label
from ..common.tensorfiles import packed, packed_manifest
from ..errors import ModelFileError
from ..learner import IncrementalClassifier
from ..training.state import LearnerState, tensor_bytes
from . import versions


@dataclass(frozen=True)
class File:
    """A file of a model directory: its name in there, its size, what it is; `ours`: whether it belongs there."""

    name: str
    bytes: int
    what: str
    ours: bool = True


@dataclass(frozen=True)
class Account:
    """All files of a model directory.

    Attributes:
        files: every file below it.
        versions: the numbers of the versions on the chain, newest first.
        checked: those whose every byte was accounted for by writing the model again.
    """

    files: tuple[File, ...]
    versions: tuple[int, ...]
    checked: tuple[int, ...]

    @property
    def strangers(self) -> tuple[File, ...]:
        """What does not belong there."""
        return tuple(file for file in self.files if not file.ours)

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)


_WHAT = {
    "network.safetensors": "weights of the network",
    "prototypes.safetensors": "prototypes, counts, tasks",
    "statistics.safetensors": "covariances of the classes, where the method keeps them",
    "drift.safetensors": "what the last drift compensation did",
    "readout_state.safetensors": "what the read-out learned",
    "calibration.safetensors": "distances and temperatures",
    "exemplars.safetensors": "IMAGES of old tasks, stored on request",
    "manifest.json": "configuration, labels, tasks, checksums",
}


def account(path: str | Path) -> Account:
    """Go through a model directory, file by file.

    Raises:
        ModelFileError: if the current version is damaged, or holds a byte that the model is not made of.
    """
    path = Path(path)
    return versions.read_steadily(path, lambda _: _account(path))


def _account(path: Path) -> Account:
    kept: list[int] = []
    checked = []
    for one in versions.chain(path):
        try:
            if _accounted(path, one):
                checked.append(one.version)
        except (ModelFileError, FileNotFoundError):
            if kept and not one.folder(path).is_dir():  # a writer removed it since we looked: not kept
                break
            raise
        kept.append(one.version)
    numbers = {str(version) for version in kept}
    return Account(tuple(_described(path, *found, numbers) for found in _files(path)), tuple(kept), tuple(checked))


def _files(path: Path) -> Iterator[tuple[Path, int]]:
    """Yield every file and link below a directory and its size, sorted; what is removed meanwhile is left out."""

    def refused(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    found = []
    for folder, folders, files in os.walk(path, onerror=refused):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        found += [Path(folder, name) for name in (*files, *links)]
    for file in sorted(found):
        try:
            size = file.lstat().st_size
        except FileNotFoundError:
            continue
        yield file, size


def _accounted(path: Path, one: versions.Current) -> bool:
    """Check that a version's files are, byte for byte, what its model is written as; False if that cannot be done."""
    folder = one.folder(path)
    try:
        clf = IncrementalClassifier.from_saved(versions.read_version(path, one), path)
    except ModelFileError as error:
        if "one of yours" in str(error):  # a backbone or loss of the user's has to be given again
            return False
        raise
    again, files = clf.files(store_images=True)
    contents = {f"{name}.safetensors": packed(named) for name, named in files.items()}
    for name, content in contents.items():
        if (folder / name).read_bytes() != content:
            raise ModelFileError(f"{folder / name} holds bytes that are no part of the model.")
    written = json.loads((folder / "manifest.json").read_bytes())
    facts = {n: {"sha256": hashlib.sha256(c).hexdigest(), "bytes": len(c)} for n, c in sorted(contents.items())}
    again = {**again, "made_with": _made_with(folder, written), "parent": written.get("parent"), "files": facts}
    if packed_manifest(again) != (folder / "manifest.json").read_bytes():
        raise ModelFileError(f"{folder / 'manifest.json'} holds fields or bytes that are no part of the model.")
    return True


def _made_with(folder: Path, manifest: dict[str, Any]) -> dict[str, str]:
    """Return which versions wrote: the one field that the model itself does not say. Short words, nothing else."""
    made = manifest.get("made_with")
    if (
        not isinstance(made, dict)
        or set(made) != {"protodrift", "torch", "python"}
        or not all(isinstance(v, str) and re.fullmatch(r"[\w.+!-]{1,64}", v) for v in made.values())
    ):
        raise ModelFileError(f"{folder / 'manifest.json'} is damaged: made_with says {str(made)[:80]!r}.")
    return made


def _described(path: Path, file: Path, size: int, kept: set[str]) -> File:
    parts = file.relative_to(path).parts
    name = "/".join(parts)
    if file.is_symlink():
        return File(name, size, "a link: no part of a model", ours=False)
    if parts == ("CURRENT",):
        return File(name, size, "names the current version")
    if parts == (".lock",) and size == 0:
        return File(name, size, "held by a writer")
    if len(parts) == 3 and parts[0] == "versions" and parts[1] in kept:
        what = _WHAT.get(parts[2]) or (
            "what a penalty keeps" if re.fullmatch(r"penalty_state\d+\.safetensors", parts[2]) else ""
        )
        if what:
            return File(name, size, what)
    if parts[0] == "versions" and len(parts) > 1 and (parts[1].isdigit() or parts[1].startswith(".new-")):
        return File(name, size, "left by an interrupted or earlier writer; the next task removes it", ours=False)
    if parts == (".CURRENT.new",):
        return File(name, size, "left by an interrupted writer; the next task removes it", ours=False)
    return File(name, size, "does not belong to the model", ours=False)


def class_bytes(state: LearnerState) -> dict[Label, int]:
    """Return for each class the bytes that are its own: prototype, counts, calibration, drift; not its name."""
    count = len(state.prototypes)
    own = tensor_bytes({"m": state.prototypes.means, "c": state.prototypes.counts, "t": state.prototypes.tasks})
    kept = {name: value for name, value in state.prototypes.statistics.items() if name != "shared"}
    each = (own + tensor_bytes(state.calibration.named()) + tensor_bytes(kept)) // count
    report = state.drift
    moved = 0
    if report.labels:
        drift = {"b": report.before, "a": report.after, **report.diagnostics}
        moved = tensor_bytes(drift) // len(report.labels)
    exemplars = state.trained.exemplars
    image = 0 if exemplars is None else exemplars.images[0].numel() * exemplars.images.element_size()
    stored = [] if exemplars is None else list(exemplars.labels)
    return {
        label: each + (moved if label in set(report.labels) else 0) + image * stored.count(label)
        for label in state.prototypes.labels
    }
