"""`protodrift predict`: answers as they come, photos sorted into folders, one bad photo among good ones."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import pytest

from protodrift.cli import main
from tests.cli.conftest import ENVIRONMENT
from tests.cli.photo_models import frozen_model, photos
from tests.model.directories import files_of


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    root = tmp_path_factory.mktemp("predict")
    return frozen_model(root / "birds", photos(root / "first", "red", "green", "blue"))


@pytest.fixture
def run(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "new", "red", "green", "gray", count=3, seed=5)
    (tmp_path / "new" / "red" / "broken.png").write_bytes(b"x")

    def call(*args):
        status = main(["predict", str(model), *map(str, args)])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out, said.err

    return call


def test_photos_are_copied_by_class_and_unknown_ones_apart(run, tmp_path):
    before = files_of(tmp_path / "new")
    status, out, err = run("new", "--sort-into", "sorted", "--json")
    assert status == 0
    answers = [one for one in json.loads(out) if "error" not in one]
    assert len(answers) == 9
    for one in answers:
        folder = "unknown" if one["unknown"] else one["class"]
        assert one["sorted_into"].startswith(f"sorted/{folder}/")
        assert (tmp_path / one["sorted_into"]).read_bytes() == (tmp_path / one["file"]).read_bytes()
    assert files_of(tmp_path / "new") == before
    assert "9 photos answered" in err
    assert "1 could not be read" in err
    again = files_of(tmp_path / "sorted")
    assert run("new", "--sort-into", "sorted")[0] == 0
    assert files_of(tmp_path / "sorted") == again  # the same photos are not copied twice


def test_photos_are_moved_if_asked_and_bad_ones_stay(run, tmp_path):
    assert run("new", "--sort-into", "sorted", "--move", "--no-unknown", "--csv")[0] == 0
    assert list(files_of(tmp_path / "new")) == ["red/broken.png"]
    assert len(files_of(tmp_path / "sorted")) == 9
    assert not (tmp_path / "sorted" / "unknown").exists()


def test_sorting_that_cannot_work_is_refused_before_the_work(run, tmp_path):
    before = files_of(tmp_path)
    assert "give --sort-into DIR too" in run("new", "--move")[2]
    assert "lies in new, whose photos are to be sorted" in run("new", "--sort-into", "new/sorted")[2]
    assert files_of(tmp_path) == before


def test_every_form_names_the_best_class_beside_unknown(run, tmp_path):
    answers = json.loads(run("new", "--json")[1])
    lines = [json.loads(line) for line in run("new", "--jsonl")[1].splitlines()]
    assert lines == answers
    rows = list(csv.DictReader(io.StringIO(run("new", "--csv")[1])))
    for one, row in zip(answers, rows, strict=True):
        if "error" in one:
            assert row["error"] == one["error"]
            continue
        assert row["best"] == one["best"] == one["top"][0]["class"]
        assert row["class"] == ("unknown" if one["unknown"] else one["best"])
        assert one["class"] == (None if one["unknown"] else one["best"])
    out = run("new")[1]
    assert "9 photos answered" in out
    assert "1 could not be read" in out


def test_answers_come_before_the_last_photo_is_asked_for(model, tmp_path):
    """With a reader that stops after the first lines, the others are never answered: they were not waited for."""
    photos(tmp_path / "many", "red", count=70)
    (tmp_path / "list").write_text("\n".join(map(str, sorted((tmp_path / "many").rglob("*.png")))))
    with (tmp_path / "list").open() as names:
        done = subprocess.Popen(
            [sys.executable, "-c", SLOW, str(model), "-", "--jsonl", "--quiet"],
            stdin=names,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
    assert done.stdout is not None
    first = [json.loads(done.stdout.readline()) for _ in range(64)]
    assert [one["best"] for one in first] == ["red"] * 64
    done.stdout.close()
    assert done.wait(timeout=300) == 0


SLOW = """
import sys, time
from protodrift.cli import main
from protodrift.model import answers

real, calls = answers.answers_of, []

def waiting(*args, **kwargs):
    if calls:
        time.sleep(1)  # long enough for the reader to have gone
    calls.append(1)
    return real(*args, **kwargs)

answers.answers_of = waiting
sys.exit(main(["predict", *sys.argv[1:]]))
"""
