"""A real `protodrift serve` process under load: right status codes, flat memory, and no answer lost while it learns."""

from __future__ import annotations

import collections
import contextlib
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protodrift import IncrementalClassifier

pytestmark = pytest.mark.slow

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TOKEN = "0123456789-abcdefghij"


class Server:
    """A process that serves a model."""

    def __init__(self, model: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "protodrift", "serve", str(model), "--port", "0", *options],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(re.search(r":(\d+)/", self.process.stdout.readline())[1])
        while True:  # it listens from the first line on, and answers a little later
            with contextlib.suppress(OSError):
                if self.ask("GET", "/healthz")[0] == 200:
                    return

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def ask(self, method, path, body=None, headers=None, connection=None):
        own = connection or self.connect()
        own.request(method, path, body, headers or {})
        response = own.getresponse()
        data = response.read()
        if connection is None:
            own.close()
        return response.status, data

    @property
    def resident(self) -> int:
        """Bytes of memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self, number=signal.SIGTERM) -> None:
        self.process.send_signal(number)
        assert self.process.wait(90) == 0


def together(count, work):
    """Run `work(i)` in `count` threads; return what all returned."""
    results = [None] * count

    def run(i):
        results[i] = work(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def png(pixels) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def small(tmp_path_factory, make_classifier, colors):
    path = tmp_path_factory.mktemp("load") / "patterns"
    make_classifier().partial_fit(*colors(0, 1)).partial_fit(*colors(2, 3)).save(path)
    return path


def test_throughput_beside_the_bare_network(tmp_path, make_classifier):
    """32 clients, one image a request. The ratio is printed, not asserted: other processes share this machine."""
    images = np.random.RandomState(0).randint(0, 256, (32, 64, 64, 3)).astype(np.uint8)
    clf = make_classifier(backbone="resnet18").partial_fit(images, np.arange(32) % 2)
    clf.save(tmp_path / "model")
    server = Server(tmp_path / "model")
    files, rounds = [png(one) for one in images], 8
    clf.recognize(images)
    started = time.perf_counter()
    for _ in range(rounds):
        clf.recognize(images)
    bare = 32 * rounds / (time.perf_counter() - started)

    def client(i):
        took, connection = [], server.connect()
        for _ in range(rounds):
            began = time.perf_counter()
            status, _ = server.ask("POST", "/predict", files[i], {"Content-Type": "image/png"}, connection)
            took.append((status, time.perf_counter() - began))
        connection.close()
        return took

    together(32, client)  # warm
    started = time.perf_counter()
    answers = [one for part in together(32, client) for one in part]
    served = 32 * rounds / (time.perf_counter() - started)
    times = np.array([seconds for _, seconds in answers]) * 1000
    print(f"bare network {bare:.1f} images/s, served {served:.1f} images/s: ratio {served / bare:.2f}")
    print(f"32 clients: p50 {np.percentile(times, 50):.0f} ms, p99 {np.percentile(times, 99):.0f} ms")
    assert {status for status, _ in answers} == {200}
    server.stop()


def test_two_hundred_clients_slow_aborted_malformed_and_wrong(small, colors, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    options = ("--token-file", str(tmp_path / "token"), "--max-body", "1", "--max-in-flight", "16", "--timeout", "5")
    server = Server(small, *options)
    good = {"Content-Type": "image/png", "Authorization": f"Bearer {TOKEN}"}
    picture = png(colors(0)[0][0])

    def raw(text: bytes, read: bool) -> int:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as line:
            line.sendall(text)
            return int(line.recv(64).split()[1]) if read else 0

    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: image/png\r\n"
    half = head.encode() + b"Content-Length: 5000\r\n\r\nabc"
    form = {**good, "Content-Type": "multipart/form-data; boundary=edge"}
    kinds = {
        "good": (lambda: server.ask("POST", "/predict", picture, good)[0], {200, 429}),
        "wrong token": (lambda: server.ask("POST", "/predict", picture, {"Authorization": "Bearer no"})[0], {401}),
        "oversize": (lambda: server.ask("POST", "/predict", b"x" * (2**20 + 1), good)[0], {413}),
        "malformed": (lambda: server.ask("POST", "/predict", b"--edge\r\nnonsense", form)[0], {400, 422, 429}),
        "no image": (lambda: server.ask("POST", "/predict", b"no image", good)[0], {422, 429}),
        "aborted": (lambda: raw(half, read=False), {0}),
        "slow": (lambda: raw(half, read=True), {408, 429}),
        "health": (lambda: server.ask("GET", "/healthz")[0], {200}),
    }
    names = list(kinds)
    seen = collections.defaultdict(collections.Counter)
    for i, status in enumerate(together(200, lambda i: kinds[names[i % len(names)]][0]())):
        seen[names[i % len(names)]][status] += 1
    print({name: dict(counts) for name, counts in seen.items()})
    for name, counts in seen.items():
        assert set(counts) <= kinds[name][1], (name, counts)
    deadline = time.monotonic() + 30
    while (status := kinds["good"][0]()) == 429 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert status == 200
    server.stop()


def test_memory_is_flat_after_ten_thousand_requests(small, colors):
    server, picture = Server(small), png(colors(1)[0][0])

    def client(requests):
        def run(_):
            connection, statuses = server.connect(), collections.Counter()
            for i in range(requests):
                if i % 10 == 0:
                    statuses[server.ask("POST", "/predict", picture, {"Content-Type": "image/png"}, connection)[0]] += 1
                else:
                    path = "/healthz" if i % 2 else "/classes"
                    statuses[server.ask("GET", path, connection=connection)[0]] += 1
            connection.close()
            return statuses

        return run

    first = sum(together(8, client(250)), collections.Counter())
    before = server.resident
    rest = sum(together(8, client(1000)), collections.Counter())
    after = server.resident
    print(f"resident after 2,000 requests {before / 2**20:.1f} MB, after 10,000 {after / 2**20:.1f} MB")
    assert first + rest == {200: 10_000}
    assert after < before * 1.05 + 10 * 2**20
    server.stop(signal.SIGINT)


def test_learn_during_load_drops_and_mixes_nothing(tmp_path, colors):
    for label in range(4):
        folder = tmp_path / ("first" if label < 2 else "second") / f"class {label}"
        folder.mkdir(parents=True)
        for i, pixels in enumerate(colors(label, count=10)[0]):
            Image.fromarray(pixels).resize((64, 64)).save(folder / f"{i}.png")

    def learn(part, *options):
        command = [sys.executable, "-m", "protodrift", "learn", str(tmp_path / "model"), str(tmp_path / part), *options]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return IncrementalClassifier.load(tmp_path / "model")

    files = [tmp_path / "first" / "class 0" / "0.png", tmp_path / "second" / "class 2" / "0.png"]
    expected = {1: learn("first", "--size", "32", "--train", "--epochs", "1").transform(files)}
    server, stop, answers = Server(tmp_path / "model"), threading.Event(), []
    body = files[1].read_bytes()

    def client(_):
        while not stop.is_set():
            try:
                answers.append(server.ask("POST", "/embed", body, {"Content-Type": "image/png"}))
            except ConnectionRefusedError:
                if not stop.is_set():  # only after the end nobody listens
                    answers.append((0, b"{}"))
                    raise

    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    try:
        expected[2] = learn("second", "--epochs", "1").transform(files)
        deadline, want = time.monotonic() + 60, b'"version":2'
        while not any(want in data for _, data in answers[-8:]) and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        stop.set()
        server.process.send_signal(signal.SIGTERM)  # in the middle of the load: what is in flight is finished
        for thread in threads:
            thread.join()
    assert server.process.wait(90) == 0
    assert {status for status, _ in answers} == {200}
    found = [json.loads(data) for _, data in answers]
    assert {one["version"] for one in found} == {1, 2}
    for one in found:
        assert one["embeddings"][0]["embedding"] == pytest.approx(expected[one["version"]][1].tolist(), abs=1e-4)
    print(f"{len(found)} answers, {sum(one['version'] == 2 for one in found)} of them of version 2")


def small_photos(server, picture, clients, rounds):
    """Seconds of small photos asked about by many clients at once, and their statuses."""

    def client(_):
        took, connection = [], server.connect()
        for _ in range(rounds):
            began = time.perf_counter()
            status, _ = server.ask("POST", "/predict", picture, {"Content-Type": "image/png"}, connection)
            took.append((status, time.perf_counter() - began))
        connection.close()
        return took

    answers = [one for part in together(clients, client) for one in part]
    times = np.array([seconds for _, seconds in answers])
    return collections.Counter(status for status, _ in answers), np.percentile(times, 50), np.percentile(times, 99)


FAR_TOO_SLOW = 60.0
"""Seconds. The aim for the 99th percentile is 1 s on an idle machine; others may share this one, so it is printed."""


def test_half_sent_requests_and_two_hundred_clients(small, colors):
    server, picture = Server(small, "--timeout", "300"), png(colors(0)[0][0])
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    with contextlib.ExitStack() as lines:
        for text in (head, head + b"Content-Length: 5000\r\n\r\nabc"):
            for _ in range(300):
                line = lines.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
                with contextlib.suppress(OSError):  # closed for a newer one
                    line.sendall(text)
        statuses, p50, p99 = small_photos(server, picture, 200, 5)
    print(f"200 clients beside 600 half-sent requests: p50 {p50:.2f} s, p99 {p99:.2f} s")
    assert statuses == {200: 1000}
    assert p99 < FAR_TOO_SLOW
    server.stop()


def test_heavy_pictures_do_not_delay_small_ones(small, colors):
    """Three clients send 49-megapixel PNGs all the time; 64 of them in one request are more than is decoded."""
    server, picture = Server(small, "--timeout", "600"), png(colors(0)[0][0])
    out = io.BytesIO()
    Image.new("RGB", (7000, 7000), (200, 30, 90)).save(out, "PNG", compress_level=1)
    heavy, stop, sent = out.getvalue(), threading.Event(), []

    def form(count):
        parts = b"".join(
            b'--edge\r\nContent-Disposition: form-data; name="images"; filename="%d.png"\r\n\r\n%s\r\n' % (i, heavy)
            for i in range(count)
        )
        return parts + b"--edge--\r\n", {"Content-Type": "multipart/form-data; boundary=edge"}

    def client():
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):  # on a busy machine they may wait for long: they are nice
                sent.append(server.ask("POST", "/predict", *form(4))[0])

    alone = small_photos(server, picture, 4, 25)
    heavies = [threading.Thread(target=client) for _ in range(3)]
    for thread in heavies:
        thread.start()
    beside = small_photos(server, picture, 4, 25)
    stop.set()
    for thread in heavies:
        thread.join()
    print(f"small photos alone: p99 {alone[2]:.2f} s")
    print(f"beside 49-megapixel PNGs: p50 {beside[1]:.2f} s, p99 {beside[2]:.2f} s")
    assert alone[0] == beside[0] == {200: 100}
    assert set(sent) <= {200}
    assert beside[2] < FAR_TOO_SLOW
    body, headers = form(64)
    if len(body) < 32 * 2**20:
        assert server.ask("POST", "/predict", body, headers)[0] == 413
    server.stop()


def test_a_stop_answers_all_that_was_accepted(small):
    server, done, lost, stopped = Server(small), [], [], []
    request = b"GET /classes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    def client(_):
        while True:
            try:
                line = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            except OSError:
                return  # nobody listens any more
            with contextlib.closing(line):
                try:
                    line.sendall(request)
                    (done if line.recv(100).startswith(b"HTTP/1.1 200") else lost).append(1)
                except OSError:
                    lost.append(1)
            if len(done) > 2000 and not stopped:
                stopped.append(1)
                server.process.send_signal(signal.SIGTERM)

    together(16, client)
    assert server.process.wait(90) == 0
    print(f"{len(done)} answered, {len(lost)} lost")
    assert not lost
