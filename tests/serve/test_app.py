"""The API: what it answers is what the library answers, and what it refuses has the right status."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import socket
import struct
import threading
import time
import zlib

import numpy as np
import pytest
import torch

from protodrift import IncrementalClassifier
from protodrift.model import versions
from protodrift.serve import watching
from protodrift.serve.limits import Limits


def test_predictions_are_those_of_the_library(served, saved, pictures, colors):
    status, body = served.post("/predict?top=4", *pictures)
    assert status == 200
    found = IncrementalClassifier.load(saved).recognize(np.stack([colors(label)[0][0] for label in range(4)]))
    assert body["version"] == 2
    for row, one in enumerate(body["predictions"]):
        assert one["file"] == f"{row}.png"
        assert one["unknown"] == bool(found.unknown[row])
        assert one["class"] == (None if found.unknown[row] else int(found.labels[row]))
        assert one["top"][0]["class"] == int(found.labels[row])
        by_class = {ranked["class"]: ranked for ranked in one["top"]}
        assert len(by_class) == 4
        for column, label in enumerate(found.classes.tolist()):
            assert by_class[label]["confidence"] == pytest.approx(found.probabilities[row, column], abs=1e-4)
            assert by_class[label]["distance"] == pytest.approx(found.distances[row, column], abs=1e-4)


def test_an_image_may_be_the_body_and_always_name_names_it(served, pictures):
    raw = served.ask("POST", "/predict", pictures[0], {"Content-Type": "image/png"})
    assert raw[0] == 200
    curl = served.ask(
        "POST", "/predict?always_name=true", pictures[0], {"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert curl[1]["predictions"][0]["class"] == raw[1]["predictions"][0]["top"][0]["class"]
    assert curl[1]["predictions"][0]["unknown"] is False


def test_embeddings_are_those_of_the_library(served, saved, pictures, colors):
    status, body = served.post("/embed", *pictures[:2])
    expected = IncrementalClassifier.load(saved).transform(np.stack([colors(label)[0][0] for label in range(2)]))
    assert status == 200
    assert np.array([one["embedding"] for one in body["embeddings"]]) == pytest.approx(expected, abs=1e-5)


def test_facts(served, saved):
    clf = IncrementalClassifier.load(saved)
    assert served.get("/healthz") == (200, {"status": "ok", "version": 2, "problem": ""})
    classes = served.get("/classes")[1]["classes"]
    assert [(one["class"], one["task"]) for one in classes] == [(0, 1), (1, 1), (2, 2), (3, 2)]
    assert [len(one["moved"]) for one in classes] == [1, 1, 0, 0]
    assert classes[0]["moved"][0]["distance"] == pytest.approx(clf.tasks_[1].drift[0].moved, abs=1e-5)
    model = served.get("/model")[1]
    assert (model["name"], model["version"], model["classes"], model["image_size"]) == ("patterns", 2, 4, 16)
    images, accuracy = clf.tasks_[0].held_out
    assert model["tasks"][0]["held_out_images"] == images
    assert model["tasks"][0]["held_out_accuracy"] == pytest.approx(accuracy, abs=1e-5)


def test_openapi_describes_every_route_with_examples(served):
    paths = served.get("/openapi.json")[1]["paths"]
    assert set(paths) == {"/predict", "/embed", "/classes", "/model", "/map", "/healthz", "/readyz"}
    assert {"200", "400", "401", "403", "408", "413", "415", "422", "429", "504"} <= set(
        paths["/predict"]["post"]["responses"]
    )
    assert {"multipart/form-data", "image/*"} == set(paths["/predict"]["post"]["requestBody"]["content"])
    assert "curl -F images=@" in paths["/predict"]["post"]["requestBody"]["description"]
    assert '"examples"' in served.get("/openapi.json")[1].__str__().replace("'", '"')


def test_the_page_is_whole_and_names_nothing_outside(served):
    index = served.get("/")[1].decode()
    assert "default-src 'none'" in served.headers["content-security-policy"]
    names = re.findall(r'(?:src|href)="(/page/[^"]+)"', index)
    assert len(names) == 5
    texts = [index] + [served.get(name)[1].decode() for name in names]
    assert all(served.get(name)[0] == 200 for name in names)
    assert not any(re.search(r"https?://|//cdn|@import", text) for text in texts)
    assert "--c9" in served.get("/page/style.css")[1].decode()  # the report's colors
    assert served.get("/page/../app.py")[0] == 404
    assert served.get("/docs")[0] == 404


def bomb(side: int) -> bytes:
    """A small PNG whose header claims side x side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


