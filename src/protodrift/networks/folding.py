"""A network for inference only: each batch norm becomes part of the convolution before it.

In eval mode batch norm is the fixed map y -> a y + b of each channel, with a = gamma / sqrt(var + eps) and
b = beta - a mean. After a convolution W * x + c it costs a pass over the maps and does nothing that the convolution
with the weights a W and the bias a c + b does not do by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import nn


def folded(network: nn.Module) -> nn.Module:
    """Return a network that gives the same outputs in eval mode, up to rounding, without its foldable batch norms.

    It is a snapshot: weights that change later do not change it, or only in part. Whatever is not folded is shared
    with `network`, not copied. A network in which nothing can be folded is returned itself.

    What can be folded is declared, not guessed, as the order in which a module runs its children cannot be seen from
    outside: a module with `runs_in_order = True` says that every `nn.Sequential` inside it runs as one, and that the
    pairs named by `conv_norms`, a table of (convolution, batch norm) in it or in any module inside it, follow one upon
    the other with nothing between and nothing beside. The backbones here say so; a module of the user's may. A kind of
    convolution of one's own is folded if it has `weight_as_it_is = True`: it convolves with its weight, unchanged.
    """
    found = list(dict.fromkeys(_pairs(network)))  # once each, also where an outer and an inner module declare a pair
    if not found:
        return network
    # A deep copy of the modules, in which every tensor is the original one.
    shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    copied = copy.deepcopy(network, shared)
    for conv_name, norm_name in found:
        conv, norm = copied.get_submodule(conv_name), copied.get_submodule(norm_name)
        assert isinstance(conv, nn.Conv2d)  # as `_foldable` said
        assert isinstance(norm, nn.BatchNorm2d)
        weight, bias = _combined(conv, norm)
        conv.weight, conv.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)
        parent, _, name = norm_name.rpartition(".")
        setattr(copied.get_submodule(parent), name, nn.Identity())
    return copied.eval()


def _pairs(network: nn.Module) -> Iterator[tuple[str, str]]:
    """Return the names of all convolutions and batch norms that can be folded."""
    names: dict[nn.Module, int] = {}  # a module with two names runs at two places, perhaps not before the same norm
    for _, module in network.named_modules(remove_duplicate=False):
        names[module] = names.get(module, 0) + 1
    for name, module in network.named_modules():
        if not getattr(module, "runs_in_order", False):
            continue
        for inner, part in module.named_modules(prefix=name):
            for conv_name, norm_name in _declared(part):
                conv, norm = part.get_submodule(conv_name), part.get_submodule(norm_name)
                if names[conv] == names[norm] == 1 and _foldable(conv, norm):
                    prefix = f"{inner}." if inner else ""
                    yield prefix + conv_name, prefix + norm_name


def _declared(module: nn.Module) -> list[tuple[str, str]]:
    if type(module) is nn.Sequential:
        children = [name for name, _ in module.named_children()]
        return list(pairwise(children))
    return list(getattr(module, "conv_norms", ()))


def _foldable(conv: nn.Module, norm: nn.Module) -> bool:
    if not isinstance(conv, nn.Conv2d) or type(norm) is not nn.BatchNorm2d:
        return False
    if type(conv) is not nn.Conv2d and not getattr(conv, "weight_as_it_is", False):
        return False  # it may compute its weight anew in every pass, as weight standardization does
    if norm.running_mean is None or norm.running_var is None:  # it takes the batch's own statistics, in eval mode too
        return False
    if "weight" not in conv._parameters:  # the weight is computed (a parametrization), not stored
        return False
    hooks = (module._forward_hooks or module._forward_pre_hooks for module in (conv, norm))
    return not any(hooks)  # someone looks at what goes in or comes out


def _combined(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights a W and the bias a c + b of the one convolution; in float64, rounded once."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    with torch.no_grad():
        scale = (norm.running_var.double() + norm.eps).rsqrt()
        if norm.weight is not None:
            scale = scale * norm.weight.double()
        shift = norm.running_mean.double() if conv.bias is None else norm.running_mean.double() - conv.bias.double()
        bias = -scale * shift
        if norm.bias is not None:
            bias = bias + norm.bias.double()
        weight = conv.weight.double() * scale.view(-1, 1, 1, 1)
        # In the layout of the weight: it decides which kernel runs.
        return torch.empty_like(conv.weight).copy_(weight), bias.to(conv.weight.dtype)
