"""The command line as a user meets it: real processes."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def _main(args: list[str], cwd: Path, out: Path, err: Path) -> None:
    """Be `python -m protodrift ARGS` in this process: its folder, its standard streams, and its end."""
    os.chdir(cwd)
    for path, stream in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server of processes ignores it
    sys.argv = ["protodrift", *args]
    runpy.run_module("protodrift", run_name="__main__")


@pytest.fixture(scope="session")
def server():
    """Return a starter of processes that have torch and scikit-learn imported: two seconds less for each command.

    Each is forked off a fresh interpreter that has run nothing, so it knows nothing of this one or of the others.
    What a command imports, `test_help.py` looks at in interpreters of its own.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sklearn.base", "torch", "tests.cli.conftest"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # read once, when torch is imported
        forkserver.ensure_running()
    return context


@pytest.fixture
def command(tmp_path, tmp_path_factory, server):
    """Run `protodrift ...` in an empty folder, and return status, output and errors; a traceback fails the test."""

    def run(*args, cwd=tmp_path) -> subprocess.CompletedProcess[str]:
        said = tmp_path_factory.mktemp("said")
        process = server.Process(target=_main, args=([*map(str, args)], cwd, said / "out", said / "err"))
        process.start()
        process.join(300)
        if process.is_alive():
            process.kill()
            pytest.fail(f"protodrift {args} runs for more than 300 s")
        out, err = ((said / name).read_text() for name in ("out", "err"))
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(args, process.exitcode, out, err)

    return run


@pytest.fixture
def fails(command):
    """Run a command that must fail with exit status 1 and one line on standard error; return that line."""

    def run(*args, **kwargs) -> str:
        done = command(*args, **kwargs)
        assert done.returncode == 1, done
        lines = done.stderr.strip().splitlines()
        assert lines[-1].startswith("protodrift: error: ")
        assert len(lines) == 1, lines
        assert not done.stdout
        return lines[-1].removeprefix("protodrift: error: ")

    return run
