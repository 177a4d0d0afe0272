"""Stages on disk: whole or not there, whatever breaks where; a damaged one is found, said and computed again."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from protodrift import EWC, MAS, SDC, Everything, LwF, Method, TaskStream, Triplet
from protodrift.common import files, tensorfiles
from protodrift.common.progress import Reporter
from protodrift.drift import Oracle
from protodrift.errors import RunError
from protodrift.experiments import tree as trees
from protodrift.experiments.recipes import get_recipe
from protodrift.experiments.setup import Network
from protodrift.experiments.store import Store, list_stages
from protodrift.experiments.tree import Tree
from protodrift.methods import METHODS
from protodrift.objectives import Softmax
from protodrift.penalties import SI
from protodrift.readouts import LiftedRidge, MaxOverHeads
from protodrift.training.config import Training

TRIPLET = Triplet(margin=2.0)  # never zero on so few images
FAST = Training(epochs=2, batch_size=16, images_per_class=8, learning_rate=3e-4)
ROWS = {
    "E-EWC": Method(TRIPLET, EWC(gamma=1e3)),
    "E-EWC+SDC": Method(TRIPLET, EWC(gamma=1e3), drift=SDC()),
    "E-Joint": Method(TRIPLET, exemplars=Everything()),
}
KINDS = ("root", "train", "consolidate", "embed", "readout")


@pytest.fixture(scope="module")
def stream(small_digits):
    return TaskStream(small_digits, classes=[[3, 8], [1, 7]])


@pytest.fixture
def grow(stream, tmp_path):
    """Make a new tree on the store of this test, as a new process would."""

    def make(store=True, training=FAST, reporter=None, seed=0):
        return Tree(
            stream,
            network=Network(embedding_dim=8),
            training=training,
            seed=seed,
            store=Store(tmp_path / "run") if store else None,
            reporter=reporter or Reporter(),
        )

    return make


def outcome(tree: Tree, rows=ROWS) -> dict[str, tuple[dict, list[torch.Tensor]]]:
    """What a run gives: every number but the times, and every prototype."""
    result = {}
    for name, found in tree.run(rows).items():
        document = found.to_json()
        document.pop("seconds")
        tensors = [tensor for store in found.prototypes for tensor in (store.means, store.counts, store.tasks)]
        result[name] = (document, tensors)
    return result


def without_losses(found):
    """An outcome without the losses of the epochs, which go with a training that is removed."""
    return {
        name: ({key: value for key, value in document.items() if key != "history"}, tensors)
        for name, (document, tensors) in found.items()
    }


def kinds_of(plan) -> Counter[str]:
    return Counter(stage.kind for stage in plan.values())


def equal(a, b) -> bool:
    """Whether two outcomes are the same, bit for bit."""
    return a.keys() == b.keys() and all(
        a[name][0] == b[name][0] and all(map(torch.equal, a[name][1], b[name][1])) for name in a
    )


@pytest.fixture(scope="module")
def undisturbed(stream):
    """The outcome without a store, a fault or an interrupt."""
    return outcome(Tree(stream, network=Network(embedding_dim=8), training=FAST))


def stages_of(run: Path) -> dict[str, dict[str, tuple[bytes, int]]]:
    """Every finished stage: its files, what is in them, and when they were written."""
    return {
        folder.name: {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}
        for folder in (run / "stages").glob("[!.]*")
    }


# -- faults between write, fsync and rename ------------------------------------------------------------------------


class Faults:
    """Count every write, fsync and rename of saving; at the n-th do something bad instead."""

    def __init__(self, monkeypatch, at: int = 0, action=None) -> None:
        self.calls: list[str] = []
        self.at, self.action = at, action
        for name in ("fsync", "rename", "replace"):
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        monkeypatch.setattr(files, "open", self._open, raising=False)

    def _wrapped(self, name, real):
        def call(*args, **kwargs):
            self.count(name)
            return real(*args, **kwargs)

        return call

    def _open(self, path, mode):
        assert mode == "wb"
        file = open(path, mode)  # noqa: SIM115 - closed by whoever asked for it
        faults, write = self, file.write

        class Halting:
            """A file that is half-written when the fault comes."""

            def __enter__(self):
                return self

            def __exit__(self, *error):
                file.close()

            def write(self, content):
                write(content[: len(content) // 2])
                file.flush()
                faults.count("write")
                return write(content[len(content) // 2 :])

            def __getattr__(self, name):
                return getattr(file, name)

        return Halting()

    def count(self, name: str) -> None:
        self.calls.append(name)
        if len(self.calls) == self.at:
            self.action()


def full_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def calls_of_a_whole_run(stream, tmp_path_factory):
    """How often a run writes, syncs and renames."""
    store = Store(tmp_path_factory.mktemp("whole"))
    with pytest.MonkeyPatch.context() as patch:
        faults = Faults(patch)
        Tree(stream, network=Network(embedding_dim=8), training=FAST, store=store).run(ROWS)
    names = {stage.kind for stage in store.listing()}
    assert names == set(KINDS)
    return Counter(faults.calls)


def test_every_write_and_every_rename_is_synced(calls_of_a_whole_run):
    calls = calls_of_a_whole_run
    # Each file, the folder that holds it, and the folder that holds that.
    assert calls["fsync"] == calls["write"] + 2 * calls["rename"]


def attempt_full_disk(grow, tmp_path, n) -> str | None:
    """Run until the n-th call meets a full disk; return which call it was, or None if the run came through."""
    with pytest.MonkeyPatch.context() as patch:
        faults = Faults(patch, n, full_disk)
        text = None
        try:
            grow().run(ROWS)
        except RunError as error:
            text = str(error)
    if text is None:
        return None
    assert "No space left on device" in text
    assert "Everything finished so far is kept" in text
    assert "run the same command again" in text
    assert str(tmp_path / "run") in text
    return faults.calls[-1]


def attempt_interrupt(grow, tmp_path, n) -> str | None:
    """Run until Ctrl-C at the n-th call."""
    with pytest.MonkeyPatch.context() as patch:
        faults = Faults(patch, n, interrupt)
        try:
            grow().run(ROWS)
        except KeyboardInterrupt:
            return faults.calls[-1]
    return None


def attempt_sigkill(grow, tmp_path, n) -> str | None:
    """Run in a process that is killed for real at the n-th call: half-written files and all stay as they are."""
    said = tmp_path / "call"
    child = os.fork()
    if child == 0:  # never back into pytest
        with contextlib.suppress(BaseException), pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, n)

            def kill() -> None:
                said.write_text(faults.calls[-1])
                os.kill(os.getpid(), signal.SIGKILL)

            faults.action = kill
            grow().run(ROWS)
            os._exit(0)
        os._exit(3)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return said.read_text()
    assert os.waitstatus_to_exitcode(status) == 0
    return None


@pytest.mark.parametrize("attempt", [attempt_full_disk, attempt_interrupt, attempt_sigkill])
def test_a_fault_at_any_write_sync_or_rename_loses_nothing(grow, tmp_path, undisturbed, calls_of_a_whole_run, attempt):
    """One run that meets a fault at each write, fsync and rename in turn: it goes on, and ends as if undisturbed."""
    run = tmp_path / "run"
    hit: Counter[str] = Counter()
    n, finished = 1, {}
    while True:
        folders = _folders(run)
        call = attempt(grow, tmp_path, n)
        now = stages_of(run)
        assert {name: now.get(name) for name in finished} == finished  # nothing is lost, nothing is written again
        finished = now
        if call is None:
            break
        # When a folder got finished in spite of the fault, the next one is met at its first call; else one call later.
        n = 1 if _folders(run) - folders else n + 1
        hit[call] += 1
    assert hit == calls_of_a_whole_run  # every one of them was hit, each once
    assert equal(outcome(grow()), undisturbed)
    assert not list((run / "epochs").iterdir())
    assert not list(run.rglob(".new-*"))


def _folders(run: Path) -> set[Path]:
    return set(run.glob("*/[!.]*"))


def test_a_directory_that_cannot_be_written_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write to the run directory"):
        Store(tmp_path / "file")


# -- damage ----------------------------------------------------------------------------------------------------------


def flip(path: Path, at: float = 0.9) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * len(data))] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = {
    "a flipped bit in a tensor": lambda folder: flip(next(folder.glob("*.safetensors"))),
    "a flipped bit in a header": lambda folder: flip(next(folder.glob("*.safetensors")), 0.02),
    "a truncated tensor file": lambda folder: truncate(next(folder.glob("*.safetensors"))),
    "a missing tensor file": lambda folder: next(folder.glob("*.safetensors")).unlink(),
    "a truncated manifest": lambda folder: truncate(folder / "manifest.json"),
    "an empty manifest": lambda folder: (folder / "manifest.json").write_bytes(b""),
    "a manifest that is a list": lambda folder: (folder / "manifest.json").write_bytes(b"[]"),
    "a missing manifest": lambda folder: (folder / "manifest.json").unlink(),
    "a changed number in the manifest": lambda folder: _change_seconds(folder / "manifest.json"),
}


def _change_seconds(path: Path) -> None:
    manifest = json.loads(path.read_bytes())
    manifest["data"]["seconds"] += 1
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_stages_are_found_said_and_computed_again(grow, tmp_path, undisturbed, capsys, damage):
    outcome(grow())
    whole = stages_of(tmp_path / "run")
    for name in whole:
        DAMAGE[damage](tmp_path / "run" / "stages" / name)
    tree = grow()
    assert equal(outcome(tree), undisturbed)
    said = capsys.readouterr().err
    assert sum(tree.computed.values()) == len(whole)
    for name in whole:
        assert f"{name} is damaged and will be computed again" in said
    again = stages_of(tmp_path / "run")
    tensors = {(n, f): data for n, files in whole.items() for f, (data, _) in files.items() if f != "manifest.json"}
    assert {key: again[key[0]][key[1]][0] for key in tensors} == tensors


def test_stray_files_are_passed_over(grow, tmp_path, undisturbed, capsys):
    outcome(grow())
    run = tmp_path / "run"
    for folder in (run / "epochs", *(run / "stages").iterdir()):
        for name in (".DS_Store", ".nfs00a1", "more.safetensors"):
            (folder / name).write_bytes(b"")
    before = stages_of(run)
    tree = grow()
    assert equal(outcome(tree), undisturbed)
    assert not sum(tree.computed.values())
    assert stages_of(run) == before
    assert not capsys.readouterr().err


def test_a_stage_that_the_disk_does_not_give_is_kept(tmp_path, capsys):
    store, z = Store(tmp_path), torch.randn(50, 4)
    store.put("train", "a" * 64, {}, {"seconds": 1.0}, {"network": {"z": z}})
    before = stages_of(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))  # no file can be opened any more
    try:
        with pytest.raises(RunError) as told:
            store.get("train", "a" * 64)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert str(told.value).startswith(f"cannot read {tmp_path}/stages/train-aaaaaaaaaaaaaaaaaaaaaaaa/")
    assert "Too many open files. It may be whole: nothing was removed. Run the same command again." in str(told.value)
    assert stages_of(tmp_path) == before
    assert not capsys.readouterr().err
    assert torch.equal(store.get("train", "a" * 64)[1]["network"]["z"], z)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_in_one_kind_of_stage_costs_only_that_kind(grow, tmp_path, undisturbed, capsys, kind):
    outcome(grow())
    # The last read-outs are asked for first: only with these gone is anything below read again.
    for name in stages_of(tmp_path / "run"):
        folder = tmp_path / "run" / "stages" / name
        if name.startswith(f"{kind}-"):
            flip(next(folder.glob("*.safetensors")))
        elif name.startswith("readout-"):
            Store(tmp_path / "run").remove(name)
    tree = grow()
    assert equal(outcome(tree), undisturbed)
    assert {found for found, count in tree.computed.items() if count} <= {kind, "readout"}
    if kind != "root":  # nothing asks for the initial network while the trainings after it are whole
        assert tree.computed[kind]
        assert "is damaged" in capsys.readouterr().err


# -- epochs ----------------------------------------------------------------------------------------------------------


class Stop(BaseException):
    """Not an error that anybody catches."""


class StopAt(Reporter):
    """Stop a training after some epoch of some task."""

    def __init__(self, task: int, epoch: int) -> None:
        self.task, self.epoch = task, epoch

    @contextlib.contextmanager
    def training(self, label):
        def update(at):
            if (at.task, at.epoch) == (self.task, self.epoch):
                raise Stop

        yield update


@pytest.fixture
def steps(monkeypatch):
    """Count the steps of Adam."""
    count, real = [0], torch.optim.Adam.step

    def step(self, *args, **kwargs):
        count[0] += 1
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    return count


FOUR = Training(epochs=4, batch_size=16, images_per_class=8, learning_rate=3e-4)
TRAININGS = {
    "FT": Method(TRIPLET),
    "EWC": Method(TRIPLET, EWC(gamma=1e3)),
    "LwF": Method(TRIPLET, LwF()),
    "MAS": Method(TRIPLET, MAS(gamma=1.0)),
    "SI": Method(TRIPLET, SI()),
    "EWC and LwF": Method(TRIPLET, (EWC(gamma=1e3), LwF()), drift=SDC()),
    "Everything": Method(TRIPLET, exemplars=Everything()),
    "Softmax": Method(Softmax(), readout=MaxOverHeads()),
    "Softmax and LwF": Method(Softmax(), LwF(), readout=MaxOverHeads()),
}


@pytest.mark.parametrize("name", TRAININGS)
@pytest.mark.parametrize(("task", "epoch"), [(1, 2), (2, 1), (2, 3), (2, 4)])
def test_a_training_goes_on_after_its_last_finished_epoch(grow, tmp_path, steps, name, task, epoch):
    rows = {name: TRAININGS[name]}
    expected = outcome(grow(store=False, training=FOUR), rows)
    per_task = 4 * 2  # two batches per epoch
    if name != "Everything":
        assert steps[0] == 2 * per_task
    total, steps[0] = steps[0], 0
    with pytest.raises(Stop):
        grow(training=FOUR, reporter=StopAt(task, epoch)).run(rows)
    kept = [path.name for path in (tmp_path / "run" / "epochs").iterdir()]
    assert len(kept) == 1
    # The last epoch is not kept: its training is finished in the same breath.
    assert kept[0].endswith(f".{min(epoch, 3)}")
    first = steps[0]
    tree = grow(training=FOUR)
    assert equal(outcome(tree, rows), expected)
    again = 0 if epoch < 4 else (total - per_task) // 4 if task == 2 else per_task // 4
    assert steps[0] == total + again
    assert first < total or epoch == 4
    assert not list((tmp_path / "run" / "epochs").iterdir())


def narrow(method: Method) -> Method:
    """The same method with the fewest random units or filters: what is stored grows with their square, up to 300 MB."""
    if isinstance(method.readout, LiftedRidge):
        method = replace(method, readout=replace(method.readout, units=64))
    return replace(method, backbone="patches-100") if method.backbone.startswith("patches-") else method


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_named_method_survives_an_interrupt_bit_for_bit(grow, name):
    rows = {name: narrow(METHODS[name])}
    whole = grow(store=False)
    expected = outcome(whole, rows)
    if whole.trainings(rows):
        with contextlib.suppress(Stop):  # a method that trains the first task only is through
            grow(reporter=StopAt(2, 1)).run(rows)
    assert equal(outcome(grow(), rows), expected)
    assert equal(outcome(grow(), rows), expected)  # all of it from disk


def test_a_damaged_epoch_falls_back_to_the_beginning(grow, tmp_path, capsys, steps):
    rows = {"EWC": TRAININGS["EWC"]}
    expected = outcome(grow(store=False, training=FOUR), rows)
    with pytest.raises(Stop):
        grow(training=FOUR, reporter=StopAt(2, 2)).run(rows)
    (kept,) = (tmp_path / "run" / "epochs").iterdir()
    flip(kept / "optimizer.safetensors")
    steps[0] = 0
    assert equal(outcome(grow(training=FOUR), rows), expected)
    assert steps[0] == 8
    assert f"{kept.name} is damaged" in capsys.readouterr().err


def test_a_damaged_epoch_falls_back_to_the_one_before_if_that_is_still_there(grow, tmp_path, capsys, steps):
    """A kill between writing an epoch and dropping the one before leaves both."""
    rows = {"EWC": TRAININGS["EWC"]}
    expected = outcome(grow(store=False, training=FOUR), rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("protodrift.experiments.store.shutil.rmtree", lambda *args, **kwargs: None)
        with pytest.raises(Stop):
            grow(training=FOUR, reporter=StopAt(2, 3)).run(rows)
    kept = sorted((tmp_path / "run" / "epochs").iterdir(), key=lambda path: (path.name.split(".")[0], path.name))
    newest = [path for path in kept if path.name.endswith(".3") and "network.safetensors" in os.listdir(path)]
    for path in newest:
        truncate(path / "network.safetensors")
    steps[0] = 0
    assert equal(outcome(grow(training=FOUR), rows), expected)
    assert steps[0] == 4  # epochs 3 and 4 of the second task, two batches each
    assert "is damaged" in capsys.readouterr().err
    assert not list((tmp_path / "run" / "epochs").iterdir())


def test_epochs_of_a_training_that_is_finished_are_dropped_when_a_kill_left_them(grow, tmp_path, undisturbed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("protodrift.experiments.store.shutil.rmtree", lambda *args, **kwargs: None)
        grow().run(ROWS)
    assert list((tmp_path / "run" / "epochs").iterdir())
    assert equal(outcome(grow()), undisturbed)
    assert not list((tmp_path / "run" / "epochs").iterdir())


def test_an_epoch_of_other_settings_is_not_taken(grow, tmp_path, undisturbed):
    with pytest.raises(Stop):
        grow(training=FOUR, reporter=StopAt(2, 2)).run(ROWS)
    assert equal(outcome(grow()), undisturbed)


# -- what is there, what is missing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [1, 3])
def test_how_many_stages_are_held_in_memory_changes_nothing(grow, undisturbed, monkeypatch, held):
    monkeypatch.setattr(trees, "_CACHED", held)
    tree = grow()
    assert equal(outcome(tree), undisturbed)
    assert len(tree._memory) <= held
    assert equal(outcome(grow()), undisturbed)


def test_missing_counts_what_a_run_then_computes(grow):
    tree = grow()
    missing = kinds_of(tree.plan(ROWS))
    tree.run(ROWS)
    assert tree.computed == missing
    assert not tree.plan(ROWS)
    again = grow()
    assert not again.plan(ROWS)
    again.run(ROWS)
    assert not sum(again.computed.values())
    assert set(again.loaded) == {"readout"}


def test_missing_after_an_interrupt_counts_what_is_left(grow):
    whole = len(grow().plan(ROWS))
    with pytest.raises(Stop):
        grow(reporter=StopAt(2, 1)).run(ROWS)
    tree = grow()
    left = kinds_of(tree.plan(ROWS))
    assert 0 < sum(left.values()) < whole
    tree.run(ROWS)
    assert tree.computed == left


def test_a_recipe_costs_one_training_for_each_objective_and_penalty_and_one_first_task(digits):
    """All E-methods with and without SDC (and the oracle): E-FT, E-LwF, E-EWC, E-MAS; E-Joint keeps images."""
    recipe = get_recipe("digits")
    tree = Tree(recipe.stream(digits), training=recipe.training)
    # SI watches the path of its first task too, which is then its own.
    methods = {n: m for n, m in recipe.methods.items() if n.startswith("E-") and not n.startswith("E-SI")}
    pairs = {(m.objective, m.penalties) for m in methods.values() if m.exemplars is None and m.schedule.train == "all"}
    assert len(pairs) == 4
    later = len(recipe.stream(digits)) - 1
    without_joint = {name: method for name, method in methods.items() if name != "E-Joint"}
    assert len(without_joint) >= 14
    assert tree.trainings(without_joint) == len(pairs) * later + 1
    assert tree.trainings(methods) == (len(pairs) + 1) * later + 1
    assert kinds_of(tree.plan(methods))["train"] == tree.trainings(methods)


def test_that_many_trainings_are_really_computed(grow):
    rows = {}
    for name, penalty in {"FT": (), "LwF": LwF(), "EWC": EWC(gamma=1e3), "MAS": MAS(gamma=1.0)}.items():
        for drift in (None, SDC(), SDC(sigma=0.2), Oracle()):
            rows[f"E-{name}+{drift}"] = Method(TRIPLET, penalty, drift=drift)
    tree = grow()
    tree.run(rows)
    assert tree.computed["train"] == tree.trainings(rows) == 4 + 1


@pytest.mark.parametrize(
    "kinds", [("train",), ("embed",), ("train", "embed"), ("root", "train", "consolidate", "embed")]
)
def test_removed_stages_are_computed_again_only_when_they_are_needed(grow, tmp_path, undisturbed, kinds):
    outcome(grow())
    store = Store(tmp_path / "run")
    for stage in store.listing():
        if stage.kind in kinds:
            store.remove(stage.name)
    tree = grow()
    assert not tree.plan(ROWS)
    assert equal(without_losses(outcome(tree)), without_losses(undisturbed))
    assert not sum(tree.computed.values())
    more = {"E-EWC+oracle": Method(TRIPLET, EWC(gamma=1e3), drift=Oracle())}
    expected = outcome(grow(store=False), more)
    tree = grow()
    missing = kinds_of(tree.plan(more))
    assert equal(outcome(tree, more), expected)
    assert tree.computed == missing
    assert tree.computed["train"] == (2 if "train" in kinds else 0)
    assert equal(without_losses(outcome(grow())), without_losses(undisturbed))


def test_listing_shows_kind_and_size_and_disturbs_no_running_writer(grow, tmp_path):
    grow().run(ROWS)
    run = tmp_path / "run"
    draft = run / "stages" / ".new-train-0123"
    draft.mkdir()
    (draft / "network.safetensors").write_bytes(b"half")
    listed = list_stages(run)
    assert draft.exists()  # it belongs to a process at work
    assert {stage.kind for stage in listed} == set(KINDS)
    assert {stage.name: stage.bytes for stage in listed} == {
        name: sum(len(data) for data, _ in files.values()) for name, files in stages_of(run).items()
    }
    assert [stage.modified for stage in listed] == sorted(stage.modified for stage in listed)
    assert Store(run).listing() == listed
    assert not draft.exists()  # who makes a store holds the lock


def test_times_are_kept_with_the_stages(grow):
    first = {name: result.seconds for name, result in grow().run(ROWS).items()}
    assert all(seconds > 0 for seconds in first.values())
    again = {name: result.seconds for name, result in grow().run(ROWS).items()}
    assert again == pytest.approx(first)


def test_large_files_are_mapped_and_verified(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tensorfiles, "MAPPED", 1000)
    store, z = Store(tmp_path), torch.randn(500, 4)
    store.put("embed", "a" * 64, {}, {"seconds": 1.0}, {"embeddings": {"z": z}, "few": {"x": z[:2]}})
    held = store.get("embed", "a" * 64)
    assert torch.equal(held[1]["embeddings"]["z"], z)
    assert torch.equal(held[1]["few"]["x"], z[:2])
    file = next(tmp_path.glob("stages/*/embeddings.safetensors"))
    mapped = Path("/proc/self/maps").read_text()
    assert str(file) in mapped
    assert "few.safetensors" not in mapped
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.unlink()  # the mapped one stays as it was
    file.write_bytes(content)
    assert store.get("embed", "a" * 64) is None
    assert "damaged" in capsys.readouterr().err
    assert torch.equal(held[1]["embeddings"]["z"], z)
