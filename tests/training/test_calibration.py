"""How sure an answer is: quantiles, temperatures and novelty, against loops and scikit-learn."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from protodrift import IncrementalClassifier, NearestClassMean, Schedule, StreamingLDA
from protodrift.errors import InputError
from protodrift.metrics import expected_calibration_error
from protodrift.training.calibration import LEVELS, Calibration, fit_temperature, novelty, sketch
from protodrift.training.checking import folds, hold_out
from protodrift.training.state import without


def test_a_sketch_has_the_quantiles_of_a_conformal_prediction():
    values = torch.tensor(np.random.RandomState(0).rand(60))
    ordered = sorted(values.tolist())
    for level, got in zip(LEVELS, sketch(values).tolist(), strict=True):
        assert got == ordered[min(60, max(1, math.ceil(61 * level - 1e-9))) - 1]


def test_any_rate_can_be_asked_for_and_is_kept_on_new_images():
    rng = np.random.RandomState(1)
    row = sketch(torch.tensor(rng.gamma(4.0, size=2000)))
    calibration = replace(Calibration.unknown(3), quantiles=row.repeat(3, 1))
    fresh = torch.tensor(rng.gamma(4.0, size=20000))
    for rate in (0.01, 0.03, 0.05, 0.123, 0.2, 0.5, 0.77):
        limit = float(calibration.limits(rate)[0])
        assert float((fresh > limit).double().mean()) == pytest.approx(rate, abs=0.012)
    assert torch.isinf(calibration.limits(0.0)).all()
    assert float(calibration.limits(1.0)[0]) == float(row[0])


def test_without_images_nothing_is_ever_unknown():
    for rate in (0.05, 0.06, 0.5, 1.0):
        assert torch.isinf(Calibration.unknown(2).limits(rate)).all()


def test_at_the_temperature_confidence_is_the_share_of_right_answers():
    rng = np.random.RandomState(2)
    rows = rng.randint(0, 5, 400)
    scores = 3.0 * rng.randn(400, 5)
    scores[np.arange(400), rows] += 6
    got = fit_temperature(torch.tensor(scores), torch.tensor(rows))
    odds = np.exp((scores - scores.max(1, keepdims=True)) / got)
    right = (scores.argmax(1) == rows).sum()
    assert 300 < right < 400
    assert (1 / odds.sum(1)).mean() == pytest.approx((right + 1) / 402, abs=1e-4)


def test_answers_that_are_wrong_more_often_than_chance_are_as_unsure_as_can_be():
    scores = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).repeat(20, 1)
    temperature = fit_temperature(scores, torch.tensor([1, 2, 0]).repeat(20))
    assert float((scores / temperature).softmax(1).max()) == pytest.approx(1 / 3, abs=1e-3)


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
def test_the_temperature_is_the_one_that_bisection_image_by_image_finds(seed):
    g = torch.Generator().manual_seed(seed)
    scores = -torch.rand(30, 9, generator=g, dtype=torch.float64) * 10.0 ** (seed - 3)
    rows = torch.randint(0, 9, (30,), generator=g)
    scores[torch.arange(30), rows] *= 0.4
    if seed % 2:
        scores[:, 3] = torch.where(rows == 3, scores[:, 3], -torch.inf)
    listed = scores.tolist()
    right = sum(max(range(9), key=row.__getitem__) == own for row, own in zip(listed, rows.tolist(), strict=True))
    low, high = 1e-9, 1e9
    for _ in range(100):
        middle = math.sqrt(low * high)
        sure = sum(1 / sum(math.exp((one - max(row)) / middle) for one in row) for row in listed) / 30
        low, high = (middle, high) if sure > (right + 1) / 32 else (low, middle)
    assert 2 < right < 30
    assert fit_temperature(scores, rows) == pytest.approx(low, rel=1e-3)


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
    some = replace(
        Calibration.unknown(2, 2.0), quantiles=torch.full((2, len(LEVELS)), 0.5), spread=torch.tensor([3.0, 3.0])
    )
    moved = some.moved(torch.tensor([4.0, float("nan")]))
    assert moved.spread.tolist() == [5.0, 3.0]  # sqrt(3^2 + 4^2); nothing is known of the second
    assert moved.quantiles[:, 0].tolist() == pytest.approx([0.5 * 5 / 3, 0.5])
    assert moved.temperatures.tolist() == pytest.approx([2 * 25 / 9, 2])
    assert some.moved(None) is some


def test_novelty_is_relative_from_three_classes_on_against_a_loop():
    rng = np.random.RandomState(3)
    plain, apart = torch.tensor(rng.rand(6, 5)), torch.tensor(rng.rand(6, 5))
    best = torch.tensor(rng.randint(0, 2, 6))
    got = novelty(best, plain, apart)
    for i in range(6):
        row = apart[i].tolist()
        assert float(got[i]) == pytest.approx(row[int(best[i])] / (sum(row) / 5))
    assert novelty(best, plain[:, :2], apart[:, :2]).tolist() == [float(plain[i, best[i]]) for i in range(6)]


def unchanged(dim: int) -> dict[str, object]:
    """Return parameters of a network that leaves vectors as they are; a random one treats some classes better."""
    same = torch.nn.Linear(dim, dim, bias=False)
    torch.nn.init.eye_(same.weight)
    return {"backbone": same, "embedding_dim": None, "normalize": False}


def clouds(months: list[list[str]], dim: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return 140 vectors of every class; all classes are equally far out, so that the network treats them alike."""
    rng = np.random.RandomState(seed)
    places = {label: rng.randn(dim) for month in months for label in month}
    far = 2 * dim**0.5
    return {label: far * at / np.linalg.norm(at) + rng.randn(140, dim) for label, at in places.items()}


