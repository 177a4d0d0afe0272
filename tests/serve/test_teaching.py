"""Teaching over HTTP: every job is a version or nothing, several people at once, undo, tokens."""

from __future__ import annotations

import shutil
import threading
import time

import numpy as np
import pytest
import torch

from protodrift import IncrementalClassifier, Schedule
from protodrift.common import files
from protodrift.data.examples import Examples
from protodrift.data.folder import photo_spec
from protodrift.errors import InputError
from protodrift.model import versions
from protodrift.model.learn import locked_model
from protodrift.serve.teaching import Job, _Reported, class_name

TOKEN = {"Authorization": "Bearer a-very-secret-token-of-ours"}


@pytest.fixture(scope="module")
def frozen(tmp_path_factory, make_classifier, colors):
    """A model whose network is left as it is, with two classes."""
    path = tmp_path_factory.mktemp("frozen") / "patterns"
    images, labels = colors(0, 1)
    clf = make_classifier(schedule=Schedule(train="none"), drift=None, held_out=0.2, temperature="auto")
    clf.partial_fit(images, np.array([f"pattern {label}" for label in labels])).save(path)
    return path


@pytest.fixture
def taught(frozen, tmp_path, serve):
    """A server that can be taught; its model is a copy."""
    path = tmp_path / "model"
    shutil.copytree(frozen, path)
    with serve(path, write_token="a-very-secret-token-of-ours") as client:
        client.path = path
        yield client


@pytest.fixture
def photos(colors, as_png):
    return lambda label, count=5: [as_png(one) for one in colors(label, count=count)[0]]


def finished(client, number):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        job = next(one for one in client.get("/jobs")[1]["jobs"] if one["number"] == number)
        if job["state"] in ("done", "failed"):
            return job
        time.sleep(0.02)
    raise AssertionError("it takes too long")


def teach(client, name, files):
    status, body = client.post(f"/teach?class={name}", *files, **TOKEN)
    assert status == 202, body
    return finished(client, body["job"]["number"])


def asked(client, files):
    return client.post("/predict?always_name=true", *files)[1]["predictions"]


def test_a_class_is_taught_and_known_when_its_job_is_done(taught, photos):
    before = [one["class"] for one in asked(taught, photos(0) + photos(1))]
    job = teach(taught, "new%20one", photos(2))
    assert (job["state"], job["class"], job["images"], job["version"]) == ("done", "new one", 5, 2)
    assert [one["class"] for one in asked(taught, photos(2))].count("new one") >= 4  # the network knows nothing
    assert [one["class"] for one in asked(taught, photos(0) + photos(1))] == before  # nothing is forgotten
    kept = IncrementalClassifier.load(taught.path)
    assert kept.tasks_[-1].source == "the page"
    assert set(kept.classes_) == {"pattern 0", "pattern 1", "new one"}


def test_it_is_what_learning_in_python_gives(taught, frozen, photos, colors):
    teach(taught, "new", photos(2))
    images = colors(2, count=5)[0]
    clf = IncrementalClassifier.load(frozen).partial_fit(images, np.array(["new"] * 5))
    assert np.array_equal(IncrementalClassifier.load(taught.path).prototypes_, clf.prototypes_)


def test_a_correction_and_its_undo(taught, photos):
    stranger = photos(3, count=1)
    first = asked(taught, stranger)[0]
    job = teach(taught, "pattern%203", stranger)
    assert asked(taught, stranger)[0]["class"] == "pattern 3"
    status, body = taught.post(f"/undo?version={job['version']}", **TOKEN)
    assert status == 202
    assert finished(taught, body["job"]["number"])["state"] == "done"
    assert asked(taught, stranger)[0] == first
    again = taught.post(f"/undo?version={job['version']}", **TOKEN)[1]["job"]["number"]
    job = finished(taught, again)
    assert (job["state"], "not the newest any more" in job["why"]) == ("failed", True)


def test_more_photos_of_a_known_class_are_added_to_it(taught, photos):
    before = {one["class"]: one["images"] for one in taught.get("/classes")[1]["classes"]}
    job = teach(taught, "pattern%200", photos(0, count=3))
    assert job["state"] == "done", job
    after = {one["class"]: one["images"] for one in taught.get("/classes")[1]["classes"]}
    assert after == {**before, "pattern 0": before["pattern 0"] + 3}


def test_people_who_teach_at_once_lose_nothing(taught, photos, colors):
    jobs = []

    def person(label):
        client = taught.__class__(taught.port)
        jobs.append(teach(client, f"class%20{label}", photos(label)))

    people = [threading.Thread(target=person, args=(label,)) for label in range(2, 8)]
    for one in people:
        one.start()
    for one in people:
        one.join()
    assert {job["state"] for job in jobs} == {"done"}
    assert sorted(job["version"] for job in jobs) == [2, 3, 4, 5, 6, 7]  # every change is a version
    known = IncrementalClassifier.load(taught.path)
    assert set(known.classes_) == {"pattern 0", "pattern 1", *(f"class {label}" for label in range(2, 8))}
    for label in range(2, 8):
        assert asked(taught, photos(label, count=1))[0]["class"] == f"class {label}"


def test_a_writer_beside_the_server_is_waited_for(taught, photos):
    with locked_model(taught.path):
        number = taught.post("/teach?class=new", *photos(2), **TOKEN)[1]["job"]["number"]
        time.sleep(0.5)
        assert taught.get("/jobs")[1]["jobs"][0]["state"] == "learning"
    assert finished(taught, number)["state"] == "done"


