"""SDC beyond its equations (those are in tests/paper): chunks, merging, diagnostics, limits, wrong input."""

import pytest
import torch

from protodrift.common.config import decode, encode
from protodrift.drift import SDC, Oracle, kernel, kernel_sums, semantic_drift
from protodrift.errors import InputError


@pytest.fixture
def field():
    g = torch.Generator().manual_seed(0)
    z_old = torch.randn(500, 8, generator=g, dtype=torch.float64)
    return torch.randn(6, 8, generator=g, dtype=torch.float64), z_old, z_old + torch.randn(500, 8, generator=g).double()


@pytest.mark.parametrize(("images", "prototypes"), [(1, 1), (7, 6), (7, 4), (499, 1), (10**9, 10**9)])
def test_the_size_of_the_blocks_does_not_matter(field, images, prototypes, monkeypatch):
    whole = semantic_drift(*field, 0.7)
    monkeypatch.setattr(kernel, "_IMAGES", images)
    monkeypatch.setattr(kernel, "_PROTOTYPES", prototypes)
    torch.testing.assert_close(kernel_sums(*field, 0.7).drift, whole, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("sigma", [0.05, 0.7])
def test_sums_over_shards_merge_to_the_whole(field, shards, sigma):
    """Also when a shard lies so far away that all its weights underflow beside the others."""
    prototypes, z_old, z_new = field
    z_old = torch.cat([z_old, z_old[:50] + 1000])
    z_new = torch.cat([z_new, z_new[:50] + 1000])
    center = z_old.mean(dim=0)
    parts = [
        kernel_sums(prototypes, old, new, sigma, center=center)
        for old, new in zip(z_old.tensor_split(shards), z_new.tensor_split(shards), strict=True)
    ]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    whole = kernel_sums(prototypes, z_old, z_new, sigma)
    torch.testing.assert_close(merged.drift, whole.drift, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(merged.effective_samples, whole.effective_samples, rtol=1e-8, atol=1e-10)


def test_a_translation_is_recovered_exactly_and_infinite_sigma_is_the_mean_shift(field):
    prototypes, z_old, z_new = field
    shift = torch.arange(8.0).double()
    torch.testing.assert_close(semantic_drift(prototypes, z_old, z_old + shift, 0.3), shift.expand(6, 8))
    mean = (z_new - z_old).mean(dim=0)
    torch.testing.assert_close(semantic_drift(prototypes, z_old, z_new, 1e9), mean.expand(6, 8))


def test_a_small_sigma_follows_the_nearest_image(field):
    prototypes, z_old, z_new = field
    nearest = torch.cdist(prototypes, z_old).argmin(dim=1)
    torch.testing.assert_close(semantic_drift(prototypes, z_old, z_new, 1e-3), (z_new - z_old)[nearest])


def test_effective_samples_count_what_the_estimate_rests_on(field):
    prototypes, z_old, z_new = field
    wide = SDC(sigma=1e6).fit(z_old, z_new).diagnostics(prototypes)["effective_samples"]
    narrow = SDC(sigma=1e-3).fit(z_old, z_new).diagnostics(prototypes)["effective_samples"]
    torch.testing.assert_close(wide, torch.full((6,), 500.0).double())
    torch.testing.assert_close(narrow, torch.ones(6).double())
    w = torch.exp(-torch.cdist(prototypes, z_old).square() / 2)
    between = SDC(sigma=1.0).fit(z_old, z_new).diagnostics(prototypes)["effective_samples"]
    torch.testing.assert_close(between, w.sum(1) ** 2 / w.square().sum(1))


def test_a_cloud_far_from_the_origin_keeps_its_precision():
    """||z||^2 - 2 z.mu + ||mu||^2 in float32 at norm 1,000 has errors of 0.1; centering avoids them."""
    g = torch.Generator().manual_seed(0)
    z_old = torch.randn(300, 16, generator=g)
    delta = torch.randn(300, 16, generator=g)
    prototypes = torch.randn(4, 16, generator=g)
    here = semantic_drift(prototypes, z_old, z_old + delta, 0.5)
    there = semantic_drift(prototypes + 300, z_old + 300, z_old + 300 + delta, 0.5)
    torch.testing.assert_close(there, here, atol=2e-3, rtol=0)


def test_inputs_are_left_as_they_were(field):
    before = [part.clone() for part in field]
    SDC().fit(*field[1:]).transport(field[0])
    assert all(torch.equal(a, b) for a, b in zip(before, field, strict=True))


def test_no_prototypes_is_no_drift(field):
    assert semantic_drift(field[0][:0], *field[1:], 0.3).shape == (0, 8)


@pytest.mark.parametrize("sigma", [0, -1, float("nan"), float("inf"), "0.3"])
def test_a_wrong_sigma_is_refused(field, sigma):
    with pytest.raises(ValueError, match="sigma"):
        semantic_drift(*field, sigma)
    with pytest.raises(InputError, match="SDC: sigma"):
        SDC(sigma=sigma)


def test_embeddings_that_are_not_pairs_are_refused(field):
    prototypes, z_old, z_new = field
    with pytest.raises(ValueError, match="same N images"):
        SDC().fit(z_old, z_new[:-1])
    with pytest.raises(ValueError, match="no images"):
        SDC().fit(z_old[:0], z_new[:0])
    with pytest.raises(ValueError, match=r"prototypes must be \(K, 8\)"):
        semantic_drift(prototypes[:, :3], z_old, z_new, 0.3)


def test_the_oracle_answers_with_the_true_means_and_needs_them(field):
    true = field[0] + 1
    torch.testing.assert_close(Oracle().knowing(true).transport(field[0]), true)
    with pytest.raises(ValueError, match="knowing"):
        Oracle().fit(*field[1:])


def test_configuration_survives_json():
    assert decode(encode(SDC(sigma=0.2))) == SDC(sigma=0.2)
