"""Streaming LDA against scikit-learn and its closed form."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from protodrift.common.config import decode, encode
from protodrift.common.sums import merged as merged_sums
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
    """Both shrink toward the mean variance times I; scikit-learn standardizes features first, which they must be."""
    z, rows = clouds
    z = z / (z - class_means(z, rows, 6)[rows]).square().mean(dim=0).sqrt()
    reference = LinearDiscriminantAnalysis(solver=solver, shrinkage=0.1, priors=np.full(6, 1 / 6)).fit(z, rows)
    readout = StreamingLDA(shrinkage=0.1)
    kept = learn(readout, z, rows, [[0, 1], [2, 3, 4], [5]])
    test = torch.from_numpy(3 * np.random.RandomState(1).randn(200, 5))
    view = View(test, class_means(z, rows, 6), readout_state=kept)
    assert readout.predict(view).tolist() == reference.predict(test.numpy()).tolist()
    torch.testing.assert_close(readout.scores(view).softmax(dim=1), torch.from_numpy(reference.predict_proba(test)))


def test_scores_follow_the_closed_form(clouds):
    z, rows = clouds
    s, mu = 0.3, class_means(z, rows, 6)
    sigma = sum(torch.outer(x - mu[y], x - mu[y]) for x, y in zip(z, rows, strict=True)) / len(z)
    precision = torch.linalg.inv((1 - s) * sigma + s * sigma.trace() / 5 * torch.eye(5, dtype=torch.float64))
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


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_the_unit_of_the_features_does_not_matter(clouds, unit):
    """An absolute shrinkage cost 7 points on features that are not of unit length."""
    z, rows = clouds
    answers = []
    for scaled in (z, unit * z):
        kept = learn(StreamingLDA(), scaled, rows, [[0, 1, 2], [3, 4, 5]])
        answers.append(StreamingLDA().scores(View(scaled, class_means(scaled, rows, 6), readout_state=kept)))
    torch.testing.assert_close(*answers)


def test_without_any_spread_the_nearest_mean_decides():
    z, rows = torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 1])
    kept = StreamingLDA().learn({}, z, rows, 1, 0)
    near = View(torch.tensor([[0.0, 1.0], [0.0, 2.0]]), z, readout_state=kept)
    assert StreamingLDA().predict(near).tolist() == [0, 1]


def test_a_power_and_unit_length_are_a_space_of_their_own(clouds):
    z, rows = clouds[0].abs(), clouds[1]
    readout = StreamingLDA(tukey=0.5, unit=True)
    assert readout.space_name == "tukey 0.5, unit length"
    x = z.sqrt() / z.sqrt().norm(dim=1, keepdim=True)
    torch.testing.assert_close(readout.space(z), x)
    kept = learn(readout, readout.space(z), rows, [[0, 1, 2], [3, 4, 5]])
    mu = class_means(x, rows, 6)
    plain = StreamingLDA()
    assert torch.equal(kept["scatter"], learn(plain, readout.space(z), rows, [[0, 1, 2], [3, 4, 5]])["scatter"])
    seen, direct = View(z, mu, readout_state=kept), View(x, mu, readout_state=kept)
    torch.testing.assert_close(readout.scores(seen), plain.scores(direct))
    for ours, theirs in zip(readout.coordinates(seen), plain.coordinates(direct), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_wide_features_are_summed_in_float32_and_answer_alike(clouds, monkeypatch):
    """Tiles, row blocks and float32, on a small case: what 12,800 dimensions take."""
    from protodrift.common import scatter

    z, rows = clouds
    exact = learn(StreamingLDA(), z, rows, [[0, 1], [2, 3], [4, 5]])
    for name, value in (("WIDE", 2), ("_TILE", 2), ("_ROWS", 7)):
        monkeypatch.setattr(scatter, name, value)
    wide = learn(StreamingLDA(), z, rows, [[0, 1], [2, 3], [4, 5]])
    assert wide["scatter"].dtype == torch.float32
    assert torch.equal(wide["scatter"], wide["scatter"].T)
    torch.testing.assert_close(wide["scatter"].double(), exact["scatter"], rtol=1e-5, atol=1e-4)
    mu = class_means(z, rows, 6)
    ours, theirs = (StreamingLDA().scores(View(z, mu, readout_state=kept)) for kept in (wide, exact))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_class_is_taken_out_exactly(clouds):
    z, rows = clouds
    readout = StreamingLDA()
    kept = learn(readout, z, rows, [[0, 1, 2], [3, 4, 5]])
    gone = readout.learn({}, z[rows == 4], rows[rows == 4], 1, 0)
    left = readout.added(kept, gone, torch.tensor([4]), 6, sign=-1)
    never = learn(readout, z, rows, [[0, 1, 2], [3, 5]])
    assert int(left["count"]) == int(never["count"]) == 100
    torch.testing.assert_close(left["scatter"], never["scatter"])


def test_shards_merge_to_the_whole(clouds):
    z, rows = clouds
    readout = StreamingLDA()
    whole = readout.learn({}, z, rows, 1, 0)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
    pieces = [readout.sums(z[part], rows[part], 6) for part in (*order.split(50), order[:0])]
    merged = readout.learn_sums({}, merged_sums(pieces), 1, 0)
    torch.testing.assert_close(merged["scatter"], whole["scatter"])
    assert int(merged["count"]) == 120


def test_a_shrinkage_that_leaves_nothing_to_invert_is_named():
    z = torch.randn(8, 30, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(2).repeat_interleave(4)
    kept = StreamingLDA(1e-18).learn({}, z, rows, 1, 0)
    with pytest.raises(InputError, match="shrinkage is too small"):
        StreamingLDA(1e-18).scores(View(z, class_means(z, rows, 2), readout_state=kept))


def test_options():
    assert decode(encode(StreamingLDA(0.5))) == StreamingLDA(0.5)
    with pytest.raises(InputError, match="greater than 0"):
        StreamingLDA(shrinkage=0.0)
