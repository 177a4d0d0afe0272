"""Streaming LDA against scikit-learn and its closed form."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from protodrift.common.config import decode, encode
from protodrift.errors import InputError
from protodrift.prototypes.store import class_means
from protodrift.readouts import StreamingLDA, View


@pytest.fixture(scope="module")
def clouds():
    """Six classes of 20 images with one covariance that is no multiple of the identity."""
    rng = np.random.RandomState(0)
    mix = rng.randn(5, 5)
    z = np.concatenate([2 * rng.randn(5) + rng.randn(20, 5) @ mix for _ in range(6)])
    return torch.from_numpy(z), torch.arange(6).repeat_interleave(20)


def learn(readout, z, rows, tasks):
    kept = {}
    for t, classes in enumerate(tasks, 1):
        members = torch.isin(rows, torch.tensor(classes))
        kept = readout.learn(kept, z[members], rows[members], t, 0)
    return kept


@pytest.mark.parametrize("solver", ["lsqr", "eigen"])
def test_it_agrees_with_scikit_learn(clouds, solver):
    """scikit-learn shrinks toward the mean variance times I; scaled so that this is 1, it is our I."""
    z, rows = clouds
    centered = z - class_means(z, rows, 6)[rows]
    z = z / (centered.square().sum() / centered.numel()).sqrt()
    reference = LinearDiscriminantAnalysis(solver=solver, shrinkage=0.1, priors=np.full(6, 1 / 6)).fit(z, rows)
    readout = StreamingLDA(shrinkage=0.1)
    kept = learn(readout, z, rows, [[0, 1], [2, 3, 4], [5]])
    test = torch.from_numpy(3 * np.random.RandomState(1).randn(200, 5))
    view = View(test, class_means(z, rows, 6), readout_state=kept)
    assert readout.predict(view).tolist() == reference.predict(test.numpy()).tolist()
    torch.testing.assert_close(readout.scores(view).softmax(dim=1), torch.from_numpy(reference.predict_proba(test)))


def test_scores_follow_the_closed_form(clouds):
    z, rows = clouds
    eps, mu = 1e-4, class_means(z, rows, 6)
    sigma = sum(torch.outer(x - mu[y], x - mu[y]) for x, y in zip(z, rows, strict=True)) / len(z)
    precision = torch.linalg.inv((1 - eps) * sigma + eps * torch.eye(5, dtype=torch.float64))
    naive = [[float(x @ precision @ m - 0.5 * m @ precision @ m) for m in mu] for x in z[:10]]
    kept = learn(StreamingLDA(), z, rows, [[0, 1, 2], [3, 4, 5]])
    ours = StreamingLDA().scores(View(z[:10], mu, readout_state=kept))
    torch.testing.assert_close(ours, torch.tensor(naive, dtype=torch.float64))


@pytest.mark.parametrize("tasks", [[[0], [1], [2], [3], [4], [5]], [[5, 0], [3, 1], [4, 2]], [[0, 1, 2, 3, 4], [5]]])
def test_any_split_into_tasks_gives_the_same_scatter(clouds, tasks):
    z, rows = clouds
    whole, split = learn(StreamingLDA(), z, rows, [list(range(6))]), learn(StreamingLDA(), z, rows, tasks)
    torch.testing.assert_close(split["scatter"], whole["scatter"])
    assert int(split["count"]) == int(whole["count"]) == 120
    assert split["scatter"].dtype == torch.float64


def test_with_the_identity_it_is_the_nearest_class_mean_and_an_unknown_class_never_wins(clouds):
    z, rows = clouds
    mu = class_means(z, rows, 6)
    mu[2] = torch.nan
    kept = learn(StreamingLDA(), z, rows, [list(range(6))])
    view = View(z.float(), mu.float(), readout_state=kept)
    near = [min((c for c in range(6) if c != 2), key=lambda c: float((x - mu[c]).norm())) for x in z]
    assert StreamingLDA(shrinkage=1.0).predict(view).tolist() == near
    assert bool((StreamingLDA().scores(view)[:, 2] == -torch.inf).all())


def test_more_dimensions_than_images_is_no_problem():
    g = torch.Generator().manual_seed(0)
    z, rows = torch.randn(8, 30, generator=g), torch.arange(2).repeat_interleave(4)
    kept = StreamingLDA().learn({}, z, rows, 1, 0)
    scores = StreamingLDA().scores(View(z, class_means(z, rows, 2), readout_state=kept))
    assert bool(torch.isfinite(scores).all())
    assert scores.argmax(dim=1).tolist() == rows.tolist()


def test_options():
    assert decode(encode(StreamingLDA(0.5))) == StreamingLDA(0.5)
    with pytest.raises(InputError, match="greater than 0"):
        StreamingLDA(shrinkage=0.0)