@pytest.mark.parametrize("readout", [StreamingLDA(), NearestClassMean()], ids=["SLDA", "NCM"])
def test_in_every_task_as_many_are_called_unknown_as_was_asked_for(make_classifier, readout):
    """Month after month, and also of the oldest classes; the network stays as it is."""
    clf = make_classifier(**unchanged(24), schedule=Schedule(train="none"), readout=readout)
    months = [[f"m{month}c{c}" for c in range(8)] for month in range(5)]
    draws = clouds(months, dim=24)
    for month in months:
        clf.partial_fit(np.concatenate([draws[c][:40] for c in month]), np.repeat(month, 40))
    fresh = [np.concatenate([draws[c][40:] for c in month]) for month in months]  # the same clouds, other draws
    for rate in (0.05, 0.2):
        clf.set_params(unknown_rate=rate)
        rates = [clf.recognize(month).unknown.mean() for month in fresh]
        assert 0.5 * rate < min(rates) < max(rates) < 1.6 * rate
    strangers = np.concatenate(list(clouds([["stranger 1", "stranger 2"]], dim=24, seed=1).values()))
    assert clf.recognize(strangers).unknown.mean() > 0.6
    assert clf.set_params(unknown_rate=0).recognize(strangers).unknown.mean() == 0
    assert clf.tasks_[-1].held_out == (320, pytest.approx(1, abs=0.1))  # every image was left out in turn
    assert clf.state_.calibration.honest.all()
    with pytest.raises(InputError, match="unknown_rate"):
        clf.set_params(unknown_rate=1.5).recognize(strangers)


def test_calibration_is_right_in_every_task(make_classifier):
    """Confidence is as high as the share of right answers, also of classes whose images are long gone."""
    frozen = Schedule(train="none")
    clf = make_classifier(**unchanged(8), schedule=frozen, readout=StreamingLDA(), temperature="auto")
    months = [[f"m{month}c{c}" for c in range(8)] for month in range(5)]
    draws = clouds(months, dim=8)
    for month in months:
        clf.partial_fit(np.concatenate([draws[c][:40] for c in month]), np.repeat(month, 40))
    errors = []
    for month in months:
        found = clf.recognize(np.concatenate([draws[c][40:] for c in month]))
        right = found.labels == np.repeat(month, 100)
        errors.append(expected_calibration_error(found.probabilities.max(axis=1), right))
    assert max(errors) < 0.03


def test_refreshing_a_class_measures_limits_anew(vectors, make_classifier):
    clf = make_classifier(schedule=Schedule(train="none"), readout=StreamingLDA())
    names = ["a", "b", "c", "d"]
    clf.partial_fit(*vectors(*names, count=40))
    before = clf.state_.calibration
    X, y = vectors(*names, count=80)
    X += 2 * np.random.RandomState(0).randn(*X.shape)  # images of the same classes that lie farther out
    clf.partial_fit(X, y, known="refresh")
    after = clf.state_.calibration
    assert (after.limits() > before.limits()).all()
    assert after.images.tolist() == [120] * 4
    assert clf.tasks_[-1].held_out is not None


def test_a_task_of_few_images_does_not_overthrow_what_many_said(vectors, make_classifier):
    clf = make_classifier(schedule=Schedule(train="none"))
    names = [f"class {i}" for i in range(10)]
    clf.partial_fit(*vectors(*names, count=40))
    limit = float(clf.state_.calibration.limits()[0])
    X, _ = vectors("one more")
    clf.partial_fit(X[:1].repeat(3, axis=0) + 1e-3 * np.arange(3)[:, None], ["one more"] * 3)
    assert clf.state_.calibration.limits().tolist() == pytest.approx([limit] * 11, rel=0.05)


def test_forgetting_down_to_two_classes_knows_no_limits_of_another_kind(vectors, make_classifier):
    clf = make_classifier(schedule=Schedule(train="none")).partial_fit(*vectors("a", "b", "c", count=20))
    clf.state_ = without(clf.state_, "c")
    assert not clf.recognize(vectors("a")[0] + 50).unknown.any()


def test_one_class_has_a_plain_distance_to_be_far_by(vectors, make_classifier):
    X, y = vectors("owl", count=40)
    clf = make_classifier(schedule=Schedule(train="none"), embedding_dim=None, normalize=False).fit(X, y)
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
    assert torch.isfinite(calibration.quantiles).all()
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


def test_what_depends_only_on_the_model_is_computed_once(vectors, make_classifier, monkeypatch):
    clf = make_classifier(schedule=Schedule(train="none"), readout=StreamingLDA()).partial_fit(*vectors("a", "b", "c"))
    X, _ = vectors("a", "c")
    factorized = []
    plain = StreamingLDA._factor
    monkeypatch.setattr(StreamingLDA, "_factor", lambda self, state: (factorized.append(1), plain(self, state))[1])
    first = clf.recognize(X)
    assert len(factorized) == 2
    again = clf.recognize(X)
    assert len(factorized) == 2
    assert np.array_equal(first.probabilities, again.probabilities)
    assert np.array_equal(first.labels, clf.predict(X))
    changed = clf.set_params(readout=StreamingLDA(shrinkage=0.9)).recognize(X)
    assert not np.array_equal(changed.novelty, first.novelty)
    clf.partial_fit(*vectors("d"))
    assert clf.recognize(X).probabilities.shape == (24, 4)
