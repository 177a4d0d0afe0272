"""Ridge read-outs against scikit-learn, ACIL's recursion and RanPAC's rule; merged, moved, and taken back."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from protodrift.common.config import decode, encode
from protodrift.common.covariance import Covariance
from protodrift.common.sums import merged
from protodrift.drift import Known, RidgeToIdentity
from protodrift.prototypes.store import Prototypes, class_means
from protodrift.readouts import LiftedRidge, RidgeClassifier, StreamingLDA, View, left_out_errors
from protodrift.readouts.ridge import RIDGES


@pytest.fixture(scope="module")
def clouds():
    rng = np.random.RandomState(0)
    sizes = (20, 30, 40, 50)
    z = [2 * rng.randn(5) + rng.randn(n, 5) @ rng.randn(5, 5) for n in sizes]
    rows = np.repeat(np.arange(4), sizes)
    return torch.from_numpy(np.concatenate(z)), torch.from_numpy(rows), torch.from_numpy(3 * rng.randn(200, 5))


def learned(readout, z, rows, tasks=((0, 1), (2, 3))):
    kept = {}
    for t, classes in enumerate(tasks, 1):
        own = torch.isin(rows, torch.tensor(classes))
        kept = readout.learn(kept, z[own], rows[own], t, 0)
    return kept


def view(readout, z, rows, test, kept):
    store = Prototypes.of("abcd", z, rows, 1, readout.keeps)
    return View(test, store.means, [], kept, statistics=store.statistics, counts=store.counts)


@pytest.mark.parametrize("covariance", [None, Covariance("shared"), Covariance()])
@pytest.mark.parametrize("relative", [True, False])
def test_the_ridge_classifier_is_ridge_regression_on_all_images(clouds, covariance, relative):
    z, rows, test = clouds
    readout = RidgeClassifier(0.1, normalize=False, covariance=covariance, relative=relative)
    alpha = 0.1 * float(z.square().sum()) / 5 if relative else 0.1
    reference = Ridge(alpha=alpha, fit_intercept=False).fit(z.numpy(), np.eye(4)[rows.numpy()])
    seen = view(readout, z, rows, test, learned(readout, z, rows))
    scores = readout.scores(seen)
    np.testing.assert_allclose(scores, reference.predict(test.numpy()), atol=1e-10)
    unit = RidgeClassifier(0.1, covariance=covariance, relative=relative).scores(seen)
    np.testing.assert_allclose(unit, scores.numpy() / np.linalg.norm(reference.coef_, axis=1), atol=1e-8)


LIFT = LiftedRidge(units=64, ridge=0.1, relative=False)


def test_the_lift_with_its_gram_matrix_is_the_recursion_of_acil(clouds):
    """R and W of ACIL, batch by batch and class by class, as its authors release it."""
    z, rows, test = clouds
    h = LIFT.lift(z).double()
    assert torch.equal(LIFT.lift(z), LIFT.lift(z))
    assert bool((h >= 0).all())
    r, w = torch.eye(64, dtype=torch.float64) / 0.1, torch.zeros(64, 4, dtype=torch.float64)
    for x, y in zip(h.split(35), torch.nn.functional.one_hot(rows, 4).double().split(35), strict=True):
        r = r - r @ x.T @ torch.linalg.inv(torch.eye(len(x)) + x @ r @ x.T) @ x @ r
        w = w + r @ x.T @ (y - x @ w)
    ours = LIFT.scores(view(LIFT, z, rows, test, learned(LIFT, z, rows)))
    torch.testing.assert_close(ours, LIFT.lift(test).double() @ w, atol=1e-6, rtol=1e-5)


def test_the_ridge_is_chosen_on_left_out_images_of_the_current_task(clouds):
    """Against as many regressions as images; then W is RanPAC's with that ridge."""
    z, rows, test = clouds
    readout = LiftedRidge(units=64)
    kept = learned(readout, z, rows)
    last = rows >= 2
    h, y = readout.lift(z[last]).double(), torch.nn.functional.one_hot(rows[last], 4).double()
    scale = float(h.square().mean())
    naive = []
    for ridge in RIDGES:
        error = 0.0
        for i in range(len(h)):
            others = torch.arange(len(h)) != i
            x = h[others]
            dual = torch.linalg.solve(x @ x.T + ridge * scale * torch.eye(len(x)), y[others])
            error += float((h[i] @ x.T @ dual - y[i]).square().sum())
        naive.append(error)
    computed = left_out_errors(h, rows[last], 4, torch.tensor(RIDGES, dtype=torch.float64) * scale)
    np.testing.assert_allclose(computed[4:], naive[4:], rtol=1e-4)  # below, 90 images are met exactly: rounding
    assert float(kept["ridge"]) == pytest.approx(RIDGES[int(np.argmin(naive))] * scale, rel=1e-5)
    every, target = readout.lift(z).double(), torch.nn.functional.one_hot(rows, 4).double()
    w = torch.linalg.solve(every.T @ every + float(kept["ridge"]) * torch.eye(64), every.T @ target)
    ours = readout.scores(view(readout, z, rows, test, kept))
    torch.testing.assert_close(ours, readout.lift(test).double() @ w, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "readout", [RidgeClassifier(), LiftedRidge(units=32), LiftedRidge(units=32, ridge=1e-3)], ids=str
)
def test_pieces_merge_and_a_class_is_taken_back_and_refreshed(clouds, readout):
    z, rows, _ = clouds
    order = torch.randperm(140, generator=torch.Generator().manual_seed(0))
    pieces = [readout.sums(z[part], rows[part], 4) for part in (*order.split(60), order[:0])]
    whole, sums = readout.learn({}, z, rows, 1, 0), readout.learn_sums({}, merged(pieces), 1, 0)
    for name in whole.keys() - {"ridge"}:
        torch.testing.assert_close(sums[name], whole[name], rtol=1e-6, atol=1e-6)
    gone = readout.learn({}, z[rows == 1], rows[rows == 1], 1, 0)
    left = readout.added(whole, gone, torch.tensor([-1, 1]), 4, sign=-1)
    never = readout.learn({}, z[rows != 1], rows[rows != 1], 1, 0)
    for name in never.keys() - {"ridge"}:
        torch.testing.assert_close(left[name], never[name], rtol=1e-5, atol=1e-4)
    # Half of a class comes later: as if all had come at once.
    late = torch.arange(140) % 2 == 0
    late &= rows == 3
    first = readout.learn(readout.learn({}, z[~late], rows[~late], 1, 0), z[late], rows[late], 2, 0)
    means = class_means(z[~late], rows[~late], 4)[3:]
    again = readout.refreshed(first, means, torch.tensor([25]), z[late].mean(dim=0)[None], torch.tensor([25]))
    torch.testing.assert_close(again["scatter"], whole["scatter"])
    assert decode(encode(readout)) == readout


