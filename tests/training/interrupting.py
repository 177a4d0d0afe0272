"""Ctrl-C at a chosen bytecode: of Python's own code, of ours, and of all libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def calls_of(work: Callable[[], Any]) -> int:
    """Return how many functions are called while something works."""
    count = 0

    def counted(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += 1

    sys.settrace(counted)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


def interrupted(work: Callable[[], Any], calls: int, opcodes: int) -> bool:
    """Raise KeyboardInterrupt so many bytecodes after so many calls; return whether it came out.

    It does not where Python itself drops it, as in a `__del__`, or where the work is over before.
    """
    left = [calls, opcodes]

    def local(frame: Any, event: str, arg: Any) -> Any:
        if event == "opcode":
            left[1] -= 1
            if left[1] < 0:
                raise KeyboardInterrupt
        return local

    def entered(frame: Any, event: str, arg: Any) -> Any:
        left[0] -= 1
        if left[0] > 0:
            return None
        if left[0] == 0:  # bytecodes of the callers count too: those that run when this function returns
            outer = frame.f_back
            while outer is not None and outer.f_code is not interrupted.__code__:
                outer.f_trace, outer.f_trace_opcodes = local, True
                outer = outer.f_back
        frame.f_trace_opcodes = True
        return local

    sys.settrace(entered)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
