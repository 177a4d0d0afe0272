"""`protodrift watch`: a camera's folder, answered photo by photo."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from protodrift.cli import main
from tests.cli.conftest import ENVIRONMENT
from tests.cli.photo_models import frozen_model, photos

ONCE = ("--settle", "0", "--every", "0", "--stop-after", "0")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    root = tmp_path_factory.mktemp("watch")
    return frozen_model(root / "birds", photos(root / "first", "red", "green", "blue"))


@pytest.fixture
def run(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "camera", "red", "blue", count=2, seed=7)

    def call(*args):
        status = main(["watch", str(model), *map(str, args)])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out, said.err

    return call


def test_what_is_there_is_answered_and_a_bad_photo_stops_nothing(run, tmp_path):
    (tmp_path / "camera" / "red" / "bad.png").write_bytes(b"x")
    status, out, err = run("camera", "--no-unknown", *ONCE)
    assert status == 0
    answers = [json.loads(line) for line in out.splitlines()]
    assert [one["file"] for one in answers] == [
        "blue/7-0.png", "blue/7-1.png", "red/7-0.png", "red/7-1.png", "red/bad.png",
    ]  # fmt: skip
    assert [one["class"] for one in answers[:4]] == ["blue", "blue", "red", "red"]
    assert "cannot be read as an image" in answers[4]["error"]
    assert all(one["version"] == 1 and one["bytes"] > 0 for one in answers)
    assert "4 photos answered, 1 could not be read" in err


@pytest.mark.parametrize("name", ["seen.csv", "seen.jsonl"])
def test_a_restart_does_not_answer_twice_if_asked_to_resume(run, tmp_path, name):
    odd = tmp_path / "camera" / 'a,\n"b\udcff.png'
    shutil.copy(tmp_path / "camera" / "red" / "7-0.png", odd)
    assert run("camera", "--out", name, *ONCE)[0] == 0
    file = tmp_path / name
    before = file.read_bytes()
    status, _, err = run("camera", "--out", name, *ONCE)
    assert (status, "seen" in err, "Add --resume" in err) == (1, True, True)
    assert file.read_bytes() == before
    file.write_bytes(before + b'{"file": "hal')  # stopped in the middle of a line
    assert run("camera", "--out", name, "--resume", *ONCE)[0] == 0
    assert file.read_bytes() == before
    shutil.copy(tmp_path / "camera" / "red" / "7-0.png", tmp_path / "camera" / "new.png")
    assert "1 photo answered" in run("camera", "--out", name, "--resume", *ONCE)[2]
    after = file.read_bytes()
    assert after.startswith(before)
    if name.endswith(".csv"):
        rows = list(csv.DictReader(after.decode().splitlines()))
        assert rows[-1]["best"] == "red"
    else:
        rows = [json.loads(line) for line in after.decode().splitlines()]
    assert [row["file"] for row in rows].count("new.png") == 1
    assert len(rows) == 6


def test_a_file_of_somebody_else_is_left_alone(run, tmp_path):
    for name, content in (("notes.csv", b"my,own\n1,2\n"), ("notes.jsonl", b"dear diary\n")):
        (tmp_path / name).write_bytes(content)
        status, _, err = run("camera", "--out", name, "--resume", *ONCE)
        assert (status, "is not what `protodrift watch` wrote" in err) == (1, True)
        assert (tmp_path / name).read_bytes() == content
    assert "--resume needs --out FILE" in run("camera", "--resume")[2]
    assert "nowhere is not a folder" in run("nowhere")[2]


def test_photos_are_answered_as_they_appear_and_by_the_newest_version(model, tmp_path):
    own = tmp_path / "birds"
    shutil.copytree(model, own)
    camera = photos(tmp_path / "camera", "red", count=1)
    watching = subprocess.Popen(
        [sys.executable, "-m", "protodrift", "watch", own, camera, "--settle", "0.1", "--every", "0.1", "--no-unknown"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert watching.stdout is not None
    try:
        assert json.loads(watching.stdout.readline())["best"] == "red"
        photos(tmp_path / "second", "white", seed=1)
        assert main(["learn", str(own), str(tmp_path / "second"), "--quiet"]) == 0
        shutil.copy(tmp_path / "second" / "white" / "1-0.png", camera / "later.png")
        one = json.loads(watching.stdout.readline())
        assert (one["file"], one["best"], one["version"]) == ("later.png", "white", 2)
        time.sleep(0.2)
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=60)
        assert (watching.returncode, "2 photos answered" in err) == (0, True)
        assert "Traceback" not in err
    finally:
        watching.kill()
