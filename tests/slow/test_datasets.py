"""Decoding in real processes: killed, interrupted, two at once, and from a script without a main guard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ..data.datasets import layouts

pytestmark = pytest.mark.slow

# No `if __name__ == "__main__"`: a worker that imported this script would start it again.
SCRIPT = """
import sys, time
from protodrift.data.datasets import load_dataset
calls = []
def progress(*args):
    calls.append(args)
    print("decoding", flush=True)
    time.sleep(float(sys.argv[2]))
dataset = load_dataset("cub200", sys.argv[1], size=64, check=False, workers=2, on_progress=progress)
print("decoded" if calls else "cached", len(dataset.train), int(dataset.train.images.sum()), flush=True)
"""


@pytest.fixture
def birds(tmp_path):
    """About a thousand photos."""
    layouts.cub(tmp_path, classes=3, images=340)
    (tmp_path / "load.py").write_text(SCRIPT)
    return tmp_path


def start(birds: Path, pause: float = 0.0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(birds / "load.py"), str(birds), str(pause)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(birds / "cache"), "OMP_NUM_THREADS": "1"},
    )


def entries(birds: Path) -> list[str]:
    root = birds / "cache" / "protodrift" / "decoded"
    return [path.name for path in root.iterdir() if path.suffix != ".lock"]


def workers(of: int) -> list[int]:
    """Return the running children of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[1]) == of:
            found.append(int(path.parent.name))
    return found


def gone(pids: list[int]) -> bool:
    for _ in range(600):
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_script_without_a_main_guard_can_use_workers(birds):
    process = start(birds)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert out.splitlines()[-1].startswith("decoded 1017 ")
    assert not err


def test_two_processes_at_once_build_one_entry(birds):
    processes = [start(birds, pause=0.05) for _ in range(2)]
    last = [process.communicate(timeout=600)[0].splitlines()[-1].split() for process in processes]
    assert sorted(line[0] for line in last) == ["cached", "decoded"]
    assert last[0][1:] == last[1][1:]
    assert len(entries(birds)) == 1


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_stopped_leaves_no_worker_and_no_whole_looking_entry(birds, sent):
    process = start(birds, pause=0.5)
    assert process.stdout is not None
    assert process.stdout.readline() == "decoding\n"
    children = workers(process.pid)
    assert len(children) >= 2  # joblib has one that cleans up after the others
    process.send_signal(sent)
    process.communicate(timeout=600)
    assert process.returncode != 0
    assert gone(children)
    left = entries(birds)
    assert left == [] if sent == signal.SIGINT else all(name.startswith(".new-") for name in left)
    again = start(birds)
    out, err = again.communicate(timeout=600)
    assert again.returncode == 0, err
    assert out.splitlines()[-1].startswith("decoded 1017 ")
    (entry,) = entries(birds)
    assert len(np.load(birds / "cache" / "protodrift" / "decoded" / entry / "train.npy", mmap_mode="r")) == 1017
