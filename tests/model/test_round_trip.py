"""What is saved comes back bit for bit, and learning goes on from it bit for bit."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses
from torch import nn

from protodrift import EWC, Everything, IncrementalClassifier, LwF, Training, Triplet
from protodrift.errors import InputError, ModelFileError
from protodrift.exemplars import Herding
from protodrift.objectives import MetricLoss, SigmoidHeads, Softmax
from protodrift.readouts import MaxOverClasses, MaxOverHeads
from tests.model.directories import files_of

load = IncrementalClassifier.load


def test_what_is_saved_comes_back_bit_for_bit(two_tasks, task_of, tmp_path, same):
    X, _ = task_of(0, 1, 2, 3, test=True)
    assert two_tasks.save(tmp_path / "m") == tmp_path / "m"
    loaded = load(tmp_path / "m")
    assert same(loaded, two_tasks)
    assert np.array_equal(loaded.predict(X), two_tasks.predict(X))
    assert np.array_equal(loaded.predict_proba(X), two_tasks.predict_proba(X))
    assert np.array_equal(loaded.prototypes_, two_tasks.prototypes_)
    assert np.array_equal(loaded.classes_, two_tasks.classes_)
    assert loaded.classes_.dtype == two_tasks.classes_.dtype
    assert loaded.drift_.distances == two_tasks.drift_.distances
    assert loaded.tasks_ == two_tasks.tasks_
    assert loaded.get_params() == two_tasks.get_params()


@pytest.mark.parametrize(
    ("name", "vectors_only"),
    [
        ("E-FT+SDC", False),
        ("E-EWC+SDC", False),
        ("E-MAS", False),
        ("E-LwF", False),
        ("E-Fix", True),
        ("E-MAS+SDC", True),
    ],
)
def test_load_then_continue_is_bit_identical_to_never_having_saved(
    name, vectors_only, task_of, vectors, tmp_path, same
):
    data = vectors if vectors_only else task_of
    tasks = [("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")] if vectors_only else [(0, 1), (2, 3), (4, 5), (6, 7)]
    training = Training(epochs=2, batch_size=16, images_per_class=8)
    clf = IncrementalClassifier.from_method(name, training=training, embedding_dim=8, objective=Triplet(margin=2.0))
    for task in tasks[:2]:
        clf.partial_fit(*data(*task))
    clf.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    for task in tasks[2:]:
        clf.partial_fit(*data(*task))
        loaded.partial_fit(*data(*task))
        assert same(loaded, clf)


@pytest.mark.parametrize(
    "name",
    [
        "E-FT+SDC",
        "E-EWC+SDC",
        "E-LwF",
        "E-MAS",
    ],
)
@pytest.mark.parametrize("backbone", ["convnet", "resnet32"])
def test_color_images_continue_bit_for_bit_too(name, backbone, colors, tmp_path, same):
    # With one channel the memory layouts coincide; only color images show whether a loaded model has the right one.
    training = Training(epochs=1, batch_size=16, images_per_class=8)
    options = {"training": training, "embedding_dim": 8, "objective": Triplet(margin=2.0), "backbone": backbone}
    clf = IncrementalClassifier.from_method(name, **options)
    clf.partial_fit(*colors(0, 1)).partial_fit(*colors(2, 3))
    loaded = load(clf.save(tmp_path / "m"))
    assert same(loaded.partial_fit(*colors(4, 5)), clf.partial_fit(*colors(4, 5)))


@pytest.mark.parametrize(
    "axes",
    [
        {"objective": Softmax(), "penalty": LwF(), "readout": MaxOverHeads(), "drift": None},
        {"objective": Softmax(), "penalty": EWC()},
        {
            "objective": SigmoidHeads(),
            "penalty": LwF(),
            "exemplars": Herding(10),
            "readout": MaxOverClasses(),
            "drift": None,
        },
    ],
    ids=["LwF", "EWC", "iCaRL"],
)
def test_heads_and_exemplars_come_back_and_continue_bit_for_bit(make_classifier, vectors, tmp_path, same, axes):
    clf = make_classifier(**axes).partial_fit(*vectors("a", "b")).partial_fit(*vectors("c", "d", "e"))
    clf.save(tmp_path / "m", store_images=True)
    loaded = load(tmp_path / "m")
    X, y = vectors("f", "g")
    for model in (clf, loaded):
        model.partial_fit(X, y)
    assert same(loaded, clf)
    assert np.array_equal(loaded.predict_proba(X), clf.predict_proba(X))


@pytest.mark.parametrize("objective", [Triplet(), Softmax()])
def test_loading_leaves_the_global_random_state_alone(make_classifier, vectors, tmp_path, objective):
    make_classifier(objective=objective).fit(*vectors("a", "b")).save(tmp_path / "m")
    before = torch.get_rng_state()
    load(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_of_one_task_continues_too(make_classifier, task_of, tmp_path, same):
    clf = make_classifier().fit(*task_of(0, 1))
    loaded = load(clf.save(tmp_path / "m"))
    assert same(loaded.partial_fit(*task_of(2, 3)), clf.partial_fit(*task_of(2, 3)))


def test_labels_of_every_kind_come_back(make_classifier, vectors, tmp_path):
    for labels in (["Käuzchen 梟", "emu\n\"'"], [-3, 10**12]):
        clf = make_classifier().fit(*vectors(*labels))
        loaded = load(clf.save(tmp_path / str(labels[1]).strip("\n\"'")))
        assert loaded.classes_.tolist() == clf.classes_.tolist()


def test_unlearned_models_cannot_be_saved(make_classifier, tmp_path):
    with pytest.raises(ValueError, match="has not learned anything yet"):
        make_classifier().save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_versions_never_change_and_current_names_the_last(two_clouds, model, vectors, same):
    before = files_of(model)
    assert any(name.startswith("versions/1/") for name in before)
    old = copy.deepcopy(two_clouds)
    two_clouds.partial_fit(*vectors("kea", "tui")).save(model)
    after = files_of(model)
    assert {name: after[name] for name in before if name != "CURRENT"} == {
        name: content for name, content in before.items() if name != "CURRENT"
    }
    assert json.loads(after["CURRENT"])["version"] == 2
    assert same(load(model), two_clouds)
    (model / "CURRENT").write_bytes(before["CURRENT"])
    assert same(load(model), old)


def test_only_safetensors_and_json_are_written(model):
    assert {Path(name).suffix for name in files_of(model)} == {"", ".json", ".safetensors"}
    assert set(json.loads((model / "CURRENT").read_text())) == {
        "format",
        "format_version",
        "version",
        "manifest_sha256",
    }


def test_a_backbone_of_the_users_must_be_given_again(make_classifier, vectors, tmp_path, same):
    mine = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    clf = make_classifier(backbone=mine).fit(*vectors("a", "b"))
    clf.save(tmp_path / "m")
    with pytest.raises(
        ModelFileError, match=r"its backbone is one of yours \(Sequential\).*load\(path, backbone=...\)"
    ):
        load(tmp_path / "m")
    with pytest.raises(ModelFileError, match="size mismatch"):
        load(tmp_path / "m", backbone=nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    loaded = load(tmp_path / "m", backbone=nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)))
    assert same(loaded, clf)
    assert same(loaded.partial_fit(*vectors("c", "d")), clf.partial_fit(*vectors("c", "d")))


def test_a_backbone_with_tied_weights_is_saved(make_classifier, vectors, tmp_path, same):
    def tied():
        layer = nn.Linear(6, 6)
        return nn.Sequential(layer, nn.ReLU(), layer)

    clf = make_classifier(backbone=tied()).fit(*vectors("a", "b"))
    assert same(load(clf.save(tmp_path / "m"), backbone=tied()), clf)


def test_a_loss_of_the_users_must_be_given_again(make_classifier, vectors, tmp_path, same):
    clf = make_classifier(objective=MetricLoss(losses.NTXentLoss())).fit(*vectors("a", "b"))
    clf.save(tmp_path / "m")
    with pytest.raises(
        ModelFileError, match=r"its objective is one of yours \(MetricLoss\).*load\(path, objective=...\)"
    ):
        load(tmp_path / "m")
    loaded = load(tmp_path / "m", objective=MetricLoss(losses.NTXentLoss()))
    assert same(loaded.partial_fit(*vectors("c", "d")), clf.partial_fit(*vectors("c", "d")))


def test_kept_images_are_written_only_when_asked_for(make_classifier, vectors, tmp_path, same):
    clf = make_classifier(exemplars=Everything()).fit(*vectors("a", "b"))
    with pytest.raises(InputError, match=r"Everything keeps 24 images.*save\(path, store_images=True\)"):
        clf.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()
    loaded = load(clf.save(tmp_path / "m", store_images=True))
    assert torch.equal(loaded.state_.trained.exemplars.images, clf.state_.trained.exemplars.images)
    assert same(loaded.partial_fit(*vectors("c", "d")), clf.partial_fit(*vectors("c", "d")))


def test_without_a_memory_no_image_is_in_the_files(make_classifier, vectors, tmp_path):
    X, y = vectors("a", "b")
    X[:, 0] = np.float32(1234.5678)
    clf = make_classifier().fit(X, y)
    clf.save(tmp_path / "m", store_images=True)
    assert not any("exemplars" in name for name in files_of(tmp_path / "m"))
    rows = [row.tobytes() for row in X.astype(np.float32)]
    assert not any(row in content for row in rows for content in files_of(tmp_path / "m").values())


def test_parameters_can_be_set_while_loading(model):
    assert load(model, temperature=3.0).temperature == 3.0
    with pytest.raises(ModelFileError, match=r"no parameter 'temprature'. Did you mean 'temperature'"):
        load(model, temprature=3.0)
    with pytest.raises(ModelFileError, match="temperature=-1 must be greater than 0"):
        load(model, temperature=-1)


def test_a_device_object_is_saved_by_name(make_classifier, vectors, tmp_path):
    clf = make_classifier(device=torch.device("cpu")).fit(*vectors("a", "b"))
    assert load(clf.save(tmp_path / "m")).device == "cpu"
