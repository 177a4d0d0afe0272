"""Every estimator against a naive form of its equation, and on drifts whose right answer is known."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes
from sklearn.linear_model import Ridge as SklearnRidge

from protodrift.common.config import decode, encode
from protodrift.drift import (
    SDC,
    AdaGauss,
    AffineKernel,
    Blend,
    DualProjection,
    EFCKernel,
    Gated,
    GaussianProcess,
    LocalLinear,
    MeanShift,
    Procrustes,
    RelativeSDC,
    Ridge,
    RidgeToIdentity,
)
from protodrift.drift.base import Leading
from protodrift.drift.successors.efc import feature_metric
from protodrift.errors import InputError


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


QUICK = {"points": 200, "tuning": 100}
KERNELS = [SDC(1.0), RelativeSDC(0.5), RelativeSDC(1.0, neighbors=20), EFCKernel()]
AFFINE = [
    Ridge(1e-8, intercept=True),
    RidgeToIdentity(1e-8),
    LocalLinear(2.0, ridge=1e-6),
    AffineKernel(1e-8),
]
OTHERS = [
    MeanShift(),
    Procrustes(),
    Procrustes(intercept=True, scale=True),
    DualProjection(),
    AdaGauss(epochs=2, samples=100),
    GaussianProcess(**QUICK),
    Gated(SDC(1.0)),
    Blend((SDC(1.0), Ridge())),
]
EVERY = [*KERNELS, *AFFINE, *OTHERS]
names = {"ids": lambda drift: repr(drift)[:40]}


@pytest.mark.parametrize("drift", [*KERNELS, MeanShift(), *AFFINE], **names)
def test_a_translation_is_found_exactly(cloud, drift):
    prototypes, z_old, labels = cloud
    shift = torch.arange(8.0).double()
    torch.testing.assert_close(drift.fit(z_old, z_old + shift, labels).transport(prototypes), prototypes + shift)


@pytest.mark.parametrize("drift", [Procrustes(), Procrustes(intercept=True), Procrustes(scale=True), *AFFINE], **names)
def test_a_rotation_is_found_exactly(cloud, turned, drift):
    prototypes, z_old, _ = cloud
    moved = drift.fit(z_old, z_old @ turned).transport(prototypes)
    torch.testing.assert_close(moved, prototypes @ turned, atol=1e-4, rtol=0)


@pytest.mark.parametrize("drift", [Procrustes(scale=True), Procrustes(intercept=True, scale=True), *AFFINE], **names)
def test_a_scaling_is_found_exactly(cloud, drift):
    prototypes, z_old, _ = cloud
    moved = drift.fit(z_old, 1.7 * z_old).transport(prototypes)
    torch.testing.assert_close(moved, 1.7 * prototypes, atol=1e-4, rtol=0)


@pytest.mark.parametrize("drift", AFFINE, **names)
def test_an_affine_drift_is_found_exactly(cloud, stretched, drift):
    prototypes, z_old, _ = cloud
    moved = drift.fit(z_old, z_old @ stretched + 3).transport(prototypes)
    torch.testing.assert_close(moved, prototypes @ stretched + 3, atol=2e-4, rtol=0)


@pytest.mark.parametrize(
    "drift", [SDC(0.5), RelativeSDC(0.2), LocalLinear(0.2), AffineKernel(1.0, 0.1), GaussianProcess(**QUICK)], **names
)
def test_a_local_drift_is_found_where_one_map_of_all_cannot(drift):
    """Two halves of space that move apart, with a step between: no affine map is right in both."""
    g = torch.Generator().manual_seed(0)
    z_old = torch.randn(300, 4, generator=g).double()
    z_old[:, 0] += 3 * z_old[:, 0].sign()
    delta = torch.zeros_like(z_old)
    delta[:, 1] = z_old[:, 0].sign()
    prototypes = torch.tensor([[3.0, 0, 0, 0], [-3.0, 0, 0, 0], [5.0, 0, 0, 0]]).double()
    true = prototypes + torch.tensor([[0, 1.0, 0, 0], [0, -1.0, 0, 0], [0, 1.0, 0, 0]])
    labels = (z_old[:, 0] > 0).long()

    def error(estimator):
        moved = estimator.fit(z_old, z_old + delta, labels).transport(prototypes)
        return float((moved - true).norm(dim=1).max())

    assert error(drift) < 0.16
    assert error(Ridge(intercept=True)) > 0.2
    assert error(drift) < error(MeanShift())


@pytest.mark.parametrize(
    "drift", [SDC(1.0), RelativeSDC(0.5), RidgeToIdentity(), LocalLinear(), AffineKernel(), GaussianProcess(**QUICK)]
)
def test_noise_without_drift_hardly_moves_a_prototype(cloud, drift):
    prototypes, z_old, labels = cloud
    noise = torch.randn(z_old.shape, generator=torch.Generator().manual_seed(9)).double()
    moved = drift.fit(z_old, z_old + 0.1 * noise, labels).transport(prototypes)
    assert float((moved - prototypes).norm(dim=1).max()) < 0.5 * 0.1 * math.sqrt(8)  # one image moves by 0.28


# -- against naive forms -------------------------------------------------------------------------------------------


@pytest.fixture
def wild(cloud):
    """A drift that is nothing in particular."""
    prototypes, z_old, labels = cloud
    g = torch.Generator().manual_seed(7)
    return prototypes, z_old, z_old + 0.5 * torch.tanh(z_old) + 0.2 * torch.randn(400, 8, generator=g).double(), labels


@pytest.mark.parametrize("intercept", [False, True])
def test_ridge_agrees_with_scikit_learn(wild, intercept):
    prototypes, z_old, z_new, _ = wild
    centered = z_old - z_old.mean(0) if intercept else z_old
    alpha = 0.3 * float(centered.square().sum()) / 8
    reference = SklearnRidge(alpha=alpha, fit_intercept=intercept).fit(z_old.numpy(), z_new.numpy())
    ours = Ridge(0.3, intercept=intercept).fit(z_old, z_new).transport(prototypes)
    torch.testing.assert_close(ours, torch.from_numpy(reference.predict(prototypes.numpy())))


def test_ridge_toward_the_identity_minimizes_its_objective(wild):
    """By the gradient of |M A - Z|^2 + lambda |A - I|^2, which must vanish."""
    _, z_old, z_new, _ = wild
    fitted = RidgeToIdentity(0.3, intercept=False).fit(z_old, z_new)
    a = fitted.weight.clone().requires_grad_(True)
    lam = 0.3 * z_old.square().sum() / 8
    loss = (z_old @ a - z_new).square().sum() + lam * (a - torch.eye(8)).square().sum()
    loss.backward()
    assert float(a.grad.abs().max()) < 1e-9 * float(loss.detach())


def test_the_blend_of_sldc(wild):
    prototypes, z_old, z_new, _ = wild
    plain = Ridge(1e-2).fit(z_old, z_new).weight
    w = math.exp(-400 / (30 * 8))
    ours = RidgeToIdentity(1e-2, intercept=False, shrink="blend", alpha=30.0).fit(z_old, z_new)
    torch.testing.assert_close(ours.transport(prototypes), prototypes @ ((1 - w) * plain + w * torch.eye(8).double()))


def test_procrustes_agrees_with_scipy(wild):
    prototypes, z_old, z_new, _ = wild
    reference = torch.from_numpy(orthogonal_procrustes(z_old.numpy(), z_new.numpy())[0])
    torch.testing.assert_close(Procrustes().fit(z_old, z_new).transport(prototypes), prototypes @ reference)


def test_relative_bandwidths(wild):
    prototypes, z_old, z_new, _ = wild
    distances = [[float((p - m).norm()) for m in z_old] for p in prototypes]
    sigma = 0.4 * sorted(d for row in distances for d in row)[(6 * 400 - 1) // 2]
    ours, told = RelativeSDC(0.4).fit(z_old, z_new).explain(prototypes)
    torch.testing.assert_close(ours, SDC(sigma).fit(z_old, z_new).transport(prototypes))
    torch.testing.assert_close(told["sigma"], torch.full((6,), sigma).double())
    each = RelativeSDC(0.7, neighbors=15).fit(z_old, z_new).transport(prototypes)
    for row, p in enumerate(prototypes):
        alone = SDC(0.7 * sorted(distances[row])[14]).fit(z_old, z_new).transport(p[None])
        torch.testing.assert_close(each[row : row + 1], alone)


def test_local_linear_is_the_weighted_ridge_of_its_equation(wild):
    """Solved as one weighted least-squares problem with rows for the penalty, by numpy."""
    prototypes, z_old, z_new, _ = wild
    config = LocalLinear(0.4, ridge=0.2)
    ours = config.fit(z_old, z_new).transport(prototypes)
    sigma = 0.4 * torch.cdist(prototypes, z_old).median()
    for row, p in enumerate(prototypes):
        w = torch.exp(-(z_old - p).square().sum(1) / (2 * sigma**2))
        w = w / w.sum()
        mean = w @ z_old
        lam = 0.2 * float((w[:, None] * (z_old - mean).square()).sum()) / 8
        root = w.sqrt()[:, None].numpy()
        inputs = np.concatenate([np.ones((400, 1)), (z_old - p).numpy()], axis=1) * root
        penalty = np.concatenate([np.zeros((8, 1)), math.sqrt(lam) * np.eye(8)], axis=1)
        outputs = np.concatenate([(z_new - z_old).numpy() * root, np.zeros((8, 8))])
        solution = np.linalg.lstsq(np.concatenate([inputs, penalty]), outputs, rcond=None)[0]
        np.testing.assert_allclose((ours[row] - p).numpy(), solution[0], atol=1e-8)


def test_local_linear_has_sdc_and_the_affine_ridge_as_its_limits(wild):
    prototypes, z_old, z_new, _ = wild
    stiff = LocalLinear(0.4, ridge=1e9).fit(z_old, z_new).transport(prototypes)
    torch.testing.assert_close(stiff, RelativeSDC(0.4).fit(z_old, z_new).transport(prototypes), atol=1e-6, rtol=0)
    wide = LocalLinear(1e5, ridge=0.2).fit(z_old, z_new).transport(prototypes)
    torch.testing.assert_close(wide, RidgeToIdentity(0.2).fit(z_old, z_new).transport(prototypes), atol=1e-6, rtol=0)


@pytest.mark.parametrize("config", [AffineKernel(0.5, 0.3), AffineKernel(0.5, sigma=0.8)])
def test_affine_and_kernel_one_after_the_other(wild, config):
    prototypes, z_old, z_new, _ = wild
    affine = RidgeToIdentity(0.5).fit(z_old, z_new)
    sigma = config.sigma or 0.3 * torch.cdist(prototypes, z_old).median()
    for p, ours in zip(prototypes, config.fit(z_old, z_new).transport(prototypes), strict=True):
        w = torch.exp(-(z_old - p).square().sum(1) / (2 * sigma**2))
        left = z_new - affine.transport(z_old)
        torch.testing.assert_close(ours, affine.transport(p[None])[0] + w @ left / w.sum())


def test_the_kernel_of_efc(wild):
    prototypes, z_old, z_new, _ = wild
    pi = torch.softmax(-torch.cdist(z_old, prototypes).square() / 0.1, dim=1)
    head = 2 * prototypes / 0.1
    metric = sum(head.T @ (torch.diag(q) - torch.outer(q, q)) @ head for q in pi) / len(pi)
    torch.testing.assert_close(feature_metric(z_old, prototypes, 0.1), metric)
    d = torch.stack([torch.stack([(m - p) @ metric @ (m - p) for m in z_old]) for p in prototypes])
    w = torch.exp(-((d - d.min()) / (d.max() - d.min())) / (2 * 0.2**2))
    naive = prototypes + w @ (z_new - z_old) / w.sum(1, keepdim=True)
    torch.testing.assert_close(EFCKernel(0.2).fit(z_old, z_new).transport(prototypes), naive)
    given = EFCKernel(0.2).fit(z_old, z_new, metric=5 * metric).transport(prototypes)
    torch.testing.assert_close(given, naive)  # a metric of one's own; its unit does not matter


@pytest.mark.parametrize("order", ["after", "before"])
def test_dual_projection_class_by_class(wild, order):
    prototypes, z_old, z_new, _ = wild
    g = torch.Generator().manual_seed(3)
    factors = torch.randn(6, 3, 8, generator=g).double()
    covariances = factors.mT @ factors  # rank 3, so the projection is onto 4 dimensions
    a = Ridge(1e-2).fit(z_old, z_new).weight
    means, moved = DualProjection(1e-2, 1e-6, order).fit(z_old, z_new).transport(prototypes, covariances)
    for row, (p, sigma) in enumerate(zip(prototypes, covariances, strict=True)):
        phi = sigma + torch.outer(p, p)
        u = torch.linalg.svd(phi).U[:, :4]
        proj = a @ u @ u.T if order == "after" else u @ u.T @ a
        torch.testing.assert_close(means[row], p @ proj)
        torch.testing.assert_close(moved[row] + torch.outer(means[row], means[row]), proj.T @ phi @ proj)
    if order == "before":  # the class spans what it is projected onto: nothing is lost
        torch.testing.assert_close(means, prototypes @ a)
    for count in (0, 2):  # no classes, and classes that are a point at 0
        nothing = (
            DualProjection(order=order).fit(z_old, z_new).transport(torch.zeros(count, 8), torch.zeros(count, 8, 8))
        )
        assert [part.shape for part in nothing] == [(count, 8), (count, 8, 8)]
        assert not any(part.any() for part in nothing)


def test_dual_projection_as_released_is_least_squares(wild):
    """Uncentered second moments pushed through A, image by image: Phi -> A' Phi A, and no residual."""
    prototypes, z_old, z_new, _ = wild
    a = torch.linalg.lstsq(z_old, z_new).solution
    samples = draw(50, 8, seed=1)
    sigma = torch.cov(samples.T, correction=0)
    means, moved = DualProjection(1e-9, None).fit(z_old, z_new).transport(prototypes, sigma.expand(6, -1, -1))
    torch.testing.assert_close(means, prototypes @ a, atol=1e-5, rtol=1e-5)
    for p, mean, pushed in zip(prototypes, means, moved, strict=True):
        images = samples - samples.mean(dim=0) + p
        phi = sum(torch.outer(x @ a, x @ a) for x in images) / 50
        torch.testing.assert_close(pushed + torch.outer(mean, mean), phi, atol=1e-4, rtol=1e-4)


