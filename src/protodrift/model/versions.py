"""A model directory always holds one whole version: immutable `versions/<n>/`, and `CURRENT`, replaced atomically.

    birds/
      CURRENT                   {"format": ..., "format_version": 1, "version": 2, "manifest_sha256": ...}
      versions/1/...            never changed once written
      versions/2/manifest.json  configuration, labels, the parent version, sha256 and size of every other file
      versions/2/*.safetensors  tensors

A version is written and synced under another name, then renamed, then `CURRENT` is replaced. A reader resolves
`CURRENT` once. Whatever is interrupted at whatever moment, `CURRENT` names a whole version.

A version names the one it came from (its parent) and the sha256 of that one's manifest: `undo` goes back along this
chain. What is not on the chain is no longer part of the model, and the next writer removes it.

Every version is whole by itself. A file that has the same bytes as in the version before is the same file on disk under
two names (a hard link): a month of a network that stays as it is does not store the network again.
`docs/model_format.md` describes every field.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..common import files
from ..common.labels import Label
from ..common.tensorfiles import Tensors, read_folder, write_folder
from ..errors import ModelFileError, StaleError

FORMAT = "protodrift-model"
FORMAT_VERSION = 1

Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Current:
    """What a `CURRENT` file says: the number of the version, and the sha256 of its manifest."""

    version: int
    manifest_sha256: str

    def folder(self, path: Path) -> Path:
        """Return the folder of this version in a model directory."""
        return path / "versions" / str(self.version)

    def __str__(self) -> str:
        return f"version {self.version} ({self.manifest_sha256[:8]})"

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        fields = {"format": FORMAT, "format_version": FORMAT_VERSION, **vars(self)}
        return (json.dumps(fields) + "\n").encode()


@dataclass(frozen=True)
class Saved:
    """One whole version, read and verified.

    Attributes:
        current: its number and checksum.
        manifest: the JSON part.
        tensors: for each tensor file (its name without ending) the named tensors.
    """

    current: Current
    manifest: dict[str, Any]
    tensors: dict[str, Tensors]


# -- reading ----------------------------------------------------------------------------------------------------------


def read(path: str | Path) -> Saved:
    """Read the current version and verify every byte of it.

    Raises:
        ModelFileError: if it is missing, damaged, or written by a newer version of protodrift.
    """
    path = Path(path)
    return read_steadily(path, lambda current: read_version(path, current))


def read_version(path: Path, one: Current) -> Saved:
    """Read one version of a model directory and verify every byte of it."""
    return Saved(one, *read_folder(one.folder(path), one.manifest_sha256))


def read_steadily(path: Path, look: Callable[[Current], Seen]) -> Seen:
    """Return `look(current)`; if a writer changed the model meanwhile and `look` failed, look again.

    A version may be removed (undo, forget, a task that drops the oldest) while it is read: that is no damage.
    """
    for _ in range(5):
        current = read_current(path)
        try:
            return look(current)
        except (ModelFileError, FileNotFoundError):
            if read_current(path) == current:
                raise
    raise ModelFileError(f"{path} changes faster than it can be read. Try again when the other processes are done.")


@contextlib.contextmanager
def explained(path: str | Path) -> Iterator[None]:
    """Turn what goes wrong when a classifier is made from what was read into a ModelFileError."""
    try:
        yield
    except ModelFileError:
        raise
    except KeyError as error:
        raise ModelFileError(f"the model at {path} is damaged: it lacks {error}.") from error
    except Exception as error:  # whatever the content of a file makes one of the parts say
        raise ModelFileError(f"the model at {path} cannot be used: {error or type(error).__name__}") from error


def read_current(path: Path) -> Current:
    """Read which version is the current one."""
    if not path.exists():
        raise ModelFileError(f"there is no model at {path}.")
    if not (path / "CURRENT").is_file():
        raise ModelFileError(f"{path} is not a protodrift model: it has no CURRENT file.")
    fields = files.read_json(path / "CURRENT")
    if fields.get("format") != FORMAT:
        raise ModelFileError(f"{path} is not a protodrift model: its CURRENT says format {fields.get('format')!r}.")
    written = fields.get("format_version")
    if isinstance(written, int) and written > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format version {written}, this protodrift reads up to {FORMAT_VERSION}. Upgrade protodrift."
        )
    if isinstance(written, bool) or written != FORMAT_VERSION:
        raise ModelFileError(f"{path}/CURRENT is damaged: format version {written!r}.")
    if not _is_number(fields.get("version")):
        raise ModelFileError(f"{path}/CURRENT is damaged: version {fields.get('version')!r}.")
    # str: a missing checksum must not pass for "do not check".
    return Current(fields["version"], str(fields.get("manifest_sha256")))


def current_or_none(path: Path) -> Current | None:
    """Return the current version; None where there is no model yet."""
    return read_current(path) if (path / "CURRENT").exists() else None


def chain(path: Path, most: int | None = None) -> list[Current]:
    """Return the current version and those it came from, newest first, as far as they are kept; at most `most`.

    Raises:
        ModelFileError: if the manifest of one of them is damaged: what it came from is unknown then, and may be kept.
    """
    return read_steadily(path, lambda current: _chain_from(path, current, most))


def _chain_from(path: Path, current: Current, most: int | None) -> list[Current]:
    result = [current]
    while most is None or len(result) < most:
        try:
            parent = _parent(path, result[-1])
        except ModelFileError:
            if len(result) > 1 and not result[-1].folder(path).is_dir():  # a writer removed it meanwhile
                return result[:-1]
            raise
        if parent is None or not parent.folder(path).is_dir():
            return result
        result.append(parent)
    return result


def _parent(path: Path, one: Current) -> Current | None:
    manifest = files.read_json(one.folder(path) / "manifest.json", one.manifest_sha256)
    parent = manifest.get("parent")
    if parent is None:
        return None
    version: Any = parent.get("version") if isinstance(parent, dict) else None
    if not _is_number(version) or version >= one.version:
        raise ModelFileError(f"{one.folder(path)}/manifest.json is damaged: it names the parent {parent!r}.")
    return Current(version, str(parent.get("manifest_sha256")))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def listed_labels(folder: Path) -> list[Label]:
    """Return the classes that a version's manifest names, unverified; none if it cannot be read."""
    try:
        labels = files.read_json(folder / "manifest.json").get("labels")
    except ModelFileError:
        return []
    return [label for label in labels if isinstance(label, str | int)] if isinstance(labels, list) else []