def test_what_is_no_image_is_422_and_named(served, pictures):
    status, body = served.post("/predict", b"not an image", pictures[1][:60])
    assert status == 422
    assert "0.png cannot be read as an image" in body["detail"]
    assert "1.png cannot be read as an image" in body["detail"]
    assert served.post("/predict")[0] in (400, 422)
    assert served.ask("POST", "/predict", b"")[0] == 422
    assert (
        served.post("/predict", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")[0] == 422
    )  # would start a program
    assert served.post("/predict", bomb(100))[0] == 422  # small enough, but its pixels are missing


def test_a_bad_image_does_not_fail_the_others(served, saved, pictures, colors):
    status, body = served.post("/predict", b"not an image", pictures[0], bomb(30_000), pictures[2])
    assert (status, body["answered"], body["refused"]) == (200, 2, 2)
    assert [one["file"] for one in body["predictions"]] == ["0.png", "1.png", "2.png", "3.png"]
    assert body["predictions"][0] == {
        "file": "0.png",
        "error": "cannot be read as an image (not an image, or damaged).",
    }
    assert "30000 x 30000 pixels" in body["predictions"][2]["error"]
    found = IncrementalClassifier.load(saved).recognize(np.stack([colors(label)[0][0] for label in (0, 2)]))
    assert [body["predictions"][i]["top"][0]["class"] for i in (1, 3)] == found.labels.tolist()
    status, body = served.post("/embed", b"not an image", *pictures * 6)  # more than fit into one batch
    assert (status, body["answered"], body["refused"]) == (200, 24, 1)
    alone = served.post("/embed", pictures[3])[1]["embeddings"][0]["embedding"]
    assert body["embeddings"][24]["embedding"] == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("side", [8000, 30_000, 2_000_000_000])
def test_a_decompression_bomb_is_refused_by_its_header(served, side):
    assert served.post("/predict", bomb(side))[0] in ((413,) if side < 10**6 else (413, 422))


def test_the_limit_of_pixels_may_be_above_that_of_pillow(serve, saved):
    with serve(saved, Limits(pixels=500_000_000)) as client:
        status, body = client.post("/predict", bomb(14_000))  # 196 million: allowed, but its pixels are missing
        assert (status, "0.png cannot be read as an image" in body["detail"]) == (422, True), body
        status, body = client.post("/predict", bomb(25_000))
        assert (status, "25000 x 25000 pixels; at most 500,000,000" in body["detail"]) == (413, True), body
        status, body = client.post("/predict", bomb(40_000))
        assert (status, "40000 x 40000 pixels; at most 500,000,000" in body["detail"]) == (413, True), body


def test_a_truncated_upload_is_called_by_its_name_alone(served, as_png):
    noise = as_png(np.random.RandomState(0).randint(0, 256, (99, 99, 3), dtype=np.uint8))
    status, body = served.post("/predict", noise[: len(noise) // 2])
    assert status == 422
    assert body["detail"].startswith("0.png cannot be read as an image (")
    assert "BytesIO" not in body["detail"]


def test_a_form_without_its_end_is_400_and_loses_no_image_in_silence(served, pictures, as_form):
    body, headers = as_form(*pictures[:2])
    for cut in (len(b"--\r\n"), len(b"--edge--\r\n"), len(b"--edge--\r\n") + 20):
        status, said = served.ask("POST", "/predict", body[:-cut], headers)
        assert (status, "the closing boundary is missing" in said["detail"]) == (400, True), (cut, said)
    assert len(served.ask("POST", "/predict", body + b"an epilogue", headers)[1]["predictions"]) == 2


@pytest.mark.parametrize("charset", ["undefined", "idna"])
def test_a_charset_that_reads_no_name_is_400(served, pictures, as_form, charset):
    body, headers = as_form(pictures[0])
    body = body.replace(b"0.png", b"xn--a.png")
    headers = {"Content-Type": f"{headers['Content-Type']}; charset={charset}"}
    status, said = served.ask("POST", "/predict", body, headers)
    # From Python 3.13 on idna says a UnicodeDecodeError, and Starlette reads the name as latin-1.
    assert (status, "charset" in said.get("detail", "")) in ((400, True), *([(200, False)] * (charset == "idna")))


def test_malformed_requests(served, pictures, as_form):
    body, headers = as_form(pictures[0])
    assert served.ask("POST", "/predict", body, {"Content-Type": "multipart/form-data"})[0] == 400
    assert served.ask("POST", "/predict", b"garbage" * 50, headers)[0] == 400
    assert served.ask("POST", "/predict", body[: len(body) // 2], headers)[0] in (400, 422)
    assert served.ask("POST", "/predict", b"{}", {"Content-Type": "application/json"})[0] == 415
    plain = body.replace(b'; filename="0.png"', b"")
    assert served.ask("POST", "/predict", plain, headers)[0] in (400, 422)
    assert served.post("/predict?top=0", pictures[0])[0] == 422
    assert served.get("/predict")[0] == 405
    assert served.get("/nothing")[0] == 404
    assert served.post("/predict", pictures[0])[0] == 200  # it lives on


def test_limits_of_bytes_and_images(serve, saved, pictures):
    with serve(saved, Limits(body=5000, images=2)) as client:
        assert client.post("/predict", *pictures[:2])[0] == 200
        assert client.post("/predict", *pictures[:3])[0] == 413
        assert client.post("/predict", b"x" * 6000)[0] == 413
        chunks = (b"x" * 1000 for _ in range(9))  # no content-length: counted while it comes
        assert client.ask("POST", "/predict", chunks, {"Content-Type": "image/png"})[0] == 413


def test_one_request_too_many_is_429(serve, saved, pictures, monkeypatch):
    """The network waits for a sign here."""
    real, go, began = IncrementalClassifier.recognize, threading.Event(), threading.Event()

    def waiting(self, images):
        began.set()
        go.wait(300)
        return real(self, images)

    with serve(saved, Limits(in_flight=1, seconds=600.0)) as client:
        monkeypatch.setattr(IncrementalClassifier, "recognize", waiting)
        answers = []
        first = threading.Thread(
            target=lambda: answers.append(client.__class__(client.port).post("/predict", *pictures))
        )
        first.start()
        assert began.wait(300)
        assert client.post("/predict", pictures[0])[0] == 429
        assert client.headers["retry-after"] == "1"
        assert client.get("/healthz")[0] == 200  # health is answered all the same
        go.set()
        first.join()
        assert answers[0][0] == 200
        assert client.post("/predict", pictures[0])[0] == 200


def test_a_slow_upload_is_408_and_keeps_nobody_waiting(serve, saved, pictures):
    with serve(saved, Limits(in_flight=1, seconds=4.0)) as client:
        slow = socket.create_connection(("127.0.0.1", client.port))
        slow.sendall(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 900\r\n\r\nabc"
        )
        assert client.post("/predict", pictures[0])[0] == 200
        assert slow.recv(12) == b"HTTP/1.1 408"
        slow.close()


def test_uploads_that_are_held_have_a_limit(serve, saved, pictures):
    with serve(saved, Limits(held=200)) as client:
        status, body = client.post("/predict", pictures[0])
        assert (status, "holds many uploads" in body["detail"]) == (429, True)


def test_an_answer_that_takes_too_long_is_504(serve, saved, pictures, monkeypatch):
    """The network is really slow here: it sleeps before it computes."""
    real = IncrementalClassifier.recognize

    def slow(self, images):
        time.sleep(0.8)
        return real(self, images)

    monkeypatch.setattr(IncrementalClassifier, "recognize", slow)
    with serve(saved, Limits(seconds=0.3)) as client:
        assert client.post("/predict", pictures[0])[0] == 504
        assert client.post("/embed", pictures[0])[0] in (200, 504)


def test_tokens(serve, saved, pictures):
    token = "a-very-secret-token-of-ours"
    with serve(saved, token=token) as client:
        for wrong in ("", "Bearer", "Bearer wrong", f"Basic {token}", f"Bearer {token}x", f"Bearer {token[:-1]}"):
            assert client.post("/predict", pictures[0], Authorization=wrong)[0] == 401
            assert client.get("/classes", Authorization=wrong)[0] == 401
        assert client.headers["www-authenticate"].startswith("Bearer")
        assert client.get("/map")[0] == client.get("/model")[0] == client.get("/nothing")[0] == 401
        assert client.post("/predict", pictures[0], Authorization=f"Bearer {token}")[0] == 200
        assert client.get("/")[0] == client.get("/healthz")[0] == client.get("/page/page.js")[0] == 200


def test_another_name_for_this_machine_is_refused(serve, saved):
    with serve(saved, hosts=frozenset({"localhost", "127.0.0.1", "[::1]"})) as client:
        assert client.get("/classes")[0] == 200
        for name in ("localhost:1234", "LOCALHOST", "[::1]:80", "[::1]"):
            assert client.get("/classes", Host=name)[0] == 200, name
        for name in (
            "evil.example:80",
            "[::1]evil.com",
            "[::1]:80evil.com",
            "localhost:80:80",
            "localhost@evil.com",
            "",
        ):
            assert client.get("/classes", Host=name)[0] in (400, 421), name


def raw(port: int, *lines: str) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=300) as line:
        line.sendall("\r\n".join([*lines, "", ""]).encode())
        return int(line.recv(64).split()[1])


def test_two_host_headers_are_refused(serve, saved):
    with serve(saved, hosts=frozenset({"localhost"})) as client:
        both = ("Host: evil.com", "Host: localhost")
        assert raw(client.port, "GET /classes HTTP/1.1", *both) in (400, 421)
        assert raw(client.port, "GET /classes HTTP/1.1", *reversed(both)) in (400, 421)
        assert raw(client.port, "GET /classes HTTP/1.1", "Host: localhost") == 200


def test_pages_of_other_sites_are_refused(serve, saved, pictures):
    foreign = [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:80"},  # another port is another origin
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ]
    with serve(saved, origins=frozenset({"https://ours.example"})) as client:
        for headers in foreign:
            assert client.post("/predict", pictures[0], **headers)[0] == 403, headers
            assert client.get("/classes", **headers)[0] == 403, headers
        own = f"http://127.0.0.1:{client.port}"
        for headers in (
            {"Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "none"},
            {"Origin": "https://ours.example", "Sec-Fetch-Site": "cross-site"},
            {"Origin": own},
            {},
        ):
            assert client.post("/predict", pictures[0], **headers)[0] == 200, headers


def test_a_link_from_another_site_opens_the_page_and_an_allowed_site_may_read(serve, saved, pictures):
    with serve(saved, origins=frozenset({"https://ours.example"})) as client:
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert client.get("/", **link)[0] == 200
        client.post("/predict", pictures[0], Origin="https://ours.example")
        assert client.headers["access-control-allow-origin"] == "https://ours.example"
        asked = {"Origin": "https://ours.example", "Access-Control-Request-Method": "POST"}
        status, _ = client.ask(
            "OPTIONS", "/predict", headers={**asked, "Access-Control-Request-Headers": "authorization"}
        )
        assert status == 200


def test_a_new_version_is_picked_up_and_every_answer_is_of_one(serve, saved, pictures, colors, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(saved, path)
    clf = IncrementalClassifier.load(path).partial_fit(*colors(4, 5))
    images = np.stack([colors(label)[0][0] for label in range(4)])
    expected = {2: IncrementalClassifier.load(path).transform(images), 3: clf.transform(images)}
    with serve(path) as client:
        seen: list[tuple[int, object]] = []
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                seen.append(client.__class__(client.port).post("/embed", *pictures))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: seen)
        clf.save(path)
        deadline = time.monotonic() + 300
        while client.get("/healthz")[1]["version"] != 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        while (
            sum(body["version"] == 3 for status, body in list(seen) if status == 200) < 3
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)
        stop.set()
        for thread in threads:
            thread.join()
        assert {status for status, _ in seen} == {200}
        assert {body["version"] for _, body in seen} == {2, 3}
        for _, body in seen:
            z = np.array([one["embedding"] for one in body["embeddings"]])
            assert z == pytest.approx(expected[body["version"]], abs=1e-4)
        assert len(client.get("/classes")[1]["classes"]) == 6
        (path / "CURRENT").write_text("damaged")
        while not client.get("/healthz")[1]["problem"] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert client.get("/healthz")[1]["problem"]
        assert client.post("/predict", pictures[0])[1]["version"] == 3  # the version before is served on


@pytest.mark.parametrize("broken", ["raises", "nan"])
def test_a_version_that_cannot_answer_does_not_take_over(serve, saved, tmp_path, monkeypatch, pictures, broken):
    path = tmp_path / "model"
    shutil.copytree(saved, path)
    real, old = IncrementalClassifier.recognize, []

    def recognize(self, images):
        if self in old:
            return real(self, images)
        if broken == "raises":
            raise RuntimeError("no kernel for this")
        found = real(self, images)
        found.probabilities[:] = np.nan
        return found

    with serve(path) as client:
        old.append(client.app.state.watched.served.classifier)
        monkeypatch.setattr(IncrementalClassifier, "recognize", recognize)
        versions.undo(path)
        until(lambda: client.get("/healthz")[1]["problem"])
        assert client.get("/readyz")[0] == 200  # the version before answers on
        assert client.post("/predict", pictures[0])[1]["version"] == 2


def test_readiness_is_apart_from_liveness(serve, saved, pictures, monkeypatch):
    """The network waits for a sign here."""
    real, go = IncrementalClassifier.recognize, threading.Event()

    def waiting(self, images):
        go.wait(300)
        return real(self, images)

    token = {"Authorization": "Bearer a-very-secret-token-of-ours"}
    with serve(saved, Limits(seconds=3.0), token="a-very-secret-token-of-ours") as client:
        assert client.post("/predict", pictures[0], **token)[0] == 200
        assert client.get("/readyz") == (200, {"ready": True, "version": 2, "problem": ""})
        monkeypatch.setattr(IncrementalClassifier, "recognize", waiting)
        assert client.post("/predict", pictures[0], **token)[0] == 504
        until(lambda: client.get("/readyz")[0] == 503)
        assert "does not answer" in client.get("/readyz")[1]["problem"]
        assert client.get("/healthz")[0] == 200
        go.set()
        until(lambda: client.get("/readyz")[0] == 200)
        client.app.state.stopping = True
        assert client.get("/readyz")[1]["problem"] == "the server is stopping"


def test_metrics_only_where_asked_for(serve, served, saved, pictures):
    assert served.get("/metrics")[0] == 404
    with serve(saved, metrics=True, token="a-very-secret-token-of-ours") as client:
        token = {"Authorization": "Bearer a-very-secret-token-of-ours"}
        assert client.get("/metrics")[0] == 401
        client.post("/predict", pictures[0], b"no image", **token)
        client.post("/predict", b"no image", **token)
        client.get("/invented-by-somebody", **token)
        status, text = client.get("/metrics", **token)
        assert status == 200
        lines = text.decode().splitlines()
        for line in (
            'protodrift_requests_total{path="/predict",status="200"} 1.0',
            'protodrift_requests_total{path="/predict",status="422"} 1.0',
            'protodrift_requests_total{path="other",status="404"} 1.0',
            'protodrift_request_seconds_count{path="/predict"} 2.0',
            "protodrift_images_answered_total 1.0",
            "protodrift_images_refused_total 2.0",
            "protodrift_version 2.0",
            "protodrift_connections 1.0",
        ):
            assert line in lines, (line, lines)
        assert "invented" not in text.decode()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "RuntimeError: DefaultCPUAllocator: can't"),
        (MemoryError(), "MemoryError\n"),
    ],
)
def test_no_memory_for_a_new_version_does_not_end_the_watching(
    serve, saved, tmp_path, monkeypatch, caplog, error, said
):
    path = tmp_path / "model"
    shutil.copytree(saved, path)
    monkeypatch.setattr(watching, "RETRY", 0.1)

    def from_saved(*args, **params):
        raise error

    with serve(path) as client:
        with monkeypatch.context() as patch:
            patch.setattr(IncrementalClassifier, "from_saved", from_saved)
            versions.undo(path)
            until(lambda: f"the version before is served on: {said}" in caplog.text)
            health = client.get("/healthz")[1]
            assert health["version"] == 2
            assert health["problem"]
        until(lambda: client.get("/healthz")[1]["version"] == 1)
        assert client.get("/healthz")[1]["problem"] == ""


def test_a_log_that_nobody_reads_does_not_end_the_watching(serve, saved, tmp_path, monkeypatch):
    path = tmp_path / "model"
    shutil.copytree(saved, path)
    reader, writer = os.pipe()
    os.close(reader)
    log = os.fdopen(writer, "w")
    handler, logger = logging.StreamHandler(log), logging.getLogger("protodrift")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "level", logging.INFO)
    logged = []
    monkeypatch.setattr(handler, "handleError", logged.append)
    with serve(path) as client:
        versions.undo(path)
        until(lambda: client.get("/healthz")[1]["version"] == 1)
        IncrementalClassifier.load(path).save(path)
        until(lambda: client.get("/healthz")[1]["version"] == 2)
    assert [record.getMessage() for record in logged] == ["now serving version 1", "now serving version 2"]
    with contextlib.suppress(BrokenPipeError):
        log.close()


def until(true):
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_map_has_every_step(served, saved):
    body = served.get("/map")[1]
    assert [step["task"] for step in body["steps"]] == [1, 2]
    assert [x is None for x in body["steps"][0]["x"]] == [False, False, True, True]
    assert None not in body["steps"][1]["x"]
    means = torch.from_numpy(IncrementalClassifier.load(saved).prototypes_).double()
    flat = torch.tensor([body["steps"][1]["x"], body["steps"][1]["y"]], dtype=torch.float64).T
    assert (torch.cdist(flat, flat) <= torch.cdist(means, means) + 1e-4).all()  # a projection never stretches
