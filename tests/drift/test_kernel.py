"""Prototypes and SDC merged from pieces: equal to the whole, from any number of pieces, also empty or far ones."""

import math

import pytest
import torch

from protodrift.drift import DriftSums, KernelSums, MeanSums, semantic_drift
from protodrift.prototypes.store import class_means


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
    parts = [
        DriftSums(prototypes, sigma).add(old, new)
        for old, new in zip(z_old.tensor_split(shards), z_new.tensor_split(shards), strict=True)
    ]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part.unpack(part.pack()))
    moved, diagnostics = merged.finish()
    whole, expected = DriftSums(prototypes, sigma).add(z_old, z_new).finish()
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
    whole = DriftSums(prototypes, 0.3).add(z_old, z_new)
    merged = DriftSums(prototypes, 0.3)
    for cut in cuts:
        merged = merged.merge(DriftSums(prototypes, 0.3).add(z_old[cut], z_new[cut]))
    for now, then in zip(merged.finish()[0], whole.finish()[0], strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=1e-6)
    assert bool(torch.isfinite(merged.sums.moved).all())


def test_without_any_pair_prototypes_stay(pairs):
    prototypes = pairs[0]
    nothing = DriftSums(prototypes, 0.3).merge(DriftSums(prototypes, 0.3).add(prototypes[:0], prototypes[:0]))
    moved, diagnostics = nothing.finish()
    assert torch.equal(moved, prototypes)
    assert diagnostics["effective_samples"].tolist() == [0.0] * 4
    assert nothing.sums.peak.tolist() == [-math.inf] * 4


def test_a_bandwidth_for_each_prototype_and_float32_sums(pairs):
    prototypes, z_old, z_new = pairs
    sigma = torch.tensor([0.2, 0.5, 1.0, 30.0])
    parts = [DriftSums(prototypes, sigma, dtype=torch.float32) for _ in range(3)]
    for part, old, new in zip(parts, z_old.tensor_split(3), z_new.tensor_split(3), strict=True):
        part.add(old, new)
    moved = parts[0].merge(parts[1]).merge(parts[2]).finish()[0]
    each = [naive(prototypes[[k]], z_old, z_new, float(sigma[k])) for k in range(4)]
    torch.testing.assert_close(moved, torch.cat(each), rtol=1e-3, atol=1e-3)  # 500^2 in float32


def test_the_order_of_merging_does_not_matter(pairs):
    prototypes, z_old, z_new = pairs
    a, b, c = (DriftSums(prototypes, 0.5).add(z_old[k::3], z_new[k::3]) for k in range(3))
    left, right = a.merge(b).merge(c).finish()[0], c.merge(a.merge(b)).finish()[0]
    torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    empty = KernelSums.empty(4, 5)
    assert torch.equal(empty.merge(a.sums).moved, a.sums.moved)


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_means_merged_from_shards_are_the_whole(shards):
    g = torch.Generator().manual_seed(1)
    z, rows = torch.randn(200, 6, generator=g) + 1000, torch.randint(4, (200,), generator=g)
    merged = MeanSums.empty(5, 6)  # nobody has an image of class 4, and one shard is empty
    for part, of in zip((*z.tensor_split(shards), z[:0]), (*rows.tensor_split(shards), rows[:0]), strict=True):
        merged = merged.merge(MeanSums.empty(5, 6).add(part, of))
    means = merged.finish()
    torch.testing.assert_close(means, class_means(z, rows, 5), rtol=0, atol=1e-6, equal_nan=True)
    by_hand = torch.stack([z[rows == c].double().mean(dim=0) for c in range(4)])
    torch.testing.assert_close(merged.finish(torch.float64)[:4], by_hand, rtol=0, atol=1e-9)
    assert bool(means[4].isnan().all())
    assert merged.counts.tolist() == [int((rows == c).sum()) for c in range(5)]


def test_pieces_of_another_size_are_refused(pairs):
    with pytest.raises(ValueError, match=r"z must be \(n, 6\)"):
        MeanSums.empty(2, 6).add(torch.zeros(3, 5), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="prototypes must be"):
        DriftSums(pairs[0], 0.3).add(torch.zeros(3, 7), torch.zeros(3, 7))