# -- writing ----------------------------------------------------------------------------------------------------------


def write(
    path: str | Path,
    manifest: Mapping[str, Any],
    tensors: Mapping[str, Tensors],
    *,
    onto: Current | None,
    held: files.Held | None = None,
    root: bool = False,
    older: Iterable[tuple[Mapping[str, Any], Mapping[str, Tensors]]] = (),
    keep: int | None = None,
) -> Current:
    """Write a new version on top of the one that it was made from, and make it the current one; return it.

    Args:
        path: the model directory; made if it is missing, extended if it is a model.
        manifest: JSON-able; must not have a key "files" or "parent".
        tensors: for each file name (without ending) its named tensors.
        onto: the version that it was made from; None: it is the first one.
        held: the directory, if the caller holds its lock already (`files.locked`).
        root: the new version does not come from those that are there, and all of these are removed.
        older: with `root`, what it comes from instead, oldest first: manifest and tensors of each.
        keep: keep so many versions, the newest of the chain; None: all of them.

    Raises:
        StaleError: if `onto` is not the current version. Nothing has changed.
        ModelFileError: if `path` is something else than a model, is locked by another writer, was removed or exchanged
            while it was locked, or cannot be written: what was there before is still there. With `root` also if the
            new version is there, but others could not be removed; the message says so.
    """
    path = Path(path)
    if held is None:
        check_target(path)
    try:
        if held is None:
            files.make_directory(path / "versions")  # else a directory that is gone stays gone
        with files.locked(path) if held is None else contextlib.nullcontext(held) as own:
            try:
                written = _write_versions(own, itertools.chain(older, [(manifest, tensors)]), onto, root)
            except OSError:
                _check_onto(own, onto)  # the disk may be well, and somebody else at work in the directory
                raise
            if root:
                remove_others(path)
            elif keep is not None:
                # The new version is current: what cannot be removed now, the next writer removes.
                with contextlib.suppress(OSError, ModelFileError):
                    remove_unreachable(path, keep)
            return written
    except OSError as error:
        raise unwritable(path, error) from error