# -- covariances ---------------------------------------------------------------------------------------------------


def test_linear_estimators_push_covariances_through_their_map_and_add_what_it_leaves(wild):
    prototypes, z_old, z_new, _ = wild
    samples = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)).double()
    covariance = torch.cov(samples.T)
    for drift in (MeanShift(), Ridge(intercept=True), RidgeToIdentity(), Procrustes(), AffineKernel()):
        fitted = drift.fit(z_old, z_new)
        _, pushed = fitted.transport(prototypes[:1], covariance[None])
        if isinstance(drift, (MeanShift, Procrustes)):  # no least squares: what they leave depends on where an image is
            torch.testing.assert_close(pushed[0], torch.cov(fitted.transport(samples).T))
            continue
        affine = getattr(fitted, "affine", fitted)
        moved, left = affine.transport(samples), z_new - affine.transport(z_old)
        free = sum(float(1 / affine.diagnostics(x[None])["effective_samples"]) for x in z_old)
        rest = sum(torch.outer(r, r) for r in left) / (len(left) - free)
        torch.testing.assert_close(pushed[0], torch.cov(moved.T) + rest)
        assert float(rest.trace()) > 0


MAPPED = [
    Ridge(1e-3, intercept=True),
    RidgeToIdentity(1e-3),
    AffineKernel(1e-3, fraction=1.0),
    LocalLinear(2.0, ridge=1e-3),
    GaussianProcess(linear=100.0, local=0.0, length=1.0, points=1000),
]


