"""A real model of color patterns, served by a real uvicorn on loopback."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protodrift.serve.app import build_app
from protodrift.serve.limits import Limits
from protodrift.serve.running import Server, bound
from protodrift.serve.watching import Watched

PATIENT = Limits(seconds=600.0, image_seconds=600.0)
"""Those of every day, on a machine that may be very busy."""


def png(pixels: np.ndarray) -> bytes:
    """Pixels as the bytes of a file."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def form(*files: bytes, boundary: str = "edge") -> tuple[bytes, dict[str, str]]:
    """A multipart body of files, and its headers."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="images"; filename="{i}.png"\r\n\r\n'.encode()
        + data
        + b"\r\n"
        for i, data in enumerate(files)
    ]
    body = b"".join(parts) + f"--{boundary}--\r\n".encode()
    return body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}


class Client:
    """Asks a server; one connection a question."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Return status and JSON (or bytes)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            self.headers = dict(response.getheaders())
            data = response.read()
        return response.status, json.loads(data) if self.headers.get("content-type") == "application/json" else data

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, *files: bytes, **headers: str) -> tuple[int, Any]:
        body, own = form(*files)
        return self.ask("POST", path, body, {**own, **headers})


@contextlib.contextmanager
def serving(path: Path, limits: Limits = PATIENT, **options: Any) -> Iterator[Client]:
    """A real server in a thread, stopped as a signal would stop it."""
    listener = bound("127.0.0.1", 0)
    app = build_app(Watched(path), limits, poll=0.05, **options)
    server = Server(app, 10)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        client = Client(listener.getsockname()[1])
        client.server, client.app = server, app
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield client
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="session")
def saved(tmp_path_factory, make_classifier, colors) -> Path:
    """A model with two versions on disk: classes 0, 1, then 2, 3."""
    path = tmp_path_factory.mktemp("served") / "patterns"
    clf = make_classifier(held_out=0.2, temperature="auto").partial_fit(*colors(0, 1))
    clf.save(path)
    clf.partial_fit(*colors(2, 3)).save(path)
    return path


@pytest.fixture(scope="session")
def pictures(colors) -> list[bytes]:
    """One PNG of each of the classes 0, 1, 2, 3."""
    return [png(colors(label)[0][0]) for label in range(4)]


@pytest.fixture(scope="session")
def served(saved) -> Iterator[Client]:
    """A server with the limits of every day."""
    with serving(saved) as client:
        yield client


@pytest.fixture(scope="session")
def serve():
    """Return `serving`."""
    return serving


@pytest.fixture(scope="session")
def as_png():
    """Return `png`."""
    return png


@pytest.fixture(scope="session")
def as_form():
    """Return `form`."""
    return form
