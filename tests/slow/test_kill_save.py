"""A process that saves a model again and again is killed at random moments: the model is always a whole version."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time

import pytest

from protodrift import IncrementalClassifier
from protodrift.model.versions import current_or_none

pytestmark = pytest.mark.slow

KILLS = 20


def test_a_model_is_whole_whenever_its_writer_is_killed(two_clouds, vectors, tmp_path, same):
    one = two_clouds
    two = IncrementalClassifier.load(one.save(tmp_path / "copy")).partial_fit(*vectors("rook", "wren"))
    path, moments = tmp_path / "birds", random.Random(0)
    versions, found = 0, {1: 0, 2: 0}

    def put(clf):
        """Write on top of whatever is there."""
        now = current_or_none(path)
        clf.save(path, onto=now.version if now else 0)

    half_written = 0
    for kill in range(KILLS):
        child = os.fork()
        if child == 0:  # never back into pytest
            with contextlib.suppress(BaseException):
                while True:
                    put((one, two)[kill % 2])  # on a busy machine there is time for one of them
                    put((two, one)[kill % 2])
            os._exit(0)
        time.sleep(moments.uniform(0.001, 0.15))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the writer ended by itself: a save failed"
        half_written += bool(list(path.glob("versions/.new-*")))
        if not (path / "CURRENT").exists():
            continue  # killed before the first save was through: there never was a model
        loaded = IncrementalClassifier.load(path)
        which = 1 if same(loaded, one) else 2
        assert which == 1 or same(loaded, two)
        found[which] += 1
        now = len(list(path.glob("versions/[0-9]*")))
        assert now >= versions
        versions = now
    print(f"\n{KILLS} kills, {versions} versions, {half_written} left half-written; current was {found}")
    assert min(found.values()) >= 1
    assert half_written >= 1
    put(two)  # a later save works, and clears away what the dead left
    assert same(IncrementalClassifier.load(path), two)
    assert not list(path.glob("versions/.new-*"))
