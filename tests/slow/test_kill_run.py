"""A real `protodrift run` is killed with SIGKILL, again and again, and ends with the results of an undisturbed one."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from protodrift.experiments.store import list_stages

from .watching import Progress, Running, drafts, epochs, progress, results, stages, tensors

pytestmark = pytest.mark.slow

KILLS = 20
KINDS = ("root", "train", "consolidate", "embed", "readout")
# Importances, a memory, drift estimators, the oracle, heads: every kind of stage, and several of each.
ARGS = ["run", "digits", "--methods", "E-EWC,E-EWC+SDC,E-EWC+oracle,E-Joint", "--tasks", "3"]
ARGS += ["--set", "training.epochs=5"]


@dataclass
class Undisturbed:
    """A run that nobody disturbed, and when it had got how far."""

    out: Path
    times: list[float]
    steps: list[Progress]
    order: list[str]

    @property
    def seconds(self) -> float:
        return self.times[-1]

    def at(self, moment: float) -> tuple[Progress, float]:
        """How far the run was at a moment, and for how long it had been there."""
        i = bisect_right(self.times, moment) - 1
        return self.steps[i], moment - self.times[i]

    def kind(self, index: int) -> str:
        return self.order[index].rsplit("-", 1)[0]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("kill") / "undisturbed"
    running = Running(ARGS, out)
    times, steps = [0.0], [(0, 0)]

    def look() -> bool:
        now = progress(out)
        if now > steps[-1]:
            assert running.started is not None
            times.append(time.monotonic() - running.started)
            steps.append(now)
        return False

    running.until(look)
    assert running.process.returncode == 0, running.log
    order = [stage.name for stage in list_stages(out)]
    assert {name.rsplit("-", 1)[0] for name in order} == set(KINDS)
    assert steps[-1][0] == len(order)
    return Undisturbed(out, times, steps, order)


def same(out: Path, undisturbed: Undisturbed) -> None:
    assert results(out) == results(undisturbed.out)
    assert tensors(out) == tensors(undisturbed.out)
    assert not epochs(out)
    assert not drafts(out)


def kill_at(running: Running, undisturbed: Undisturbed, moment: float) -> bool:
    """Kill a process when it is where the undisturbed run was at a moment; False if it was through before."""
    where, since = undisturbed.at(moment)
    if not running.until(lambda: progress(running.out) >= where):
        return False
    # For as long as the undisturbed run had been there, unless this one is through with it sooner.
    arrived, there = time.monotonic(), progress(running.out)
    if not running.until(lambda: time.monotonic() - arrived >= since or progress(running.out) > there):
        return False
    running.kill()
    return True


class Witness:
    """What kills hit, and whether the next process really went on from there."""

    def __init__(self, undisturbed: Undisturbed) -> None:
        self.undisturbed = undisturbed
        self.hit: Counter[str] = Counter()
        self.with_epochs = self.resumed = self.half_written = 0
        self._kept: dict[str, str] = {}

    def after_kill(self, out: Path) -> str:
        done = stages(out)
        assert done == set(self.undisturbed.order[: len(done)])  # computed in one order
        kind = self.undisturbed.kind(len(done)) if len(done) < len(self.undisturbed.order) else "results"
        self.hit[kind] += 1
        self.half_written += bool(drafts(out))
        self.with_epochs += any(name not in done for name, _ in epochs(out))
        now = tensors(out)
        assert {name: now.get(name) for name in self._kept} == self._kept  # nothing that was finished is lost
        self._kept = now
        return kind

    def forget(self) -> None:
        """Begin with a new directory."""
        self._kept = {}

    def after_restart(self, running: Running) -> None:
        """Every epoch that was seen comes after the one that the killed process left."""
        for training, epoch in running.before:
            again = {e for name, e in running.new_epochs if name == training}
            assert all(e > epoch for e in again), (training, epoch, again)
            self.resumed += bool(again)

    def __str__(self) -> str:
        return (
            f"kills by the kind of stage under way: {dict(self.hit)}; {self.with_epochs} with a finished epoch of an "
            f"unfinished training, {self.resumed} seen to go on after it, {self.half_written} with a half-written stage"
        )


def test_one_run_killed_twenty_times_ends_like_an_undisturbed_one(undisturbed, tmp_path):
    """The moments are spread evenly over the time of the undisturbed run, from its first stage to its last."""
    out, witness = tmp_path / "run", Witness(undisturbed)
    for i in range(KILLS):
        running = Running(ARGS, out)
        # The last moment leaves a few per cent of the run, so that a watcher who is held up does not miss its end.
        assert kill_at(running, undisturbed, undisturbed.seconds * (i + 0.5) / (KILLS + 1)), running.log
        witness.after_restart(running)
        witness.after_kill(out)
    Running(ARGS, out).finish()
    print(f"\nundisturbed {undisturbed.seconds:.1f} s, {len(undisturbed.order)} stages; {witness}")
    same(out, undisturbed)
    assert sum(witness.hit.values()) == KILLS
    assert witness.with_epochs >= 3
    assert witness.resumed >= 1


def test_a_kill_in_every_kind_of_stage(undisturbed, tmp_path):
    """Aimed: as soon as the stage before is on disk; then again as soon as a half-written one is."""
    witness = Witness(undisturbed)
    # The first stage of a run is its root. It takes some milliseconds: if it is missed, a new run is tried.
    for attempt in range(20):
        out = tmp_path / f"root{attempt}"
        running = Running(ARGS, out)
        running.until(lambda: True)
        running.kill()
        if witness.after_kill(out) == "root":
            break
        witness.forget()
    for kind in KINDS[1:]:
        _kill_in(kind, out, witness)
    for kind in KINDS[1:]:
        running = Running(ARGS, out)
        if running.until(_draft_of(kind, out)):
            running.kill()
            witness.after_kill(out)
        witness.after_restart(running)
    Running(ARGS, out).finish()
    print(f"\n{witness}")
    same(out, undisturbed)
    assert set(witness.hit) >= set(KINDS)
    assert witness.resumed >= 1
    assert witness.half_written >= 1


def _kill_in(kind: str, out: Path, witness: Witness) -> None:
    """Kill a run while a stage of some kind is under way; a kill that came too late is tried on the next such stage."""
    order = witness.undisturbed.order
    for i in range(len(stages(out)) + 1, len(order)):
        if witness.undisturbed.kind(i) != kind or i < len(stages(out)):
            continue
        running = Running(ARGS, out)
        # In a training when an epoch is finished, else as soon as the stage before is.
        wanted = (i, 2) if kind == "train" else (i, 0)
        assert running.until(lambda wanted=wanted: progress(out) >= wanted), running.log
        running.kill()
        witness.after_restart(running)
        if witness.after_kill(out) == kind:
            return
    raise AssertionError(f"no kill fell into a {kind}: {witness}")


def _draft_of(kind: str, out: Path) -> Callable[[], bool]:
    return lambda: any(name.startswith(kind) for name in drafts(out))


@pytest.mark.parametrize("moment", [0.2, 0.55, 0.9])
def test_killed_once_and_resumed(undisturbed, tmp_path, moment):
    out = tmp_path / "run"
    running = Running(ARGS, out)
    assert kill_at(running, undisturbed, moment * undisturbed.seconds), running.log
    assert 0 < len(stages(out)) < len(undisturbed.order)
    Running(ARGS, out).finish()
    same(out, undisturbed)
