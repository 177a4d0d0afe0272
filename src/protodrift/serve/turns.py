"""Whose turn it is: that of the client on whom least was spent, and of its requests that on which least was spent."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Turn = tuple[str, int]
"""A client's address and the number of one of its requests."""

T = TypeVar("T")


class Turns(Generic[T]):
    """A queue that is fair between clients, then between the requests of a client. Not safe for threads by itself.

    A client that comes new starts with what was spent on the one whose turn it was last: nobody has to make up for the
    time before, and nobody can save turns up.
    """

    def __init__(self) -> None:
        self._queues: dict[Turn, deque[T]] = {}
        self._clients: dict[str, float] = {}
        self._requests: dict[Turn, float] = {}
        self._last = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def put(self, turn: Turn, item: T, *, first: bool = False) -> None:
        """Add an item behind the others of its request, or before them."""
        if turn not in self._queues:
            self._clients.setdefault(turn[0], self._last)
            beside = [spent for other, spent in self._requests.items() if other[0] == turn[0]]
            self._requests.setdefault(turn, min(beside, default=0.0))
            self._queues[turn] = deque()
        if first:
            self._queues[turn].appendleft(item)
        else:
            self._queues[turn].append(item)

    def take(self) -> tuple[Turn, T] | None:
        """Return the next item and its turn, or None if there is none."""
        if not self._queues:
            return None
        turn = min(self._queues, key=lambda one: (self._clients[one[0]], self._requests[one]))
        self._last = self._clients[turn[0]]
        item = self._queues[turn].popleft()
        if not self._queues[turn]:
            del self._queues[turn]
        return turn, item

    def charge(self, turn: Turn, cost: float) -> None:
        """Note what an item cost, such as seconds; those who wait for nothing any more are dropped."""
        if any(other[0] == turn[0] for other in self._queues):
            self._clients[turn[0]] += cost
        else:
            self._clients.pop(turn[0], None)
        if turn in self._queues:
            self._requests[turn] += cost
        else:
            self._requests.pop(turn, None)