@pytest.mark.parametrize("readout", [StreamingLDA(), RidgeClassifier()], ids=str)
def test_what_is_kept_moves_with_a_linear_drift(clouds, readout):
    z, rows, _ = clouds
    turn = torch.eye(5).double() + 0.3 * torch.randn(5, 5, generator=torch.Generator().manual_seed(1)).double()
    fitted = RidgeToIdentity(1e-12).fit(z, z @ turn + 1)
    means, counts = class_means(z, rows, 4), torch.bincount(rows)
    moved = readout.moved(learned(readout, z, rows), fitted, means, counts, 2, 0)
    torch.testing.assert_close(moved["scatter"], learned(readout, z @ turn + 1, rows)["scatter"], rtol=1e-6, atol=1e-4)
    assert int(moved["count"]) == 140


def test_a_lift_is_rebuilt_from_samples_after_drift():
    """Gram and class sums of normal samples, as many as one likes, are those of normal images in expectation."""
    g = torch.Generator().manual_seed(0)
    rows = torch.arange(3).repeat_interleave(4000)
    means = 2 * torch.randn(3, 4, generator=g).double()
    z = means[rows] + torch.randn(12000, 4, generator=g).double()
    readout = LiftedRidge(units=16, ridge=1e-3, samples=20000)
    kept = readout.learn({}, z, rows, 1, 0)
    counts, centers = torch.bincount(rows), class_means(z, rows, 3)
    moved = readout.moved(kept, Known(centers + 1), centers, counts, 2, 0)
    true = readout.learn({}, z + 1, rows, 1, 0)
    for name in ("gram", "lifted"):
        error = float((moved[name] - true[name]).norm() / true[name].norm())
        assert error < 0.03
        assert float((kept[name] - true[name]).norm() / true[name].norm()) > 5 * error
    again = readout.moved(kept, Known(centers + 1), centers, counts, 2, 0)
    assert all(torch.equal(again[name], moved[name]) for name in moved)


def test_few_images_and_classes_without_any_are_no_problem():
    z, rows = torch.ones(1, 3), torch.zeros(1, dtype=torch.long)
    readout = LiftedRidge(units=8)
    kept = readout.learn({}, z, rows, 1, 0)
    scores = readout.scores(View(z, torch.tensor([[1.0, 1, 1], [torch.nan] * 3]), readout_state=kept))
    assert scores[0].isfinite().tolist() == [True, False]


def test_a_chosen_ridge_is_not_below_what_float32_knows(monkeypatch):
    """Few images without noise choose the smallest ridge; in float32 their Gram matrix is not positive definite."""
    monkeypatch.setattr("protodrift.common.scatter.WIDE", 8)
    z = torch.eye(3).repeat_interleave(20, 0) * torch.tensor([1.0, 30.0, 900.0])
    targets = torch.arange(3).repeat_interleave(20)
    readout = LiftedRidge(units=300)
    kept = readout.learn({}, z, targets, 1, 0)
    assert kept["gram"].dtype == torch.float32
    view = View(z, class_means(z, targets, 3), readout_state=kept)
    assert readout.predict(view).tolist() == targets.tolist()
