"""A movement of the first dimensions beside others that never drift: means, covariances, and what both share."""

import pytest
import torch

from protodrift import SDC
from protodrift.drift import LocalLinear, Ridge
from protodrift.drift.base import Leading
from protodrift.drift.successors.gate import Gated


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def pairs():
    """Images whose first four dimensions moved by a linear map and noise; three others stay."""
    z_old = draw(4000, 7, seed=0) @ (torch.eye(7).double() + 0.3 * draw(7, 7, seed=1))
    z_new = z_old.clone()
    z_new[:, :4] = z_old[:, :4] @ (torch.eye(4).double() + 0.4 * draw(4, 4, seed=2)) + 0.1 * draw(4000, 4, seed=3) + 0.5
    return z_old, z_new


@pytest.mark.parametrize("drift", [Ridge(1e-6, intercept=True), LocalLinear(50.0, ridge=1e-6)], ids=["ridge", "local"])
def test_a_map_moves_all_that_the_moved_dimensions_share_with_the_others(pairs, drift):
    z_old, z_new = pairs
    fitted = Leading(drift.fit(z_old[:, :4], z_new[:, :4]), 4)
    mean, count = z_old.mean(dim=0, keepdim=True), torch.tensor([4000])
    torch.testing.assert_close(fitted.explain(mean)[0], z_new.mean(dim=0, keepdim=True), atol=0.02, rtol=0)
    old, true = (torch.cov(z.T, correction=0) for z in (z_old, z_new))
    moved = fitted.scatter(mean, count, 4000 * old) / 4000
    torch.testing.assert_close(moved, true, atol=0.03, rtol=0.02)
    assert torch.equal(moved[4:, 4:], old[4:, 4:])
    torch.testing.assert_close(moved, moved.T)
    means, covariances = fitted.gaussians(mean, old[None])
    torch.testing.assert_close(covariances[0], moved)
    torch.testing.assert_close(means, fitted.explain(mean)[0])


def test_an_estimator_that_only_translates_leaves_covariances(pairs):
    z_old, z_new = pairs
    fitted = Leading(SDC(2.0).fit(z_old[:, :4], z_new[:, :4]), 4)
    scatter = 4000 * torch.cov(z_old.T)
    assert torch.equal(fitted.scatter(z_old[:2], torch.tensor([2000, 2000]), scatter), scatter)


def test_without_a_map_the_matrix_stays_one_of_a_gaussian(pairs):
    """A gate mixes two covariances: by which map they moved is not known."""
    z_old, z_new = pairs
    targets = torch.arange(4000) % 5
    fitted = Leading(Gated(Ridge(1e-6)).fit(z_old[:, :4], z_new[:, :4], targets), 4)
    moved = fitted.scatter(z_old[:3], torch.tensor([1, 2, 3]), 6 * torch.cov(z_old.T))
    assert float(torch.linalg.eigvalsh(moved).min()) > 0
