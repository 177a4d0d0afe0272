"""Read-outs with covariances against scikit-learn and naive forms."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis

from protodrift import IncrementalClassifier, Method, TaskStream, Training
from protodrift.common.config import decode, encode
from protodrift.common.covariance import Covariance
from protodrift.data import load_digits
from protodrift.drift import SDC, AdaGauss
from protodrift.errors import InputError
from protodrift.experiments.setup import Network
from protodrift.experiments.store import Store
from protodrift.experiments.tree import Tree
from protodrift.prototypes.store import Prototypes
from protodrift.readouts import Bayes, FeCAM, Mahalanobis, NearestClassMean, RidgeClassifier, View, gaussian
from protodrift.readouts.gaussian import whitened


@pytest.fixture(scope="module")
def clouds():
    rng = np.random.RandomState(0)
    sizes = (20, 30, 40, 50)
    z = [2 * rng.randn(5) + rng.randn(n, 5) @ rng.randn(5, 5) for n in sizes]
    rows = np.repeat(np.arange(4), sizes)
    return torch.from_numpy(np.concatenate(z)), torch.from_numpy(rows), torch.from_numpy(3 * rng.randn(200, 5))


def view(z, rows, test, form):
    store = Prototypes.of("abcd", z, rows, 1, form)
    return View(test, store.means, statistics=store.statistics, counts=store.counts)


def unit_variance(z, rows):
    """Scale every class about its mean to a mean variance of 1: then shrinking toward it is shrinking toward I."""
    z = z.clone()
    for c in range(4):
        own = z[rows == c]
        spread = (own - own.mean(0)).square().mean().sqrt()
        z[rows == c] = own.mean(0) + (own - own.mean(0)) / spread
    return z


def test_bayes_is_quadratic_discriminant_analysis(clouds):
    z, rows, test = clouds
    z = torch.cat([z] * 200)  # scikit-learn divides by n - 1, we by n
    rows = torch.cat([rows] * 200)
    z = unit_variance(z, rows)
    readout = Bayes(shrinkage=0.2, prior="counts")
    reference = QuadraticDiscriminantAnalysis(reg_param=0.2).fit(z.numpy(), rows.numpy())
    scores = readout.scores(view(z, rows, test, readout.keeps))
    np.testing.assert_allclose(scores.softmax(1), reference.predict_proba(test.numpy()), atol=2e-3)


def test_bayes_with_a_shared_covariance_is_linear_discriminant_analysis(clouds):
    z, rows, test = clouds
    readout = Bayes(shrinkage=0.2, prior="counts", covariance=Covariance("shared"))
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.2).fit(z.numpy(), rows.numpy())
    # scikit-learn standardizes features before shrinking, so they must have equal scatter for the same answer
    centered = z - torch.stack([z[rows == c].mean(0) for c in range(4)])[rows]
    std = centered.square().mean(0).sqrt()
    reference = reference.fit((z / std).numpy(), rows.numpy())
    scores = readout.scores(view(z / std, rows, test / std, readout.keeps))
    np.testing.assert_allclose(scores.softmax(1), reference.predict_proba((test / std).numpy()), atol=1e-6)


def test_mahalanobis_follows_its_equation(clouds):
    z, rows, test = clouds
    for normalize in (False, True):
        readout = Mahalanobis(0.5, 0.25, normalize)
        scores = readout.scores(view(z, rows, test, readout.keeps))
        for c in range(4):
            own = z[rows == c].numpy()
            sigma = np.cov(own.T, bias=True)
            on, off = np.diag(sigma).mean(), sigma[~np.eye(5, dtype=bool)].mean()
            s = sigma + 0.5 * on * np.eye(5) + 0.25 * off * (1 - np.eye(5))
            mu, x = own.mean(0), test.numpy()
            if normalize:
                s = s / np.sqrt(np.outer(np.diag(s), np.diag(s)))
                mu, x = mu / np.linalg.norm(mu), x / np.linalg.norm(x, axis=1, keepdims=True)
            naive = [(row - mu) @ np.linalg.inv(s) @ (row - mu) for row in x]
            np.testing.assert_allclose(-scores[:, c], naive)


def test_tukey_is_a_space_of_its_own():
    plain, power = Mahalanobis(), Mahalanobis(tukey=0.5)
    assert (plain.space_name, power.space_name) == ("plain", "tukey 0.5")
    z = torch.tensor([[4.0, -9.0, 0.0]])
    assert torch.equal(plain.space(z), z)
    assert power.space(z).tolist() == [[2.0, -3.0, 0.0]]


def test_fecam_is_what_its_authors_release(clouds):
    """Written out image by image: square roots, covariances over n - 1, shrunk twice, correlations, unit length."""
    z, rows, test = clouds[0].abs(), clouds[1], clouds[2].abs()
    readout = FeCAM()
    scores = readout.scores(view(readout.space(z), rows, test, readout.keeps))
    identity = np.eye(5)
    for c in range(4):
        own = z[rows == c].numpy()
        s = np.cov(np.sqrt(own).T)
        for _ in range(2):
            on, off = np.diag(s).mean(), s[~np.eye(5, dtype=bool)].mean()
            s = s + 1.0 * on * identity + 1.0 * off * (1 - identity)
        s = s / np.sqrt(np.outer(np.diag(s), np.diag(s)))
        mu = np.sqrt(own.mean(axis=0))  # the root of the mean, not the mean root
        mu = mu / np.linalg.norm(mu)
        x = np.sqrt(test.numpy())
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        naive = [(row - mu) @ np.linalg.pinv(s) @ (row - mu) for row in x]
        np.testing.assert_allclose(-scores[:, c], naive)
    assert decode(encode(readout)) == readout
    assert readout.space_name == "tukey 0.5"


@pytest.mark.parametrize(
    "readout", [Mahalanobis(), FeCAM(), Bayes(), RidgeClassifier(), RidgeClassifier(covariance=Covariance())]
)
def test_a_class_without_a_prototype_never_wins_and_flat_clouds_are_no_problem(readout):
    g = torch.Generator().manual_seed(0)
    z = torch.randn(12, 3, generator=g) @ torch.randn(3, 30, generator=g)  # 3 dimensions of 30
    rows = torch.arange(3).repeat_interleave(4)
    z = z + 3 * torch.eye(30)[rows]
    store = Prototypes.of("abcd", readout.space(z), rows, 1, readout.keeps)  # no image of d
    kept = readout.learn({}, readout.space(z), rows, 1, 0)
    scores = readout.scores(View(z, store.means, [], kept, statistics=store.statistics, counts=store.counts))
    assert bool((scores[:, 3] == -torch.inf).all())
    assert bool(torch.isfinite(scores[:, :3]).all())
    assert decode(encode(readout)) == readout


def test_covariances_that_were_not_kept_are_asked_for():
    with pytest.raises(InputError, match="the model kept none"):
        Bayes().scores(View(torch.zeros(1, 2), torch.zeros(1, 2)))


STREAM = [[3, 8], [1, 7]]


@pytest.mark.parametrize(
    "readout",
    [Mahalanobis(), Bayes(covariance=Covariance("low-rank", 4)), RidgeClassifier(covariance=Covariance("shared"))],
)
def test_in_a_tree_and_a_classifier_alike_and_kept_on_disk(readout, tmp_path):
    """The experiment and the product keep, move and use the same statistics; a stage on disk holds them."""
    stream = TaskStream(load_digits(), classes=STREAM)
    fast = Training(epochs=1, learning_rate=3e-4)
    method = Method(drift=SDC(), readout=readout)
    trees = [Tree(stream, network=Network(embedding_dim=16), training=fast, store=Store(tmp_path)) for _ in range(2)]
    computed, loaded = (tree.readout(method, 2) for tree in trees)
    assert trees[1].computed["train"] == 0
    assert {name: value.shape for name, value in loaded.prototypes.statistics.items()} == {
        name: value.shape for name, value in computed.prototypes.statistics.items()
    }
    for name, value in computed.prototypes.statistics.items():
        assert torch.equal(loaded.prototypes.statistics[name], value)
    plain = trees[0].readout(Method(drift=SDC()), 2)
    extra = sum(v.numel() * v.element_size() for v in computed.prototypes.statistics.values())
    assert computed.bytes_stored == plain.bytes_stored + extra
    clf = IncrementalClassifier(embedding_dim=16, training=fast, drift=SDC(), readout=readout)
    for task in stream:
        clf.partial_fit(task.data.images, task.data.labels)
    for name, value in computed.prototypes.statistics.items():
        torch.testing.assert_close(clf.state_.prototypes.statistics[name], value)
    test = torch.cat([task.test.images for task in stream])
    answers = [clf.classes_.tolist().index(label) for label in clf.predict(test).tolist()]
    assert answers == computed.predicted.tolist()
    again = IncrementalClassifier.load(clf.save(tmp_path / "model"))
    assert again.predict(test).tolist() == clf.predict(test).tolist()


def test_a_drift_that_needs_covariances_gets_them_whatever_the_readout():
    stream = TaskStream(load_digits(), classes=STREAM)
    tree = Tree(stream, network=Network(embedding_dim=16), training=Training(epochs=1, learning_rate=3e-4))
    method = Method(drift=AdaGauss(epochs=2, samples=200), readout=NearestClassMean())
    assert tree.readout(method, 2).prototypes.statistics["full"].shape == (4, 16, 16)


@pytest.mark.parametrize("form", ["full", "diagonal", "low-rank", "shared"])
@pytest.mark.parametrize("readout", [Mahalanobis(), Mahalanobis(normalize=False), Bayes()])
def test_a_class_of_one_image_is_as_wide_as_the_others(readout, form):
    rng = np.random.RandomState(0)
    centers = 3 * rng.randn(4, 16)
    sizes = (20, 20, 20, 1)
    z = torch.from_numpy(np.concatenate([c + rng.randn(n, 16) for c, n in zip(centers, sizes, strict=True)]))
    rows = torch.from_numpy(np.repeat(np.arange(4), sizes))
    test, truth = torch.from_numpy(np.repeat(centers, 40, 0) + rng.randn(160, 16)), np.repeat(np.arange(4), 40)
    seen = view(z, rows, test, Covariance(form))
    right = readout.predict(seen).numpy() == truth
    assert right[truth == 3].mean() > 0.9
    assert right[truth < 3].mean() > 0.9
    assert torch.isfinite(readout.scores(seen)).all()
    if form == "full":  # naive: the mean of the three others, weighted by their images
        filled = seen.statistics["full"].clone()
        filled[3] = sum(n * s for n, s in zip(sizes[:3], seen.statistics["full"][:3], strict=True)) / 60
        expected = readout.scores(View(test, seen.prototypes, statistics={"full": filled}, counts=seen.counts))
        torch.testing.assert_close(readout.scores(seen), expected)


def test_where_no_class_has_any_spread_the_nearest_mean_decides():
    z = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).double()
    test = torch.randn(50, 6, generator=torch.Generator().manual_seed(1)).double()
    seen = view(z, torch.arange(4), test, Covariance())
    nearest = NearestClassMean().predict(seen)
    assert torch.equal(Bayes().predict(seen), nearest)
    assert torch.equal(Mahalanobis(normalize=False).predict(seen), nearest)


@pytest.mark.parametrize("form", ["full", "shared"])
@pytest.mark.parametrize("readout", [Mahalanobis(), FeCAM(), Bayes(shrinkage=0.01, prior="counts")])
def test_matrices_are_factored_once_for_all_images_that_follow(clouds, readout, form, monkeypatch):
    z, rows, test = clouds[0].abs(), clouds[1], clouds[2].abs()
    seen = view(readout.space(z), rows, test, Covariance(form))
    expected, calls = readout.scores(seen), []
    monkeypatch.setattr(gaussian, "whitened", lambda matrix: calls.append(1) or whitened(matrix))
    scorer = readout.scorer(seen)
    for _ in range(3):
        assert torch.equal(scorer(test, []), expected)
    assert len(calls) == (1 if form == "shared" and not isinstance(readout, FeCAM) else 4)
    monkeypatch.setattr(gaussian, "FACTORS_AT_ONCE", 4 * 5 * 5 - 1)
    assert readout.scorer(seen) is None


@pytest.mark.parametrize("smallest", [1.0, 1e-6, 1e-12])
def test_a_whitening_gives_the_inverse_and_the_determinant(smallest):
    vectors = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    values = torch.tensor([smallest, 1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    matrix = (vectors * values) @ vectors.T
    root, log_det = whitened(matrix)
    kept = values > 1e-10 * 5
    inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    torch.testing.assert_close(root @ root.T, inverse, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(log_det, torch.linalg.slogdet(matrix).logabsdet, rtol=1e-3, atol=0)
