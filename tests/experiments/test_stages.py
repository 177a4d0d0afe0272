"""The tree of stages: shared trainings, and the same numbers as the classifier that a user holds."""

import importlib
import linecache
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from protodrift import EWC, MAS, SDC, Everything, IncrementalClassifier, LwF, Method, Schedule, TaskStream, Triplet
from protodrift.common.covariance import Covariance, class_covariances
from protodrift.data import Dataset, Examples, load_digits
from protodrift.drift import Oracle
from protodrift.errors import InputError
from protodrift.experiments.recipes import get_recipe
from protodrift.experiments.setup import Network
from protodrift.experiments.stages import KINDS, Given
from protodrift.experiments.store import Store
from protodrift.experiments.tree import Tree
from protodrift.networks.embedder import embed
from protodrift.readouts import Bayes, RidgeClassifier, StreamingLDA
from protodrift.training.config import Training

FAST = Training(epochs=1, learning_rate=3e-4)
OBJECTIVE = Triplet(margin=0.5)


@pytest.fixture(scope="module")
def stream():
    return TaskStream(load_digits(), classes=[[3, 8], [1, 7], [0, 6]])


def make(stream, seed=0):
    return Tree(stream, network=Network(embedding_dim=32), training=FAST, seed=seed)


@pytest.fixture(scope="module")
def tree(stream):
    return make(stream)


def rows(drifts=(None, SDC(), Oracle())):
    base = Method(objective=OBJECTIVE)
    result = {
        "E-Pre": replace(base, schedule=Schedule(train="none")),
        "E-Fix": replace(base, schedule=Schedule(train="first")),
        "E-Joint": replace(base, exemplars=Everything()),
    }
    for name, penalty in {"E-FT": (), "E-LwF": LwF(), "E-EWC": EWC(), "E-MAS": MAS(gamma=1.0)}.items():
        for drift in drifts:
            result[f"{name}+{type(drift).__name__}"] = replace(base, penalty=penalty, drift=drift)
    return result


@pytest.fixture(scope="module")
def results(tree):
    return tree.run(rows())


def test_distinct_trainings_are_counted_once(tree, results):
    """One shared first task; then E-FT, E-LwF, E-EWC, E-MAS and E-Joint each train tasks 2 and 3. Drift is free."""
    assert len(results) == 15
    assert tree.computed["train"] == 1 + 5 * 2


def test_running_again_computes_nothing(tree, results):
    before = dict(tree.computed)
    again = tree.run(rows())
    assert dict(tree.computed) == before
    np.testing.assert_array_equal(again["E-FT+SDC"].accuracy_matrix, results["E-FT+SDC"].accuracy_matrix)


def test_methods_that_begin_alike_share_the_first_task(tree, results):
    table = rows()
    first = {name: tree.trained(table[name], 1).network for name in ("E-FT+SDC", "E-EWC+SDC", "E-Fix", "E-Joint")}
    assert len({id(network) for network in first.values()}) == 1
    assert tree.trained(table["E-Fix"], 3).network is first["E-Fix"]
    assert tree.trained(table["E-FT+SDC"], 2).network is not tree.trained(table["E-EWC+SDC"], 2).network


@pytest.mark.parametrize("name", ["E-EWC+SDC", "E-Fix", "E-Joint"])
def test_a_tree_and_a_classifier_take_the_same_steps(stream, tree, results, name):
    method = rows()[name]
    clf = IncrementalClassifier(
        embedding_dim=32,
        training=FAST,
        **{name: value for name, value in method.options().items() if name not in ("backbone", "beside")},
    )
    for k, task in enumerate(stream, 1):
        clf.partial_fit(task.data.images, task.data.labels)
        test = stream.dataset.test.of_classes(clf.classes_.tolist())
        assert clf.score(test.images, test.labels) == pytest.approx(results[name].overall_accuracy[k - 1])
    np.testing.assert_array_equal(clf.prototypes_, results[name].prototypes[-1].means.numpy())
    assert tuple(clf.classes_.tolist()) == results[name].classes


def test_the_oracle_is_exact_and_other_rows_are_not(results):
    for name in ("E-FT", "E-LwF", "E-EWC", "E-MAS"):
        assert np.nanmax(results[f"{name}+Oracle"].prototype_distance) < 1e-6
        assert results[f"{name}+NoneType"].old_prototype_distance[-1] > 0.01
    assert np.nanmax(results["E-Fix"].prototype_distance) < 1e-6
    assert np.nanmax(results["E-Joint"].prototype_distance) < 1e-6


def test_results_are_whole(results):
    result = results["E-FT+SDC"]
    assert result.accuracy_matrix.shape == (3, 3)
    assert np.isnan(result.accuracy_matrix[np.triu_indices(3, 1)]).all()
    assert result.confusion.sum() == sum(result.test_counts)
    assert np.trace(result.confusion) / result.confusion.sum() == pytest.approx(result.overall_accuracy[-1])
    document = result.to_json()
    assert document["average_forgetting"][0] is None
    assert document["accuracy_matrix"][0][1] is None
    assert document["configuration"]["drift"] == {"type": "SDC", "sigma": 0.3}


