"""Sockets and signals: a server that finishes what it has accepted before it goes."""

from __future__ import annotations

import asyncio
import functools
import signal
import socket
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from ..errors import InputError
from .connections import Connection, Connections
from .logs import limit_rate

BACKLOG = 1024
"""Connections that the system completes before they are accepted."""


def bound(host: str, port: int) -> socket.socket:
    """Return a socket with that address, which does not listen yet; port 0: any that is free.

    Raises:
        InputError: if it cannot.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"cannot listen at {host!r}: {error.strerror or error}. Choose another --host.") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        found.close()
        raise InputError(
            f"cannot listen at {host} port {port}: {error.strerror or error}. Choose another --port, or 0 for any."
        ) from None
    return found


def url_of(listener: socket.socket) -> str:
    """Return where a browser finds what listens there."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class Server(uvicorn.Server):
    """uvicorn, with limits of connections, which answers all that was accepted before it stops."""

    def __init__(self, app: FastAPI, patience: float) -> None:
        self.connections: Connections = app.state.connections
        self.state = app.state
        config = uvicorn.Config(
            app,
            http=functools.partial(Connection, connections=self.connections),  # type: ignore[arg-type]
            ws="none",
            loop="asyncio",  # of which `shutdown` takes back the listening socket
            backlog=BACKLOG,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(patience)),
            timeout_keep_alive=15,
            lifespan="on",
        )
        limit_rate()
        super().__init__(config)

    async def on_tick(self, counter: int) -> bool:
        """Look after the connections, ten times a second."""
        self.connections.sweep()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept what the system has accepted for us, stop listening, and finish."""
        self.state.stopping = True
        loop, accepted = asyncio.get_running_loop(), []
        for listener in sockets or []:
            loop.remove_reader(listener)
            listener.listen(0)
            while (line := _accepted(listener)) is not None:
                accepted.append(line)
            listener.close()  # at once: what came since would be reset
        for line in accepted:
            await loop.connect_accepted_socket(self._connection, line)
        self.servers = []
        await super().shutdown(sockets)

    def _connection(self, **options: Any) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, **options
        )
        return made


def _accepted(listener: socket.socket) -> socket.socket | None:
    try:
        line = listener.accept()[0]
    except OSError:  # nobody waits, or no descriptor is left
        return None
    line.setblocking(False)
    return line


def run_until_stopped(app: FastAPI, listener: socket.socket, patience: float) -> None:
    """Serve until Ctrl-C or SIGTERM, finish what is in flight, and return; a second Ctrl-C does not wait."""

    def stopped(number: int, frame: FrameType | None) -> None:
        """Do nothing: uvicorn raises a signal again after it has finished, and there is nothing left to stop."""

    before = {number: signal.signal(number, stopped) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        Server(app, patience).run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        listener.close()
