"""Put a network together from a name or from the user's own module, and load weight files into it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import seeding
from ..data.arrays import InputSpec
from ..errors import InputError, did_you_mean
from . import resnet, small, vgg
from .embedder import Embedder, evaluating

if TYPE_CHECKING:
    from ..objectives import Objective

_IMAGE_BACKBONES: dict[str, Callable[[int], tuple[nn.Module, int]]] = {
    "resnet32": resnet.resnet32,
    "resnet18": resnet.resnet18,
    "resnet18-cifar": lambda channels: resnet.resnet18(channels, stem="cifar"),
    "vgg16": vgg.vgg16,
    "convnet": small.convnet,
}
_VECTOR_BACKBONES: dict[str, Callable[[int], tuple[nn.Module, int]]] = {"mlp": small.mlp}

BACKBONES = ("auto", *_IMAGE_BACKBONES, *_VECTOR_BACKBONES)
"""Names accepted for `backbone`."""


def default_backbone(spec: InputSpec) -> str:
    """Choose a network for inputs of this kind."""
    if not spec.is_image:
        return "mlp"
    side = max(spec.shape[1:])
    return "convnet" if side <= 28 else "resnet32" if side <= 64 else "resnet18"


def embedding_options(objective: Objective, embedding_dim: int | None, normalise: bool) -> dict[str, Any]:
    """Return how z is made for an objective.

    Metric objectives train an embedding of the wanted size. Objectives that classify do so on the backbone's pooled
    features, and these are z (the paper's FT* takes their means, Sec. 3.2).
    """
    if objective.classifies:
        return {"embedding_dim": None, "normalise": False}
    return {"embedding_dim": embedding_dim, "normalise": normalise}


def build_embedder(
    backbone: str | nn.Module,
    spec: InputSpec,
    *,
    embedding_dim: int | None = 512,
    normalise: bool = True,
    weights: str | Path | None = None,
    seed: int = 0,
) -> Embedder:
    """Make an embedding network with seeded initial weights.

    Args:
        backbone: a name from `BACKBONES`, or a module that maps a batch of inputs to (N, features); it is copied.
        spec: what the inputs look like.
        embedding_dim: size of z; None uses the backbone's features as they are.
        normalise: L2-normalise z.
        weights: a file with the backbone's weights (torchvision's names), or None.
        seed: of the initial weights.
    """
    with seeding.global_seed(seed, "initial weights"):
        if isinstance(backbone, nn.Module):
            module = copy.deepcopy(backbone)
            features = _feature_dim(module, spec)
        else:
            name = default_backbone(spec) if backbone == "auto" else backbone
            table = _IMAGE_BACKBONES if spec.is_image else _VECTOR_BACKBONES
            if name not in table:
                if name in BACKBONES:
                    kind = "feature vectors" if name in _IMAGE_BACKBONES else "images"
                    raise InputError(f"backbone {name!r} does not take {kind}. Choices here: {', '.join(table)}.")
                raise InputError(f"unknown backbone {backbone!r}. {did_you_mean(backbone, BACKBONES)}")
            module, features = table[name](spec.shape[0])
        if weights is not None:
            load_backbone_weights(module, weights)
        network = Embedder(module, features, spec, embedding_dim, normalise)
    return prepare(network)


def prepare(network: Embedder) -> Embedder:
    """Bring the weights into the memory layout that training uses.

    The layout decides which convolution kernels run, and so the last bits of a result: a network that was loaded must
    have the layout of one that was made.
    """
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def load_backbone_weights(backbone: nn.Module, path: str | Path) -> None:
    """Load a `.safetensors` or PyTorch weight file into a backbone; nothing in the file is executed.

    Entries of ImageNet's own classifier (`fc.*`, `classifier.6.*`) are passed over. Everything else must fit.

    Raises:
        InputError: if the file cannot be read, or its names or shapes do not fit the backbone.
    """
    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: dict[str, Any] = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"there is no weight file {path}.") from None
    except Exception as error:  # whatever a damaged file makes the reader say
        raise InputError(f"{path} cannot be read as a weight file ({type(error).__name__}: {error}).") from None
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise InputError(f"{path} does not hold a state dict (a mapping of names to tensors).")
    own = backbone.state_dict()
    state = {k: v for k, v in state.items() if k in own or not k.startswith(("fc.", "classifier.6."))}
    missing = sorted(k for k in own.keys() - state.keys() if not k.endswith("num_batches_tracked"))
    extra = sorted(state.keys() - own.keys())
    wrong = sorted(k for k in own.keys() & state.keys() if own[k].shape != state[k].shape)
    if missing or extra or wrong:
        raise InputError(
            f"{path} does not fit this backbone: missing {missing[:3]}, unexpected {extra[:3]}, other shape "
            f"{wrong[:3]} ({len(missing)}, {len(extra)}, {len(wrong)} in all). Is it the weights of another network?"
        )
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(f"{path}: {name} has NaN or infinite weights. The file is damaged, or from a failed run.")
    backbone.load_state_dict(state, strict=False)


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
