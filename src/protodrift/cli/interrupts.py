"""Ctrl-C that comes while a library is being loaded."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN = 0.05  # seconds until a Ctrl-C that came inside an import is tried again


@contextmanager
def between_imports() -> Iterator[None]:
    """Let Ctrl-C wait, inside the block, until no module is being imported.

    Python raises KeyboardInterrupt wherever the program is. Inside an import a library may take it for an error of its
    own, or swallow it and go on with half a module: torch, whose C++ code imports numpy, does, and the program ends
    later with an error that nobody understands. Loading everything takes a second or two; a Ctrl-C has so much time.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # someone else decides what Ctrl-C does
        return
    signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupted(number: int, frame: FrameType | None) -> None:
    if _importing(frame):
        _thread.start_new_thread(_try_again, ())  # `threading` takes locks, which this very thread may hold
    else:
        signal.default_int_handler(number, frame)


def _try_again() -> None:
    time.sleep(_AGAIN)
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, signal.SIGINT)  # a real signal: it also wakes a thread that sleeps or waits
    else:
        _thread.interrupt_main()


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
