"""Decoding in processes: bounded, fair, and nothing lost when one is killed."""

from __future__ import annotations

import io
import os
import struct
import time
import zlib

import numpy as np
import pytest
from PIL import Image

from protodrift.data.images import load_photo
from protodrift.serve import decoder
from protodrift.serve.decoding import Decoders, Refused
from protodrift.serve.limits import Limits
from protodrift.serve.turns import Turns


def picture(side: int, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (side, side), 100).save(out, "PNG", compress_level=1)
    return out.getvalue()


@pytest.fixture(scope="module")
def heavy() -> bytes:
    """25 megapixels: above what is decoded among small pictures."""
    return picture(5000)


@pytest.fixture(scope="module")
def huge() -> bytes:
    """A header of 14,000 x 14,000 pixels in RGB, and few of them."""
    small = picture(64)
    head = b"IHDR" + struct.pack(">II", 14_000, 14_000) + small[24:29]
    return small[:12] + head + struct.pack(">I", zlib.crc32(head)) + small[33:]


@pytest.fixture
def decoders():
    made = []

    def make(**limits) -> Decoders:
        made.append(Decoders(Limits(**{"image_seconds": 600.0, **limits}), count=2))
        return made[-1]

    yield make
    for one in made:
        one.close()


def later() -> float:
    return time.monotonic() + 600


def test_pixels_are_those_of_the_library(decoders, as_png):
    noise = as_png(np.random.RandomState(0).randint(0, 256, (40, 60, 3), dtype=np.uint8))
    (found,) = decoders().submit([noise], 32, "a", later())
    assert np.array_equal(found.result(600), load_photo(noise, 32))


def test_a_small_picture_does_not_wait_for_large_ones(decoders, heavy):
    pool = decoders()
    large = pool.submit([heavy] * 6, 16, "a", later())
    (small,) = pool.submit([picture(16)], 16, "a", later())
    assert isinstance(small.result(600), np.ndarray)
    assert sum(one.done() for one in large) <= 2
    assert all(isinstance(one.result(600), np.ndarray) for one in large)


def test_a_picture_that_takes_too_long_costs_its_process_and_nothing_else(decoders, heavy):
    pool = decoders(image_seconds=0.01)
    (late,) = pool.submit([heavy], 16, "a", later())
    assert late.result(600).why.startswith("takes longer than 0.01 s to decode. ")
    pool.limits = Limits(image_seconds=600.0)
    (late,) = pool.submit([heavy], 16, "a", time.monotonic() + 0.02)
    assert "in time" in late.result(600).why
    again = pool.submit([picture(16), heavy], 16, "a", later())
    assert all(isinstance(one.result(600), np.ndarray) for one in again)
    assert pool.problem == ""


def test_a_process_that_dies_is_started_again(decoders):
    pool = decoders()
    for process in pool._processes:
        os.kill(process._process.pid, 9)
        process._process.wait()
    (found,) = pool.submit([picture(16)], 16, "a", later())
    assert isinstance(found.result(600), np.ndarray)


def test_pixels_of_a_request_are_bounded(decoders):
    pool = decoders(request_pixels=100_000)
    results = [one.result(600) for one in pool.submit([picture(200)] * 4, 16, "a", later())]
    assert sum(isinstance(one, np.ndarray) for one in results) == 2
    assert [one.all for one in results if isinstance(one, Refused)] == [True, True]


def test_a_request_with_too_many_pixels_is_413(serve, saved):
    with serve(saved, Limits(request_pixels=100_000)) as client:
        assert client.post("/predict", picture(200), picture(200))[0] == 200
        status, body = client.post("/predict", *[picture(200)] * 3)
        assert (status, "more than 100,000 pixels" in body["detail"]) == (413, True), body


def test_after_the_deadline_nothing_is_decoded(decoders):
    (found,) = decoders().submit([picture(16)], 16, "a", time.monotonic() - 1)
    assert found.result(600) == Refused(504, "could not be decoded in time.")


def test_memory_is_bounded_by_the_system(huge):
    """The process may hold 400 MB and a little; the picture would take 588, before its missing data is noticed."""
    pool = Decoders(Limits(pixels=10))
    try:
        pool.limits = Limits(pixels=500_000_000)
        (found,) = pool.submit([huge], 16, "a", later())
        refused = found.result(600)
        assert isinstance(refused, Refused)
        assert "truncated" not in refused.why
    finally:
        pool.close()


def test_no_format_that_starts_a_program():
    for data in (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 90 90\n%%EndComments\n", b"", b"GIF89a"):
        assert decoder.answer(data, 16, 10**6, 10**6, 10.0)[0] == decoder.NO_IMAGE


def test_cancelled_pictures_are_left_out(decoders, heavy):
    pool = decoders()
    waiting = pool.submit([heavy] * 8, 16, "a", later())
    assert waiting[-1].cancel()
    assert isinstance(waiting[0].result(600), np.ndarray)
    (small,) = pool.submit([picture(16)], 16, "b", later())
    assert isinstance(small.result(600), np.ndarray)


def taken(turns: Turns[str], costs: dict[str, float], count: int) -> str:
    order = ""
    for _ in range(count):
        turn, item = turns.take()
        turns.charge(turn, costs[item])
        order += item
    return order


def test_turns_are_fair_by_what_they_cost():
    turns: Turns[str] = Turns()
    for _ in range(8):
        turns.put(("big", 0), "B")
        turns.put(("small", 1), "s")
    assert taken(turns, {"B": 4.0, "s": 1.0}, 10).count("s") == 8
    assert taken(turns, {"B": 4.0, "s": 1.0}, 6) == "BBBBBB"
    assert turns.take() is None


def test_whoever_comes_new_is_next_and_saves_nothing_up():
    turns: Turns[str] = Turns()
    for _ in range(9):
        turns.put(("old", 0), "o")
    assert taken(turns, {"o": 1.0}, 5) == "ooooo"
    for _ in range(4):
        turns.put(("new", 1), "n")
    assert taken(turns, {"o": 1.0, "n": 1.0}, 5) == "nnono"
    turns.put(("old", 2), "x")  # another request of the same client
    assert "x" in taken(turns, {"o": 1.0, "n": 1.0, "x": 1.0}, 3)
