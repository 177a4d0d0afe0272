"""What every byte of a model directory is: nothing may lie in it that is not part of the model.

A version passes if writing the model that was read from it gives the same bytes again: then its files hold the declared
tensors and fields, and nothing between or behind them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..common import files
from ..common.labels import Label
from ..common.tensorfiles import packed, packed_manifest
from ..errors import ModelFileError
from ..learner import IncrementalClassifier
from ..training.state import LearnerState, tensor_bytes
from . import signature, versions


@dataclass(frozen=True)
class File:
    """A file of a model directory.

    Attributes:
        name: its path in the directory.
        bytes: its size.
        what: what it holds.
        belongs: whether it is part of the model.
        shared: whether it is the same file on disk as one before it in the list, and takes no space of its own.
    """

    name: str
    bytes: int
    what: str
    belongs: bool = True
    shared: bool = False


@dataclass(frozen=True)
class Audit:
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
    def foreign(self) -> tuple[File, ...]:
        """The files that are not part of the model."""
        return tuple(file for file in self.files if not file.belongs)

    @property
    def bytes(self) -> int:
        """The space that all files take; one that versions share counts once."""
        return sum(file.bytes for file in self.files if not file.shared)


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


def audit(path: str | Path) -> Audit:
    """Go through a model directory, file by file.

    Raises:
        ModelFileError: if a version on the chain is damaged, or holds a byte that the model is not made of.
    """
    path = Path(path)
    return versions.read_steadily(path, lambda _: _audit(path))


def _audit(path: Path) -> Audit:
    kept: list[int] = []
    checked = []
    for one in versions.chain(path):
        try:
            if _is_exact(path, one):
                checked.append(one.version)
        except (ModelFileError, FileNotFoundError):
            if kept and not one.folder(path).is_dir():  # a writer removed it meanwhile: not kept
                break
            raise
        kept.append(one.version)
    found, seen = [], set()
    for file, facts in _files(path):
        one_file = facts.st_dev, facts.st_ino
        described = _described(path, file, facts.st_size, set(map(str, kept)))
        found.append(replace(described, shared=one_file in seen))
        seen.add(one_file)
    return Audit(tuple(found), tuple(kept), tuple(checked))


def _files(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every file and link below a directory and its facts, sorted; what is removed meanwhile is left out."""

    def refused(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    found = []
    for folder, folders, names in os.walk(path, onerror=refused):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        found += [Path(folder, name) for name in (*names, *links)]
    for file in sorted(found):
        try:
            facts = file.lstat()
        except FileNotFoundError:
            continue
        yield file, facts


def _is_exact(path: Path, one: versions.Current) -> bool:
    """Check that a version's files are, byte for byte, what its model is written as.

    Returns:
        False if that cannot be checked: a part of the user's would have to be given again.
    """
    folder = one.folder(path)
    try:
        clf = IncrementalClassifier.from_saved(versions.read_version(path, one), path)
    except ModelFileError as error:
        if "one of yours" in str(error):
            return False
        raise
    written = files.read_json(folder / "manifest.json", one.manifest_sha256)
    manifest, tensors = clf.files(store_images=True)
    listed = {}
    for name, named in sorted(tensors.items()):
        content = packed(named)
        file = f"{name}.safetensors"
        listed[file] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        if listed[file] != written["files"][file]:  # which the file itself was compared with when it was read
            raise ModelFileError(f"{folder / file} holds bytes that are no part of the model.")
    again = {
        **manifest,
        "made_with": written["made_with"],  # what the model itself does not say; short words
        "parent": written.get("parent"),
        "files": listed,
    }
    if packed_manifest(again) != files.read_bytes(folder / "manifest.json"):
        raise ModelFileError(f"{folder / 'manifest.json'} holds fields or bytes that are no part of the model.")
    return True


def _described(path: Path, file: Path, size: int, kept: set[str]) -> File:
    parts = file.relative_to(path).parts
    name = "/".join(parts)
    if files.is_litter(file.name):
        return File(name, size, "left by the operating system; it can be removed", belongs=False)
    if file.is_symlink():
        return File(name, size, "a link: no part of a model", belongs=False)
    if parts == ("CURRENT",):
        return File(name, size, "names the current version")
    if parts == (signature.NAME,):
        return File(name, size, "signature of a version; `protodrift verify` checks it")
    if parts == (".lock",) and size == 0:
        return File(name, size, "held by a writer")
    if len(parts) == 3 and parts[0] == "versions" and parts[1] in kept:
        what = _WHAT.get(parts[2]) or (
            "what a penalty keeps" if re.fullmatch(r"penalty_state\d+\.safetensors", parts[2]) else ""
        )
        if what:
            return File(name, size, what)
    if parts[0] == "versions" and len(parts) > 1 and (parts[1].isdigit() or parts[1].startswith(".new-")):
        return File(name, size, "left by an interrupted or earlier writer; the next task removes it", belongs=False)
    if parts == (".CURRENT.new",):
        return File(name, size, "left by an interrupted writer; the next task removes it", belongs=False)
    return File(name, size, "does not belong to the model", belongs=False)


def class_bytes(state: LearnerState) -> dict[Label, int]:
    """Return the bytes per class that are its own: prototype, counts, calibration, drift; not its name."""
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
