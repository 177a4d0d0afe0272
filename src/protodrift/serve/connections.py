"""Connections: how many, how long one may take to say what it wants, and how it ends.

uvicorn limits none of this (docs/serving.md compares servers), so its protocol is extended here. A connection is
half-open from its first moment until a request has come whole; between two requests it is idle.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any, Literal

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .limits import Limits

LARGEST_HEAD = 64 * 2**10
"""Bytes of a request before its body; more is 431."""

GRACE = 2.0
"""Seconds in which a connection does not count as half-open yet: many honest clients that connect at once are all
accepted before the first of their requests is read."""

FAREWELL = 0.5
"""Seconds that an idle connection stays open when the server stops: a request may be on its way."""


class Connections:
    """All open connections, and which of them has to go when there are too many."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.open: dict[Connection, None] = {}  # in the order in which they came
        self.dropped = 0

    def add(self, new: Connection) -> None:
        """Take a connection in; it, or another, may be closed for it."""
        self.open[new] = None
        if len(self.open) > self.limits.connections:
            others = [one for one in self.open if one.state != "work" and one is not new]
            self._drop(others or [new])
        else:
            self.check_half_open()

    def check_half_open(self) -> None:
        """Close what is too many of those that are half-open for longer than the grace."""
        before = time.monotonic() - GRACE
        half_open = [one for one in self.open if one.half_open and one.since < before]
        for _ in range(len(half_open) - self.limits.half_open):
            half_open.remove(self._drop(half_open))

    def _drop(self, among: list[Connection]) -> Connection:
        """Close the oldest one of the client that has most of them, and return it."""
        counts = Counter(one.address for one in among)
        worst = max(counts, key=counts.__getitem__)
        self.dropped += 1
        oldest = next(one for one in among if one.address == worst)
        oldest.refuse(503, "too many connections are open.")
        return oldest

    def sweep(self) -> None:
        """Close those that did not say in time what they want, or do not take what they asked for, or are too many."""
        self.check_half_open()
        before = time.monotonic() - self.limits.head_seconds
        for one in [one for one in self.open if one.since < before]:
            if one.transport.is_closing():
                one.transport.abort()  # nobody reads the last answer
            elif one.state == "head" or (one.state == "body" and one.cycle.response_complete):
                self.dropped += 1
                one.refuse(408, f"the headers were not complete after {self.limits.head_seconds:g} s.")


class Connection(HttpToolsProtocol):
    """One connection.

    Attributes:
        state: "head" until the headers of a request are there, "body" until all of it is, "work" until it is answered,
            then "idle".
        since: when that began, on the monotonic clock.
    """

    def __init__(self, *args: Any, connections: Connections, **options: Any) -> None:
        super().__init__(*args, **options)
        self.all = connections
        self.state: Literal["head", "body", "work", "idle"] = "head"
        self.since, self.head_bytes, self.stopping = time.monotonic(), 0, False

    @property
    def half_open(self) -> bool:
        """Whether a request has not come whole."""
        return self.state in ("head", "body")

    @property
    def address(self) -> str:
        """The client's address."""
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        self.all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.all.open.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self.transport.is_closing():
            return
        if self.state == "idle":
            self._enter("head")
            self.all.check_half_open()
        if self.state == "head":
            self.head_bytes += len(data)
        super().data_received(data)
        if self.state == "head" and self.head_bytes > LARGEST_HEAD and not self.transport.is_closing():
            self.refuse(431, f"the headers have more than {LARGEST_HEAD:,} bytes.")

    def on_headers_complete(self) -> None:
        """Start the answer."""
        self._enter("body")
        super().on_headers_complete()
        if self.stopping:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """Note that all of a request is there."""
        if self.state == "body":
            self._enter("idle" if self.cycle.response_complete else "work")
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the rest of the request, if it was refused before all of it had come, and for the next one."""
        if not self.pipeline:
            self._enter("body" if self.state == "body" else "idle")
        super().on_response_complete()

    def shutdown(self) -> None:
        """Finish what has begun; what may have been sent but not read yet has begun too."""
        self.stopping = True
        if self.state in ("body", "work"):
            super().shutdown()
        else:
            self.loop.call_later(FAREWELL, self._leave)

    def refuse(self, status: int, why: str) -> None:
        """Say why, where no answer has begun, and close."""
        if self.state == "head":
            body = why.encode()
            head = b"content-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
            self.transport.close()
        else:
            self.transport.abort()
        self.all.open.pop(self, None)  # now, not when the transport has noticed

    def _enter(self, state: Literal["head", "body", "work", "idle"]) -> None:
        self.state, self.since, self.head_bytes = state, time.monotonic(), 0

    def _leave(self) -> None:
        if self.transport.is_closing():
            return
        if self.state == "idle" or (self.state == "head" and not self.head_bytes):
            self.transport.close()
        elif self.state == "head":  # its headers have begun to come
            self.all.sweep()
            self.loop.call_later(FAREWELL, self._leave)
