"""The Gaussian process against scikit-learn and sampling; left-out classes, gate and blend."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

from protodrift.drift import (
    SDC,
    Blend,
    Drift,
    FittedDrift,
    Gated,
    GaussianProcess,
    LocalLinear,
    MeanShift,
    Ridge,
    RidgeToIdentity,
    leave_one_class_out,
)
from protodrift.drift.successors.blend import capped_weights
from protodrift.drift.successors.folds import as_groups, clusters
from protodrift.drift.successors.gp import _TRANSLATION, Kernel, Spread, _Images, evenly


@pytest.fixture
def wild(cloud):
    prototypes, z_old, labels = cloud
    noise = torch.randn(400, 8, generator=torch.Generator().manual_seed(7)).double()
    return prototypes, z_old, z_old + 0.5 * torch.tanh(z_old) + 0.05 * noise, labels


def k(kernel, a, b):
    return kernel(a @ b.T, torch.cdist(a, b).square())


def scaled(z_old):
    centered = z_old - z_old.mean(0)
    return centered / centered.square().sum(1).mean().sqrt()


def test_asked_about_a_point_it_is_scikit_learns_posterior(wild):
    prototypes, z_old, z_new, labels = wild
    config = GaussianProcess(linear=2.0, local=3.0, length=0.7, cloud=0.0, calibrate=False)
    fitted = config.fit(z_old, z_new, labels)
    x, at = scaled(z_old).numpy(), ((prototypes - fitted.center) / fitted.scale).numpy()
    kernel = (
        ConstantKernel(_TRANSLATION)
        + ConstantKernel(2.0) * DotProduct(0.0)
        + ConstantKernel(3.0) * RBF(fitted.kernel.length)
    )
    reference = GaussianProcessRegressor(kernel, alpha=1.0, optimizer=None).fit(x, (z_new - z_old).numpy())
    mean, std = reference.predict(at, return_std=True)
    moved, told = fitted.explain(prototypes)
    np.testing.assert_allclose((moved - prototypes).numpy(), mean, atol=1e-9)
    np.testing.assert_allclose(told["uncertainty"], std[:, 0] * np.sqrt(fitted.variance), rtol=1e-6)
    images = _Images(scaled(z_old), z_new - z_old, labels, fitted.spread)
    # scikit-learn's log likelihood of unit variance: -1/2 tr(Y'(K+I)^-1 Y) - D/2 log det - const
    energy = float(((z_new - z_old) * fitted.weights).sum())
    log_det = images.unlikelihood(fitted.kernel) - 400 * np.log(energy)
    ours = -0.5 * energy - 4 * log_det - 400 * 4 * np.log(2 * np.pi)
    assert ours == pytest.approx(reference.log_marginal_likelihood(), rel=1e-9)


def test_the_mean_over_a_cloud_is_the_mean_over_its_samples(cloud):
    _, z_old, labels = cloud
    x = scaled(z_old)
    spread = Spread.within(x, labels, 1.0)
    kernel = Kernel(0.5, 2.0, 0.8)
    noise = torch.randn(20_000, 8, generator=torch.Generator().manual_seed(0)).double()
    noise = noise @ (spread.vectors * spread.values.sqrt()).T
    at = x[:2]
    naive = torch.stack([k(kernel, p + noise, x[50:53]).mean(0) for p in at])
    torch.testing.assert_close(kernel.cloud(at, x[50:53], spread), naive, rtol=0.03, atol=0.01)
    pairs = torch.stack([k(kernel, p + noise[:2000], p + noise[2000:4000]).mean() for p in at])
    torch.testing.assert_close(kernel.cloud_variance(at, spread), pairs, rtol=0.03, atol=0.01)


def test_left_out_classes_from_one_inverse_are_those_of_separate_fits(wild):
    _, z_old, z_new, labels = wild
    x, y = scaled(z_old)[::4], (z_new - z_old)[::4]
    labels = labels[::4]
    spread, kernel = Spread.within(x, labels, 1.0), Kernel(1.0, 5.0, 0.9)
    errors, variances = _Images(x, y, labels, spread).held_out(kernel)
    for c in range(5):
        rest, own = labels != c, labels == c
        inverse = torch.linalg.inv(k(kernel, x[rest], x[rest]) + torch.eye(int(rest.sum())))
        near = kernel.cloud(x[own].mean(0, keepdim=True), x[rest], spread)
        naive = (near @ inverse @ y[rest] - y[own].mean(0)).square().sum()
        assert float(errors[c]) == pytest.approx(float(naive), rel=1e-6)
        left = kernel.cloud_variance(x[own].mean(0, keepdim=True), spread)[0] - (near @ inverse @ near.T)[0, 0]
        assert float(variances[c]) == pytest.approx(float(left), rel=1e-6)


def test_without_a_local_part_it_is_the_ridge_toward_the_identity(wild):
    """k = c + a <x, x'> with a large c is a ridge with a free intercept, lambda = 1 / a in scaled units."""
    prototypes, z_old, z_new, labels = wild
    fitted = GaussianProcess(linear=2.0, local=0.0, length=1.0).fit(z_old, z_new, labels)
    ridge = 8 / (2.0 * 400)  # lambda = ridge * trace / D, and the trace is N
    moved = RidgeToIdentity(ridge).fit(z_old, z_new).transport(prototypes)
    torch.testing.assert_close(fitted.transport(prototypes), moved, atol=1e-3, rtol=0)
    covariances = torch.eye(8).double().expand(6, 8, 8)
    pushed = fitted.transport(prototypes, covariances)[1]
    wanted = RidgeToIdentity(ridge).fit(z_old, z_new).transport(prototypes, covariances)[1]
    torch.testing.assert_close(pushed, wanted, atol=1e-3, rtol=0)


