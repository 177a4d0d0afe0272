"""EfficientNet-Lite: the same numbers as another implementation, at any resolution, from other people's names."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from efficientnet_lite_pytorch import EfficientNet

from protodrift import EWC, MAS, IncrementalClassifier
from protodrift.data import InputSpec
from protodrift.networks import build_embedder, embed
from protodrift.networks.backbones.efficientnet_lite import EfficientNetLite, SameConv2d
from protodrift.penalties import REWC
from protodrift.training.config import Training


def reference(variant: int) -> torch.nn.Module:
    """The other implementation, with random weights and batch-norm statistics that are not trivial."""
    torch.manual_seed(variant)
    network = EfficientNet.from_name(f"efficientnet-lite{variant}")
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return network.eval()


def timm_name(name: str, repeats: list[int]) -> str:
    """Translate a name of the PyPI packages to timm's: blocks are numbered stage by stage."""
    name = name.replace("_fc.", "classifier.").replace("_conv_stem", "conv_stem").replace("_conv_head", "conv_head")
    found = re.match(r"_blocks\.(\d+)\._(\w+)\.(.*)", name)
    if not found:
        return re.sub(r"^_bn0", "bn1", name) if name.startswith("_bn0") else re.sub(r"^_bn1", "bn2", name)
    number, layer, tensor = int(found[1]), found[2], found[3]
    stage = 0
    while number >= repeats[stage]:
        number -= repeats[stage]
        stage += 1
    first = {"depthwise_conv": "conv_dw", "bn1": "bn1", "project_conv": "conv_pw", "bn2": "bn2"}
    later = {
        "expand_conv": "conv_pw", "bn0": "bn1", "depthwise_conv": "conv_dw", "bn1": "bn2", "project_conv": "conv_pwl",
        "bn2": "bn3",
    }  # fmt: skip
    return f"blocks.{stage}.{number}.{(later if stage else first)[layer]}.{tensor}"


@pytest.mark.parametrize(("variant", "size"), [(0, 224), (0, 96), (1, 240), (3, 280), (4, 300)])
@torch.no_grad()
def test_it_computes_what_the_other_implementation_computes(variant, size):
    theirs, ours = reference(variant), EfficientNetLite(variant).eval()
    ours.load_state_dict(ours.translate(theirs.state_dict()))
    images = torch.randn(1, 3, size, size)
    expected = theirs.extract_features(images)
    assert expected.std() > 1e-3
    assert torch.allclose(ours.feature_maps(images), expected, atol=1e-5)
    assert torch.allclose(ours(images), expected.mean(dim=(2, 3)), atol=1e-5)


@pytest.mark.parametrize("variant", [0, 2, 4])
def test_timms_names_are_understood(variant):
    theirs, ours = reference(variant).state_dict(), EfficientNetLite(variant)
    renamed = {timm_name(name, ours.repeats): value for name, value in theirs.items()}
    assert len(renamed) == len(theirs)
    assert "blocks.0.0.conv_pw.weight" in renamed
    assert "blocks.5.1.bn3.running_var" in renamed
    expected = ours.translate(theirs)
    translated = ours.translate(renamed)
    assert translated.keys() == expected.keys() == ours.state_dict().keys()
    assert all(torch.equal(translated[name], expected[name]) for name in expected)
    assert ours.translate(translated) == translated  # its own names stay


@pytest.mark.parametrize(("variant", "millions"), [(0, 4.7), (1, 5.4), (2, 6.1), (3, 8.2), (4, 13.0)])
def test_the_variants_have_the_published_sizes(variant, millions):
    own = sum(weight.numel() for weight in EfficientNetLite(variant).parameters())
    assert round((own + 1281 * 1000) / 1e6, 1) == millions  # published with a classifier of 1,000 classes


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("height", "width"), [(7, 8), (8, 7), (1, 2), (5, 5)])
def test_same_padding_against_the_definition(kernel, stride, height, width):
    layer = SameConv2d(1, 1, kernel, stride, bias=False).double()
    image = torch.randn(1, 1, height, width, dtype=torch.float64)
    with torch.no_grad():
        out = layer(image)[0, 0]
    outs = (math.ceil(height / stride), math.ceil(width / stride))
    starts = [max(0, (n - 1) * stride + kernel - side) // 2 for n, side in zip(outs, (height, width), strict=True)]
    assert out.shape == outs
    for i in range(outs[0]):
        for j in range(outs[1]):
            total = 0.0
            for u in range(kernel):
                for v in range(kernel):
                    y, x = i * stride + u - starts[0], j * stride + v - starts[1]
                    if 0 <= y < height and 0 <= x < width:
                        total += float(layer.weight.detach()[0, 0, u, v] * image[0, 0, y, x])
            assert float(out[i, j]) == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize(("channels", "height", "width", "maps"), [(3, 96, 64, (3, 2)), (1, 33, 20, (2, 1))])
def test_every_resolution_works(channels, height, width, maps):
    network = build_embedder("efficientnet-lite0", InputSpec((channels, height, width), "unit", 0, 1), seed=0).eval()
    images = torch.rand(2, channels, height, width)
    with torch.no_grad():
        assert network.feature_maps(images).shape == (2, 1280, *maps)
        assert torch.equal(network.from_maps(network.feature_maps(images)), network.features(images))
    assert bool((embed(network, images).std(dim=0) > 0).any())


@pytest.mark.parametrize("penalty", [EWC(), MAS(), REWC()])
def test_it_learns_two_tasks_under_penalties(penalty):
    rng = np.random.RandomState(0)
    X, y = rng.randint(0, 256, (16, 32, 32, 3)).astype(np.uint8), np.repeat([0, 1, 2, 3], 4)
    training = Training(epochs=1, batch_size=8, images_per_class=4)
    clf = IncrementalClassifier("efficientnet-lite0", embedding_dim=8, penalty=penalty, training=training)
    clf.partial_fit(X[:8], y[:8])
    before = {name: weight.clone() for name, weight in clf.state_.trained.network.named_parameters()}
    clf.partial_fit(X[8:], y[8:])
    after = dict(clf.state_.trained.network.named_parameters())
    assert all(bool(torch.isfinite(weight).all()) for weight in after.values())
    assert any(not torch.equal(after[name], before[name]) for name in before)
