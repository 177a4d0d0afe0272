"""`Experiment`: any data, any network, any loss; the same stages and results as the command line."""

from __future__ import annotations

import json

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_metric_learning import losses
from torch import nn

from protodrift import EWC, SDC, Dataset, Experiment, Method, TaskStream, Training
from protodrift.data import load_digits
from protodrift.data.given import dataset_of
from protodrift.errors import InputError, RunError
from protodrift.experiments.setup import Network
from protodrift.objectives import MetricLoss
from protodrift.report import Results

FAST = Training(epochs=1, epoch="released")
ROWS = {"plain": Method(), "moved": Method(drift=SDC())}


@pytest.fixture(scope="module")
def arrays():
    """Digits 0 to 3, test images apart."""
    digits = load_digits().of_classes(range(4))
    assert digits.test is not None
    return (digits.train.images, list(digits.train.labels), digits.test.images, list(digits.test.labels))


@pytest.fixture(scope="module")
def results(arrays, tmp_path_factory) -> Results:
    out = tmp_path_factory.mktemp("runs") / "arrays"
    return Experiment(arrays, tasks=2, methods=ROWS, seeds=(0, 1), training=FAST).run(out)


class Pairs(torch.utils.data.Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, at):
        return self.images[at], self.labels[at]


# -- data -------------------------------------------------------------------------------------------------------------


def same(one: Dataset, other: Dataset) -> bool:
    parts = ((one.train, other.train), (one.test, other.test))
    return all(torch.equal(a.images, b.images) and a.labels == b.labels for a, b in parts)


def test_every_form_of_data_is_the_same_dataset(arrays):
    X, y, X_test, y_test = arrays
    whole = dataset_of(arrays)
    assert same(dataset_of((Pairs(X, y), Pairs(X_test, y_test))), whole)
    assert same(dataset_of({"train": Pairs(X, y), "test": Pairs(X_test, y_test)}), whole)
    assert dataset_of(Pairs(X, y)).test is None
    features = datasets.Features({"picture": datasets.Image(), "digit": datasets.ClassLabel(names=list("0123"))})

    def table(images, labels):
        pictures = [Image.fromarray(image[0].numpy().astype(np.uint8), "L") for image in images]
        return datasets.Dataset.from_dict({"picture": pictures, "digit": labels}, features=features)

    named = dataset_of(datasets.DatasetDict(train=table(X[:9], y[:9]), test=table(X_test[:5], y_test[:5])))
    assert named.train.labels == tuple(str(label) for label in y[:9])
    assert torch.equal(named.train.images, X[:9].to(torch.uint8))


def test_pictures_of_different_sizes_need_a_size():
    sizes = [(8, 10), (12, 8)]
    rows = {"image": [Image.new("RGB", size, (200, 30, 30)) for size in sizes], "label": ["a", "b"]}
    table = datasets.Dataset.from_dict(
        rows, features=datasets.Features(image=datasets.Image(), label=datasets.Value("string"))
    )
    with pytest.raises(InputError, match=r"different shapes.*size=224"):
        dataset_of(table)
    assert tuple(dataset_of(table, size=8).train.images.shape) == (2, 3, 8, 8)


def test_a_stream_brings_its_tasks(arrays):
    stream = TaskStream(dataset_of(arrays), classes=[[3, 1], [0]])
    assert Experiment(stream).recipe.classes == ((1, 3), (0,))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": 3}, "data is a int"),
        ({"data": "no-such"}, "neither a folder nor the name of a dataset"),
        ({"data": "digits", "methods": ["E-FTT"]}, "unknown method 'E-FTT'"),
        ({"data": "digits", "epochs": 3}, "has no 'epochs'"),
        ({"data": "digits", "seeds": [-1]}, "whole numbers"),
        ({"data": "digits", "network": nn.Linear}, "must be a name or an nn.Module"),
    ],
)
def test_what_makes_no_experiment_is_said(given, said):
    with pytest.raises(InputError, match=said):
        Experiment(given.pop("data"), **given)


# -- results ----------------------------------------------------------------------------------------------------------


def test_frames_hold_what_results_json_holds(results):
    document = json.loads((results.path / "results.json").read_bytes())
    long, wide = results.to_frame(), results.to_frame("wide")
    assert set(long.columns) == {"method", "seed", "task", "metric", "value"}
    entry = document["results"][1]
    assert (entry["method"], entry["seed"]) == ("moved", 0)
    mine = long[(long.method == "moved") & (long.seed == 0)]
    for metric in ("average_accuracy", "task_aware_accuracy", "forward_transfer"):
        got = mine[mine.metric == metric].value.tolist()
        assert got == pytest.approx([np.nan if v is None else v for v in entry[metric]], nan_ok=True)
    assert len(wide) == 4
    assert wide.loc[1, "average_accuracy_2"] == entry["average_accuracy"][1]
    assert len(results.to_frame("tasks")) == 4 * 3
    epochs = results.to_frame("epochs")
    assert len(epochs) == 4 * 2
    assert epochs.loss.notna().all()
    assert entry["settings"]["training"]["epochs"] == 1
    with pytest.raises(InputError, match="shape='log' is unknown"):
        results.to_frame("log")


