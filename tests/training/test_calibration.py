"""How sure an answer is: quantiles, temperatures and novelty, against loops and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from protodrift import IncrementalClassifier, Schedule, StreamingLDA
from protodrift.training.calibration import (
    LEVELS,
    PRIOR_IMAGES,
    Calibration,
    class_quantiles,
    fit_temperature,
    folds,
    hold_out,
    relative_distances,
)


def test_class_quantiles_are_the_class_scale_times_the_common_shape():
    rng = np.random.RandomState(0)
    rows = rng.randint(0, 4, 60)
    distances = rng.rand(60) * (1 + rows)
    got = class_quantiles(torch.tensor(distances), torch.tensor(rows), 5)
    scales = []
    for c in range(5):  # class 4 has no image
        own = [d for d, r in zip(distances, rows, strict=True) if r == c]
        scales.append((sum(own) + PRIOR_IMAGES * distances.mean()) / (len(own) + PRIOR_IMAGES))
    shape = sorted(d / scales[r] for d, r in zip(distances, rows, strict=True))
    for c in range(5):
        for j, level in enumerate(LEVELS):
            expected = scales[c] * shape[min(60, math.ceil(61 * level)) - 1]
            assert float(got[c, j]) == pytest.approx(expected)


def test_quantiles_cover_what_they_promise_on_new_images():
    rng = np.random.RandomState(1)
    rows = np.repeat(np.arange(10), 30)
    scale = 1 + rng.rand(10)
    draw = lambda: torch.tensor(scale[rows] * np.sqrt(rng.chisquare(8, 300)))  # noqa: E731
    quantiles = class_quantiles(draw(), torch.tensor(rows), 10)
    fresh = torch.stack([draw() for _ in range(20)])
    outside = (fresh > quantiles[rows, LEVELS.index(0.95)]).double().mean()
    assert 0.03 < float(outside) < 0.07


def test_without_images_nothing_is_ever_unknown():
    assert torch.isinf(class_quantiles(torch.zeros(0), torch.zeros(0, dtype=torch.long), 2)).all()
    calibration = Calibration.unknown(2)
    far = torch.full((3, 2), 1e9)
    assert not (calibration.novelty(torch.tensor([0, 1, 0]), far, far) > 1).any()


def test_the_temperature_is_that_of_the_least_loss():
    rng = np.random.RandomState(2)
    rows = rng.randint(0, 5, 400)
    scores = 3.0 * rng.randn(400, 5)
    scores[np.arange(400), rows] += 6
    miss = 1 / 402

    def loss(log_t: float) -> float:
        logits = scores / math.exp(log_t)
        log_p = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        log_p -= logits.max(1, keepdims=True)
        right = log_p[np.arange(400), rows]
        return float(-((1 - miss) * right + miss * (log_p.sum(1) - right) / 4).mean())

    best = minimize_scalar(loss, bounds=(-3, 6), method="bounded")
    got = fit_temperature(torch.tensor(scores), torch.tensor(rows))
    assert got == pytest.approx(math.exp(best.x), rel=0.05)


def test_a_perfect_answer_on_few_images_is_not_infinitely_sure():
    scores = torch.eye(3).repeat(2, 1) * 2 - 2
    temperature = fit_temperature(scores, torch.tensor([0, 1, 2, 0, 1, 2]))
    assert float((scores / temperature).softmax(1).max()) < 0.97


def test_a_class_without_a_score_does_not_disturb_the_temperature():
    scores = torch.tensor([[1.0, 0.0], [0.2, 0.9], [0.8, 0.7]])
    rows = torch.tensor([0, 1, 0])
    more = torch.cat([scores, torch.full((3, 1), -torch.inf)], dim=1)
    assert math.isfinite(fit_temperature(more, rows))


@pytest.mark.parametrize("seed", range(6))
def test_the_temperature_is_the_one_that_trying_one_temperature_after_the_other_finds(seed):
    """The search uses that the loss is convex in 1 / T; here every temperature of three grids, ever finer, is tried."""
    g = torch.Generator().manual_seed(seed)
    scores = -torch.rand(30, 9, generator=g, dtype=torch.float64) * 10.0 ** (seed - 3)
    rows = torch.randint(0, 9, (30,), generator=g)
    scores[torch.arange(30), rows] *= 0.4
    if seed % 2:
        scores[:, 3] = torch.where(rows == 3, scores[:, 3], -torch.inf)
    gaps = scores.amax(dim=1, keepdim=True) - scores
    center, width = math.log(float(gaps[gaps.isfinite()].mean())), math.log(1e3)
    for _ in range(3):
        losses = {}
        for step in range(-20, 21):
            temperature = math.exp(center + width * step / 20)
            log_p = (scores / temperature).log_softmax(dim=1)
            right = log_p[torch.arange(30), rows]
            others = (log_p.masked_fill(log_p.isinf(), 0).sum(dim=1) - right) / 8
            losses[temperature] = float(-((31 / 32) * right + others / 32).mean())
        best = min(losses, key=losses.get)
        center, width = math.log(best), width / 15
    assert fit_temperature(scores, rows) == pytest.approx(best, rel=1e-3)


def test_folds_hold_out_every_image_once_and_leave_every_class_there():
    rows = torch.tensor([0] * 7 + [1] * 2 + [2])
    parts = folds(rows, 5, torch.Generator().manual_seed(0))
    held = torch.cat([part for _, part in parts])
    assert sorted(held.tolist()) == list(range(9))  # the one image of class 2 is never held out
    for rest, part in parts:
        assert set(rest.tolist()).isdisjoint(part.tolist())
        assert set(rows[rest].tolist()) == {0, 1, 2}


def test_hold_out_takes_a_share_of_the_larger_classes():
    rows = torch.tensor([0] * 20 + [1] * 5 + [2] * 4 + [3] * 1000)
    held = hold_out(rows, 0.2, torch.Generator().manual_seed(0))
    assert torch.bincount(rows[held], minlength=4).tolist() == [4, 1, 0, 50]
    assert not hold_out(rows, 0.0, torch.Generator()).any()


def test_rows_move_with_their_prototypes():
    calibration = Calibration.unknown(2)
    calibration = Calibration(
        torch.full((2, len(LEVELS)), 3.0), torch.full((2, len(LEVELS)), 0.5), *list(calibration.named().values())[2:]
    )
    moved = calibration.moved(torch.tensor([4.0, float("nan")]))
    assert moved.quantiles[:, 0].tolist() == [5.0, 3.0]  # sqrt(3^2 + 4^2); nothing is known of the second
    assert moved.relative[:, 0].tolist() == pytest.approx([0.5 * 5 / 3, 0.5])
    assert calibration.moved(None) is calibration


def test_relative_distances_against_a_loop():
    rng = np.random.RandomState(3)
    z, mu = rng.randn(6, 4), rng.randn(5, 4)
    got = relative_distances(torch.tensor(z), torch.tensor(mu))
    for i in range(6):
        plain = [math.dist(z[i], m) for m in mu]
        assert got[i].tolist() == pytest.approx([d / (sum(plain) / 5) for d in plain])


@pytest.mark.parametrize("readout", [StreamingLDA(), None], ids=["SLDA", "NCM"])
def test_strangers_are_found_and_friends_are_not_called_strangers(vectors, make_classifier, readout):
    options = {} if readout is None else {"readout": readout}
    clf = make_classifier(schedule=Schedule(train="none"), temperature="auto", **options)
    for pair in (("a", "b"), ("c", "d")):
        X, y = vectors(*pair, count=40, dim=12)
        clf.partial_fit(X, y)
    X, _ = vectors("a", "b", "c", "d", count=120, dim=12)
    friends = np.concatenate([X[i * 120 + 40 : (i + 1) * 120] for i in range(4)])  # the same clouds, other draws
    assert clf.recognize(friends).unknown.mean() < 0.15
    probabilities = clf.recognize(friends).probabilities
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert clf.tasks_[-1].held_out is not None
    assert clf.tasks_[-1].held_out[0] == 80  # every image was held out in turn
    assert clf.state_.calibration.honest.all()


def test_one_class_has_a_plain_distance_to_be_far_by(vectors, make_classifier):
    X, y = vectors("owl", count=40)
    clf = make_classifier(schedule=Schedule(train="none"), embedding_dim=None, normalize=False).fit(X, y)
    assert torch.isinf(clf.state_.calibration.relative).all()
    assert clf.recognize(X).unknown.mean() <= 0.1
    assert clf.recognize(X + 30).unknown.all()


def test_what_the_network_was_trained_on_is_not_called_held_out(vectors, make_classifier):
    clf = make_classifier().fit(*vectors("a", "b"))
    assert clf.tasks_[0].held_out is None
    assert not clf.state_.calibration.honest.any()
    held = make_classifier(held_out=0.25).fit(*vectors("a", "b"))
    assert held.tasks_[0].held_out is not None
    assert held.tasks_[0].held_out[0] == 6
    assert held.state_.calibration.honest.all()
    assert held.tasks_[0].images == (12, 12)
    assert held.state_.prototypes.counts.tolist() == [12, 12]  # they still count in the prototypes


def test_one_image_a_class_takes_over_what_others_measured(vectors, make_classifier):
    clf = make_classifier(schedule=Schedule(train="none")).partial_fit(*vectors("a", "b", "c"))
    X, y = vectors("d", "e")
    clf.partial_fit(X[[0, 12]], y[[0, 12]])
    calibration = clf.state_.calibration
    assert calibration.images.tolist() == [12, 12, 12, 0, 0]
    assert torch.isfinite(calibration.relative).all()
    assert clf.tasks_[-1].held_out is None
    assert set(clf.predict(X[[0, 12]])) <= {"a", "b", "c", "d", "e"}


def test_auto_temperature_is_the_one_of_the_answer(two_clouds, vectors):
    X, _ = vectors("owl", "jay")
    auto = two_clouds.set_params(temperature="auto").predict_proba(X)
    for row in range(len(X)):
        best = int(auto[row].argmax())
        own = float(two_clouds.state_.calibration.temperatures[best])
        alone = two_clouds.set_params(temperature=own).predict_proba(X[row : row + 1])
        assert np.allclose(auto[row], alone[0])
    assert isinstance(two_clouds, IncrementalClassifier)
