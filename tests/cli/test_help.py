"""Help answers at once, and every command has it, with examples that are real."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protodrift import __version__
from protodrift.cli import backbones, main, parser

HEAVY = ("torch", "numpy", "sklearn", "PIL", "safetensors", "rich", "pytorch_metric_learning")


def command_names() -> list[str]:
    (action,) = (action for action in parser()._actions if isinstance(action.choices, dict))
    return sorted(action.choices)


def test_help_imports_nothing_heavy():
    """`protodrift --help` has to answer in half a second: torch alone takes more."""
    code = f"""
import sys
from protodrift.cli import main
try:
    main(["--help"])
except SystemExit as stop:
    assert stop.code == 0
found = [name for name in {HEAVY!r} if name in sys.modules]
assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_installed_command_answers_quickly():
    script = Path(sys.executable).with_name("protodrift")
    times = []
    for _ in range(5):
        started = time.perf_counter()
        done = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=60, check=True)
        times.append(time.perf_counter() - started)
    # Printed, not asserted: another process on this machine is no fault of ours.
    print(f"protodrift --help: best of five {min(times):.3f} s")
    assert "demo" in done.stdout


def test_every_command_is_listed_and_has_help(command):
    top = command("--help").stdout
    for name in command_names():
        assert f"    {name} " in top or f"    {name}\n" in top
    assert {"demo", "recipes", "show", "methods", "run", "runs"} <= set(command_names())


@pytest.mark.parametrize("name", command_names())
def test_each_command_explains_itself(command, name):
    done = command(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: protodrift {name}")
    assert not done.stderr


@pytest.mark.parametrize("action", ["ls", "clean"])
def test_the_actions_of_runs_explain_themselves(command, action):
    assert command("runs", action, "--help").stdout.startswith(f"usage: protodrift runs {action}")


def test_version(command):
    assert command("--version").stdout.strip() == f"protodrift {__version__}"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "COMMAND"),
        (("rum",), "invalid choice: 'rum'"),
        (("run",), "NAME"),
        (("run", "digits", "--seeds", "0,x"), "whole numbers with commas between"),
        (("run", "digits", "--seeds", "-1"), "--seeds"),
        (("run", "digits", "--seeds", ""), "whole numbers"),
        (("run", "digits", "--tasks", "two"), "--tasks"),
        (("run", "digits", "--epochs", "2"), "unrecognized arguments: --epochs"),
        (("demo", "--seed", "-2"), "--seed"),
        (("runs",), "ls|clean"),
        (("runs", "rm"), "invalid choice"),
    ],
)
def test_wrong_usage_is_status_2(command, args, said):
    done = command(*args)
    assert done.returncode == 2
    assert said in done.stderr
    assert "usage: protodrift" in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{sys.executable} -m protodrift methods | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_what_the_library_logs_is_printed_once_and_only_while_a_command_runs(monkeypatch, capsys):
    logger = logging.getLogger("protodrift.somewhere")
    monkeypatch.setattr(backbones, "list_backbones", lambda args: logger.info("a fact") or 0)
    assert main(["backbones"]) == 0
    assert capsys.readouterr().err == "protodrift: a fact\n"
    logger.info("nobody asked")
    assert capsys.readouterr().err == ""
    assert not logging.getLogger("protodrift").handlers
