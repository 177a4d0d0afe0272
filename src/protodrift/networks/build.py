"""Put a network together from a name or from the user's own module."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from ..common import seeding
from ..data.arrays import InputSpec
from ..errors import InputError, did_you_mean
from .backbones import efficientnet_lite, patches, resnet, small, vgg
from .embedder import Embedder, evaluating
from .standardize import Standardization, choose_statistics
from .weights import ORIGINS, announce, find_weights, load_backbone_weights

if TYPE_CHECKING:
    from ..objectives import Objective

M = TypeVar("M", bound=nn.Module)

_IMAGE_BACKBONES: dict[str, Callable[[int], tuple[nn.Module, int]]] = {
    "resnet32": resnet.resnet32,
    "resnet18": resnet.resnet18,
    "resnet18-cifar": lambda channels: resnet.resnet18(channels, stem="cifar"),
    "vgg16": vgg.vgg16,
    **{f"efficientnet-lite{v}": partial(efficientnet_lite.efficientnet_lite, v) for v in range(5)},
    "convnet": small.convnet,
    **{f"patches-{filters}": partial(patches.patches, filters) for filters in (100, 400, 1600, 4000)},
}
_VECTOR_BACKBONES: dict[str, Callable[[int], tuple[nn.Module, int]]] = {"mlp": small.mlp}

BACKBONES = ("auto", *_IMAGE_BACKBONES, *_VECTOR_BACKBONES)
"""Names accepted for `backbone`."""


def described(name: str) -> dict[str, Any]:
    """Return what there is to know about a named backbone: input, features, parameters, published weights."""
    images = name in _IMAGE_BACKBONES
    with torch.device("meta"):  # shapes only: no memory, no random numbers
        module, features = _IMAGE_BACKBONES[name](3) if images else _VECTOR_BACKBONES[name](64)
    origin = ORIGINS.get(name)
    return {
        "input": "images" if images else "vectors",
        "features": features,
        "parameters": sum(weight.numel() for weight in module.parameters()),
        "weights": origin.where if origin else None,
        "license": origin.license if origin else None,
        "resolution": origin.resolution if origin else None,
    }


def default_backbone(spec: InputSpec) -> str:
    """Choose a network for inputs of this kind."""
    if not spec.is_image:
        return "mlp"
    side = max(spec.shape[1:])
    return "convnet" if side <= 28 else "resnet32" if side <= 64 else "resnet18"


def backbone_name(backbone: str | nn.Module, spec: InputSpec, crop: int | None = None) -> str:
    """Return the name of a backbone: "auto" resolved, "" for a module of the user's."""
    if isinstance(backbone, nn.Module):
        return ""
    return default_backbone(_seen(spec, crop)) if backbone == "auto" else backbone


def embedding_options(objective: Objective, embedding_dim: int | None, normalize: bool) -> dict[str, Any]:
    """Return how z is made for an objective.

    Metric objectives train an embedding of the wanted size. Objectives that classify do so on the backbone's pooled
    features, and these are z (the paper's FT* takes their means, Sec. 3.2).
    """
    if objective.classifies:
        return {"embedding_dim": None, "normalize": False}
    return {"embedding_dim": embedding_dim, "normalize": normalize}


def build_embedder(
    backbone: str | nn.Module,
    spec: InputSpec,
    *,
    embedding_dim: int | None = 512,
    normalize: bool = True,
    weights: str | Path | None = None,
    seed: int = 0,
    crop: int | None = None,
    standardize: Standardization = "auto",
) -> Embedder:
    """Make an embedding network with seeded initial weights.

    Args:
        backbone: a name from `BACKBONES`, or a module that maps a batch of inputs to (N, features); it is copied.
        spec: what the inputs look like.
        embedding_dim: size of z; None uses the backbone's features as they are.
        normalize: L2-normalize z.
        weights: a weight file for the backbone, "imagenet", or another source (`networks.weights`); None: none.
            Weights with a published preprocessing bring their pixel statistics along.
        seed: of the initial weights.
        crop: side of the deterministic center view; None: the whole image.
        standardize: by what inputs are standardized, see `networks.standardize.Standardization`.
    """
    spec = _seen(spec, crop)
    with seeding.global_seed(seed, "initial weights"):
        if isinstance(backbone, nn.Module):
            name, module = "", copy.deepcopy(backbone)
            features = _feature_dim(module, spec)
        else:
            name = backbone_name(backbone, spec)
            table = _IMAGE_BACKBONES if spec.is_image else _VECTOR_BACKBONES
            if name not in table:
                if name in BACKBONES:
                    kind = "feature vectors" if name in _IMAGE_BACKBONES else "images"
                    raise InputError(f"backbone {name!r} does not take {kind}. Choices here: {', '.join(table)}.")
                raise InputError(f"unknown backbone {backbone!r}. {did_you_mean(backbone, BACKBONES)}")
            module, features = table[name](spec.shape[0])
        if weights is not None:
            file = find_weights(name, weights)
            load_backbone_weights(module, file.path)
            announce(file)
        network = Embedder(module, features, spec, embedding_dim, normalize, crop)
        own = "" if name else type(module).__name__
        choose_statistics(network.standardize, standardize, spec, module=own, name=name, weights=weights)
    return prepare(network)


def _seen(spec: InputSpec, crop: int | None) -> InputSpec:
    """Return what the backbone sees of inputs: the center view."""
    if crop is None:
        return spec
    if not spec.is_image or crop > min(spec.shape[1:]):
        raise InputError(f"crop={crop} cannot be cut out of {spec}. Use larger images, a smaller crop, or crop=None.")
    return replace(spec, shape=(spec.shape[0], crop, crop))


def prepare(network: Embedder) -> Embedder:
    """Bring the weights into the memory layout that training uses.

    The layout decides which convolution kernels run, and so the last bits of a result: a network that was loaded must
    have the layout of one that was made.
    """
    return in_layout(network, torch.channels_last)


def in_layout(module: M, layout: torch.memory_format) -> M:
    """Bring the weights of a module into a memory layout, in place, and return it."""
    # torch's stubs know `to(memory_format=...)` of tensors only.
    return module.to(memory_format=layout)  # type: ignore[call-overload, no-any-return]


def _feature_dim(module: nn.Module, spec: InputSpec) -> int:
    """Ask the user's module for its output size by showing it two blank inputs."""
    probe = torch.zeros(2, *spec.shape)
    try:
        parameter = next(module.parameters(), None)
        if parameter is None:
            raise InputError("the backbone has no parameters: there is nothing to train.")
        with evaluating(module), torch.no_grad():
            # Inputs come as float32, whatever the type of the weights: a float64 module is refused here, not later.
            out = module(probe.to(parameter.device))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the backbone does not accept a batch of shape {tuple(probe.shape)} ({spec}): {error}"
        ) from error
    if not isinstance(out, torch.Tensor) or out.ndim != 2 or len(out) != 2:
        got = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise InputError(f"the backbone must return a tensor (N, features) for N inputs; for 2 inputs it gave {got}.")
    return int(out.shape[1])
