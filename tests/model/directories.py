"""What the tests of model directories share: reading all files, right checksums after a change, disks that fail."""

from __future__ import annotations

import builtins
import errno
import hashlib
import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

FULL = OSError(errno.ENOSPC, "No space left on device")


def files_of(path: Path) -> dict[str, bytes]:
    """Every file below a directory with its content; the lock file says nothing about a model."""
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != ".lock"}


def reseal(path: Path, change=None) -> None:
    """Make all checksums right again, as a careful attacker would; `change` edits the manifest before."""
    folder = path / "versions" / "1"
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in list(manifest["files"]):
        if (folder / name).exists():
            content = (folder / name).read_bytes()
            manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    if change is not None:
        change(manifest)
    data = json.dumps(manifest, indent=1).encode()
    (folder / "manifest.json").write_bytes(data)
    current = json.loads((path / "CURRENT").read_text())
    current["manifest_sha256"] = hashlib.sha256(data).hexdigest()
    (path / "CURRENT").write_text(json.dumps(current))


@contextmanager
def read_only(path: Path):
    """Mount a read-only view over `path`, or give a place where nobody can write."""
    possible = shutil.which("mount") and shutil.which("umount")
    made = bool(possible) and subprocess.run(["mount", "--bind", path, path], capture_output=True).returncode == 0
    if made and subprocess.run(["mount", "-o", "remount,bind,ro", path], capture_output=True).returncode == 0:
        try:
            yield path
        finally:
            subprocess.run(["umount", path], check=True)
    else:
        if made:
            subprocess.run(["umount", path], check=True)
        yield Path("/proc/protodrift")  # not even root writes there


def fault(patch, function, at, raised, lasting):
    """Let the `at`-th call of a system function raise (and all later ones if it is lasting)."""
    calls = []
    module = builtins if function in ("open", "write") else os
    real = getattr(module, "open" if function == "write" else function)

    def now():
        calls.append(1)
        return len(calls) >= at if lasting else len(calls) == at

    def wrapped(*args, **kwargs):
        writing = module is os or (len(args) > 1 and "w" in args[1])
        if function != "write":
            if writing and now():
                raise raised
            return real(*args, **kwargs)
        file = real(*args, **kwargs)
        if writing and now():
            file.write(b"half")
            file.close()
            raise raised
        return file

    patch.setattr(module, "open" if function == "write" else function, wrapped)
    return calls