@pytest.mark.parametrize("drift", MAPPED, ids=lambda drift: type(drift).__name__)
def test_a_moved_class_is_as_wide_as_its_images_are(drift):
    """Monte Carlo: images of an old class, which the estimator never sees, moved by a noisy linear drift."""
    turn = torch.eye(6).double() + 0.3 * draw(6, 6, seed=1)
    noise = 0.4 * draw(6, 6, seed=2)

    def moved(x, seed):
        return x @ turn + draw(len(x), 6, seed=seed) @ noise + 0.3

    z_old = draw(3000, 6, seed=3)
    fitted = drift.fit(z_old, moved(z_old, 4), torch.arange(3000) % 10)
    images = 0.3 + 0.5 * draw(20000, 6, seed=5) @ (torch.eye(6).double() + 0.3 * draw(6, 6, seed=6))
    covariance, mean = torch.cov(images.T, correction=0), images.mean(dim=0)
    true = torch.cov(moved(images, 7).T, correction=0)
    place, predicted = fitted.transport(mean[None], covariance[None])
    torch.testing.assert_close(place[0], moved(images, 7).mean(dim=0), atol=0.1, rtol=0)
    error = float((predicted[0] - true).norm() / true.norm())
    assert error < 0.06
    tight = predicted[0] - fitted.noise()
    assert float((tight - true).norm() / true.norm()) > 0.2  # without R the class looks tighter than it is
    # The same where one matrix of all classes is all that is kept.
    counts = torch.tensor([30, 70])
    scatter = fitted.scatter(torch.stack([mean, mean + 0.2]), counts, 100 * covariance)
    each = fitted.gaussians(torch.stack([mean, mean + 0.2]), covariance.expand(2, -1, -1))[1]
    torch.testing.assert_close(scatter, 30 * each[0] + 70 * each[1])


