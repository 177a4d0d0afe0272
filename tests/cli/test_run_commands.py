"""`run`, `runs`, `demo` as processes: a run, its disk use, Ctrl-C, and paths that cannot be used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

SMALL = ("--methods", "E-FT,E-FT+SDC", "--tasks", "2", "--set", "training.epoch=released")


@pytest.fixture
def small(command, tmp_path):
    """A small finished run."""
    done = command("run", "digits", *SMALL, "--set", "training.epochs=2", "--out", "runs/small")
    assert done.returncode == 0, done.stderr
    return tmp_path / "runs" / "small", done


def test_a_run_prints_its_table_and_writes_its_results(small, command):
    out, done = small
    document = json.loads((out / "results.json").read_bytes())
    assert [entry["method"] for entry in document["results"]] == ["E-FT", "E-FT+SDC"]
    assert document["command"].startswith("protodrift run digits --methods E-FT,E-FT+SDC")
    assert document["trainings"] == 2
    assert "E-FT+SDC" in done.stdout
    assert "2 methods x 2 tasks x 1 seeds rest on 2 trainings of a task" in done.stdout
    assert "results.json" in done.stdout
    # Plain lines where there is no terminal, and they say how far it is.
    assert "stages to compute, 2 of them trainings" in done.stderr
    assert "training 2/2" in done.stderr
    assert "\x1b" not in done.stderr + done.stdout


def test_the_same_command_again_computes_nothing_and_says_the_same(small, command):
    out, first = small
    before = json.loads((out / "results.json").read_bytes())
    again = command("run", "digits", *SMALL, "--set", "training.epochs=2", "--out", "runs/small")
    assert "0 stages to compute" in again.stderr
    assert again.stdout == first.stdout
    assert json.loads((out / "results.json").read_bytes())["results"] == before["results"]


def test_runs_ls_and_clean(small, command, fails):
    out, _ = small
    listed = command("runs", "ls").stdout
    assert "runs/small" in listed
    assert "finished" in listed
    assert "MB" in listed
    one = command("runs", "ls", "runs/small").stdout
    for kind in ("root", "train", "embed", "readout", "all"):
        assert f"\n{kind} " in f"\n{one}"
    results = (out / "results.json").read_bytes()
    files = sorted(out.rglob("*"))
    dry = command("runs", "clean", "runs/small", "--dry-run").stdout
    assert dry.startswith("would remove ")
    assert sorted(out.rglob("*")) == files
    assert command("runs", "clean", "runs/small", "--kind", "train", "--kind", "embed").stdout.startswith("removed 4 ")
    left = {path.name.split("-")[0] for path in (out / "stages").iterdir()}
    assert left == {"root", "readout"}
    assert (out / "results.json").read_bytes() == results
    # The read-outs are enough for the same table; one more estimator trains again.
    again = command("run", "digits", *SMALL, "--set", "training.epochs=2", "--out", "runs/small")
    assert "0 stages to compute" in again.stderr
    assert "Did you mean 'train'" in fails("runs", "clean", "runs/small", "--kind", "trian")
    assert command("runs", "clean", "runs/small").stdout.startswith("removed ")
    assert not list((out / "stages").iterdir())
    assert (out / "results.json").read_bytes()


def test_runs_without_runs(fails, tmp_path):
    assert "there are no runs at runs" in fails("runs", "ls")
    assert "there are no runs at" in fails("runs", "ls", tmp_path / "nowhere")
    assert "is not a run directory" in fails("runs", "clean", tmp_path)


def test_an_unknown_method_is_answered_with_the_nearest(fails):
    assert "Did you mean 'E-EWC+SDC'?" in fails("run", "digits", "--methods", "E-FT,E-EWC+SCD")


def test_more_tasks_than_classes(fails):
    assert "10 classes" in fails("run", "digits", "--tasks", "11")


def test_data_for_a_recipe_that_brings_its_own(fails):
    assert "drop --data" in fails("run", "digits", "--data", "photos")


def test_the_folder_recipe_leaves_out_damaged_images_if_asked_to(command, fails, tmp_path):
    pixels = np.random.RandomState(0)
    for name in "ab":
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(pixels.randint(0, 256, (40, 40, 3), np.uint8)).save(tmp_path / "photos" / name / f"{i}.png")
    (tmp_path / "photos" / "a" / "3.png").write_bytes(b"no image")
    args = ["run", "folder", "--data", "photos", "--tasks", "1", "--methods", "E-Pre", "--out", "run"]
    assert "3.png cannot be read as an image" in (told := fails(*args))
    assert "--skip-bad-images" in told
    done = command(*args, "--skip-bad-images")
    assert done.returncode == 0
    assert done.stderr.startswith("protodrift: warning: photos: 1 damaged or missing image was left out:\n")


def test_the_folder_recipe_asks_for_its_folder(fails, tmp_path):
    assert "--data DIR" in fails("run", "folder")
    assert "photos is not a folder" in fails("run", "folder", "--data", tmp_path / "photos")


@pytest.mark.parametrize("name", [("demo",), ("run", "digits")])
def test_a_place_that_cannot_be_written_fails_at_once(fails, tmp_path, name):
    (tmp_path / "file").write_text("mine")
    started = time.monotonic()
    for out in (tmp_path / "file", tmp_path / "file" / "below", "/proc/protodrift"):
        assert str(out) in fails(*name, "--out", out)
    assert time.monotonic() - started < 60  # not after the work
    assert (tmp_path / "file").read_text() == "mine"


def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(command, tmp_path):
    args = ("run", "digits", "--methods", "E-FT", "--tasks", "2", "--set", "training.epochs=3", "--out", "out")
    process = subprocess.Popen(
        [sys.executable, "-m", "protodrift", *args],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    epochs = tmp_path / "out" / "epochs"
    deadline = time.monotonic() + 120
    while not (epochs.is_dir() and any(not p.name.startswith(".") for p in epochs.iterdir())):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not out
    assert not list((tmp_path / "out").rglob(".*.new")) + list((tmp_path / "out").rglob(".new-*"))
    whole = command(*args[:-1], "whole")
    done = command(*args)
    assert (whole.returncode, done.returncode) == (0, 0), done.stderr
    results = [json.loads((tmp_path / name / "results.json").read_bytes())["results"] for name in ("out", "whole")]
    for entry in results[0] + results[1]:
        entry.pop("seconds")
    assert results[0] == results[1]


def test_ctrl_c_before_the_work_begins(tmp_path):
    """While torch is being imported, too."""
    process = subprocess.Popen(
        [sys.executable, "-m", "protodrift", "run", "digits", "--out", "out"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), err
    assert "Traceback" not in err or process.returncode == -signal.SIGINT, err


def test_a_file_that_show_printed_runs_with_a_sweep_and_a_device(command, fails, tmp_path):
    shown = command("show", "digits", "--toml", "--set", "tasks=2", "--set", "training.epoch=released")
    (tmp_path / "mine.toml").write_text(shown.stdout)
    swept = ("run", "mine.toml", "--methods", "E-FT+SDC", "--sweep", "drift.sigma=0.2,0.3", "--device", "cpu")
    done = command(*swept, "--out", "a")
    assert done.returncode == 0, done.stderr
    assert "rest on 2 trainings" in done.stdout
    plain = ("run", "digits", "--methods", "E-FT+SDC", "--tasks", "2", "--set", "training.epoch=released")
    assert command(*plain, "--out", "b").returncode == 0
    one, other = (json.loads((tmp_path / out / "results.json").read_bytes())["results"] for out in "ab")
    assert [entry["method"] for entry in one] == ["E-FT+SDC sigma=0.2", "E-FT+SDC sigma=0.3"]
    assert one[1]["accuracy_matrix"] == other[0]["accuracy_matrix"]
    assert one[1]["trainings"] == other[0]["trainings"]
    assert "device 'gpu' cannot be used" in fails("run", "digits", "--device", "gpu")
