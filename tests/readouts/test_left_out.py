"""Leave-one-out in closed form, against means and covariances that are computed anew without each image."""

import pytest
import torch

from protodrift.prototypes.store import class_means
from protodrift.readouts import NearestClassMean, StreamingLDA, View
from protodrift.readouts.left_out import left_out_discriminants


def clouds(classes: int, dim: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes of 3, 4, 5, ... images."""
    g = torch.Generator().manual_seed(seed)
    targets = torch.arange(classes).repeat_interleave(torch.arange(classes) + 3)
    places = 2 * torch.randn(classes, dim, generator=g, dtype=torch.float64)
    return places[targets] + torch.randn(len(targets), dim, generator=g, dtype=torch.float64), targets


def without(z: torch.Tensor, targets: torch.Tensor, i: int) -> tuple[torch.Tensor, torch.Tensor]:
    kept = torch.arange(len(z)) != i
    means = class_means(z[kept], targets[kept], int(targets.max()) + 1)
    centered = z[kept] - means[targets[kept]]
    return means, centered.T @ centered


@pytest.mark.parametrize(("classes", "dim"), [(4, 9), (7, 7), (6, 3), (3, 20)])
def test_discriminants_are_those_without_the_image(classes, dim):
    z, targets = clouds(classes, dim)
    total, ridge, share = len(z), 0.4, 0.7 / len(z)
    centered = z - class_means(z, targets, classes)[targets]
    factor = torch.linalg.cholesky(share * centered.T @ centered + ridge * torch.eye(dim, dtype=z.dtype))
    means, counts = class_means(z, targets, classes), torch.bincount(targets)
    scores, distances = left_out_discriminants(z, targets, means, counts, factor, share)
    for i in range(total):
        mu, scatter = without(z, targets, i)
        precision = torch.linalg.inv(share * scatter + ridge * torch.eye(dim, dtype=z.dtype))
        expected = mu @ precision @ z[i] - 0.5 * (mu @ precision * mu).sum(dim=1)
        torch.testing.assert_close(scores[i], expected)
        root = torch.linalg.cholesky(precision)  # P = R R': distances are |R'(z - mu)|
        at, of = z[i] @ root, mu @ root
        basis = torch.linalg.svd((of[1:] - of[0]).T, full_matrices=False).U  # of the plane of the means
        apart = (at - of) @ basis
        torch.testing.assert_close(distances[i], torch.linalg.vector_norm(apart, dim=1), atol=1e-5, rtol=1e-5)


def test_streaming_lda_leaves_out_what_it_has_learned():
    """But for the trace and the number of images, which stay as they are."""
    z, targets = clouds(5, 12)
    readout, counts = StreamingLDA(shrinkage=0.5), torch.bincount(targets)
    state = readout.learn({}, z, targets, 1, 0)
    view = View(z, class_means(z, targets, 5), readout_state=state, counts=counts)
    scores, distances = readout.left_out(view, targets)
    plain, there = readout.scores(view), torch.cdist(*readout.coordinates(view))
    own = torch.arange(len(z)), targets
    assert (distances[own] > there[own]).all()  # an image is farther from a class that it is not in
    assert ((plain - scores)[own] > 0).double().mean() > 0.8
    i = int((targets == 2).nonzero()[0])
    mu, scatter = without(z, targets, i)
    fewer = {"scatter": scatter, "count": state["count"]}
    again = readout.scores(View(z[i : i + 1], mu, readout_state=fewer, counts=counts))
    torch.testing.assert_close(scores[i : i + 1], again, atol=0.2, rtol=0.05)


def test_the_nearest_mean_without_the_image():
    z, targets = clouds(4, 6)
    view = View(z, class_means(z, targets, 4), counts=torch.bincount(targets))
    scores, distances = NearestClassMean().left_out(view, targets)
    for i in range(len(z)):
        mu, _ = without(z, targets, i)
        torch.testing.assert_close(scores[i], -(z[i] - mu).square().sum(dim=1))
        torch.testing.assert_close(distances[i], torch.linalg.vector_norm(z[i] - mu, dim=1))


def test_a_subclass_with_scores_of_its_own_is_not_checked_by_those_of_its_parent():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Cosine(NearestClassMean):
        def scores(self, view):
            return torch.nn.functional.normalize(view.z, dim=1) @ view.prototypes.T

    assert NearestClassMean().leaves_out
    assert StreamingLDA().leaves_out
    assert not Cosine().leaves_out
