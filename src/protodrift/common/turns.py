"""One thread at a time: an object that learns is changed by one call, and a second one is refused."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator

from ..errors import InputError


class _Turn:
    """A call under way. Nobody but this call refers to it, so that it ends with the call, however that ends."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


_turns: dict[int, weakref.ref[_Turn]] = {}  # by id of the object; one step of a dict is never interrupted


@contextlib.contextmanager
def alone(owner: object) -> Iterator[None]:
    """Refuse a second thread that comes while the block runs for the same object.

    There is no lock that an interrupt could leave locked: what is left behind of a call that is over says so.

    Raises:
        InputError: if another thread is inside.
    """
    turn = _Turn()
    mine, key = weakref.ref(turn), id(owner)
    try:
        there = _turns.setdefault(key, mine)()
        if there is None or (there is not turn and there.thread == turn.thread):  # left behind by an interrupt
            there, _turns[key] = turn, mine
        if there is not turn:
            raise InputError(
                f"another thread is teaching this {type(owner).__name__} a task, and both would start from the same "
                "state: one of the two would be lost. Wait until it is done, or give each thread an object of its own."
            )
        yield
    finally:
        if _turns.get(key) is mine:
            del _turns[key]