@pytest.mark.parametrize("drift", [SDC(1.0), Ridge(), RidgeToIdentity()], **names)
def test_features_that_never_drift_stay_beside_those_that_do(wild, drift):
    """Against images whose first dimensions are moved class by class, the others not."""
    prototypes, z_old, z_new, _ = wild
    moving = drift.fit(z_old, z_new)
    both = torch.cat([prototypes, draw(6, 3, seed=1)], dim=1)
    samples = draw(500, 11, seed=2)
    sigma, counts = torch.cov(samples.T), torch.tensor([1, 2, 3, 4, 5, 6])
    fitted = Leading(moving, 8)
    means, moved = fitted.gaussians(both, sigma.expand(6, -1, -1))
    torch.testing.assert_close(means[:, 8:], both[:, 8:])
    maps = list(moving.maps(prototypes) or [torch.eye(8).double()] * 6)
    for row, weight in enumerate(maps):
        expected = torch.cov(torch.cat([samples[:, :8] @ weight, samples[:, 8:]], dim=1).T)
        if moving.noise() is not None:
            expected[:8, :8] += moving.noise()
        torch.testing.assert_close(moved[row], expected)
    total = sum(int(n) * one for n, one in zip(counts, moved, strict=True))
    torch.testing.assert_close(fitted.scatter(both, counts, 21 * sigma), total)


