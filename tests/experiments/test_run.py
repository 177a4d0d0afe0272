"""Run directories: what belongs together goes on, what does not is refused, two writers do not meet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protodrift.errors import InputError, RunError
from protodrift.experiments import run as runs
from protodrift.experiments.recipes import get_recipe, with_settings

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
FIELDS = {
    "accuracy_matrix",
    "average_accuracy",
    "overall_accuracy",
    "average_forgetting",
    "mean_incremental_accuracy",
    "new_task_accuracy",
    "confusion",
    "prototype_distance",
    "seconds",
    "bytes_stored",
}


@pytest.fixture
def recipe():
    """Digits in three tasks, a few steps each."""
    small = with_settings(get_recipe("digits"), {"tasks": "3", "training.epoch": "released", "training.epochs": "2"})
    return small.only(["E-FT", "E-FT+SDC"])


def computed(run: Path) -> set[str]:
    return {path.name for path in (run / "stages").iterdir()}


# -- what is written --------------------------------------------------------------------------------------------------


def test_results_hold_everything_that_a_table_or_figure_needs(recipe, tmp_path):
    document = runs.run(recipe, tmp_path / "run", seeds=(0, 3), command="protodrift run digits")
    assert json.loads((tmp_path / "run" / "results.json").read_bytes()) == document
    assert runs.read_results(tmp_path / "run") == runs.read_results(tmp_path / "run" / "results.json") == document
    assert document["command"] == "protodrift run digits"
    assert document["split"] == "4 + 2x3"
    assert [len(task) for task in document["tasks"]] == [4, 3, 3]
    assert sorted(label for task in document["tasks"] for label in task) == list(range(10))
    assert document["trainings"] == 2 * 3
    assert {"protodrift", "commit", "torch", "python", "threads"} <= set(document["environment"])
    assert [(e["method"], e["seed"]) for e in document["results"]] == [
        ("E-FT", 0),
        ("E-FT+SDC", 0),
        ("E-FT", 3),
        ("E-FT+SDC", 3),
    ]
    for entry in document["results"]:
        assert set(entry) >= FIELDS
        acc = entry["accuracy_matrix"]
        assert [[value is None for value in row] for row in acc] == [
            [False, True, True],
            [False, False, True],
            [False] * 3,
        ]
        assert entry["average_forgetting"][0] is None
        assert None not in entry["average_forgetting"][1:]
        assert entry["new_task_accuracy"] == [acc[k][k] for k in range(3)]
        assert entry["average_accuracy"] == pytest.approx([np.mean(acc[k][: k + 1]) for k in range(3)])
        assert entry["mean_incremental_accuracy"] == pytest.approx(np.mean(entry["average_accuracy"]))
        assert np.array(entry["confusion"]).shape == (10, 10)
        assert np.array(entry["confusion"]).sum() == sum(entry["test_counts"])
        assert [sum(v is not None for v in row) for row in entry["prototype_distance"]] == [4, 7, 10]
        assert entry["seconds"] > 0
        assert entry["bytes_stored"] == 10 * 512 * 4  # ten prototypes in float32


def test_what_made_the_results_is_beside_them(recipe, tmp_path):
    runs.run(recipe, tmp_path / "run")
    document = json.loads((tmp_path / "run" / "run.json").read_bytes())
    assert list(document["rows"]) == ["E-FT", "E-FT+SDC"]
    identity = document["identity"]
    assert identity["training"]["epochs"] == 2
    assert identity["class_order"] == recipe.class_order
    assert "torch" in document["environment"]


# -- going on -----------------------------------------------------------------------------------------------------


def without_seconds(document) -> list[dict]:
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in document["results"]]


def test_methods_and_seeds_added_later_reuse_what_is_there(recipe, tmp_path):
    out = tmp_path / "run"
    whole = get_recipe("digits").only(["E-FT", "E-FT+SDC", "E-FT+oracle", "E-LwF"])
    whole = replace(recipe, rows=whole.rows)
    first = runs.run(replace(whole, rows=whole.rows[:1]), out)
    had = computed(out)
    more = runs.run(whole, out)
    assert had < computed(out)
    # E-FT's trainings serve its other rows; only E-LwF trains tasks 2 and 3.
    new = [name for name in computed(out) - had if name.startswith("train-")]
    assert len(new) == 2
    assert without_seconds(more)[0] == without_seconds(first)[0]
    had = computed(out)
    seeds = runs.run(whole, out, seeds=(0, 1))
    assert without_seconds(seeds)[:4] == without_seconds(more)
    assert len(computed(out)) == 2 * len(had)
    fresh = runs.run(whole, tmp_path / "fresh", seeds=(0, 1))
    assert without_seconds(fresh) == without_seconds(seeds)
    assert computed(tmp_path / "fresh") == computed(out)


def test_the_class_order_is_not_the_training_seed(recipe, tmp_path):
    one = runs.run(recipe, tmp_path / "a", seeds=(0, 1))
    assert one["results"][0]["classes"] == one["results"][2]["classes"]
    assert one["results"][0]["accuracy_matrix"] != one["results"][2]["accuracy_matrix"]
    other = runs.run(replace(recipe, class_order=7), tmp_path / "b")
    assert other["tasks"] != one["tasks"]


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"training.epochs": "3"}, "training"),
        ({"class_order": "4"}, "class_order"),
        ({"tasks": "2"}, "tasks"),
        ({"embedding_dim": "64"}, "network"),
        ({"sigma": "0.1"}, r"method 'E-FT\+SDC'"),
    ],
)
def test_a_run_directory_of_another_configuration_is_refused_naming_the_difference(recipe, tmp_path, settings, named):
    out = tmp_path / "run"
    runs.run(recipe, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(RunError, match=named) as error:
        runs.run(with_settings(recipe, settings), out)
    assert "Choose another --out" in str(error.value)
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_directory_of_another_recipe_is_refused(recipe, tmp_path):
    runs.run(recipe, tmp_path / "run")
    with pytest.raises(RunError, match="holds a run with"):
        runs.run(get_recipe("digits-2d"), tmp_path / "run")


def test_a_run_directory_of_a_newer_version_is_refused(recipe, tmp_path):
    out = tmp_path / "run"
    runs.run(recipe, out)
    path = out / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "format_version": 99}))
    with pytest.raises(RunError, match=r"another version of protodrift \(format 99\)"):
        runs.run(recipe, out)
    path = out / "results.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "format_version": 99}))
    with pytest.raises(RunError, match="format version 99"):
        runs.read_results(out)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\x00"])
def test_a_damaged_run_json_is_written_anew_and_loses_no_stage(recipe, tmp_path, content):
    out = tmp_path / "run"
    first = runs.run(recipe, out)
    had = {path: path.stat().st_mtime_ns for path in (out / "stages").rglob("*")}
    (out / "run.json").write_bytes(content)
    assert without_seconds(runs.run(recipe, out)) == without_seconds(first)
    assert {path: path.stat().st_mtime_ns for path in (out / "stages").rglob("*")} == had
    assert json.loads((out / "run.json").read_bytes())["format"] == "protodrift-run"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\x00"])
def test_damaged_results_are_explained(tmp_path, content):
    with pytest.raises(RunError, match="holds no finished run"):
        runs.read_results(tmp_path)
    (tmp_path / "results.json").write_bytes(content)
    with pytest.raises(RunError, match="results"):
        runs.read_results(tmp_path)


def test_out_is_a_file_or_somebody_elses_folder(recipe, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="is a file"):
        runs.run(recipe, tmp_path / "file")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    with pytest.raises(RunError, match=r"not a run directory \(it holds thesis.tex\)"):
        runs.run(recipe, tmp_path / "home")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.tex"]
    with pytest.raises(RunError, match="cannot use the run directory"):
        runs.run(recipe, tmp_path / "file" / "below")


# -- two processes ------------------------------------------------------------------------------------------------


def protodrift(tmp_path, *args) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "protodrift", *args]
    return subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )


def test_two_processes_on_one_run_directory(tmp_path):
    """The second is told so, the first comes through unharmed; looking is allowed."""
    args = ["run", "digits", "--methods", "E-FT", "--tasks", "2", "--set", "training.epochs=3", "--out", "run"]
    command = [sys.executable, "-m", "protodrift", *args]
    first = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "run").glob("epochs/train-*")):
            assert first.poll() is None, first.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        first.send_signal(signal.SIGSTOP)  # so that it is in the middle of its work for as long as the others look
        second = protodrift(tmp_path, *args)
        clean = protodrift(tmp_path, "runs", "clean", "run")
        looked = protodrift(tmp_path, "runs", "ls", "run")
        first.send_signal(signal.SIGCONT)
        first.communicate(timeout=120)
    finally:
        first.kill()
    for refused in (second, clean):
        assert refused.returncode == 1
        assert refused.stderr.startswith("protodrift: error: another process is writing to run")
        assert not refused.stdout
    assert looked.returncode == 0
    assert "root" in looked.stdout
    assert first.returncode == 0
    recipe = with_settings(get_recipe("digits"), {"tasks": "2", "training.epochs": "3"}).only(["E-FT"])
    assert without_seconds(runs.read_results(tmp_path / "run")) == without_seconds(runs.run(recipe, tmp_path / "alone"))


# -- a folder of images -----------------------------------------------------------------------------------------------


def photos(folder: Path, classes: int = 4, count: int = 10) -> Path:
    """Make noisy patterns, one per class."""
    for c in range(classes):
        rng = np.random.RandomState(c)
        pattern = rng.randint(0, 256, (16, 16, 3))
        (folder / f"bird{c}").mkdir(parents=True)
        for i in range(count):
            image = np.clip(pattern + rng.randint(-60, 60, pattern.shape), 0, 255).astype(np.uint8)
            Image.fromarray(image).save(folder / f"bird{c}" / f"{i}.png")
    return folder


def test_the_folder_recipe_from_end_to_end(tmp_path):
    photos(tmp_path / "photos")
    args = ["run", "folder", "--data", "photos", "--tasks", "2", "--methods", "E-FT,E-FT+SDC", "--seeds", "0,1"]
    args += ["--set", "training.epochs=1", "--set", "size=16", "--set", "backbone=resnet32", "--out", "run"]
    args += ["--set", "weights=null"]
    done = subprocess.run(
        [sys.executable, "-m", "protodrift", *args],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = runs.read_results(tmp_path / "run")
    assert document["recipe"] == "folder"
    assert sorted(label for task in document["tasks"] for label in task) == [f"bird{c}" for c in range(4)]
    assert len(document["results"]) == 4
    assert document["results"][0]["test_counts"] == [4, 4]  # a fifth of ten images of two classes
    assert len({tuple(entry["classes"]) for entry in document["results"]}) == 1


def test_a_data_folder_that_cannot_be_used(tmp_path):
    recipe = get_recipe("folder")
    with pytest.raises(InputError, match="is not a folder"):
        runs.run(recipe, tmp_path / "run", data=tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no class folders"):
        runs.run(recipe, tmp_path / "run", data=tmp_path / "empty")
    (tmp_path / "empty" / "owl").mkdir()
    with pytest.raises(InputError, match="no image"):
        runs.run(recipe, tmp_path / "run", data=tmp_path / "empty")
    with pytest.raises(InputError, match="one class, 'bird0'"):
        runs.run(recipe, tmp_path / "run", data=photos(tmp_path / "one", classes=1))
    with pytest.raises(InputError, match="classes"):
        runs.run(recipe, tmp_path / "run", data=photos(tmp_path / "few", classes=3))
    with pytest.raises(InputError, match="--data DIR"):
        runs.run(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()  # nothing is made before the data is known to be good
    with pytest.raises(InputError, match="drop --data"):
        runs.run(get_recipe("digits"), tmp_path / "run", data=tmp_path / "few")
