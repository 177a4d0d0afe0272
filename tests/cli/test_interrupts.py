"""Ctrl-C inside an import: a real signal in a real process."""

import signal
import subprocess
import sys

import pytest

# A library that swallows whatever happens in its import, and is then half there; as torch does with numpy.
LIBRARY = """
import signal, time
try:
    signal.raise_signal(signal.SIGINT)
    time.sleep(0.2)
    whole = True
except BaseException:
    pass
"""

PROGRAM = """
import sys, time
from protodrift.cli.interrupts import between_imports
try:
    with between_imports():
        import careless
        print("whole" if hasattr(careless, "whole") else "half", flush=True)
        time.sleep(30)
except KeyboardInterrupt:
    print("interrupted", flush=True)
time.sleep(0.1)
"""


def test_an_import_is_finished_and_then_interrupted(tmp_path):
    (tmp_path / "careless.py").write_text(LIBRARY)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=25)
    assert done.stdout.split() == ["whole", "interrupted"], done.stderr


def test_outside_of_imports_ctrl_c_interrupts_at_once_and_afterwards_all_is_as_before():
    from protodrift.cli.interrupts import between_imports

    with between_imports():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), between_imports():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_somebody_else_stays():
    from protodrift.cli.interrupts import between_imports

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with between_imports():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