@pytest.mark.parametrize(
    "drift", [SDC(1.0), Gated(LocalLinear()), Blend((SDC(1.0), Ridge())), AdaGauss(epochs=2)], ids=str
)
def test_one_scatter_is_moved_as_the_covariances_are_whose_sum_it_is(wild, drift):
    prototypes, z_old, z_new, labels = wild
    fitted = drift.fit(z_old, z_new, labels)
    sigma = torch.cov(z_old.T)
    counts = torch.tensor([1, 2, 3, 4, 5, 6])
    each = fitted.gaussians(prototypes, sigma.expand(6, -1, -1))[1]
    expected = sum(int(n) * one for n, one in zip(counts, each, strict=True))
    torch.testing.assert_close(fitted.scatter(prototypes, counts, 21 * sigma), expected)


def test_kernels_translate_a_class_and_leave_its_covariance(wild):
    prototypes, z_old, z_new, _ = wild
    covariances = torch.eye(8).double().expand(6, 8, 8)
    fitted = SDC(1.0).fit(z_old, z_new)
    means, same = fitted.transport(prototypes, covariances)
    torch.testing.assert_close(means, fitted.transport(prototypes))
    torch.testing.assert_close(same, covariances)


def test_local_linear_pushes_covariances_with_its_own_map(cloud, stretched):
    prototypes, z_old, _ = cloud
    fitted = LocalLinear(2.0, ridge=1e-6).fit(z_old, z_old @ stretched)
    _, pushed = fitted.transport(prototypes, torch.eye(8).double().expand(6, 8, 8))
    torch.testing.assert_close(pushed, (stretched.T @ stretched).expand(6, 8, 8), atol=1e-3, rtol=0)