def test_one_seed_is_one_result(stream, results):
    method = {"E-FT+SDC": rows()["E-FT+SDC"]}
    again = make(stream).run(method)["E-FT+SDC"]
    np.testing.assert_array_equal(again.accuracy_matrix, results["E-FT+SDC"].accuracy_matrix)
    assert torch.equal(again.prototypes[-1].means, results["E-FT+SDC"].prototypes[-1].means)
    other = make(stream, seed=1).run(method)["E-FT+SDC"]
    assert not torch.equal(other.prototypes[-1].means, again.prototypes[-1].means)


def test_an_experiment_needs_test_images():
    dataset = Dataset(np.zeros((4, 8, 8), np.uint8), [0, 0, 1, 1])
    with pytest.raises(InputError, match="test images"):
        Tree(TaskStream(dataset, tasks=2))


def test_on_digits_sdc_brings_old_prototypes_nearer_to_the_true_means_over_five_seeds():
    none, compensated = [], []
    recipe = get_recipe("digits").only(["E-FT", "E-FT+SDC"])
    stream = recipe.stream(load_digits())
    for seed in range(5):
        results = Tree(stream, training=recipe.training, seed=seed).run(recipe.methods)
        none.append(results["E-FT"].old_prototype_distance[-1])
        compensated.append(results["E-FT+SDC"].old_prototype_distance[-1])
    assert np.mean(compensated) < np.mean(none)


def test_a_weight_file_is_known_by_its_content(stream, tmp_path):
    path = tmp_path / "weights.safetensors"
    state = make(stream).trained(Method(OBJECTIVE), 0).network.backbone.state_dict()
    keys = []
    for scale in (1, 1, 2):
        save_file({name: (value * scale).contiguous() for name, value in state.items()}, path)
        tree = Tree(stream, network=Network(embedding_dim=32, weights=str(path)), training=FAST)
        keys.append(tree.stage("root", Method(OBJECTIVE), 0).key)
    assert keys[0] == keys[1] != keys[2]
    with pytest.raises(InputError, match="cannot be read"):
        Tree(stream, network=Network(weights=str(tmp_path / "missing.pth")))


def test_a_learning_rate_is_part_of_the_tasks_it_trains_only(stream):
    def keys(first, later):
        training = Training(epochs=1, learning_rate=first, later_learning_rate=later)
        made = Tree(stream, network=Network(embedding_dim=32), training=training)
        return [made.stage("train", Method(OBJECTIVE), t).key for t in (1, 2)]

    one, other = keys(3e-4, 1e-5), keys(3e-4, 1e-6)
    assert one[0] == other[0]  # the first task is shared by a search for the later rate
    assert one[1] != other[1]
    assert keys(1e-4, 1e-5)[0] != one[0]
    assert keys(3e-4, None) == keys(3e-4, 3e-4)


def test_embeddings_do_not_depend_on_what_penalties_measured_after_the_task(stream):
    made = make(stream)
    plain, held = Method(OBJECTIVE), Method(OBJECTIVE, EWC())
    assert made.stage("embed", plain, 1).key == made.stage("embed", held, 1).key
    assert made.stage("embed", plain, 2).key != made.stage("embed", held, 2).key


def test_a_task_without_test_images_is_refused_before_anything_is_trained():
    X, y = np.zeros((8, 6), dtype=np.float32), np.array([0, 0, 1, 1, 2, 2, 3, 3])
    held = Dataset(X, y, X[:2], y[:2])
    with pytest.raises(InputError, match=r"task 2 has no test images \(2, 3: 4 images to learn from\)"):
        make(TaskStream(held, tasks=2))


PART = """
from dataclasses import dataclass

from protodrift.drift import SDC


@dataclass(frozen=True)
class OwnDrift(SDC):
    pass
"""


def own_part(tmp_path, monkeypatch, source):
    (tmp_path / "own_part.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_part", raising=False)
    linecache.checkcache()
    importlib.invalidate_caches()
    return importlib.import_module("own_part").OwnDrift


def test_the_source_of_a_part_of_ones_own_is_in_the_keys_of_its_stages(stream, tmp_path, monkeypatch):
    keys = []
    for source in (PART, PART, PART + "\n\nCHANGED = True\n"):
        method = Method(OBJECTIVE, drift=own_part(tmp_path, monkeypatch, source)())
        plan = make(stream).plan({"own": method})
        keys.append({kind: {key for key, stage in plan.items() if stage.kind == kind} for kind in KINDS})
    assert keys[0] == keys[1]
    assert not keys[0]["readout"] & keys[2]["readout"]
    assert keys[0]["train"] == keys[2]["train"]  # drift has no part in training


