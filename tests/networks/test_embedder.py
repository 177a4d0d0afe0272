"""The embedding network: standardization, one ordered pass, and modules of the user's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from protodrift.data import InputSpec
from protodrift.errors import InputError
from protodrift.networks import build_embedder, embed
from protodrift.networks.embedder import Standardize

GRAY = InputSpec((1, 8, 8), "uint8", 0, 255)
VECTORS = InputSpec((4,), "free", 0, 1)


@pytest.mark.parametrize(
    "inputs",
    [
        np.random.RandomState(0).randint(0, 256, (50, 3, 6, 5)).astype(np.uint8),
        np.random.RandomState(1).rand(50, 1, 4, 4).astype(np.float32) * 9 + 100,
        np.random.RandomState(2).randn(5000, 4).astype(np.float32) * [1, 10, 0.1, 1000],
    ],
)
def test_standardize_gives_numpys_mean_and_deviation(inputs):
    inputs = np.asarray(inputs, inputs.dtype if inputs.dtype == np.uint8 else np.float32)
    axes = (0, 2, 3) if inputs.ndim == 4 else 0
    layer = Standardize(InputSpec(inputs.shape[1:], "free", 0, 1))
    layer.fit(torch.from_numpy(inputs))
    assert np.allclose(layer.mean.flatten().numpy(), inputs.astype(float).mean(axes), rtol=1e-5)
    assert np.allclose(layer.std.flatten().numpy(), inputs.astype(float).std(axes), rtol=1e-5)
    out = layer(torch.from_numpy(inputs)).double().numpy()
    assert np.allclose(out.mean(axes), 0, atol=1e-4)
    assert np.allclose(out.std(axes), 1, atol=1e-4)


def test_a_constant_channel_becomes_zero_not_infinite():
    images = torch.randint(0, 256, (9, 3, 4, 4), dtype=torch.uint8)
    images[:, 1] = 200
    layer = Standardize(InputSpec((3, 4, 4), "uint8", 0, 255))
    layer.fit(images)
    out = layer(images)
    assert bool(torch.isfinite(out).all())
    assert bool((out[:, 1] == 0).all())
    assert layer.std[1].item() == 1


def test_one_image_can_be_standardized():
    layer = Standardize(VECTORS)
    layer.fit(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert layer(torch.tensor([[1.0, 2.0, 3.0, 5.0]])).tolist() == [[0, 0, 0, 1]]


@pytest.fixture(scope="module")
def network():
    return build_embedder("convnet", GRAY, embedding_dim=6)


def test_embed_is_ordered_and_does_not_depend_on_the_batch_size(network):
    images = torch.randint(0, 256, (37, 1, 8, 8), dtype=torch.uint8)
    whole = embed(network, images, batch_size=100)
    for size in (1, 5, 36):
        assert torch.allclose(embed(network, images, batch_size=size), whole, atol=1e-5)
    alone = torch.cat([embed(network, image[None]) for image in images])
    assert torch.allclose(alone, whole, atol=1e-5)
    backwards = embed(network, images.flip(0)).flip(0)
    assert torch.allclose(backwards, whole, atol=1e-5)
    assert torch.equal(embed(network, images), embed(network, images))


def test_embed_leaves_modes_and_statistics_as_they_were(network):
    images = torch.randint(0, 256, (9, 1, 8, 8), dtype=torch.uint8)
    network.train()
    network.backbone.layers[1].eval()
    modes = [module.training for module in network.modules()]
    before = {name: value.clone() for name, value in network.state_dict().items()}
    z = embed(network, images)
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    network.eval()
    assert torch.equal(z, embed(network, images))  # it was embedded in eval mode
    assert not z.requires_grad
    assert (z.clone().requires_grad_() * z).sum().requires_grad  # and is a normal tensor


def test_modes_come_back_after_an_error(network):
    network.train()
    with pytest.raises(RuntimeError):
        embed(network, torch.zeros(2, 7, 8, 8))
    assert all(module.training for module in network.modules())
    network.eval()


# -- the user's own module --------------------------------------------------------------------------------------------


def test_a_module_of_the_users_is_copied_not_shared():
    mine = nn.Linear(4, 3)
    before = mine.weight.clone()
    network = build_embedder(mine, VECTORS, embedding_dim=None, normalize=False)
    assert torch.equal(network.backbone.weight, mine.weight)
    with torch.no_grad():
        network.backbone.weight.zero_()
    assert torch.equal(mine.weight, before)
    assert network.embedding_dim == 3


class Returns(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.make = make

    def forward(self, x):
        return self.make(x)


@pytest.mark.parametrize(
    ("module", "spec", "message"),
    [
        (nn.Flatten(), VECTORS, "no parameters: there is nothing to train"),
        (
            nn.Conv2d(1, 2, 3),
            GRAY,
            r"must return a tensor \(N, features\) for N inputs; for 2 inputs it gave \(2, 2, 6, 6\)",
        ),
        (Returns(lambda x: (x, x)), VECTORS, "it gave tuple"),
        (Returns(lambda x: x[:1]), VECTORS, r"it gave \(1, 4\)"),
        (Returns(lambda x: x.mean()), VECTORS, r"it gave \(\)"),
        (nn.Linear(5, 3), VECTORS, r"does not accept a batch of shape \(2, 4\) \(vectors of 4 features\)"),
        (nn.Linear(4, 3).double(), VECTORS, r"does not accept a batch of shape \(2, 4\)"),
    ],
)
def test_a_module_that_cannot_be_a_backbone_is_refused(module, spec, message):
    with pytest.raises(InputError, match=message):
        build_embedder(module, spec)


def test_asking_for_its_size_does_not_touch_a_modules_statistics():
    mine = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    network = build_embedder(mine, VECTORS)
    assert network.backbone[1].num_batches_tracked == 0
    assert all(module.training for module in mine.modules())


class TestCenterView:
    LARGE = InputSpec((3, 40, 48), "uint8", 0, 255)

    def test_larger_images_are_seen_by_their_center(self):
        network = build_embedder("convnet", self.LARGE, crop=32, seed=0).eval()
        whole = build_embedder("convnet", InputSpec((3, 32, 32), "uint8", 0, 255), seed=0).eval()
        images = torch.randint(0, 256, (5, 3, 40, 48), dtype=torch.uint8)
        for net in (network, whole):
            net.standardize.fit(images)
        center = images[:, :, 4:36, 8:40]
        assert torch.equal(embed(network, images), embed(whole, center.contiguous()))
        assert torch.equal(embed(network, images), embed(network, center.contiguous()))  # a view of that size passes
        assert torch.equal(network.feature_maps(images), whole.feature_maps(center))

    def test_a_crop_that_does_not_fit_is_refused(self):
        with pytest.raises(InputError, match="crop=41 cannot be cut out of 40 x 48 images"):
            build_embedder("convnet", self.LARGE, crop=41)
        with pytest.raises(InputError, match="crop=2 cannot be cut out of vectors of 4 features"):
            build_embedder("mlp", VECTORS, crop=2)

    def test_auto_chooses_the_network_for_what_it_sees(self):
        assert len(build_embedder("auto", InputSpec((1, 40, 40), "uint8", 0, 255), crop=28).backbone.layers) == 11

    def test_a_module_of_the_users_is_asked_at_the_size_it_sees(self):
        module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 7))
        assert build_embedder(module, self.LARGE, crop=32, embedding_dim=None).embedding_dim == 7


def test_pooled_features_are_those_before_the_head_and_share_all_weights():
    network = build_embedder("convnet", GRAY, embedding_dim=7).eval()
    images = torch.randint(0, 256, (5, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    pooled = network.pooled()
    assert embed(network, images).shape == (5, 7)
    expected = torch.nn.functional.normalize(network.features(images), dim=1).detach()
    torch.testing.assert_close(embed(pooled, images), expected)
    assert pooled.embedding_dim == expected.shape[1] == network.feature_dim
    assert pooled.pooled() is pooled
    whole, kept = network.state_dict(), pooled.state_dict()
    assert whole.keys() - kept.keys() == {"head.weight", "head.bias"}
    assert all(kept[name].data_ptr() == whole[name].data_ptr() for name in kept)