def check_target(path: Path) -> None:
    """Refuse a path that a model cannot be written to because something else is there."""
    if path.exists() and not path.is_dir():
        raise ModelFileError(f"{path} exists and is a file, not a model directory. Choose another path.")
    if (path / "CURRENT").exists():
        read_current(path)
    elif path.is_dir():
        # An interrupted first save leaves only these; anything else is somebody's.
        others = sorted(p.name for p in path.iterdir() if p.name not in ("versions", ".lock", ".CURRENT.new"))
        if others:
            raise ModelFileError(
                f"{path} exists and is not a protodrift model (it holds {', '.join(others[:3])}). Choose another path."
            )


def unwritable(path: Path, error: OSError) -> ModelFileError:
    """Return the error for a disk that refuses to write."""
    return ModelFileError(
        f"cannot write the model to {path}: {error.strerror or error}. What was there before is unchanged. "
        "Check that the disk is writable and not full."
    )


def _write_versions(
    held: files.Held,
    made: Iterable[tuple[Mapping[str, Any], Mapping[str, Tensors]]],
    onto: Current | None,
    root: bool,
) -> Current:
    """Write versions, each the parent of the next, and make the last one current; on any error none is there."""
    _check_onto(held, onto)
    versions = held.inside / "versions"
    versions.mkdir(exist_ok=True)
    for stale in versions.glob(".new-*"):  # left by a writer that was killed; we hold the lock
        shutil.rmtree(stale)
    number = max((int(p.name) for p in versions.iterdir() if p.name.isdigit()), default=0)
    written: list[Current] = []
    try:
        for manifest, tensors in made:
            parent = written[-1] if written else None if root else onto
            number += 1
            content = {**manifest, "parent": None if parent is None else vars(parent)}
            before = written[-1] if written else onto
            like = None if before is None else before.folder(held.inside)
            written.append(Current(number, write_folder(versions / str(number), content, tensors, like)))
        _publish(held, written[-1], onto, is_new=True)
    except BaseException:
        if current_or_none(held.inside) not in written:  # no reader has ever seen them
            for one in written:
                shutil.rmtree(one.folder(held.inside), ignore_errors=True)
        raise
    return written[-1]


def _check_onto(held: files.Held, onto: Current | None) -> None:
    """Refuse to write on top of another version than `onto`: what somebody else has written would be lost."""
    now = current_or_none(held.inside)
    if now != onto:
        raise StaleError(
            f"{held.path} is {now or 'empty'} now, and what is to be written was made from "
            f"{onto or 'no version of it'}: nothing was written, so that nothing of either is lost. To learn the task "
            "on top of what is there, add --onto latest to `protodrift learn`; in Python load the model again, learn "
            f"and save. save(path, onto={now.version if now else 0}) writes on top of it all the same."
        )
    held.check()


def _publish(held: files.Held, one: Current, onto: Current | None, *, is_new: bool) -> None:
    """Make a version current in place of `onto`; if that fails, that one is current again, and a new one is removed."""
    path = held.inside
    current = path / "CURRENT"
    before = current.read_bytes() if current.exists() else None
    try:
        files.sync_directory(path / "versions")
        _check_onto(held, onto)
        files.replace_file(current, one.to_bytes())
    except BaseException:
        # The last sync can fail after CURRENT was replaced. An error must mean that nothing changed: put it back.
        with contextlib.suppress(OSError):
            now = current.read_bytes() if current.exists() else None
            if now == before:
                if is_new:
                    shutil.rmtree(one.folder(path), ignore_errors=True)  # no reader has ever seen it
            elif before is None:
                current.unlink()
            else:
                draft = current.with_name(".CURRENT.new")
                draft.write_bytes(before)  # not synced: it is syncing that fails
                os.replace(draft, current)
        raise


