"""Real Ray clusters on loopback: the results of the local engine, also when workers are killed or a run is stopped."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .watching import Running, drafts, epochs, stages, tensors

pytestmark = pytest.mark.slow

ARGS = ["run", "digits", "--methods", "E-FT+SDC,E-EWC", "--tasks", "2", "--set", "training.epochs=5", "--jobs", "2"]
RAY = [*ARGS, "--engine", "ray"]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    out = tmp_path_factory.mktemp("local") / "run"
    Running(ARGS, out).finish()
    return out


def document(out: Path) -> str:
    """results.json as it was written, but for times, the command, and a commit that somebody made meanwhile."""
    return re.sub(r'"(seconds|command|commit)": .*', r'"\1"', (out / "results.json").read_text())


def same(out: Path, other: Path) -> None:
    assert document(out) == document(other)
    assert tensors(out) == tensors(other)
    assert not epochs(out)
    assert not drafts(out)


def family(pid: int) -> dict[int, str]:
    """All descendants of a process, with their command lines."""
    parents, found = {}, {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    members = {pid}
    while more := {child for child, parent in parents.items() if parent in members} - members:
        members |= more
    for member in members - {pid}:
        with contextlib.suppress(OSError):
            found[member] = Path(f"/proc/{member}/cmdline").read_text().replace("\0", " ").strip()
    return found


def at_work(running: Running) -> list[int]:
    """The worker processes that compute a stage: Ray writes the task into their names."""
    return [pid for pid, command in family(running.process.pid).items() if command.startswith("ray::_stage")]


def listening(pids: set[int]) -> set[str]:
    """The addresses, as the kernel writes them, where these processes listen for connections."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(link).removeprefix("socket:[").rstrip("]"))
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {line[1].split(":")[0] for line in lines if line[3] == "0A" and line[9] in inodes}


# 127.0.0.1, and the same as an IPv6 address; ::1.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def in_a_training(running: Running) -> None:
    """Wait until a training has finished two epochs and is not through."""
    out = running.out
    reached = running.until(lambda: any(n not in stages(out) and 2 <= e < 5 for n, e in epochs(out)))
    assert reached, running.log
    assert at_work(running)


def gone(pids: set[int], seconds: float = 60) -> bool:
    """Whether processes end in time."""
    deadline = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_workers_killed_in_a_training_are_replaced_and_nothing_listens_outside(local, tmp_path):
    running = Running(RAY, tmp_path / "run")
    in_a_training(running)
    cluster = family(running.process.pid)
    assert any("gcs_server" in command for command in cluster.values())
    addresses = listening({running.process.pid, *cluster})
    assert addresses
    assert addresses <= LOOPBACK
    victims = at_work(running)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    assert gone(set(victims))
    left, running.new_epochs = epochs(running.out), set()
    running.finish()
    assert "its worker is gone" in running.log
    for training, epoch in left:  # what was finished before the kill was not trained again
        again = {e for name, e in running.new_epochs if name == training}
        assert all(e >= epoch for e in again), (training, epoch, again)
    same(running.out, local)
    assert gone(set(cluster))  # the cluster ended with the run


def test_ctrl_c_ends_the_cluster_and_another_engine_goes_on(local, tmp_path):
    running = Running(RAY, tmp_path / "run")
    in_a_training(running)
    cluster = set(family(running.process.pid))
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(timeout=120) == 130
    assert "interrupted" in running.log
    assert "Traceback" not in running.log
    assert gone(cluster)
    assert not (running.out / "results.json").exists()
    Running(ARGS, running.out).finish()
    same(running.out, local)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster as a user starts it, in a process of ours that ends it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    home = tmp_path_factory.mktemp("cluster")
    command = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--num-cpus=2"]
    command += ["--node-ip-address=127.0.0.1", f"--port={address.rpartition(':')[2]}", "--include-dashboard=false"]
    ours = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    ours |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    ours |= {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ours.items():  # for those who connect, too
            patch.setenv(name, value)
        yield from _started(command, home, address)


def _started(command, home, address):
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=home, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while "Ray runtime started" not in (home / "log").read_text():
            assert process.poll() is None, (home / "log").read_text()
            assert time.monotonic() < deadline, (home / "log").read_text()
            time.sleep(0.2)
        yield address
    finally:
        members = set(family(process.pid))
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
        if not gone(members, 15):
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


def test_a_cluster_that_is_there_gives_the_results_of_the_local_engine(cluster, local, tmp_path):
    running = Running([*RAY, "--address", cluster], tmp_path / "run")
    running.finish()
    assert "Triplet+EWC, task 2: epoch 5/5" in running.log  # progress comes from the workers
    same(running.out, local)


def test_a_store_that_workers_do_not_see_is_said_before_anything_is_computed(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A path that is really another one in another process: every process's own working directory.
    out = Path("/proc/self/cwd/run")
    command = [sys.executable, "-m", "protodrift", *RAY, "--address", cluster, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert (
        "Ray node 127.0.0.1 is not fit for this run: it does not see the run directory /proc/self/cwd/run"
        in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert stages(tmp_path / "run") == set()


def test_a_stage_that_fits_no_node_is_refused(cluster, tmp_path):
    command = [sys.executable, "-m", "protodrift", *RAY, "--address", cluster, "--threads", "3"]
    command += ["--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "no node of the Ray cluster has 3 CPUs (the largest has 2 CPUs)" in done.stderr
