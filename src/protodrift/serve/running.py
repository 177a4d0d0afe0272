"""Sockets and signals: a server that finishes what is in flight before it goes."""

from __future__ import annotations

import ipaddress
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from ..errors import InputError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host name or address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; port 0: any that is free.

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
        found.listen(1024)
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


def server_of(app: FastAPI, patience: float) -> uvicorn.Server:
    """Return a server; when stopped, it waits for requests in flight, at most `patience` seconds."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(patience)),
        timeout_keep_alive=15,
        lifespan="on",
    )
    return uvicorn.Server(config)


def run_until_stopped(app: FastAPI, listener: socket.socket, patience: float) -> None:
    """Serve until Ctrl-C or SIGTERM, finish what is in flight, and return; a second Ctrl-C does not wait."""

    def stopped(number: int, frame: FrameType | None) -> None:
        """Do nothing: uvicorn raises a signal again after it has finished, and there is nothing left to stop."""

    before = {number: signal.signal(number, stopped) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server_of(app, patience).run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        listener.close()
