"""Photos that appear in a folder are taken once, and only when they are whole."""

from __future__ import annotations

import os

from protodrift.data.arrivals import Arrivals


class Clock:
    """A clock that the test turns."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def watched(folder, **options) -> tuple[Arrivals, Clock]:
    clock = Clock()
    return Arrivals(folder, settle=2, clock=clock, **options), clock


def names(found):
    return [one.name for one in found]


def test_a_file_that_grows_is_waited_for(tmp_path):
    arrivals, clock = watched(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.jpg").write_bytes(b"x")
    (tmp_path / "notes.txt").write_bytes(b"no photo")
    (tmp_path / ".b.jpg").write_bytes(b"hidden: a copy under way")
    assert names(arrivals.take()) == []
    assert arrivals.waiting
    clock.now = 1.9
    (tmp_path / "sub" / "a.jpg").write_bytes(b"xy")
    assert names(arrivals.take()) == []
    clock.now = 3.8  # two seconds after it was first seen, and not after it grew
    assert names(arrivals.take()) == []
    clock.now = 3.9
    assert names(arrivals.take()) == ["sub/a.jpg"]
    clock.now = 99
    assert names(arrivals.take()) == []
    assert not arrivals.waiting


def test_a_photo_written_anew_under_its_old_name_is_another_one(tmp_path):
    arrivals, clock = watched(tmp_path)
    photo = tmp_path / "IMG_0001.JPG"
    photo.write_bytes(b"one")
    arrivals.take()
    clock.now = 2
    (first,) = arrivals.take()
    photo.write_bytes(b"two")
    os.utime(photo, ns=(0, 1_700_000_000_123_456_789))
    arrivals.take()
    clock.now = 4
    (second,) = arrivals.take()
    assert (first.name, first.bytes) == (second.name, second.bytes)
    assert first.key != second.key
    assert second.modified == "2023-11-14T22:13:20.123456+00:00"


def test_what_was_answered_before_is_not_taken_again(tmp_path):
    arrivals, clock = watched(tmp_path)
    for name in ("a.png", "b.png", "c\nd.png"):
        (tmp_path / name).write_bytes(b"x")
    arrivals.take()
    clock.now = 2
    found = arrivals.take()
    assert len(found) == 3
    again, clock = watched(tmp_path, answered=[found[0].key, found[2].key])
    again.take()
    clock.now = 2
    assert names(again.take()) == ["b.png"]


def test_a_file_that_goes_away_is_no_error(tmp_path):
    arrivals, clock = watched(tmp_path)
    (tmp_path / "a.png").write_bytes(b"x")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere")
    arrivals.take()
    (tmp_path / "a.png").unlink()
    clock.now = 2
    assert arrivals.take() == []
    assert not arrivals.waiting