SHIFTED = """
from dataclasses import dataclass

import own_helper
from protodrift.drift import Drift, Known


@dataclass(frozen=True)
class OwnDrift(Drift):
    def fit(self, z_old, z_new, targets=None):
        return Moved()


class Moved(Known):
    def __init__(self):
        pass

    def explain(self, prototypes):
        return prototypes + own_helper.far(), {}
"""


def test_a_part_that_was_changed_between_runs_gets_results_of_its_own(stream, tmp_path, monkeypatch):
    """Also if what was changed is a function that it calls in a module beside it."""
    moved = []
    for far in (0.0, 0.0, 3.0):
        (tmp_path / "own_helper.py").write_text(f"def far():\n    return {far}\n")
        monkeypatch.delitem(sys.modules, "own_helper", raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two writes within a second look alike to it
        drift = own_part(tmp_path, monkeypatch, SHIFTED)()
        tree = make(stream)
        tree.store = Store(tmp_path / "run")
        tree.run({"own": Method(OBJECTIVE, drift=drift)})
        moved.append((tree.prototypes(Method(OBJECTIVE, drift=drift), 2).means, tree.computed["readout"]))
    assert torch.equal(moved[0][0], moved[1][0])
    assert (moved[0][1] > 0, moved[1][1], moved[2][1] > 0) == (True, 0, True)
    assert float((moved[2][0] - moved[0][0]).abs().max()) > 2.9


def test_a_part_whose_source_cannot_be_read_is_refused(stream):
    space = {"__name__": "nowhere"}
    exec(PART, space)
    with pytest.raises(InputError, match="source of OwnDrift cannot be read"):
        make(stream).plan({"own": Method(OBJECTIVE, drift=space["OwnDrift"]())})


def test_a_stage_reads_only_its_parents(stream):
    """What is not in its key cannot be in its value."""
    made = make(stream)
    stage = made.stage("embed", Method(OBJECTIVE), 1)
    values = {parent.key: made.value(parent) for parent in stage.parents()}
    assert stage.compute(Given(values)).z_new.shape[1] == 32
    with pytest.raises(KeyError):
        stage.compute(Given(dict(list(values.items())[1:])))


def test_a_network_that_stays_fixed_is_read_out_from_its_pooled_features(stream, tree, tmp_path):
    """E-Fix shares its training with E-FT, E-Pre its initial weights; only what is read differs. On disk, too."""
    trained = Method(objective=OBJECTIVE)
    fixed, none = (replace(trained, schedule=Schedule(train=train)) for train in ("first", "none"))
    before = dict(tree.computed)
    assert tree.readout(trained, 2).prototypes.means.shape == (4, 32)
    features = tree.readout(fixed, 2).prototypes.means.shape[1]
    assert features == tree.readout(none, 2).prototypes.means.shape[1] == 512 != 32
    assert tree.computed["train"] - before.get("train", 0) <= 2
    for method in (fixed, none):
        clf = IncrementalClassifier(embedding_dim=32, objective=OBJECTIVE, training=FAST, schedule=method.schedule)
        for task in list(stream)[:2]:
            clf.partial_fit(task.data.images, task.data.labels)
        assert clf.network_.embedding_dim == features
        torch.testing.assert_close(torch.from_numpy(clf.prototypes_), tree.readout(method, 2).prototypes.means)
        again = IncrementalClassifier.load(clf.save(tmp_path / method.schedule.train))
        test = torch.cat([task.test.images for task in list(stream)[:2]])
        assert again.predict(test).tolist() == clf.predict(test).tolist()
        again.partial_fit(list(stream)[2].data.images, list(stream)[2].data.labels)


@pytest.mark.parametrize(
    "readout", [StreamingLDA(), RidgeClassifier(covariance=Covariance("shared")), Bayes()], ids=str
)
def test_the_oracle_knows_true_covariances_too(stream, tree, readout):
    """What is kept after task 3 is what one who has all images would measure now."""
    method = Method(objective=OBJECTIVE, drift=Oracle(), readout=readout)
    result = tree.readout(method, 3)
    network = tree.trained(method, 3).network
    every = Examples.concatenate([task.data for task in stream])
    z, targets = embed(network, every.images), every.targets_of(result.prototypes.labels)
    true = class_covariances(z, targets, 6).double()
    counts = torch.bincount(targets).double()
    total = torch.einsum("k,kde->de", counts, true)
    if isinstance(readout, StreamingLDA):
        torch.testing.assert_close(result.readout_state["scatter"], total, rtol=1e-3, atol=1e-3)
    elif isinstance(readout, Bayes):
        torch.testing.assert_close(result.prototypes.statistics["full"].double(), true, rtol=1e-3, atol=1e-5)
    else:
        torch.testing.assert_close(
            result.prototypes.statistics["shared"].double(), total / counts.sum(), rtol=1e-3, atol=1e-5
        )
    unmoved = tree.readout(replace(method, drift=None), 3)
    for name, value in (unmoved.readout_state | unmoved.prototypes.statistics).items():
        assert not torch.equal(value, (result.readout_state | result.prototypes.statistics)[name]) or name == "count"