def test_the_uncertainty_is_larger_where_there_are_no_images_and_about_right_elsewhere(wild):
    _, z_old, z_new, labels = wild
    shown = labels > 0
    fitted = GaussianProcess().fit(z_old[shown], z_new[shown], labels[shown])
    before, after = z_old[~shown].mean(0, keepdim=True), z_new[~shown].mean(0)
    moved, told = fitted.explain(torch.cat([before, before + 30]))
    assert float(told["uncertainty"][1]) > 2 * float(told["uncertainty"][0])
    assert float(told["distance"][1]) > 20
    assert float(told["effective_samples"][1]) < float(told["effective_samples"][0])
    error = float((moved[0] - after).norm())
    assert error / 4 < float(told["uncertainty"][0]) < 4 * error + 0.2


@pytest.mark.parametrize("select", ["likelihood", "classes"])
def test_the_kernel_is_chosen_from_the_data(cloud, stretched, select):
    _, z_old, labels = cloud
    fitted = GaussianProcess(select=select).fit(z_old, z_old @ stretched, labels)
    assert fitted.kernel.linear >= 10  # a linear drift without noise


def test_rows_are_taken_evenly():
    groups = torch.tensor([0] * 90 + [1] * 10)
    assert len(evenly(groups, 200)) == 100
    taken = evenly(groups, 20)
    assert len(taken.unique()) == 20
    assert int((groups[taken] == 1).sum()) == 10


# -- left-out classes ----------------------------------------------------------------------------------------------


def test_a_left_out_class_is_really_not_shown(wild):
    _, z_old, z_new, labels = wild
    held = leave_one_class_out(MeanShift(), z_old, z_new, labels)
    for c in range(5):
        own = labels == c
        torch.testing.assert_close(held.before[c], z_old[own].mean(0))
        torch.testing.assert_close(held.after[c], z_new[own].mean(0))
        torch.testing.assert_close(held.predicted[c], held.before[c] + (z_new - z_old)[~own].mean(0))
        nearest = torch.cdist(held.before[c : c + 1], z_old[~own]).min()
        assert float(held.distance[c]) == pytest.approx(float(nearest))
    torch.testing.assert_close(held.true_drift, held.after.double() - held.before.double())
    assert held.reach == float(held.distance.max())


def test_more_classes_than_folds_leave_several_out_at_once(wild):
    _, z_old, z_new, labels = wild
    held = leave_one_class_out(MeanShift(), z_old, z_new, labels, folds=2)
    rest = (labels == 1) | (labels == 3)  # 0, 2, 4 are left out together
    torch.testing.assert_close(held.predicted[0], held.before[0] + (z_new - z_old)[rest].mean(0))


def test_few_classes_are_cut_into_clusters(cloud):
    _, z_old, labels = cloud
    assert torch.equal(as_groups(z_old, labels * 7), labels)
    two = labels < 2
    groups = as_groups(z_old[two], labels[two])
    assert int(groups.max()) == 5
    assert all(len(labels[two][groups == g].unique()) == 1 for g in range(6))
    assert int(as_groups(z_old, None).max()) == 5
    assert len(clusters(z_old[:1], 4)) == 1
    apart = torch.cat([torch.zeros(5, 2), torch.full((5, 2), 9.0)]) + torch.rand(10, 2)
    assert len(clusters(apart, 2)[:5].unique()) == 1


