"""Prototypes and SDC merged from pieces: equal to the whole, from any number of pieces, also empty or far ones."""

import math

import pytest
import torch

from protodrift.common.sums import merged
from protodrift.drift import SDC, KernelSums, kernel_sums, semantic_drift
from protodrift.prototypes import ClassSums, class_means


@pytest.fixture
def pairs():
    g = torch.Generator().manual_seed(0)
    z_old = torch.randn(300, 5, generator=g)
    z_old[:100] += 500  # beside the others all its weights underflow: exp(-500^2)
    return torch.randn(4, 5, generator=g), z_old, z_old + torch.randn(300, 5, generator=g)


def naive(prototypes, z_old, z_new, sigma):
    """Eqs. 9-11 with Python's numbers, weights relative to the nearest image."""
    moved = []
    for mu in prototypes.double().tolist():
        logs = [
            -sum((a - b) ** 2 for a, b in zip(z, mu, strict=True)) / (2 * sigma**2) for z in z_old.double().tolist()
        ]
        top = max(logs)
        w = [math.exp(log - top) for log in logs]
        delta = (z_new.double() - z_old.double()).tolist()
        moved.append([sum(wi * d[k] for wi, d in zip(w, delta, strict=True)) / sum(w) + mu[k] for k in range(len(mu))])
    return torch.tensor(moved)


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("sigma", [0.01, 0.3, 20.0])
def test_sdc_merged_from_shards_is_the_whole(pairs, shards, sigma):
    prototypes, z_old, z_new = pairs
    drift = SDC(sigma)
    parts = [
        drift.sums(prototypes, old, new)
        for old, new in zip(z_old.tensor_split(shards), z_new.tensor_split(shards), strict=True)
    ]
    moved, diagnostics = drift.fit_sums(prototypes, merged([KernelSums(**part.pack()) for part in parts])).explain(
        prototypes
    )
    whole, expected = drift.fit_sums(prototypes, drift.sums(prototypes, z_old, z_new)).explain(prototypes)
    assert moved.dtype == prototypes.dtype
    torch.testing.assert_close(moved, whole, rtol=0, atol=1e-6)
    torch.testing.assert_close(moved, naive(prototypes, z_old, z_new, sigma), rtol=0, atol=2e-6)
    torch.testing.assert_close(diagnostics, expected)
    double = semantic_drift(prototypes.double(), z_old.double(), z_new.double(), sigma)
    torch.testing.assert_close(moved.double(), prototypes.double() + double, rtol=0, atol=1e-6)


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_an_empty_shard_changes_nothing(pairs, empty):
    prototypes, z_old, z_new = pairs
    cuts = [slice(0, 120), slice(120, 300)]
    cuts.insert(empty, slice(0, 0))
    whole = SDC(0.3).sums(prototypes, z_old, z_new)
    parts = merged([SDC(0.3).sums(prototypes, z_old[cut], z_new[cut]) for cut in cuts])
    torch.testing.assert_close(parts.drift, whole.drift, rtol=0, atol=1e-6)
    assert bool(torch.isfinite(parts.moved).all())


def test_without_any_pair_prototypes_stay(pairs):
    prototypes = pairs[0]
    nothing = SDC(0.3).sums(prototypes, prototypes[:0], prototypes[:0])
    nothing = nothing.merge(KernelSums.empty(*prototypes.shape))
    moved, diagnostics = SDC(0.3).fit_sums(prototypes, nothing).explain(prototypes)
    assert torch.equal(moved, prototypes)
    assert diagnostics["effective_samples"].tolist() == [0.0] * 4
    assert nothing.peak.tolist() == [-math.inf] * 4


def test_what_was_fitted_from_sums_knows_its_prototypes_only(pairs):
    prototypes, z_old, z_new = pairs
    fitted = SDC(0.3).fit_sums(prototypes, SDC(0.3).sums(prototypes, z_old, z_new))
    with pytest.raises(ValueError, match=r"known for prototypes of shape \(4, 5\), not \(3, 5\)"):
        fitted.transport(prototypes[:3])


def test_a_bandwidth_for_each_prototype_and_float32_sums(pairs):
    prototypes, z_old, z_new = pairs
    sigma, center = torch.tensor([0.2, 0.5, 1.0, 30.0]), prototypes.mean(dim=0)
    cuts = zip(z_old.tensor_split(3), z_new.tensor_split(3), strict=True)
    parts = [kernel_sums(prototypes, old, new, sigma, center=center) for old, new in cuts]
    each = [naive(prototypes[[k]], z_old, z_new, float(sigma[k])) for k in range(4)]
    moved = prototypes + merged(parts).drift
    torch.testing.assert_close(moved, torch.cat(each), rtol=1e-3, atol=1e-3)  # 500^2 in float32


def test_the_order_of_merging_does_not_matter(pairs):
    prototypes, z_old, z_new = pairs
    a, b, c = (SDC(0.5).sums(prototypes, z_old[k::3], z_new[k::3]) for k in range(3))
    torch.testing.assert_close(merged([a, b, c]).drift, merged([c, a.merge(b)]).drift, rtol=0, atol=1e-12)
    assert torch.equal(KernelSums.empty(4, 5).merge(a).moved, a.moved)


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_means_merged_from_shards_are_the_whole(shards):
    g = torch.Generator().manual_seed(1)
    z, rows = torch.randn(200, 6, generator=g) + 1000, torch.randint(4, (200,), generator=g)
    cuts = zip((*z.tensor_split(shards), z[:0]), (*rows.tensor_split(shards), rows[:0]), strict=True)
    sums = merged([ClassSums.of(part, of, 5) for part, of in cuts])  # nobody has class 4, and one shard is empty
    means = sums.means()
    torch.testing.assert_close(means, class_means(z, rows, 5), rtol=0, atol=1e-6, equal_nan=True)
    by_hand = torch.stack([z[rows == c].double().mean(dim=0) for c in range(4)])
    torch.testing.assert_close(sums.means(torch.float64)[:4], by_hand, rtol=0, atol=1e-9)
    assert bool(means[4].isnan().all())
    assert sums.counts.tolist() == [int((rows == c).sum()) for c in range(5)]


def test_pieces_of_another_size_are_refused(pairs):
    with pytest.raises(ValueError, match=r"z must be \(N, D\) with N targets"):
        ClassSums.of(torch.zeros(3, 5), torch.zeros(2, dtype=torch.long), 2)
    with pytest.raises(ValueError, match="prototypes must be"):
        SDC(0.3).sums(pairs[0], torch.zeros(3, 7), torch.zeros(3, 7))
