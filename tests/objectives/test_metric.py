"""The metric losses against their formulas, and what they do with batches that have nothing to learn from."""

import math

import pytest
import torch
from pytorch_metric_learning import losses

from protodrift.common.config import decode, encode
from protodrift.errors import InputError
from protodrift.objectives import (
    Angular,
    Contrastive,
    MetricLoss,
    MultiSimilarity,
    Triplet,
    angular_loss,
    contrastive_loss,
    multi_similarity_loss,
    triplet_loss,
    valid_triplets,
)


def loss_of(objective, z, rows, reduction="mean"):
    return objective.losses(z, rows, objective.draw(rows, torch.Generator().manual_seed(0)), reduction)


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(5)
    z = torch.nn.functional.normalize(torch.randn(10, 4, generator=g, dtype=torch.float64), dim=1)
    return z, torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3])


def pairs(rows, same):
    n = len(rows)
    return [(i, j) for i in range(n) for j in range(n) if i != j and bool(rows[i] == rows[j]) == same]


def test_contrastive_is_the_mean_hinge_of_both_kinds_of_pairs(batch):
    z, rows = batch
    d = lambda i, j: float((z[i] - z[j]).norm())  # noqa: E731
    positive, negative = pairs(rows, True), pairs(rows, False)
    naive = sum(max(0, d(i, j) - 0.1) for i, j in positive) / len(positive)
    naive += sum(max(0, 1.2 - d(i, j)) for i, j in negative) / len(negative)
    assert float(contrastive_loss(z, rows, 0.1, 1.2)) == pytest.approx(naive, abs=1e-7)
    assert torch.equal(loss_of(Contrastive(0.1, 1.2), z, rows), contrastive_loss(z, rows, 0.1, 1.2))


@pytest.mark.parametrize("epsilon", [None, 0.1])
def test_multi_similarity_is_its_formula(batch, epsilon):
    z, rows = batch
    similarity = (z @ z.T).tolist()
    alpha, beta, base = 2.0, 50.0, 0.5
    total = 0.0
    for i in range(len(rows)):
        positive = [j for a, j in pairs(rows, True) if a == i]
        negative = [j for a, j in pairs(rows, False) if a == i]
        if epsilon is not None:
            easiest = min((similarity[i][j] for j in positive), default=math.inf)
            hardest = max(similarity[i][j] for j in negative)
            negative = [j for j in negative if similarity[i][j] + epsilon > easiest]
            positive = [j for j in positive if similarity[i][j] - epsilon < hardest]
        total += math.log(1 + sum(math.exp(-alpha * (similarity[i][j] - base)) for j in positive)) / alpha
        total += math.log(1 + sum(math.exp(beta * (similarity[i][j] - base)) for j in negative)) / beta
    ours = multi_similarity_loss(z, rows, alpha, beta, base, epsilon)
    assert float(ours) == pytest.approx(total / len(rows), abs=1e-6)
    assert torch.equal(loss_of(MultiSimilarity(alpha, beta, base, epsilon), z, rows), ours)


def test_angular_is_its_formula(batch):
    z, rows = batch
    tan2 = math.tan(math.radians(40)) ** 2
    terms = []
    for a, p in pairs(rows, True):
        inner = sum(
            math.exp(4 * tan2 * float((z[a] + z[p]) @ z[n]) - 2 * (1 + tan2) * float(z[a] @ z[p]))
            for n in range(len(rows))
            if rows[n] != rows[a]
        )
        terms.append(math.log(1 + inner))
    assert float(angular_loss(z, rows, 40.0)) == pytest.approx(sum(terms) / len(terms), abs=1e-6)
    assert torch.equal(loss_of(Angular(40.0), z, rows), angular_loss(z, rows, 40.0))


@pytest.mark.parametrize("mining", ["random", "all", "semi-hard", "batch-hard"])
@pytest.mark.parametrize("rows", [[0, 0, 0], [0, 1, 2]], ids=["one class", "no positives"])
def test_a_batch_without_triplets_has_zero_loss_and_zero_gradient(mining, rows):
    z = torch.eye(3, requires_grad=True)
    loss = loss_of(Triplet(mining=mining), z, torch.tensor(rows))
    assert float(loss) == 0
    if loss.requires_grad:
        loss.backward()
        assert not z.grad.any()


def test_a_class_of_one_image_gives_negatives_and_is_never_an_anchor():
    anchors, positives, negatives = valid_triplets(torch.tensor([0, 0, 1]), torch.Generator().manual_seed(0))
    assert list(zip(anchors.tolist(), positives.tolist(), negatives.tolist(), strict=True)) == [(0, 1, 2), (1, 0, 2)]


def test_random_negatives_are_uniform_over_the_other_classes():
    rows = torch.tensor([0, 0, 1, 1, 2])
    g = torch.Generator().manual_seed(0)
    drawn = torch.cat([valid_triplets(rows, g)[2][:1] for _ in range(3000)])  # the negatives of anchor 0
    counts = torch.bincount(drawn, minlength=5).tolist()
    assert counts[:2] == [0, 0]
    assert all(900 < count < 1100 for count in counts[2:])


def test_the_network_alone_decides_about_normalization(batch):
    """pytorch-metric-learning would normalize by default; then scaling z could not change the loss."""
    z, rows = batch
    assert float(triplet_loss(3 * z, rows)) > float(triplet_loss(z, rows))


def test_any_loss_of_the_library_can_be_passed_in(batch):
    z, rows = batch
    given = losses.NTXentLoss(temperature=0.2)
    assert float(loss_of(MetricLoss(given), z, rows)) == pytest.approx(float(given(z, rows)))


def test_what_is_no_metric_loss_is_refused():
    with pytest.raises(InputError, match=r"pytorch_metric_learning\.losses"):
        MetricLoss(torch.nn.CrossEntropyLoss())


@pytest.mark.parametrize("objective", [Triplet(), Contrastive(), MultiSimilarity(), Angular()])
def test_configuration_survives_json(objective):
    assert decode(encode(objective)) == objective


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Triplet(mining="hard"), "Did you mean 'semi-hard'|Did you mean 'batch-hard'"),
        (lambda: Triplet(margin=-1), "at least 0"),
        (lambda: Triplet(margin=math.nan), "finite number"),
        (lambda: Angular(alpha=0), "greater than 0"),
        (lambda: decode({"type": "Triplet", "margn": 0.1}), "Did you mean 'margin'"),
        (lambda: decode({"type": "Triplett"}), "Did you mean 'Triplet'"),
    ],
)
def test_wrong_options_are_explained(make, message):
    with pytest.raises(InputError, match=message):
        make()