def test_the_gate_is_open_for_a_right_estimator_and_shut_for_a_wrong_one(cloud, stretched):
    prototypes, z_old, labels = cloud
    z_new = z_old @ stretched
    right = Gated(RidgeToIdentity(1e-6)).fit(z_old, z_new, labels)
    moved, told = right.explain(prototypes)
    torch.testing.assert_close(moved, prototypes @ stretched, atol=1e-3, rtol=0)
    assert float(told["gate"].min()) > 0.999
    assert float(told["uncertainty"].max()) < 1e-2
    apart = z_old.clone()  # each class runs away from all others: its neighbors say nothing about it
    for c in range(5):
        apart[labels == c] += 3 * torch.eye(8)[c]
    wrong = Gated(MeanShift()).fit(z_old, apart, labels)
    still, told = wrong.explain(prototypes)
    assert float(told["gate"].max()) == 0.0
    assert torch.equal(still, prototypes)
    assert 2 < float(told["uncertainty"].mean()) < 4  # each class moved by 3
    assert set(told) >= {"gate", "uncertainty", "distance", "effective_samples"}


def test_a_prototype_far_from_all_images_is_moved_less_and_is_less_certain(wild):
    prototypes, z_old, z_new, labels = wild
    fitted = Gated(SDC(1.0)).fit(z_old, z_new, labels)
    reach = fitted.held_out.distance.max()
    far = z_old[:1] + 50
    _, told = fitted.explain(torch.cat([prototypes, far]))
    assert float(told["gate"][-1]) < 0.1 * float(told["gate"][0])
    expected = float(told["gate"][0]) * float(reach / told["distance"][-1]) ** 2
    assert float(told["gate"][-1]) == pytest.approx(expected)
    assert float(told["uncertainty"][-1]) > 5 * float(told["uncertainty"][0])


def test_the_gate_holds_back_covariances_too(wild):
    prototypes, z_old, z_new, labels = wild
    covariances = torch.eye(8).double().expand(6, 8, 8)
    fitted = Gated(Ridge(intercept=True)).fit(z_old, z_new, labels)
    means, moved = fitted.transport(prototypes, covariances)
    torch.testing.assert_close(means, fitted.transport(prototypes))
    gate = fitted.diagnostics(prototypes)["gate"][:, None, None]
    pushed = fitted.fitted.transport(prototypes, covariances)[1]
    torch.testing.assert_close(moved, (1 - gate) * covariances + gate * pushed)


def test_one_image_leaves_nothing_out():
    z = torch.zeros(1, 3)
    assert Gated(SDC()).fit(z, z + 1).transport(z).tolist() == [[1.0, 1.0, 1.0]]
    assert Blend((SDC(), MeanShift())).fit(z, z + 1).transport(z).tolist() == [[1.0, 1.0, 1.0]]


# -- blend ---------------------------------------------------------------------------------------------------------


def test_a_blend_takes_the_right_estimator(cloud, stretched):
    prototypes, z_old, labels = cloud
    fitted = Blend((MeanShift(), RidgeToIdentity(1e-6))).fit(z_old, z_old @ stretched, labels)
    assert fitted.weights.tolist() == pytest.approx([0, 1], abs=1e-2)
    torch.testing.assert_close(fitted.transport(prototypes), prototypes @ stretched, atol=0.05, rtol=0)


def test_weights_are_the_best_that_are_allowed():
    rng = np.random.RandomState(0)
    for _ in range(5):
        x = torch.from_numpy(rng.randn(10, 3))
        t = torch.from_numpy(rng.randn(10)) + x.sum(1)
        gram, target = x.T @ x, x.T @ t
        w = capped_weights(gram, target)
        assert float(w.min()) >= 0
        assert float(w.sum()) <= 1 + 1e-9
        ours = float(w @ gram @ w - 2 * w @ target)
        for _ in range(200):  # no allowed weights are better
            other = torch.from_numpy(rng.dirichlet(np.ones(4))[:3])
            assert ours <= float(other @ gram @ other - 2 * other @ target) + 1e-6


@pytest.mark.parametrize(
    "drift", [Gated(SDC()), Gated(LocalLinear()), Gated(GaussianProcess()), Blend(), LocalLinear()]
)
@pytest.mark.parametrize("count", [1, 3])
def test_one_class_of_equal_images_can_be_learned(drift, count):
    """A folder with one photo, or the same photo three times: there is no class and no cluster to leave out."""
    z = torch.ones(count, 4)
    moved, said = drift.fit(z, z + 1, torch.zeros(count, dtype=torch.long)).explain(torch.zeros(2, 4))
    assert torch.isfinite(moved).all()
    assert all(torch.isfinite(value).all() for value in said.values())
    torch.testing.assert_close(moved, torch.ones(2, 4), rtol=0, atol=1.0)


