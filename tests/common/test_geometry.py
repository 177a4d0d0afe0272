"""Distances and directions of embeddings."""

from __future__ import annotations

import pytest
import torch

from protodrift.common.geometry import Spectrum, main_plane, squared_distances, subspace


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_equal_the_direct_form_far_from_the_origin(dtype):
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, 6, generator=g).to(dtype) + 1000 for n in (50, 7))
    direct = (a[:, None].double() - b[None].double()).square().sum(-1)
    found = squared_distances(a, b)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), direct, rtol=1e-4, atol=1e-3)


def test_distances_of_nothing():
    assert squared_distances(torch.zeros(0, 3), torch.ones(2, 3)).shape == (0, 2)
    assert squared_distances(torch.ones(2, 3), torch.zeros(0, 3)).shape == (2, 0)
    assert squared_distances(torch.ones(1, 2), torch.full((1, 2), torch.nan)).tolist() == [[torch.inf]]


def test_a_subspace_is_found_in_spite_of_rounding():
    g = torch.Generator().manual_seed(1)
    z = torch.randn(100, 3, generator=g) @ torch.randn(3, 20, generator=g) + 5  # float32
    mean, basis = subspace(z)
    assert basis.shape == (20, 3)
    torch.testing.assert_close(basis.T @ basis, torch.eye(3, dtype=torch.float64))
    beyond = (z.double() - mean) - (z.double() - mean) @ basis @ basis.T
    assert float(beyond.abs().max()) < 1e-5


def test_an_inverse_on_the_range_alone():
    matrix = torch.diag(torch.tensor([4.0, 2.0, 0.0]))
    assert torch.equal(Spectrum.of(matrix).inverse(0.0).diagonal(), torch.tensor([0.25, 0.5, 0.0]).double())
    ridged = Spectrum.of(matrix).inverse(0.5).diagonal()  # lambda = 0.5 * trace / 3 = 1
    torch.testing.assert_close(ridged, torch.tensor([1 / 5, 1 / 3, 0.0]).double())


@pytest.mark.parametrize(("count", "dim"), [(30, 5), (4, 40), (3, 3), (2, 7)])
def test_the_plane_holds_the_most_variance(count, dim):
    g = torch.Generator().manual_seed(0)
    z = torch.randn(count, dim, generator=g).double() * torch.linspace(3, 1, dim)
    center, directions, share = main_plane(torch.cat([z, torch.full((1, dim), torch.nan)]))
    lengths = torch.linalg.svdvals(z - z.mean(dim=0)).square()
    assert share == pytest.approx(float(lengths[:2].sum() / lengths.sum()))
    inside = ((z - center) @ directions).square().sum()
    assert float(inside) == pytest.approx(float(lengths[:2].sum()))
    assert bool((directions.gather(0, directions.abs().argmax(dim=0, keepdim=True)) >= 0).all())


def test_a_plane_of_two_dimensions_is_shown_as_it_is():
    center, directions, share = main_plane(torch.randn(5, 2))
    assert (center.tolist(), directions.tolist(), share) == ([0, 0], [[1, 0], [0, 1]], 1.0)


@pytest.mark.parametrize(
    "z", [torch.zeros(1, 4), torch.ones(3, 4), torch.tensor([[1.0], [2.0]]), torch.full((2, 3), torch.nan)]
)
def test_a_plane_of_almost_nothing_is_finite(z):
    center, directions, share = main_plane(z)
    assert bool(torch.isfinite(center).all())
    assert bool(torch.isfinite(directions).all())
    assert 0 <= share <= 1