def undo(path: str | Path) -> tuple[int, int]:
    """Make the version before the current one current again, and remove the current one; return both numbers.

    Raises:
        ModelFileError: if there is none, or it is damaged. Nothing has changed then.
    """
    path = Path(path)
    read_current(path)
    try:
        with files.locked(path) as held:
            current = read_current(path)
            parent = _parent(path, current)
            if parent is None:
                raise ModelFileError(
                    f"nothing to undo: version {current.version} of {path} is the first one, or the first since a "
                    "class was forgotten."
                )
            if not parent.folder(path).is_dir():
                raise ModelFileError(f"nothing to undo: version {parent.version} of {path} was not kept.")
            read_version(path, parent)  # never go back to what is damaged
            _publish(held, parent, current, is_new=False)
            # It is undone: what cannot be removed now, the next writer removes.
            with contextlib.suppress(OSError, ModelFileError):
                _remove(current.folder(held.inside))
                remove_unreachable(path)
            return current.version, parent.version
    except OSError as error:
        raise unwritable(path, error) from error


class Origins(dict[str, Current]):
    """Which version of each model directory a classifier was read from, or was last written as."""

    def after(self, path: str | Path, one: Current) -> Origins:
        """Return the same, and that what will be written next to `path` is made from this version."""
        return Origins({**self, str(Path(path).resolve()): one})

    def onto(self, path: str | Path, chosen: int | None = None) -> Current | None:
        """Return the version that a classifier may be written on top of: the one it knows there, or that was chosen.

        Of a directory that it does not know, such as a copy, it is the current version if the classifier was made from
        it somewhere else; None: there may be no version yet.

        Raises:
            StaleError: if another one than the chosen version is current.
        """
        path = Path(path)
        now = current_or_none(path)
        if chosen is None:
            return self.get(str(path.resolve()), now if now in self.values() else None)
        if chosen != (now.version if now else 0):
            raise StaleError(f"{path} is {now or 'empty'} now, not version {chosen}. Nothing was written.")
        return now


# -- removing ---------------------------------------------------------------------------------------------------------


def unreachable(path: Path, keep: int | None = None) -> list[Path]:
    """Return what is below `versions` and is not on the chain, or not among its newest `keep`.

    That is what a writer that was killed has left, and what is too old.
    """
    if not (path / "versions").is_dir():
        return []
    kept = {str(one.version) for one in chain(path, keep)} if (path / "CURRENT").exists() else set()
    return sorted(p for p in (path / "versions").iterdir() if p.name not in kept and _is_ours(p))


def _is_ours(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and (path.name.isdigit() or path.name.startswith(".new-"))


def remove_unreachable(path: Path, keep: int | None = None) -> None:
    """Remove versions that are not on the chain, and those on it beyond the newest `keep`; the lock must be held."""
    for folder in unreachable(path, keep):
        _remove(folder)
    files.sync_directory(path / "versions")


def remove_others(path: Path) -> None:
    """Remove what is not on the chain, for somebody who relies on it being gone; the lock must be held.

    Raises:
        ModelFileError: if something could not be removed.
    """
    try:
        remove_unreachable(path)
    except OSError as error:
        left = ", ".join(f"versions/{folder.name}" for folder in unreachable(path))
        raise ModelFileError(
            f"{path} is version {read_current(path).version}, but older ones could not be removed: "
            f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}. Still there, with all that "
            f"is in them: {left}. Make them removable, and run the same command again: it removes them."
        ) from error


def _remove(folder: Path) -> None:
    if not folder.name.startswith("."):
        gone = folder.with_name(f".new-gone-{folder.name}")  # a half-removed version is never taken for a whole one
        os.rename(folder, gone)
        folder = gone
    shutil.rmtree(folder)