def test_the_process_knows_what_a_prototype_has_in_directions_without_images():
    """With fewer images than dimensions: the same numbers as with the whole vectors, none of them left out."""
    g = torch.Generator().manual_seed(0)
    z_old = torch.randn(24, 40, generator=g).double()
    z_new = z_old + 0.1 * z_old @ torch.randn(40, 40, generator=g).double() / 6 + 0.2
    labels = torch.arange(24) % 4
    fitted = GaussianProcess(linear=1.0, local=1.0, length=0.6).fit(z_old, z_new, labels)
    assert fitted.basis.shape[1] < 40
    p = torch.randn(6, 40, generator=g).double()
    whole = (z_old - fitted.center) / fitted.scale
    order = evenly(labels, 1000)
    k = fitted.kernel.cloud((p - fitted.center) / fitted.scale, whole[order], Spread.within(whole, labels, 1.0))
    prior = fitted.kernel.cloud_variance((p - fitted.center) / fitted.scale, Spread.within(whole, labels, 1.0))
    moved, told = fitted.explain(p)
    torch.testing.assert_close(moved, p + k @ fitted.weights)
    doubt = prior - ((k @ fitted.inverse) * k).sum(dim=1)
    torch.testing.assert_close(told["uncertainty"], (fitted.variance * doubt).sqrt())
    torch.testing.assert_close(told["distance"], torch.cdist(p, z_old).amin(dim=1))


def test_images_are_spread_evenly_over_classes_of_any_size():
    groups = torch.cat([torch.full((10_000,), 0), torch.full((20,), 1), torch.full((7,), 2)])
    assert groups[evenly(groups, 60)].bincount().tolist() == [33, 20, 7]
    assert len(evenly(groups, 60).unique()) == 60
    assert groups[evenly(groups, 12)].bincount().tolist() == [4, 4, 4]
    alike = torch.arange(600) % 6
    assert alike[evenly(alike, 60)].bincount().tolist() == [10] * 6


def test_an_estimator_that_breaks_down_on_left_out_classes_moves_nothing():
    @dataclass(frozen=True)
    class Broken(Drift):
        def fit(self, z_old, z_new, labels=None):
            return Nowhere()

    class Nowhere(FittedDrift):
        def explain(self, prototypes):
            return torch.full_like(prototypes, torch.nan), {}

    g = torch.Generator().manual_seed(0)
    z = torch.randn(30, 4, generator=g)
    _, told = Gated(Broken()).fit(z, z + 1, torch.arange(30) % 3).explain(z[:5])
    assert told["gate"].tolist() == [0.0] * 5


@pytest.mark.parametrize("images", [400, 5])
def test_the_map_of_a_cloud_is_the_gradient_of_where_it_goes(cloud, images):
    prototypes, z_old, labels = cloud
    z_old, labels = z_old[:: 400 // images], labels[:: 400 // images]
    z_new = z_old + 0.3 * torch.sin(2 * z_old)
    fitted = GaussianProcess(linear=1.0, local=10.0, length=0.6).fit(z_old, z_new, labels)
    inside = fitted.center + (prototypes - fitted.center) @ fitted.basis @ fitted.basis.T
    for p, weight in zip(inside, fitted.maps(inside), strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda x: fitted.explain(x[None])[0][0], p)
        torch.testing.assert_close(fitted.basis.T @ weight, fitted.basis.T @ jacobian.T, atol=1e-8, rtol=1e-6)


def test_what_a_process_leaves_of_an_image_is_what_the_others_do_not_predict(wild):
    _, z_old, z_new, labels = wild
    config = GaussianProcess(linear=1.0, local=1.0, length=0.6, cloud=0.0, calibrate=False)
    fitted = config.fit(z_old, z_new, labels)
    inverse, y = fitted.inverse, torch.linalg.solve(fitted.inverse, fitted.weights)
    gram = torch.linalg.inv(inverse) - torch.eye(len(inverse), dtype=torch.float64)
    left = []
    for i in range(len(y)):
        others = torch.arange(len(y)) != i
        inner = gram[others][:, others] + torch.eye(len(y) - 1, dtype=torch.float64)
        left.append(y[i] - gram[i, others] @ torch.linalg.solve(inner, y[others]))
    left = torch.stack(left)
    torch.testing.assert_close(fitted.noise(), left.T @ left / len(left), rtol=1e-5, atol=1e-8)
