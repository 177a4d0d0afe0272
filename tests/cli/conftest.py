"""The command line as a user meets it: real processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def command(tmp_path):
    """Run `protodrift ...` in an empty folder, and return status, output and errors; a traceback fails the test."""

    def run(*args, cwd=tmp_path, **kwargs) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "protodrift", *map(str, args)],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=cwd,
            env=ENVIRONMENT,
            check=False,
            **kwargs,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

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
