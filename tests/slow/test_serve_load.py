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
