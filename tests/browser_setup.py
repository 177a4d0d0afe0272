"""Installs what `make test-slow` opens pages with, if it is not there: Debian's chromium, and onnxruntime-web."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

BROWSER = "/usr/bin/chromium"
RUNTIME = "onnxruntime-web@1.30.0"
RUNTIME_FILES = ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
RUNTIME_FOLDER = Path(sys.prefix) / "share" / "onnxruntime-web"


def install(package: str) -> None:
    """Install a Debian package; CalledProcessError or OSError, if that cannot be done."""
    print(f"installing Debian's {package} ...", flush=True)
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package], check=True)


def install_runtime() -> None:
    """Take onnxruntime for browsers out of its npm package; nothing of the package is executed."""
    if all((RUNTIME_FOLDER / name).exists() for name in RUNTIME_FILES):
        return
    if shutil.which("npm") is None:
        install("npm")
    print(f"fetching {RUNTIME} ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", RUNTIME, "--pack-destination", folder], check=True, cwd=folder)
        RUNTIME_FOLDER.mkdir(parents=True, exist_ok=True)
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            for name in RUNTIME_FILES:
                member = archive.extractfile(f"package/dist/{name}")
                assert member is not None
                (RUNTIME_FOLDER / name).write_bytes(member.read())


def main() -> int:
    """Return 0 when the browser can be started and the runtime is there, 1 with the reason when not."""
    try:
        if shutil.which(BROWSER) is None:
            install("chromium")
        install_runtime()
    except (OSError, subprocess.CalledProcessError, KeyError, StopIteration) as error:
        print(
            f"cannot install what browser tests need ({error}). By hand: apt-get install chromium npm, so that "
            f"{BROWSER} is there; and of {RUNTIME} the files {', '.join(RUNTIME_FILES)} into {RUNTIME_FOLDER}.",
            file=sys.stderr,
        )
        return 1
    try:
        version = subprocess.run([BROWSER, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{BROWSER} does not start: {error}", file=sys.stderr)
        return 1
    print(version.stdout.strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
