"""Compares servers for `protodrift serve`: speed, half-sent requests, and what a stop resets.

    pip install hypercorn granian
    python -m benchmarks.servers

Each one serves the same small application in a process that may open 256 files. "half-sent": 300 connections with half
a request's headers are opened and kept; after 15 s, how many are still open, and whether a new client is answered.
"lost": 16 clients open a connection per request while the server is stopped; connections that were established and got
no answer.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time

ALONE = "import uvicorn; uvicorn.run('benchmarks.servers:app', port={port}, log_level='critical')"
OURS = """
from fastapi import FastAPI
import benchmarks.servers as here
from protodrift.serve.connections import Connections
from protodrift.serve.limits import Limits
from protodrift.serve.running import bound, run_until_stopped
app = FastAPI()
app.state.connections = Connections(Limits())
app.router = here.with_lifespan
run_until_stopped(app, bound('127.0.0.1', {port}), 10)
"""
COMMANDS = {
    "uvicorn": ["-c", ALONE],
    "uvicorn, our limits": ["-c", OURS],
    "hypercorn": ["-m", "hypercorn", "--bind", "127.0.0.1:{port}", "--log-level", "CRITICAL", "benchmarks.servers:app"],
    "granian": ["-m", "granian", "--interface", "asginl", "--port", "{port}", "--no-log", "benchmarks.servers:app"],
}


async def app(scope, receive, send):
    """Answer a request after its body has come."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def with_lifespan(scope, receive, send):
    """Do so, and start and stop as FastAPI does."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})
    else:
        await app(scope, receive, send)


def started(command: list[str]) -> tuple[subprocess.Popen, int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    limited = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", sys.executable]
    process = subprocess.Popen([*limited, *(part.format(port=port) for part in command)], stderr=subprocess.DEVNULL)
    while True:
        time.sleep(0.05)
        if asked(port):
            return process, port


def asked(port: int, seconds: float = 5.0) -> bool:
    try:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)) as line:
            line.request("POST", "/", b"x" * 1000)
            return line.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def in_threads(count: int, work) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def speed(port: int, clients: int = 16, requests: int = 200) -> float:
    def client() -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as line:
            for _ in range(requests):
                line.request("POST", "/", b"x" * 1000)
                line.getresponse().read()

    began = time.perf_counter()
    in_threads(clients, client)
    return clients * requests / (time.perf_counter() - began)


def half_sent(port: int, count: int = 300, wait: float = 15.0) -> tuple[int, bool]:
    lines = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            line = socket.create_connection(("127.0.0.1", port), timeout=5)
            line.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\n")
            lines.append(line)
    time.sleep(wait)
    answered = asked(port)
    still_open = 0
    for line in lines:
        line.setblocking(False)
        try:
            if line.recv(1000):  # told why
                line.close()
                continue
        except BlockingIOError:
            still_open += 1
        except OSError:
            pass
        line.close()
    return still_open, answered


def lost_at_stop(process: subprocess.Popen, port: int) -> tuple[int, int]:
    done, lost, stop = [], [], threading.Event()

    def client() -> None:
        while not stop.is_set():
            try:
                line = socket.create_connection(("127.0.0.1", port), timeout=30)
            except OSError:
                return  # nobody listens any more
            with contextlib.closing(line):
                try:
                    line.sendall(
                        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
                    )
                    (done if line.recv(100).startswith(b"HTTP/1.1 200") else lost).append(1)
                except OSError:
                    lost.append(1)

    def end() -> None:
        time.sleep(2)
        process.send_signal(signal.SIGTERM)

    threading.Thread(target=end).start()
    in_threads(16, client)
    process.wait(60)
    return len(done), len(lost)


def main() -> None:
    """Print a table."""
    print(
        "| server | requests/s | of 300 half-sent, open after 15 s | answers a new client meanwhile "
        "| answered, lost at a stop |"
    )
    print("|---|---|---|---|---|")
    for name, command in COMMANDS.items():
        process, port = started(command)
        rate = speed(port)
        still_open, answered = half_sent(port)
        if not answered:
            process.kill()
            process.wait()
            process, port = started(command)
        done, lost = lost_at_stop(process, port)
        print(f"| {name} | {rate:,.0f} | {still_open} | {'yes' if answered else 'no'} | {done:,}, {lost} |", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(sys.path))
    main()
