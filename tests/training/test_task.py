"""Known classes that come again, and the ways X can be given."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from protodrift import Everything, IncrementalClassifier, Schedule, Softmax, Training
from protodrift.common.covariance import Covariance
from protodrift.distributed.passes import embedded
from protodrift.drift import ADC
from protodrift.errors import InputError
from protodrift.experiments.recipes import get_recipe
from protodrift.model.defaults import choose
from protodrift.networks.embedder import embed
from protodrift.readouts import Bayes, Mahalanobis, RidgeClassifier, StreamingLDA
from protodrift.training import task as task_steps

QUICK = Training(epochs=1, batch_size=16, images_per_class=8)


def test_new_images_pass_once_through_each_network(two_clouds, vectors, monkeypatch):
    """Prototypes, drift, read-out and calibration share one pass through the old network and one through the new."""
    seen = []

    def counted(world, network, images, *args, **kwargs):
        seen.append((network, len(images)))
        return embedded(world, network, images, *args, **kwargs)

    monkeypatch.setattr(task_steps, "embedded", counted)
    old = two_clouds.state_.trained.network
    X, y = vectors("kea", "tui")
    two_clouds.partial_fit(X, y)
    assert seen == [(two_clouds.state_.trained.network, len(X)), (old, len(X))]
    assert two_clouds.drift_.labels  # and the drift was measured


def test_a_drift_that_bends_images_is_given_them_and_both_networks(make_classifier, vectors, monkeypatch):
    """ADC: also with images of known classes among the new ones."""
    seen = []
    probe = ADC.probe

    def watched(self, network_old, network_new, images, prototypes):
        z_old, z_new = network_old(images), network_new(images)
        seen.append((len(images), float((z_old - z_new).detach().norm()), len(prototypes)))
        return probe(self, network_old, network_new, images, prototypes)

    monkeypatch.setattr(ADC, "probe", watched)
    clf = make_classifier(drift=ADC(candidates=5, steps=1), training=QUICK)
    clf.partial_fit(*vectors("owl", "emu"))
    clf.partial_fit(*vectors("owl", "kea", "tui"), known="refresh")
    ((images, moved, prototypes),) = seen
    assert images == len(vectors("owl", "kea", "tui")[0])
    assert moved > 0
    assert prototypes == len(clf.drift_.labels) == 2
    assert "effective_samples" in clf.drift_.diagnostics


# -- known classes ----------------------------------------------------------------------------------------------------


def test_a_known_class_is_an_error_that_offers_both_ways_out(two_clouds, vectors):
    before = two_clouds.state_
    with pytest.raises(InputError, match=r"class 'owl' was learned in task 1.*known='skip'.*known='refresh'"):
        two_clouds.partial_fit(*vectors("owl", "kea"))
    assert two_clouds.state_ is before
    with pytest.raises(InputError, match=r"known='refrsh' is unknown. Did you mean 'refresh'"):
        two_clouds.partial_fit(*vectors("owl", "kea"), known="refrsh")


def test_skip_learns_the_new_classes_as_if_the_others_were_not_there(two_clouds, vectors, same, tmp_path):
    other = IncrementalClassifier.load(two_clouds.save(tmp_path / "m"))
    two_clouds.partial_fit(*vectors("owl", "kea", "tui"), known="skip")
    assert same(two_clouds, other.partial_fit(*vectors("kea", "tui")))
    state = two_clouds.state_
    assert two_clouds.partial_fit(*vectors("owl"), known="skip").state_ is state  # nothing left to learn


def test_refresh_alone_merges_by_counts_and_leaves_the_network(two_clouds, vectors):
    before = two_clouds.state_
    X, y = vectors("owl", count=5)
    two_clouds.partial_fit(X + 1, y, known="refresh")
    state = two_clouds.state_
    assert state.trained.network is before.trained.network
    row = state.prototypes.row("owl")
    z = embed(before.trained.network, torch.tensor(X + 1, dtype=torch.float32))
    expected = (12 * before.prototypes.means[row] + z.sum(dim=0)) / 17
    assert torch.allclose(state.prototypes.means[row], expected, atol=1e-6)
    assert int(state.prototypes.counts[row]) == 17
    others = [i for i in range(4) if i != row]
    assert torch.equal(state.prototypes.means[others], before.prototypes.means[others])
    assert state.tasks[-1].refreshed == (("owl", 5),)
    assert state.tasks[-1].classes == ()
    assert state.prototypes.labels == before.prototypes.labels
    assert "only known classes" in state.tasks[-1].note


def test_refresh_beside_new_classes_merges_into_the_moved_prototype(two_clouds, vectors):
    before = two_clouds.state_
    X, y = vectors("owl", "kea", "tui", count=10)
    two_clouds.partial_fit(X, y, known="refresh")
    state = two_clouds.state_
    assert state.prototypes.labels == (*before.prototypes.labels, "kea", "tui")
    row = state.prototypes.row("owl")
    z_owl = embed(state.trained.network, torch.tensor(X[:10], dtype=torch.float32))
    moved = state.drift.after[state.drift.labels.index("owl")]  # where drift compensation put it
    assert torch.allclose(state.prototypes.means[row], (12 * moved + z_owl.sum(dim=0)) / 22, atol=1e-6)
    emu = state.prototypes.row("emu")
    assert torch.equal(state.prototypes.means[emu], state.drift.after[state.drift.labels.index("emu")])
    # Drift was measured on the new images and on those of the known class.
    both = torch.tensor(X, dtype=torch.float32)
    pairs = embed(before.trained.network, both), embed(state.trained.network, both)
    # The learner has the new classes first; the sum of Eq. 10 does not depend on the order.
    expected = two_clouds.drift.fit(*pairs).transport(before.prototypes.means)
    assert torch.allclose(state.drift.after, expected, atol=1e-5)
    assert state.trained.exemplars is None
    two_clouds.partial_fit(*vectors("rook", "wren"))  # and learning goes on


@pytest.mark.parametrize(
    "readout",
    [
        StreamingLDA(),
        Bayes(),
        Mahalanobis(covariance=Covariance("diagonal")),
        Bayes(covariance=Covariance("low-rank", rank=64)),
        RidgeClassifier(),
        RidgeClassifier(covariance=Covariance()),
    ],
    ids=lambda readout: f"{type(readout).__name__} {readout.keeps.form if readout.keeps else ''}",
)
def test_a_class_in_parts_is_what_it_is_at_once_when_the_network_stays(make_classifier, vectors, readout):
    X, y = vectors("owl", "emu", "kea", count=12)
    y = np.asarray(y)
    parts = [np.flatnonzero(np.arange(len(y)) % 12 < 5), np.flatnonzero(np.arange(len(y)) % 12 == 5)]
    parts.append(np.flatnonzero((np.arange(len(y)) % 12 > 5) & (y != "emu")))
    parts.append(np.flatnonzero((np.arange(len(y)) % 12 > 5) & (y == "emu")))
    frozen = {"readout": readout, "schedule": Schedule(train="none"), "drift": None}
    # The first task says how pixels are standardized, so both begin alike.
    whole, slowly = (make_classifier(**frozen).partial_fit(*vectors("rook", "wren")) for _ in range(2))
    whole = whole.partial_fit(X, y).state_
    for part in parts:
        slowly.partial_fit(X[part], y[part], known="refresh")
    state = slowly.state_
    assert torch.equal(state.prototypes.counts, whole.prototypes.counts)
    torch.testing.assert_close(state.prototypes.means, whole.prototypes.means, atol=1e-6, rtol=1e-5)
    for name, value in whole.prototypes.statistics.items():
        if name != "factors":  # whose signs are free
            torch.testing.assert_close(state.prototypes.statistics[name], value, atol=1e-6, rtol=1e-4)
    for name, value in whole.readout_state.items():
        torch.testing.assert_close(state.readout_state[name], value, atol=1e-6, rtol=1e-5)


def test_a_class_that_came_alone_takes_the_temperature_that_can_be_fitted_later(make_classifier, vectors):
    frozen = {"readout": StreamingLDA(), "schedule": Schedule(train="none"), "drift": None}
    clf = make_classifier(**frozen).partial_fit(*vectors("owl"))
    assert clf.state_.calibration.temperatures.tolist() == pytest.approx([0.1])
    clf.partial_fit(*vectors("emu"))
    first, second = clf.state_.calibration.temperatures.tolist()
    assert first == second != pytest.approx(0.1)
    clf.partial_fit(*vectors("kea", count=1))  # nothing to fit on: that of the others
    assert clf.state_.calibration.temperatures.tolist() == [first, first, first]


def test_refresh_is_refused_where_it_means_nothing(make_classifier, vectors):
    kept = make_classifier(exemplars=Everything()).fit(*vectors("a", "b"))
    with pytest.raises(InputError, match="Everything keeps images of known classes"):
        kept.partial_fit(*vectors("a", "c"), known="refresh")


def test_where_each_task_has_a_head_photos_of_known_classes_are_merged_and_not_trained_on(make_classifier, vectors):
    start = {"objective": Softmax(), "drift": None, "random_state": 0}
    more, alone = (make_classifier(**start).fit(*vectors("a", "b")) for _ in range(2))
    before = more.state_.prototypes
    more.partial_fit(*vectors("a", "c", "d"), known="refresh")
    alone.partial_fit(*vectors("c", "d"))
    assert more.state_.tasks[-1].history
    for one, other in zip(more.network_.parameters(), alone.network_.parameters(), strict=True):
        assert torch.equal(one, other)
    counts = dict(zip(more.state_.prototypes.labels, more.state_.prototypes.counts.tolist(), strict=True))
    assert counts["a"] == 2 * dict(zip(before.labels, before.counts.tolist(), strict=True))["a"]
    assert counts["b"] == dict(zip(before.labels, before.counts.tolist(), strict=True))["b"]


# -- scikit-learn's ways, and other kinds of X ------------------------------------------------------------------------


def test_in_a_pipeline_and_in_cross_validation(vectors):
    X, y = vectors("owl", "emu", "jay", count=20)
    pipeline = make_pipeline(StandardScaler(), IncrementalClassifier(embedding_dim=8, training=QUICK))
    scores = cross_val_score(pipeline, X, y, cv=3)
    assert scores.shape == (3,)
    assert scores.mean() > 0.5  # chance is a third
    assert set(pipeline.fit(X, y).predict(X)) <= {"owl", "emu", "jay"}


@pytest.mark.parametrize("dtype", ["str", "object", "category", "int64"])
def test_pandas_labels(vectors, dtype):
    X, y = vectors("owl", "emu")
    labels = pd.Series(y).map({"owl": 3, "emu": 7}) if dtype == "int64" else pd.Series(y)
    clf = IncrementalClassifier(embedding_dim=8, training=QUICK).fit(pd.DataFrame(X), labels.astype(dtype))
    assert sorted(clf.classes_.tolist()) == ([3, 7] if dtype == "int64" else ["emu", "owl"])
    assert clf.score(X, labels.astype(dtype)) > 0.5


@pytest.fixture
def files(tmp_path):
    """Eight image files of two classes, of different sizes."""
    paths, labels = [], []
    for i in range(8):
        red = i % 2 == 0
        path = tmp_path / f"{i}.png"
        Image.new("RGB", (20 + i, 24), (200 + i, 0, 0) if red else (0, 0, 200 + i)).save(path)
        paths.append(path)
        labels.append("red" if red else "blue")
    return paths, labels


@pytest.mark.parametrize(
    "kind", [list, lambda p: [str(x) for x in p], np.array, pd.Series], ids=["list", "strings", "array", "series"]
)
def test_paths_of_image_files(files, kind):
    paths, labels = files
    clf = IncrementalClassifier("convnet", embedding_dim=8, image_size=16, schedule=Schedule(train="none"))
    clf.fit(kind(paths), labels)
    assert clf.state_.spec.shape == (3, 16, 16)
    assert clf.predict(kind(paths)).tolist() == labels
    pixels = np.stack([np.asarray(Image.new("RGB", (16, 16), (220, 0, 0)))])
    assert clf.predict(pixels).tolist() == ["red"]  # arrays of the same kind do as well


def test_paths_that_cannot_be_used_are_named(files, vectors):
    paths, labels = files
    clf = IncrementalClassifier("convnet", embedding_dim=8, image_size=16, schedule=Schedule(train="none"))
    with pytest.raises(InputError, match=r"X is one path, .*Give a list"):
        clf.fit(paths[0], labels[:1])
    with pytest.raises(InputError, match=r"there is no image .*nowhere.png"):
        clf.fit([*paths[:7], "nowhere.png"], labels)
    of_vectors = IncrementalClassifier(embedding_dim=8, training=QUICK).fit(*vectors("a", "b"))
    with pytest.raises(InputError, match="was made for vectors of 6 features, not for image files"):
        of_vectors.predict(paths)


class Pairs(torch.utils.data.Dataset):
    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def test_a_torch_dataset_gives_the_same_model_as_arrays(task_of, make_classifier, same):
    X, y = task_of(0, 1)
    pairs = Pairs([(torch.tensor(x)[None], torch.tensor(label)) for x, label in zip(X, y, strict=True)])
    assert same(make_classifier().partial_fit(pairs), make_classifier().partial_fit(X, y))


@pytest.mark.parametrize("channels", ["auto", "first", "last"])
def test_a_dataset_of_pillow_images(files, channels):
    paths, labels = files
    pairs = Pairs([(Image.open(p).resize((16, 16)), label) for p, label in zip(paths, labels, strict=True)])
    clf = IncrementalClassifier("convnet", embedding_dim=8, schedule=Schedule(train="none"), channels=channels)
    assert clf.fit(pairs).predict(pairs).tolist() == labels
    assert clf.state_.spec.shape == (3, 16, 16)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "the dataset is empty"),
        ([torch.zeros(1, 8, 8)], r"must give \(image, label\) pairs; item 0 is a Tensor"),
        ([(torch.zeros(1, 8, 8), 0), (torch.zeros(1, 9, 8), 1)], "images of different shapes"),
    ],
)
def test_a_dataset_that_is_none_is_explained(make_classifier, pairs, message):
    with pytest.raises(InputError, match=message):
        make_classifier().fit(Pairs(pairs))


def test_a_dataset_brings_its_own_labels(make_classifier):
    with pytest.raises(InputError, match="brings its own labels"):
        make_classifier().fit(Pairs([(torch.zeros(1, 8, 8), 0)]), [0])
    with pytest.raises(InputError, match="y is missing"):
        make_classifier().fit(np.zeros((3, 8, 8)))


@pytest.mark.parametrize("photos", [5, 1000])
def test_a_pretrained_network_learns_as_results_photos_measured(photos):
    """Few passes and the pretrained statistics: thirty over a hundred photos, or statistics of them, spoil it."""
    classes = {"a": photos, "b": photos}
    clf = choose(None, classes, {"train": True, "size": 96}).classifier
    row = get_recipe("cub200-six", "frontier").methods["Learned+ridge"]
    assert (clf.training.epochs, clf.schedule.batch_norm, clf.weights) == (5, "pretrained", "pip")
    assert clf.method == row
    assert choose(None, classes, {"train": True, "epochs": 9}).classifier.training.epochs == 9
    assert choose(None, classes, {}).classifier.schedule.train == "none"
