"""The API: what it answers is what the library answers, and what it refuses has the right status."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import struct
import threading
import time
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

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
    assert set(paths) == {"/predict", "/embed", "/classes", "/model", "/map", "/healthz"}
    assert {"200", "400", "401", "408", "413", "415", "422", "429", "504"} <= set(
        paths["/predict"]["post"]["responses"]
    )
    assert {"multipart/form-data", "image/*"} == set(paths["/predict"]["post"]["requestBody"]["content"])
    assert "curl -F images=@" in paths["/predict"]["post"]["requestBody"]["description"]
    assert '"examples"' in served.get("/openapi.json")[1].__str__().replace("'", '"')


def test_the_page_is_whole_and_names_nothing_outside(served):
    index = served.get("/")[1].decode()
    assert "default-src 'none'" in served.headers["content-security-policy"]
    names = re.findall(r'(?:src|href)="(/page/[^"]+)"', index)
    assert len(names) == 4
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
    status, body = served.post("/predict", pictures[0], b"not an image", pictures[1][:60])
    assert status == 422
    assert "1.png" in body["detail"]
    assert "2.png" in body["detail"]
    assert "0.png" not in body["detail"]
    assert served.post("/predict")[0] in (400, 422)
    assert served.ask("POST", "/predict", b"")[0] == 422
    assert (
        served.post("/predict", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")[0] == 422
    )  # would start a program
    assert served.post("/predict", bomb(100))[0] == 422  # small enough, but its pixels are missing


@pytest.mark.parametrize("side", [8000, 30_000, 2_000_000_000])
def test_a_decompression_bomb_is_refused_by_its_header(served, side):
    assert served.post("/predict", bomb(side))[0] in ((413,) if side < 10**6 else (413, 422))


def test_the_limit_of_pixels_may_be_above_that_of_pillow(serve, saved, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # serving raises it; put back at the end
    with serve(saved, Limits(pixels=500_000_000)) as client:
        status, body = client.post("/predict", bomb(14_000))  # 196 million: allowed, but its pixels are missing
        assert (status, "0.png cannot be read as an image" in body["detail"]) == (422, True), body
        status, body = client.post("/predict", bomb(25_000))
        assert (status, "25000 x 25000 pixels; at most 500,000,000" in body["detail"]) == (413, True), body
        status, body = client.post("/predict", bomb(40_000))
        assert (status, "more than 500,000,000 pixels" in body["detail"]) == (413, True), body


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


def test_one_request_too_many_is_429_and_a_slow_upload_408(serve, saved, pictures):
    import socket

    with serve(saved, Limits(in_flight=1, seconds=1.0)) as client:
        slow = socket.create_connection(("127.0.0.1", client.port))
        slow.sendall(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 900\r\n\r\nabc"
        )
        statuses = []
        while (status := client.post("/predict", pictures[0])[0]) == 200 and len(statuses) < 500:
            statuses.append(status)  # until the slow one has arrived
        assert status == 429
        assert client.headers["retry-after"] == "1"
        assert client.get("/healthz")[0] == 200  # health is answered all the same
        assert slow.recv(12) == b"HTTP/1.1 408"
        slow.close()
        while (status := client.post("/predict", pictures[0])[0]) == 429:
            time.sleep(0.01)
        assert status == 200


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
    with serve(saved, hosts=frozenset({"localhost", "127.0.0.1"})) as client:
        assert client.get("/classes")[0] == 200
        assert client.get("/classes", Host="evil.example:80")[0] == 421
        assert client.get("/classes", Host="localhost:1234")[0] == 200


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
        clf.save(path)
        deadline = time.monotonic() + 30
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
            until(lambda: client.get("/healthz")[1]["problem"])
            assert client.get("/healthz")[1]["version"] == 2  # the version before is served on
        until(lambda: client.get("/healthz")[1]["version"] == 1)
        assert client.get("/healthz")[1]["problem"] == ""
    assert f"the version before is served on: {said}" in caplog.text


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
    deadline = time.monotonic() + 30
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
