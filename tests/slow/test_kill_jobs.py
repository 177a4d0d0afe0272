"""A run in several processes whose main process is really killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

RUN = [sys.executable, "-m", "protodrift", "run", "digits", "--methods", "E-FT,E-EWC,E-MAS", "--jobs", "2"]


def children(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has just ended
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def until(condition, seconds=90):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def test_workers_end_with_the_process_that_started_them(tmp_path):
    main = subprocess.Popen([*RUN, "--out", "out"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    until(lambda: list((tmp_path / "out" / "epochs").glob("train-*")))  # a worker trains
    workers = children(main.pid)
    assert len(workers) >= 2
    os.kill(main.pid, signal.SIGKILL)
    main.wait()
    until(lambda: not any(alive(pid) for pid in workers), 30)
    again = subprocess.run([*RUN, "--out", "out"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert again.returncode == 0, again.stderr