def test_writing_needs_the_token_and_is_off_unless_asked_for(taught, serve, frozen, photos):
    for wrong in ({}, {"Authorization": "Bearer wrong"}):
        assert taught.post("/teach?class=x", *photos(2), **wrong)[0] == 401
        assert taught.post("/undo?version=1", **wrong)[0] == 401
    assert taught.post("/predict", *photos(2))[0] == 200  # asking does not
    assert taught.post("/teach?class=x", *photos(2), **TOKEN, Origin="https://evil.example")[0] == 403
    assert b"data-teaches" in taught.get("/")[1]
    with serve(frozen) as client:
        assert client.post("/teach?class=x", *photos(2), **TOKEN)[0] in (404, 405)
        assert client.post("/undo?version=1", **TOKEN)[0] in (404, 405)
        assert client.get("/jobs")[0] == 404
        assert b"data-teaches" not in client.get("/")[1]


def test_names_and_photos_that_cannot_be_used(taught, photos):
    for name in ("", "%20", "a%00b", "x" * 101, "%E2%80%AE"):
        assert taught.post(f"/teach?class={name}", *photos(2), **TOKEN)[0] == 422, name
    assert taught.post("/teach?class=x", b"no image", **TOKEN)[0] == 422
    status, body = taught.post("/teach?class=x", b"no image", *photos(2), **TOKEN)
    assert (status, body["job"]["images"], [one["file"] for one in body["errors"]]) == (202, 5, ["0.png"])
    assert finished(taught, body["job"]["number"])["state"] == "done"
    with pytest.raises(InputError, match="a name of 1 to 100"):
        class_name("\n")


def test_a_job_that_fails_changes_nothing(taught, photos, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    before = versions.read_current(taught.path)
    with monkeypatch.context() as patch:
        patch.setattr(files, "replace_file", full)  # as CURRENT is written
        job = teach(taught, "x", photos(2))
    assert (job["state"], "No space left" in job["why"]) == ("failed", True)
    assert str(taught.path) not in job["why"]
    assert versions.read_current(taught.path) == before
    assert teach(taught, "x", photos(2))["state"] == "done"


def test_no_photo_is_stored(taught, photos, colors):
    images = colors(2, count=5)[0]
    teach(taught, "new", photos(2))
    for file in taught.path.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert all(one.tobytes() not in data for one in images)
            assert all(one.transpose(2, 0, 1).tobytes() not in data for one in images)


def test_where_a_picture_is_on_the_map(taught, photos):
    mapped, model = taught.get("/map")[1], IncrementalClassifier.load(taught.path)
    places = np.array([one["place"] for one in asked(taught, photos(0, count=12))])
    row = mapped["classes"].index("pattern 0")
    center = np.array([mapped["steps"][-1]["x"][row], mapped["steps"][-1]["y"][row]])
    assert np.isfinite(places).all()
    spread = np.linalg.norm(model.prototypes_[0] - model.prototypes_[1])
    assert np.linalg.norm(places.mean(axis=0) - center) < spread


def test_a_network_that_trains_learns_what_waits_as_one_task_and_shows_epochs(
    serve, saved, tmp_path, photos, monkeypatch
):
    path = tmp_path / "model"
    shutil.copytree(saved, path)
    with serve(path, write_token="a-very-secret-token-of-ours") as client:
        with locked_model(path):  # all wait meanwhile: the first for the lock, the others behind it
            numbers = [
                client.post(f"/teach?class={name}", *photos(label, count=8), **TOKEN)[1]["job"]["number"]
                for name, label in (("5", 5), ("6", 6), ("7", 7), ("word", 8), ("0", 0))
            ]
        jobs = [finished(client, number) for number in numbers]
        assert [job["state"] for job in jobs] == ["done", "done", "done", "failed", "done"], jobs
        assert [job["class"] for job in jobs] == [5, 6, 7, "word", 0]  # labels are whole numbers here
        assert set(IncrementalClassifier.load(path).classes_) == {0, 1, 2, 3, 5, 6, 7}
        with locked_model(path):
            numbers = [
                client.post(f"/teach?class={label}", *photos(label, count=8), **TOKEN)[1]["job"]["number"]
                for label in (9, 10, 11)
            ]
        jobs = [finished(client, number) for number in numbers]
        assert {job["state"] for job in jobs} == {"done"}
        # At least two of them waited together, trained the network, and are one version.
        shared = [job for job in jobs if [one["version"] for one in jobs].count(job["version"]) > 1]
        assert shared
        assert all(job["epoch"] == job["epochs"] > 0 for job in shared)


def test_a_training_ends_with_the_server(make_classifier, colors):
    clf, job, stopped = make_classifier(), Job(1, "teach", "x", 24), []
    images, labels = colors(0, 1)
    examples = Examples(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), tuple(labels.tolist()))
    with _Reported([job], lambda: bool(stopped)).training("x") as on_progress:
        clf.learned_from(None, photo_spec(16), examples, on_progress=on_progress)
    assert job.epoch == job.epochs > 0
    stopped.append(True)
    with (
        pytest.raises(InputError, match="the server stopped"),
        _Reported([job], lambda: bool(stopped)).training("x") as on_progress,
    ):
        clf.learned_from(None, photo_spec(16), examples, on_progress=on_progress)
