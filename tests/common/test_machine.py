"""What a process does for speed: it says what it chose, changes no bit of a result, and not the user's process."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest
import torch

from protodrift.common import machine

TRAIN = """
import json
import torch
from protodrift.common import machine
from protodrift.data import load_digits
from protodrift.methods import Method
from protodrift.networks import build_embedder, embed
from protodrift.training.config import Training
from protodrift.training.trainer import Trained, train_network

torch.set_num_threads(1)
digits = load_digits()


def bits():
    network = build_embedder("convnet", digits.spec, embedding_dim=8, seed=0)
    network.standardize.fit(digits.train.images)
    new = digits.train.of_classes([3, 8])
    common = {"task": 1, "method": Method(), "training": Training(epochs=1), "augment": None, "seed": 0}
    trained = train_network(Trained(network.eval()), new, **common).network
    return [*trained.state_dict().values(), embed(trained, digits.train.images)]


before = bits()
kept = machine.keep_memory()
same = all(torch.equal(a, b) for a, b in zip(before, bits(), strict=True))
print(json.dumps({"kept": kept, "same": same}))
"""


def test_memory_is_kept_and_every_bit_of_a_training_stays():
    """In a process of its own: what is asked of the C library stays."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", TRAIN], capture_output=True, text=True, check=True, env=environment)
    assert json.loads(done.stdout) == {"kept": platform.libc_ver()[0] == "glibc", "same": True}


def test_other_libraries_and_the_users_own_settings_are_left_alone(monkeypatch):
    def refuse(*args):
        raise AssertionError("the C library was asked")

    monkeypatch.setattr(machine.ctypes, "CDLL", refuse)
    monkeypatch.setattr(machine.platform, "libc_ver", lambda: ("", ""))
    assert machine.keep_memory() is False
    monkeypatch.setattr(machine.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert machine.keep_memory() is False


def test_a_library_without_mallopt_is_no_error(monkeypatch):
    monkeypatch.setattr(machine.platform, "libc_ver", lambda: ("glibc", "2.36"))
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: object())
    assert machine.keep_memory() is False


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 6),
        ({"cpu.max": "max 100000\n"}, 6),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "900000 100000\n"}, 6),
        ({"cpu.max": "rubbish"}, 6),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 6),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ],
)
def test_usable_cpus_are_the_affinity_and_the_containers_share(tmp_path, monkeypatch, files, cpus):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.usable_cpus(tmp_path) == cpus


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_threads_are_torchs_unless_they_are_too_many_or_chosen(threads, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine, "usable_cpus", lambda: 2)
    for set_before, given, wanted in [(1, None, 1), (2, None, 2), (5, None, 2), (5, 3, 3), (1, 4, 4)]:
        torch.set_num_threads(set_before)
        said = machine.tune(given)
        assert torch.get_num_threads() == wanted
        assert f"{wanted} thread" in said
        assert "2 usable CPUs" in said
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    torch.set_num_threads(5)
    machine.tune()
    assert torch.get_num_threads() == 5


def test_importing_the_library_changes_nothing_of_the_process():
    code = (
        "import os, torch; from protodrift.common import machine\n"
        "before = dict(os.environ), torch.get_num_threads()\n"
        "for name in ('tune', 'keep_memory', 'wait_briefly'): setattr(machine, name, None)  # a call would fail\n"
        "import protodrift; protodrift.IncrementalClassifier\n"
        "print(before == (dict(os.environ), torch.get_num_threads()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_the_environment_names_no_machine_and_no_path():
    facts = machine.environment()
    assert list(facts) == ["protodrift", "torch", "python", "machine", "processor", "cpus", "threads"]
    assert facts == json.loads(json.dumps(facts))
    assert facts["cpus"] == machine.usable_cpus()
    assert machine.versions() == {name: facts[name] for name in ("protodrift", "torch", "python")}
    assert platform.node() not in json.dumps({k: v for k, v in facts.items() if k != "processor"})


def test_idle_threads_wait_briefly_unless_the_user_has_chosen(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    machine.wait_briefly()
    assert os.environ["GOMP_SPINCOUNT"] == "1000"
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    machine.wait_briefly()
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    machine.wait_briefly()
    assert "GOMP_SPINCOUNT" not in os.environ
