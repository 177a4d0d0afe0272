"""Backbones: shapes, sizes, names, seeds."""

from __future__ import annotations

import pytest
import torch

from protodrift.data import InputSpec
from protodrift.errors import InputError
from protodrift.networks import BACKBONES, build_embedder
from protodrift.networks.backbones.resnet import resnet18, resnet32
from protodrift.networks.backbones.vgg import VGG16
from protodrift.networks.build import default_backbone


def spec_of(*shape):
    return InputSpec(shape, "uint8" if len(shape) == 3 else "free", 0, 255)


def count(module):
    return sum(weight.numel() for weight in module.parameters())


@pytest.mark.parametrize(
    ("backbone", "shape", "features"),
    [
        ("convnet", (1, 8, 8), 512),
        ("convnet", (1, 9, 15), 512),
        ("convnet", (1, 28, 28), 512),
        ("convnet", (3, 16, 16), 512),
        ("convnet", (1, 2, 2), 512),
        ("resnet32", (3, 32, 32), 64),
        ("resnet32", (1, 28, 28), 64),
        ("resnet18", (3, 64, 64), 512),
        ("resnet18-cifar", (3, 32, 32), 512),
        ("mlp", (10,), 256),
    ],
)
@pytest.mark.parametrize("embedding_dim", [None, 5])
def test_a_batch_becomes_features_and_unit_embeddings(backbone, shape, features, embedding_dim):
    network = build_embedder(backbone, spec_of(*shape), embedding_dim=embedding_dim).eval()
    inputs = torch.rand(3, *shape)
    with torch.no_grad():
        assert network.features(inputs).shape == (3, features)
        z = network(inputs)
    assert z.shape == (3, embedding_dim or features) == (3, network.embedding_dim)
    assert torch.allclose(z.norm(dim=1), torch.ones(3), atol=1e-5)


def test_without_normalization_z_is_the_raw_embedding():
    network = build_embedder("mlp", spec_of(4), embedding_dim=2, normalize=False).eval()
    inputs = torch.rand(3, 4)
    assert torch.equal(network(inputs), network.raw(inputs))


def test_resnet32_has_the_papers_size():
    module, _ = resnet32(3)
    assert count(module) == pytest.approx(0.46e6, rel=0.02)
    layers = [m for m in module.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(layers) == 31  # and one linear layer that the embedding head replaces


def test_resnet32_keeps_32_pixels_until_its_second_stage():
    module, _ = resnet32(3)
    assert module.feature_maps(torch.rand(1, 3, 32, 32)).shape == (1, 64, 8, 8)


@pytest.mark.parametrize(
    ("stem", "channels", "parameters", "maps"),
    [("imagenet", 3, 11_176_512, 1), ("cifar", 3, 11_168_832, 4), ("imagenet", 1, 11_176_512 - 2 * 64 * 49, 1)],
)
def test_resnet18_has_the_standard_size_with_both_stems(stem, channels, parameters, maps):
    module, _ = resnet18(channels, stem)
    assert count(module) == parameters
    assert module.eval().feature_maps(torch.rand(1, channels, 32, 32)).shape == (1, 512, maps, maps)


@pytest.fixture(scope="module")
def vgg():
    with torch.random.fork_rng():
        return VGG16(3).eval()


def test_vgg16_gives_4096_features(vgg):
    with torch.no_grad():
        assert vgg(torch.rand(1, 3, 32, 32)).shape == (1, 4096)


def test_vgg16_has_torchvisions_names_and_shapes(vgg):
    expected = {}
    inputs = 3
    convolutions = [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]
    widths = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    for index, width in zip(convolutions, widths, strict=True):
        expected[f"features.{index}.weight"] = (width, inputs, 3, 3)
        expected[f"features.{index}.bias"] = (width,)
        inputs = width
    for index, inputs in ((0, 25088), (3, 4096)):
        expected[f"classifier.{index}.weight"] = (4096, inputs)
        expected[f"classifier.{index}.bias"] = (4096,)
    assert {name: tuple(value.shape) for name, value in vgg.state_dict().items()} == expected


@pytest.mark.parametrize("backbone", ["convnet", "resnet32"])
def test_a_seed_gives_the_weights_and_leaves_torchs_own_alone(backbone):
    before = torch.get_rng_state()
    first, again, other = (build_embedder(backbone, spec_of(1, 8, 8), seed=s).state_dict() for s in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert any("conv" in n or "layers" in n for n in first if not torch.equal(first[n], other[n]))


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((5,), "mlp"),
        ((1, 8, 8), "convnet"),
        ((3, 28, 28), "convnet"),
        ((3, 32, 32), "resnet32"),
        ((3, 65, 30), "resnet18"),
    ],
)
def test_auto_fits_the_inputs(shape, name):
    assert default_backbone(spec_of(*shape)) == name
    expected, got = (build_embedder(b, spec_of(*shape)).state_dict() for b in (name, "auto"))
    assert {k: v.shape for k, v in expected.items()} == {k: v.shape for k, v in got.items()}


@pytest.mark.parametrize("backbone", [name for name in BACKBONES if name != "auto"])
def test_images_and_vectors_need_their_own_kind_of_backbone(backbone):
    shape, kind = ((1, 8, 8), "images") if backbone == "mlp" else ((5,), "feature vectors")
    with pytest.raises(InputError, match=f"backbone '{backbone}' does not take {kind}. Choices here: "):
        build_embedder(backbone, spec_of(*shape))


def test_an_unknown_name_is_guessed():
    with pytest.raises(InputError, match=r"unknown backbone 'resnet8'. Did you mean 'resnet18'"):
        build_embedder("resnet8", spec_of(3, 32, 32))
