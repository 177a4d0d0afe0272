"""What a run says of itself while it works."""

from __future__ import annotations

import pytest

from protodrift.common import progress
from protodrift.common.progress import BarReporter, LineReporter, Progress, counting


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand, in seconds."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def at(epoch, epochs, task=1):
    return Progress(task, epoch, epochs, 0.5, 0.0)


def train(reporter, clock, epochs, seconds, task, first=1):
    with reporter.training("Triplet, task 1") as update:
        for epoch in range(first, epochs + 1):
            clock.now += seconds
            update(at(epoch, epochs, task))
    reporter.done(training=True)


def lines(capsys):
    """The lines of trainings, without what comes before the loss."""
    return [line.split("loss 0.5000")[1] for line in capsys.readouterr().err.splitlines() if "loss" in line]


def test_the_time_left_is_that_of_the_trainings_that_are_left(clock, capsys):
    reporter = LineReporter()
    clock.now += 500  # data is loaded
    reporter.plan(4, 3)
    train(reporter, clock, epochs=4, seconds=60, task=1)
    train(reporter, clock, epochs=2, seconds=60, task=2)
    assert lines(capsys) == [
        ", stage 1/4, about 11 min left",  # a minute, and it is a twelfth
        ", stage 1/4, about 10 min left",
        ", stage 1/4, about 9 min left",
        ", stage 1/4, about 8 min left",
        ", stage 2/4, about 5 min left",  # five minutes for one and a half
        ", stage 2/4, about 3 min left",
    ]


def test_a_warm_up_speaks_for_itself_only(clock, capsys):
    reporter = LineReporter()
    reporter.plan(3, 3)
    train(reporter, clock, epochs=3, seconds=600, task=0)
    train(reporter, clock, epochs=2, seconds=30, task=1)
    assert lines(capsys) == [
        ", stage 1/3, about 20 min left of the warm-up",
        ", stage 1/3, about 10 min left of the warm-up",
        ", stage 1/3",
        ", stage 2/3, about 2 min left",  # a minute and a half
        ", stage 2/3, about 60 s left",
    ]


def test_epochs_that_were_stored_cost_nothing(clock, capsys):
    reporter = LineReporter()
    reporter.plan(1, 1)
    train(reporter, clock, epochs=4, seconds=30, task=1, first=3)
    assert lines(capsys)[0] == ", stage 1/1, about 30 s left"


def test_workers_share_what_is_left(clock, capsys):
    reporter = LineReporter()
    reporter.plan(4, 4)
    clock.now += 30
    for worker in (0, 1):
        reporter.worker(worker, "a worker", at(1, 2))
    for worker in (0, 1):
        clock.now += 15
        reporter.worker(worker, "a worker", at(2, 2))
        reporter.worker(worker, "", None)
        reporter.done(training=True)
    assert lines(capsys) == [
        ", stage 1/4, about 4 min left",  # one half of a training in 30 s: 3.5 are left
        ", stage 1/4, about 2 min left",
        ", stage 1/4, about 75 s left",
        ", stage 2/4, about 60 s left",
    ]


def test_a_task_alone_tells_its_own_time(clock, capsys):
    reporter = LineReporter()
    clock.now += 100  # photos are read
    train(reporter, clock, epochs=2, seconds=20, task=3)
    assert lines(capsys) == [", about 20 s left", ""]


def test_what_is_counted_is_said_every_ten_seconds(clock, capsys):
    with counting() as count:
        count("download x", 0, 4000)
        clock.now += 6
        count("download x", 1000, 4000)
        clock.now += 6
        count("download x", 2000, 4000)
        count("unpack x", 5, None)
        clock.now += 11
        count("unpack x", 50, None)
    assert capsys.readouterr().err.splitlines() == ["download x: 2,000 of 4,000", "unpack x: 50"]


def test_a_terminal_shows_stages_trainings_and_what_is_read(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    reporter = BarReporter()
    try:
        shown = reporter._bars
        with reporter.reading("reading photos", 20) as read:
            read(5)
            assert [(row.description, row.completed, row.total) for row in shown.tasks] == [("reading photos", 5, 20)]
        reporter.plan(3, 2)
        with reporter.training("Triplet, task 1") as update:
            update(at(1, 2))
            reporter.worker(7, "Triplet, task 2", at(1, 4))
            assert [row.description for row in shown.tasks] == ["stages", "Triplet, task 1", "Triplet, task 2"]
            assert shown.tasks[1].fields["text"] == "loss 0.5000"
            assert "left" in shown.tasks[0].fields["text"]
            reporter.worker(7, "", None)
        reporter.done(training=True)
        reporter.result("E-FT: A_5 61.0")
        assert [(row.description, row.completed, row.total) for row in shown.tasks] == [("stages", 1, 3)]
        assert shown.tasks[0].fields["text"].startswith("E-FT: A_5 61.0")
    finally:
        reporter.close()
    assert "stages" in capsys.readouterr().err
