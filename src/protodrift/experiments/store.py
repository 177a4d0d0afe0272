"""Finished stages on disk: written whole or not at all, verified when read, never computed twice.

RUN/stages/train-3f2a.../manifest.json     what the stage is, its JSON results, checksums
RUN/stages/train-3f2a.../*.safetensors     its tensors
RUN/epochs/train-3f2a....7/...             the last finished epoch of a training that is under way
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.files import json_sha256, sync_directory
from ..common.tensorfiles import Tensors, read_folder, write_folder
from ..errors import ModelFileError, RunError, UnreadableError


@dataclass(frozen=True)
class StageInfo:
    """A stage on disk, for listings."""

    name: str
    kind: str
    bytes: int
    modified: float


class Store:
    """The stages of a run directory.

    Args:
        path: the run directory; made if it is missing.
        shared: whether another process has this store too, and will tidy it up.
    """

    def __init__(self, path: str | Path, *, shared: bool = False) -> None:
        self.path = Path(path)
        self.stages = self.path / "stages"
        self.epochs = self.path / "epochs"
        with _explained(self.path):
            self.stages.mkdir(parents=True, exist_ok=True)
            self.epochs.mkdir(exist_ok=True)
            if shared:
                return
            # Left by a process that was killed; the run's lock is ours.
            for folder in (self.stages, self.epochs):
                for stale in folder.glob(".new-*"):
                    shutil.rmtree(stale)
            for epoch in self.epochs.glob("[!.]*.*"):
                if (self.stages / epoch.name.rsplit(".", 1)[0]).is_dir():  # its training is finished
                    shutil.rmtree(epoch)

    @property
    def scratch(self) -> Path:
        """A folder for files that are too large for memory, until a stage is written."""
        return self.epochs

    def get(self, kind: str, key: str) -> tuple[dict[str, Any], dict[str, Tensors]] | None:
        """Return a stage's JSON data and tensors, or None if it is not there; a damaged one is said and removed.

        Large files of tensors are memory-mapped: they are verified, and then read when they are looked at.

        Raises:
            RunError: if the disk does not give a file; nothing is removed.
        """
        return self._read(self.stages / _name(kind, key))

    def has(self, kind: str, key: str) -> bool:
        """Return whether a stage is there, without reading it."""
        return (self.stages / _name(kind, key)).is_dir()

    def facts(self, kind: str, key: str) -> dict[str, Any]:
        """Return a stage's JSON data without reading its tensors; empty if it is not there any more."""
        try:
            manifest = json.loads((self.stages / _name(kind, key) / "manifest.json").read_bytes())
            return dict(manifest["data"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def seconds(self, kind: str, key: str) -> float:
        """Return how long a stage took when it was computed; 0 if it is not there any more."""
        return float(self.facts(kind, key).get("seconds", 0.0))

    def put(
        self, kind: str, key: str, about: Mapping[str, Any], data: Mapping[str, Any], tensors: Mapping[str, Tensors]
    ) -> None:
        """Write a finished stage, and drop its unfinished epochs.

        Raises:
            RunError: if the disk is full or cannot be written; what was finished before is still there.
        """
        with _explained(self.path):
            write_checked(self.stages / _name(kind, key), {"about": dict(about), "data": dict(data)}, tensors)
            for left in self.epochs.glob(f"{_name(kind, key)}.*"):
                shutil.rmtree(left)

    def discard_draft(self, kind: str, key: str) -> None:
        """Remove what a worker that was killed had half-written of a stage; its finished epochs stay."""
        drafts = [self.stages / f".new-{_name(kind, key)}", *self.epochs.glob(f".new-{_name(kind, key)}.*")]
        for draft in drafts:
            shutil.rmtree(draft, ignore_errors=True)

    def checkpoint(self, kind: str, key: str) -> EpochCheckpoint:
        """Return where a training keeps its last finished epoch."""
        return EpochCheckpoint(self, _name(kind, key))

    def listing(self) -> list[StageInfo]:
        """Return all finished stages, oldest first."""
        return list_stages(self.path)

    def remove(self, name: str) -> None:
        """Remove a stage; a later run computes it again."""
        # Renamed first: a half-removed stage is never taken for a whole one.
        gone = self.stages / f".new-gone-{name}"
        (self.stages / name).rename(gone)
        shutil.rmtree(gone)

    def _read(self, folder: Path) -> tuple[dict[str, Any], dict[str, Tensors]] | None:
        if not folder.is_dir():
            return None
        try:
            # Desktops and NFS put files of their own into folders: they are no reason to train for hours again.
            manifest, tensors = read_checked(folder, mapped=True, strict=False)
            return manifest["data"], tensors
        except UnreadableError as error:
            raise RunError(f"{error} It may be whole: nothing was removed. Run the same command again.") from error
        except (ModelFileError, KeyError) as error:
            print(f"protodrift: {folder.name} is damaged and will be computed again ({error})", file=sys.stderr)
            shutil.rmtree(folder, ignore_errors=True)
            return None


def list_stages(path: str | Path) -> list[StageInfo]:
    """Return the finished stages of a run directory, oldest first. It only looks: the run may be at work."""
    found = []
    for folder in Path(path, "stages").glob("[!.]*-*"):
        with contextlib.suppress(FileNotFoundError):  # removed while we looked
            size = sum(file.stat().st_size for file in folder.iterdir())
            found.append(StageInfo(folder.name, folder.name.rsplit("-", 1)[0], size, folder.stat().st_mtime))
    return sorted(found, key=lambda stage: (stage.modified, stage.name))


def write_checked(folder: Path, manifest: Mapping[str, Any], tensors: Mapping[str, Tensors]) -> None:
    """Write a folder of tensors whose manifest has a checksum of its own, all or nothing."""
    write_folder(folder, {**manifest, "checksum": json_sha256(manifest)}, tensors)
    sync_directory(folder.parent)


def read_checked(
    folder: Path, *, mapped: bool = False, strict: bool = True
) -> tuple[dict[str, Any], dict[str, Tensors]]:
    """Return the manifest and tensors of such a folder.

    Raises:
        ModelFileError: if it is damaged.
    """
    manifest, tensors = read_folder(folder, None, mapped=mapped, strict=strict)
    if manifest.pop("checksum", None) != json_sha256(manifest):
        raise ModelFileError(f"{folder}/manifest.json does not match its checksum")
    return manifest, tensors


class EpochCheckpoint:
    """The last finished epoch of one training; implements `training.checkpoint.Checkpoint`."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    def load(self) -> tuple[dict[str, Any], dict[str, Tensors]] | None:
        """Return the newest epoch that is whole."""
        for folder in sorted(self._folders(), key=_epoch, reverse=True):
            found = self._store._read(folder)
            if found is not None:
                return found
        return None

    def save(self, data: dict[str, Any], tensors: dict[str, Tensors]) -> None:
        """Write an epoch, then drop the ones before it."""
        before = self._folders()
        with _explained(self._store.path):
            write_checked(self._store.epochs / f"{self._name}.{data['epoch']}", {"data": data}, tensors)
            for folder in before:
                shutil.rmtree(folder)

    def _folders(self) -> list[Path]:
        return list(self._store.epochs.glob(f"{self._name}.*"))


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of the disk into errors that say what happened to the run."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write to the run directory {path}: {error.strerror or error}. Everything finished so far is "
            "kept: make room or choose another disk, and run the same command again."
        ) from error


def _name(kind: str, key: str) -> str:
    return f"{kind}-{key[:24]}"


def _epoch(folder: Path) -> int:
    return int(folder.name.rsplit(".", 1)[1])
