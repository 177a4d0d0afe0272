"""Half-sent requests, endless headers, clients that never read; and an end at which everything accepted is answered."""

from __future__ import annotations

import contextlib
import logging
import socket
import time

from protodrift.serve import connections
from protodrift.serve.limits import Limits
from protodrift.serve.logs import Rate

HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
HALF_BODY = HEAD + b"Content-Length: 900\r\n\r\nabc"


@contextlib.contextmanager
def lines(port: int, text: bytes, count: int, source: str = "127.0.0.1"):
    """Open connections that have sent some text."""
    found = []
    try:
        for _ in range(count):
            line = socket.create_connection(("127.0.0.1", port), timeout=300, source_address=(source, 0))
            found.append(line)
            with contextlib.suppress(OSError):  # may have been closed already
                line.sendall(text)
        yield found
    finally:
        for line in found:
            line.close()


def status(line: socket.socket) -> int:
    """The status of the answer, 0 if the connection was closed without one."""
    try:
        said = line.recv(64)
    except ConnectionResetError:
        return 0
    return int(said.split()[1]) if said else 0


def test_three_hundred_half_sent_requests_do_not_take_it_down(served, pictures):
    for text in (HALF_BODY, HEAD, b"", b"P"):
        with lines(served.port, text, 300):
            assert served.get("/healthz")[0] == 200
            assert served.post("/predict", *pictures)[0] == 200, text
            deadline = time.monotonic() + 60
            while len(served.app.state.connections.open) > Limits().half_open + 1 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert len(served.app.state.connections.open) <= Limits().half_open + 1


def test_honest_clients_that_connect_at_once_are_all_answered(serve, saved):
    """All of them are accepted before the first one's request has come."""
    ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serve(saved, Limits(half_open=8)) as client, lines(client.port, b"", 100) as many:
        for line in many:
            line.sendall(ask)
        assert [status(line) for line in many] == [200] * 100


def test_headers_that_do_not_come_are_408(serve, saved):
    with serve(saved, Limits(head_seconds=0.2)) as client, lines(client.port, HEAD, 1) as (line,):
        assert status(line) == 408


def test_endless_headers_are_431(served):
    with lines(served.port, HEAD, 1) as (line,):
        with contextlib.suppress(OSError):
            for i in range(10_000):
                line.sendall(b"X-%d: %s\r\n" % (i, b"a" * 1000))
        assert status(line) in (431, 0)  # 0: the system threw the answer away with what was still being sent
        assert served.get("/healthz")[0] == 200


def test_the_client_with_most_half_open_connections_loses_them(serve, saved, pictures, monkeypatch):
    monkeypatch.setattr(connections, "GRACE", 0.0)
    with serve(saved, Limits(half_open=8)) as client:
        body = HEAD + b"Content-Length: %d\r\n\r\n" % len(pictures[0])
        with lines(client.port, body, 1, source="127.0.0.2") as (patient,), lines(client.port, HALF_BODY, 50):
            assert client.get("/healthz")[0] == 200
            patient.sendall(pictures[0])  # older than the fifty, and still open
            assert status(patient) == 200


def test_idle_connections_make_room(serve, saved):
    ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serve(saved, Limits(connections=10)) as client, lines(client.port, ask, 30) as many:
        assert status(many[-1]) == 200
        assert client.get("/healthz")[0] == 200
        assert len(client.app.state.connections.open) <= 10


def test_a_refused_upload_that_never_ends_is_closed(serve, saved):
    text = HEAD + b"Content-Length: 999999999\r\n\r\nabc"
    with serve(saved, Limits(head_seconds=0.2)) as client, lines(client.port, text, 1) as (line,):
        assert status(line) == 413
        deadline = time.monotonic() + 300
        while client.app.state.connections.open and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not client.app.state.connections.open


def test_what_was_accepted_is_answered_when_it_stops(serve, saved, pictures, monkeypatch):
    """Connected before the stop; the requests, or the rest of them, come after it."""
    monkeypatch.setattr(connections, "FAREWELL", 10.0)
    answers = []
    with serve(saved) as client:
        ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        head = HEAD + b"Content-Length: %d\r\n\r\n" % len(pictures[0])
        with (
            lines(client.port, ask, 5) as idle,
            lines(client.port, b"", 5) as fresh,
            lines(client.port, head, 5) as half,
        ):
            for line in idle:
                said = b""
                while not said.endswith(b"}"):  # all of the answer
                    said += line.recv(10_000)
            client.server.should_exit = True
            while not client.app.state.stopping:
                time.sleep(0.01)
            for line in (*idle, *fresh):
                line.sendall(ask)
            for line in half:
                line.sendall(pictures[0])
            answers = [status(line) for line in (*idle, *fresh, *half)]
    assert answers == [200] * 15


def test_a_stop_does_not_wait_for_those_who_say_nothing(serve, saved):
    with serve(saved, Limits(head_seconds=1.0)) as client, lines(client.port, b"", 5), lines(client.port, HEAD, 5):
        client.server.should_exit = True
        deadline = time.monotonic() + 300
        while client.server.server_state.connections and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not client.server.server_state.connections


def test_log_lines_are_limited_in_rate():
    rate, written = Rate(lines=3, seconds=10), []
    for i in range(1000):
        record = logging.LogRecord("x", logging.WARNING, "", 0, "request %d is odd", (i,), None)
        record.created = 100 + i / 200  # 5 s
        if rate.filter(record):
            written.append(record.getMessage())
    assert written == [f"request {i} is odd" for i in range(3)]
    other = logging.LogRecord("x", logging.WARNING, "", 0, "something else", (), None)
    assert rate.filter(other)
    record = logging.LogRecord("x", logging.WARNING, "", 0, "request %d is odd", (7,), None)
    record.created = 111
    assert rate.filter(record)
    assert record.getMessage() == "request 7 is odd (and 997 more such lines were left out)"


def test_garbage_does_not_fill_the_log(serve, saved, capfd):
    with serve(saved) as client, lines(client.port, b"\x00garbage\r\n\r\n", 100) as many:
        assert {status(line) for line in many} <= {400, 0}
    assert 0 < capfd.readouterr().err.count("Invalid HTTP") <= 5