def test_the_adapter_learns_a_map_moves_gaussians_and_keeps_its_seed(cloud, stretched):
    prototypes, z_old, _ = cloud
    z_new = z_old @ stretched
    config = AdaGauss(epochs=60, samples=4000)
    fitted = config.fit(z_old, z_new)
    left = (fitted.transport(prototypes) - prototypes @ stretched).norm(dim=1).mean()
    assert float(left) < 0.25 * float((prototypes - prototypes @ stretched).norm(dim=1).mean())
    covariances = 0.1 * torch.eye(8).double().expand(6, 8, 8)
    means, pushed = fitted.transport(prototypes, covariances)
    assert float((means - prototypes @ stretched).norm(dim=1).mean()) < 0.3 * float(
        (means - prototypes).norm(dim=1).mean()
    )
    wanted = 0.1 * stretched.T @ stretched
    assert float((pushed - wanted).norm()) < 0.5 * float((covariances - wanted).norm())
    assert torch.equal(config.fit(z_old, z_new).transport(prototypes), fitted.transport(prototypes))
    half = fitted.transport(prototypes[:3], covariances[:3])[1]
    torch.testing.assert_close(half, pushed[:3])  # which classes are asked about together does not matter


@pytest.mark.parametrize("images", [60, 5])
def test_the_adapter_moves_a_gaussian_as_samples_of_it_move(images):
    """Against samples of the whole x, pushed one by one; also where images span less than the class does."""
    g = torch.Generator().manual_seed(1)
    z_old = torch.randn(images, 6, generator=g).double()
    fitted = AdaGauss(epochs=80, samples=40_000, learning_rate=1e-2).fit(z_old, torch.tanh(z_old) + 0.5)
    p, root = torch.randn(1, 6, generator=g).double(), 0.5 * torch.randn(6, 6, generator=g).double()
    x = p + torch.randn(400_000, 6, generator=g).double() @ root.T
    naive = fitted.adapt(x)
    mean, sigma = fitted.transport(p, (root @ root.T)[None])
    scale = float((naive.mean(dim=0) - p).norm())
    assert scale > 0.2
    assert float((mean[0] - naive.mean(dim=0)).norm()) < 0.02 * scale
    wanted = naive.T.cov(correction=0)
    assert float((sigma[0] - wanted).norm()) < 0.02 * float((root @ root.T - wanted).norm()) + 0.01 * float(
        wanted.norm()
    )
    assert float(torch.linalg.eigvalsh(sigma[0]).min()) > -1e-12


# -- hard data -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drift", EVERY, **names)
@pytest.mark.parametrize("images", [12, 60])
def test_few_images_in_a_subspace_of_many_dimensions(drift, images):
    """40-dimensional float32 embeddings of 6 features, fewer images than dimensions: finite, and no prototype flies."""
    g = torch.Generator().manual_seed(0)
    lift = torch.linalg.qr(torch.randn(40, 6, generator=g)).Q.T
    features = torch.randn(images, 6, generator=g)
    z_old = torch.nn.functional.normalize(features @ lift, dim=1)
    z_new = torch.nn.functional.normalize((features + 0.3 * features.roll(1, dims=1)) @ lift, dim=1)
    prototypes = 0.8 * z_old[:4].roll(1, dims=0)
    moved, told = drift.fit(z_old, z_new, torch.arange(images) % 4).explain(prototypes)
    assert moved.dtype == torch.float32
    assert bool(torch.isfinite(moved).all())
    assert float((moved - prototypes).norm(dim=1).max()) < 1.0
    assert all(value.shape == (4,) and bool(torch.isfinite(value).all()) for value in told.values())