def test_told_the_task_no_answer_gets_worse(results):
    for entry in results.document["results"]:
        assert all(a >= b for a, b in zip(entry["task_aware_accuracy"], entry["average_accuracy"], strict=True))
        assert entry["task_aware_accuracy"][0] == entry["average_accuracy"][0]


def test_tables_pages_and_figures(results, tmp_path):
    assert "moved" in results.table()
    assert results.report(tmp_path / "page.html").read_text().startswith("<!")
    assert results.report(tmp_path / "table.csv").read_text().count("\n") >= 2
    assert results.figure("accuracy", tmp_path / "a.svg").read_text().startswith("<svg")
    with pytest.raises(InputError, match="there is no figure 'accurcy'"):
        results.figure("accurcy", tmp_path / "a.pdf")
    with pytest.raises(InputError, match="pdf, png"):
        results.figure("accuracy", tmp_path / "a.gif")
    assert results["moved"].seeds == (0, 1)


def test_runs_into_one_directory_add_up_and_other_data_is_refused(arrays, results, tmp_path):
    out = tmp_path / "run"
    one = Experiment(arrays, tasks=2, methods={"plain": ROWS["plain"]}, seeds=0, training=FAST)
    one.run(out)
    both = Experiment(arrays, tasks=2, methods=ROWS, seeds=1, training=FAST).run(out)
    assert [(e["method"], e["seed"]) for e in both.document["results"]] == [("plain", 0), ("plain", 1), ("moved", 1)]
    assert both.document["trainings"] == 4
    assert set(json.loads((out / "run.json").read_bytes())["rows"]) == {"plain", "moved"}
    numbers = {(e["method"], e["seed"]): e["accuracy_matrix"] for e in results.document["results"]}
    assert all(e["accuracy_matrix"] == numbers[e["method"], e["seed"]] for e in both.document["results"])
    X, *others = arrays
    with pytest.raises(RunError, match="digest"):
        Experiment((X.flip(-1), *others), tasks=2, methods=ROWS, training=FAST).run(out)


# -- networks and losses ----------------------------------------------------------------------------------------------


def mlp(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))


def stages(out, kind: str) -> set[str]:
    return {path.name for path in (out / "stages").glob(f"{kind}-*")}


def test_a_module_is_known_by_its_weights(arrays, tmp_path):
    def run(seed: int, name: str):
        settings = {"tasks": 2, "methods": ROWS, "training": FAST, "network": mlp(seed)}
        return Experiment(arrays, **settings).run(tmp_path / name)

    first = run(0, "a")
    assert first["moved"]["average_accuracy"].mean[0] > 0.5
    had = stages(tmp_path / "a", "train")
    again = run(0, "a")
    assert stages(tmp_path / "a", "train") == had
    assert again.document["results"] == first.document["results"]
    with pytest.raises(RunError, match="network"):
        run(1, "a")
    run(1, "b")
    assert not had & stages(tmp_path / "b", "train")


def test_a_loss_with_weights_trains_them_beside_the_network_and_resumes(arrays, tmp_path):
    proxies = MetricLoss(losses.ProxyAnchorLoss(4, 8), rate=50.0)
    rows = {"held": Method(proxies, EWC(gamma=10.0)), "held+SDC": Method(proxies, EWC(gamma=10.0), drift=SDC())}
    experiment = Experiment(arrays, tasks=2, methods=rows, training=FAST, network=Network(mlp(), embedding_dim=8))
    first = experiment.run(tmp_path / "a")
    assert first["held"]["average_accuracy"].mean[0] > 0.5
    configuration = first.document["results"][0]["configuration"]["objective"]["loss_function"]
    assert configuration["name"].endswith("ProxyAnchorLoss")
    tree = experiment.recipe.tree(experiment.recipe.stream(dataset_of(arrays)))
    after = tree.trained(rows["held"], 2).network.loss.proxies
    start = tree.trained(rows["held"], 1).network.loss.proxies
    assert not torch.equal(after, start)
    assert not torch.equal(start, proxies.loss_function.proxies)


def test_more_classes_than_proxies_is_an_error(arrays, tmp_path):
    rows = {"few": Method(MetricLoss(losses.ProxyNCALoss(3, 512)))}
    with pytest.raises(InputError, match=r"weights for num_classes=3, and this is class number 4"):
        Experiment(arrays, tasks=2, methods=rows, training=FAST).run(tmp_path / "a")
