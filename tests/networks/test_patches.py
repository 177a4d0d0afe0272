"""Whitened patches: the formula by a naive loop, filters of the first images only, and a learner that never drifts."""

import numpy as np
import pytest
import torch

from protodrift import IncrementalClassifier
from protodrift.common import seeding
from protodrift.data.arrays import InputSpec
from protodrift.methods import METHODS, Schedule
from protodrift.networks import build_embedder, embed
from protodrift.networks.backbones.patches import Patches, contrast_normalized, patch_statistics
from protodrift.readouts import StreamingLDA

COLOR = InputSpec((3, 12, 12), "uint8", 0, 255)


def images(count, seed=0, channels=3, side=12):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, side, side), generator=generator, dtype=torch.uint8)


def network(filters=100, spec=COLOR, first=None, seed=0):
    result = build_embedder(f"patches-{filters}", spec, embedding_dim=None, normalize=False, seed=seed)
    result.begin(images(40, channels=spec.shape[0], side=spec.shape[1]) if first is None else first, seed)
    return result


def naive(module, image):
    """One image, one patch and one filter after another."""
    side, filters = image.shape[1] - 5, module.weight.shape[1]
    maps = np.zeros((2, filters, side, side))
    for row in range(side):
        for column in range(side):
            patch = image[:, row : row + 6, column : column + 6].flatten().double()
            scaled = (patch - patch.mean()) / (patch.var(correction=0) + 2e-3).sqrt()
            for k in range(filters):
                response = float(scaled @ module.weight[:, k].double() + module.bias[k])
                maps[0, k, row, column] = max(response - 0.5, 0)
                maps[1, k, row, column] = max(-response - 0.5, 0)
    half, start = -(-side // 2), side // 2
    cells = [maps[:, :, a, b] for a in (slice(half), slice(start, None)) for b in (slice(half), slice(start, None))]
    return np.concatenate([np.sqrt(cell.mean(axis=(2, 3))).flatten() for cell in cells])


def test_features_follow_the_formula_for_an_image_and_its_mirror_image():
    net = network()
    module, some = net.backbone, net.view(images(2, seed=1))
    module.weight.data, module.bias.data = module.weight[:, :3].clone(), module.bias[:3].clone()
    expected = [(naive(module, x) + naive(module, x.flip(-1))) / 2 for x in some]
    np.testing.assert_allclose(module(some), np.stack(expected), atol=1e-5)


def test_a_filter_responds_as_whitened_patches_do():
    """W (c(p) - m) . f, before it was made one map of the patch scaled by its contrast."""
    net, first = network(), images(40)
    sides = net.view(first).unfold(2, 6, 1).unfold(3, 6, 1)
    generator = seeding.generator(0, "patches")

    def drawn(count):
        which, row, column = (torch.randint(size, (count,), generator=generator) for size in (40, 7, 7))
        return contrast_normalized(sides[which, :, row, column].flatten(1))

    mean, whitening = patch_statistics(drawn(100_000))
    filters = torch.nn.functional.normalize((drawn(100).double() - mean) @ whitening, dim=1)
    patches = net.view(images(5, seed=2))[:, :, :6, :6].flatten(1)
    expected = (contrast_normalized(patches).double() - mean) @ whitening @ filters.T
    scaled = patches / (patches.var(dim=1, correction=0, keepdim=True) + 2e-3).sqrt()
    torch.testing.assert_close((scaled @ net.backbone.weight + net.backbone.bias).double(), expected, atol=2e-4, rtol=0)


def test_whitening_makes_patches_white():
    patches = torch.randn(5000, 4, generator=torch.Generator().manual_seed(0)) @ torch.diag(
        torch.tensor([9.0, 3, 30, 5])
    )
    mean, whitening = patch_statistics(patches)
    white = (patches.double() - mean) @ whitening
    torch.testing.assert_close(white.T @ white / 5000, torch.eye(4, dtype=torch.float64), atol=0.02, rtol=0)


def test_a_mirrored_photo_has_the_same_features_and_a_mirrored_digit_has_not():
    color, gray = images(4, seed=3), images(4, seed=3, channels=1)
    net = network()
    torch.testing.assert_close(embed(net, color), embed(net, color.flip(-1)))
    plain = network(spec=InputSpec((1, 12, 12), "uint8", 0, 255))
    assert not torch.allclose(embed(plain, gray), embed(plain, gray.flip(-1)), atol=1e-3)


def test_one_seed_one_network_and_another_seed_another():
    weights = [network(seed=seed).backbone.weight for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("side", [7, 8, 33, 48])
def test_any_size(side):
    spec = InputSpec((3, side, side), "uint8", 0, 255)
    z = embed(network(spec=spec), images(3, side=side))
    assert z.shape == (3, 800)
    assert bool(torch.isfinite(z).all())
    assert bool((z >= 0).all())
    assert bool((z.std(dim=0) > 0).any())


def test_the_parts_of_a_batch_have_the_features_of_the_whole():
    net, some = network(), images(9, seed=4)
    torch.testing.assert_close(torch.cat([embed(net, part) for part in some.split(2)]), embed(net, some))


def test_even_images_are_no_noise():
    """Without the constant under the root, an even patch is divided by nothing."""
    flat = torch.full((2, 3, 12, 12), 90, dtype=torch.uint8)
    flat[1, 0, 3, 3] += 1
    z = embed(network(), flat)
    assert bool(torch.isfinite(z).all())
    assert float((z[0] - z[1]).abs().max()) < 0.5


def learner(**params):
    return IncrementalClassifier(
        "patches-100", embedding_dim=None, normalize=False, drift=None, readout=StreamingLDA(),
        schedule=Schedule(train="none"), **params,
    )  # fmt: skip


def textures(classes, per_class, seed):
    """Stripes of a width of its own for each class, at random places, and noise."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for label in classes:
        for _ in range(per_class):
            wave = np.sin((np.arange(16) + rng.uniform(0, 50)) * (0.5 + 0.4 * label))
            X.append(128 + 70 * np.tile(wave, (16, 1))[..., None] + rng.normal(0, 15, (16, 16, 3)))
            y.append(label)
    return np.clip(X, 0, 255).astype(np.uint8), np.array(y)


def test_every_split_into_tasks_gives_the_same_model_and_it_is_saved_whole(tmp_path):
    X, y = textures(range(4), 20, seed=0)
    X_test, y_test = textures(range(4), 20, seed=1)
    first = y < 2  # the filters are those of the first task
    two = learner().partial_fit(X[first], y[first]).partial_fit(X[~first], y[~first])
    three = learner().partial_fit(X[first], y[first])
    for label in (2, 3):
        three.partial_fit(X[y == label], y[y == label])
    np.testing.assert_allclose(two.prototypes_, three.prototypes_, atol=1e-6)
    np.testing.assert_allclose(two.decision_function(X_test), three.decision_function(X_test), atol=1e-3)
    assert two.score(X_test, y_test) > 0.9
    again = IncrementalClassifier.load(two.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.decision_function(X_test), two.decision_function(X_test))


def test_training_what_cannot_be_trained_is_said():
    X, y = textures(range(2), 8, seed=0)
    with pytest.warns(UserWarning, match="no weights that can be trained"):
        IncrementalClassifier("patches-100", embedding_dim=None).partial_fit(X, y)


def test_the_named_method():
    method = METHODS["Patches+SLDA"]
    assert method.backbone == "patches-1600"
    assert method.schedule.train == "none"
    assert isinstance(build_embedder(method.backbone, COLOR, embedding_dim=None).backbone, Patches)
