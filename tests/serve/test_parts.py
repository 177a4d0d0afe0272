"""Batches, the token, the loopback rule: each by itself."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from protodrift.errors import InputError
from protodrift.serve.access import is_loopback, read_token
from protodrift.serve.batching import Batcher
from protodrift.serve.limits import Limits
from protodrift.serve.running import bound


class Doubling:
    """Work that waits for a sign, and remembers its batches."""

    def __init__(self) -> None:
        self.go, self.began, self.sizes = threading.Event(), threading.Event(), []

    def __call__(self, images: np.ndarray) -> np.ndarray:
        self.began.set()
        self.go.wait(30)
        self.sizes.append(len(images))
        return images * 2


def test_what_queues_up_is_one_batch_and_everyone_gets_their_rows():
    work, batcher = Doubling(), Batcher(largest=8)
    first = batcher.submit(work, np.array([[100.0]]))
    work.began.wait(30)
    others = [batcher.submit(work, np.full((2, 1), float(i))) for i in range(5)]
    cancelled = batcher.submit(work, np.full((2, 1), 9.0))
    assert cancelled.cancel()
    work.go.set()
    batcher.close()
    assert first.result().result[0, 0] == 200
    for i, future in enumerate(others):
        rows = future.result()
        assert rows.result[rows.start : rows.stop].tolist() == [[2.0 * i]] * 2
    assert work.sizes == [1, 8, 2]  # never more than 8, never a request split, nothing for the cancelled one


def test_different_work_is_never_mixed_and_an_error_reaches_only_its_own():
    one, other, batcher = Doubling(), Doubling(), Batcher()

    def broken(images: np.ndarray) -> np.ndarray:
        raise RuntimeError("no")

    a = batcher.submit(one, np.ones((1, 1)))
    one.began.wait(30)
    b = batcher.submit(other, np.ones((2, 1)))
    c = batcher.submit(broken, np.ones((1, 1)))
    d = batcher.submit(other, np.ones((3, 1)))
    one.go.set()
    other.go.set()
    batcher.close()
    assert len(a.result().result) == 1
    assert (len(b.result().result), len(d.result().result)) == (2, 3)
    with pytest.raises(RuntimeError, match="no"):
        c.result()


@pytest.mark.parametrize("content", [b"", b"short\n", b"two words are not a token", b"\xff" * 30])
def test_a_token_that_can_be_guessed_is_refused(tmp_path, content):
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(InputError, match="token"):
        read_token(tmp_path / "token")


def test_a_token_is_read_without_its_line_end(tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    assert read_token(tmp_path / "token") == "0123456789abcdef"


def test_limits_are_checked():
    with pytest.raises(InputError, match="in_flight=0"):
        Limits(in_flight=0)


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("example.org", False)]
)
def test_loopback(host, local):
    assert is_loopback(host) is local


def test_a_port_in_use_is_explained():
    taken = bound("127.0.0.1", 0)
    taken.listen(1)
    with pytest.raises(InputError, match="--port"):
        bound("127.0.0.1", taken.getsockname()[1])
    taken.close()
