"""Folding: the same values as the plain pass, never older than the network, and nothing folded that may not be."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from protodrift.data import InputSpec
from protodrift.networks import build_embedder, embed
from protodrift.networks.folding import folded

MANY = 130
"""Images enough for `embed` to fold."""


def spec_of(*shape):
    return InputSpec(shape, "uint8" if len(shape) == 3 else "free", 0, 255)


def randomize(network, seed=0):
    """Give every batch norm statistics and weights far from those it starts with."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            shape = module.running_mean.shape
            module.running_mean.copy_(torch.randn(shape, generator=generator))
            module.running_var.copy_(torch.rand(shape, generator=generator) * 3 + 0.2)
            module.weight.data.copy_(torch.randn(shape, generator=generator).abs() + 0.3)
            module.bias.data.copy_(torch.randn(shape, generator=generator) / 2)
    return network


def images_of(*shape, count=MANY):
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def norms(module):
    return sum(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


def plain(network, images):
    """The equation itself, nothing chosen: eval mode, all images at once, in the layout they come in."""
    with torch.no_grad():
        return copy.deepcopy(network).eval()(images)


@pytest.mark.parametrize(
    ("backbone", "shape"),
    [
        ("convnet", (1, 8, 8)),
        ("convnet", (3, 15, 9)),
        ("resnet32", (3, 16, 16)),
        ("resnet18", (3, 32, 32)),
        ("resnet18-cifar", (3, 8, 8)),
        ("efficientnet-lite0", (3, 32, 32)),
        ("efficientnet-lite2", (3, 17, 24)),
        ("mlp", (10,)),
    ],
)
@pytest.mark.parametrize("normalize", [True, False])
def test_embed_gives_the_values_of_the_plain_pass(backbone, shape, normalize):
    network = build_embedder(backbone, spec_of(*shape), embedding_dim=7, normalize=normalize)
    images = images_of(*shape)
    network.standardize.fit(images)
    randomize(network).train()
    z, expected = embed(network, images), plain(network, images)
    assert torch.allclose(z, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert torch.equal(z, embed(network, images))
    assert norms(folded(network)) == 0


def test_vgg_has_nothing_to_fold_and_is_not_copied():
    with torch.device("meta"):
        network = build_embedder("vgg16", spec_of(3, 32, 32), embedding_dim=4)
    assert folded(network) is network


def test_what_is_not_folded_is_shared_and_what_is_folded_is_not():
    network = randomize(build_embedder("resnet32", spec_of(3, 8, 8), embedding_dim=7))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    copied = folded(network)
    assert copied.head.weight is network.head.weight
    assert not set(map(id, copied.modules())) & set(map(id, network.modules()))
    for module in copied.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.zero_()
            module.bias.zero_()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not any(module.training for module in copied.modules())
    assert all(module.training for module in network.modules())


def change_by_a_step(network, images):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    network.train()
    network(images[:16]).square().sum().sub(network(images[16:32]).sum()).backward()
    optimizer.step()


def change_data(network, images):
    network.backbone.layers[0].weight.data.mul_(1.5)  # leaves no mark in the tensor's version counter


def change_statistics(network, images):
    network.train()
    with torch.no_grad():
        network(images)


def change_by_loading(network, images):
    network.load_state_dict(randomize(copy.deepcopy(network), seed=5).state_dict())


@pytest.mark.parametrize("change", [change_by_a_step, change_data, change_statistics, change_by_loading])
def test_embed_is_never_older_than_the_network(change):
    network = randomize(build_embedder("convnet", spec_of(1, 8, 8), embedding_dim=6, normalize=False))
    images = images_of(1, 8, 8)
    before = embed(network, images)
    change(network, images)
    after = embed(network, images)
    assert not torch.allclose(after, before, atol=1e-3)
    assert torch.allclose(after, plain(network, images), atol=1e-4)


def test_without_fold_the_pass_is_the_networks_own_bit_for_bit():
    network = randomize(build_embedder("resnet32", spec_of(3, 8, 8), embedding_dim=6)).eval()
    images = images_of(3, 8, 8)
    with torch.inference_mode():
        own = torch.cat([network(part.contiguous(memory_format=torch.channels_last)) for part in images.split(100)])
    assert torch.equal(embed(network, images, 100, fold=False), own)


# -- modules of the user's ------------------------------------------------------------------------------------------


class Mine(nn.Module):
    """Convolution and batch norm, with something to declare or not."""

    def __init__(self, **declared):
        super().__init__()
        for name, value in declared.items():
            setattr(self, name, value)
        self.conv = nn.Conv2d(3, 4, 3, bias=True)
        self.norm = nn.BatchNorm2d(4)
        self.pair = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4, affine=False))

    def forward(self, x):
        return self.pair(self.norm(self.conv(x))).mean(dim=(2, 3))


def wrapped(module):
    network = build_embedder(module, spec_of(3, 8, 8), embedding_dim=None, normalize=False)
    with torch.no_grad():
        for part in network.modules():
            if isinstance(part, nn.BatchNorm2d) and part.track_running_stats:
                part.running_mean.uniform_(-1, 1)
                part.running_var.uniform_(0.5, 2)
    return network


@pytest.mark.parametrize(
    ("declared", "left"),
    [
        ({}, 2),
        ({"runs_in_order": True}, 1),
        ({"runs_in_order": True, "conv_norms": (("conv", "norm"),)}, 0),
        ({"conv_norms": (("conv", "norm"),)}, 2),
    ],
)
def test_only_what_a_module_declares_is_folded(declared, left):
    network = wrapped(Mine(**declared))
    images = images_of(3, 8, 8)
    assert norms(folded(network)) == left
    assert torch.allclose(embed(network, images), plain(network, images), atol=1e-5)


def in_order(*layers):
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    module.runs_in_order = True
    return module


def shared_convolution():
    conv = nn.Conv2d(3, 3, 1)
    return in_order(conv, nn.BatchNorm2d(3), conv, nn.BatchNorm2d(3))


def batch_statistics():
    return in_order(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))


def computed_weights():
    return in_order(parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4))


def watched():
    module = in_order(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    module[0].register_forward_hook(lambda module, inputs, output: output + 1)
    return module


def something_between():
    return in_order(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4))


@pytest.mark.parametrize("make", [shared_convolution, batch_statistics, computed_weights, watched, something_between])
def test_what_cannot_be_folded_runs_as_it_is(make):
    network = wrapped(make())
    images = images_of(3, 8, 8)
    assert folded(network) is network
    assert torch.allclose(embed(network, images, MANY), plain(network, images), atol=1e-5)


class Standardized(nn.Conv2d):
    """Computes the weight it convolves with."""

    def forward(self, input):
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        return nn.functional.conv2d(input, weight, self.bias, self.stride, self.padding)


def test_a_convolution_that_computes_its_weight_is_left_alone_and_pairs_are_folded_once():
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), Standardized(4, 5, 3), nn.BatchNorm2d(5))
    for norm in (inner[1], inner[4]):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    inner.runs_in_order = True
    outer = nn.Sequential(inner, nn.Flatten())
    outer.runs_in_order = True  # and so is the one inside it
    outer.eval()
    x = torch.randn(6, 3, 9, 9)
    quick = folded(outer)
    assert isinstance(quick[0][1], nn.Identity)
    assert isinstance(quick[0][4], nn.BatchNorm2d)
    torch.testing.assert_close(quick(x), outer(x))