@pytest.mark.parametrize("drift", EVERY, **names)
def test_configuration_survives_json_and_wrong_input_is_refused(drift, cloud):
    prototypes, z_old, labels = cloud
    assert decode(encode(drift)) == drift
    with pytest.raises(ValueError, match="same N images"):
        drift.fit(z_old, z_old[:-1])
    fitted = drift.fit(z_old, z_old, labels)
    assert fitted.transport(prototypes[:0]).shape == (0, 8)
    with pytest.raises(ValueError, match="covariances must be"):
        fitted.transport(prototypes, torch.eye(8).double())
    torch.testing.assert_close(fitted.transport(prototypes), prototypes, atol=0.35, rtol=0)  # nothing moved
    before = z_old.clone(), prototypes.clone()
    drift.fit(z_old, z_old + 1, labels).transport(prototypes)
    assert torch.equal(z_old, before[0])
    assert torch.equal(prototypes, before[1])


@pytest.mark.parametrize("sizes", [(8, 12), (8, 5)])
def test_sizes_may_differ_where_a_map_allows_it(cloud, sizes):
    prototypes, z_old, _ = cloud
    g = torch.Generator().manual_seed(1)
    turn = torch.linalg.qr(torch.randn(max(sizes), min(sizes), generator=g).double()).Q
    turn = turn.T if sizes[1] > sizes[0] else turn
    z_new = z_old @ turn
    torch.testing.assert_close(Ridge(0.0).fit(z_old, z_new).transport(prototypes), prototypes @ turn)
    moved = Procrustes().fit(z_old, z_new).transport(prototypes)
    assert moved.shape == (6, sizes[1])
    if sizes[1] > sizes[0]:
        torch.testing.assert_close(moved, prototypes @ turn)
    with pytest.raises(ValueError, match="same N images"):
        RidgeToIdentity().fit(z_old, z_new)


def test_procrustes_turns_unseen_directions_as_little_as_possible():
    z_old = torch.zeros(10, 4).double()
    z_old[:, :2] = torch.randn(10, 2, generator=torch.Generator().manual_seed(0)).double()
    quarter = torch.eye(4).double()
    quarter[:2, :2] = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    torch.testing.assert_close(Procrustes().fit(z_old, z_old @ quarter).weight, quarter)


def test_effective_samples_of_an_affine_map_are_those_of_its_leverage(wild):
    _, z_old, z_new, _ = wild
    mean = z_old.mean(0, keepdim=True)
    told = RidgeToIdentity().fit(z_old, z_new).diagnostics(torch.cat([mean, mean + 100]))["effective_samples"]
    assert float(told[0]) == pytest.approx(400)
    assert float(told[1]) < 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: RelativeSDC(0),
        lambda: Ridge(-1.0),
        lambda: RidgeToIdentity(shrink="both"),
        lambda: LocalLinear(ridge=0),
        lambda: AdaGauss(hidden=0),
        lambda: GaussianProcess(select="luck"),
        lambda: Gated(None),
        lambda: Blend(()),
        lambda: Blend((SDC(), "SDC")),
    ],
)
def test_wrong_options_are_refused(make):
    with pytest.raises(InputError):
        make()


def test_local_linear_is_sdc_where_nearly_all_weight_is_on_one_image():
    """One current image near a far old class: there is no slope to see, and rounding must not make one up."""
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        z_old = torch.randn(120, 64, generator=g)
        away = torch.nn.functional.normalize(torch.randn(64, generator=g), dim=0) * 24
        z_old[0] = away + 0.3 * torch.randn(64, generator=g)
        z_new = z_old + z_old @ torch.randn(64, 64, generator=g) / 40 + 0.3 + 0.05 * torch.randn(120, 64, generator=g)
        prototypes = torch.cat([0.5 * torch.randn(9, 64, generator=g), away[None]])  # the others set the bandwidth
        moved = LocalLinear().fit(z_old, z_new).transport(prototypes)
        nearest = RelativeSDC().fit(z_old, z_new).transport(prototypes)
        assert torch.isfinite(moved).all()
        assert float((moved - nearest)[-1].norm()) < 0.5
