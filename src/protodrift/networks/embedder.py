"""The embedding network F: an image goes in, its embedding z comes out (Sec. 3.1)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from ..common import seeding
from ..common.modes import own_modes
from ..data.arrays import InputSpec
from ..errors import InputError
from .folding import folded


class Standardize(nn.Module):
    """(x - mean) / std per channel (images) or per feature (vectors).

    The statistics belong to the network, so that whoever holds its weights cannot feed it differently scaled images.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, spec: InputSpec) -> None:
        super().__init__()
        shape = (spec.shape[0], 1, 1) if spec.is_image else spec.shape
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("std", torch.ones(shape))
        self.fixed, self.note = False, ""

    def fix(self, mean: torch.Tensor, std: torch.Tensor, note: str = "") -> None:
        """Take given statistics, (C,) or (D,) each, and keep them: those that pretrained weights were trained with.

        Args:
            mean, std: the statistics.
            note: what the user should know about that; logged when the first images come.
        """
        self.mean.copy_(mean.view_as(self.mean))
        self.std.copy_(std.view_as(self.std))
        self.fixed, self.note = True, note

    def fit(self, inputs: torch.Tensor) -> None:
        """Take mean and standard deviation from (N, C, H, W) images or (N, D) vectors, unless they are fixed."""
        if self.note:
            logging.getLogger("protodrift").info(self.note)
        if self.fixed:
            return
        dims = (0, 2, 3) if inputs.ndim == 4 else (0,)
        # Accumulated in float64 over chunks: a float copy of a large uint8 set never exists as a whole.
        count = sum(part[:, :1].numel() for part in inputs.split(4096))
        total = sum(part.double().sum(dims) for part in inputs.split(4096))
        mean = torch.as_tensor(total) / count
        like = mean.view(-1, 1, 1) if inputs.ndim == 4 else mean
        squares = sum((part.double() - like).square().sum(dims) for part in inputs.split(4096))
        std = (torch.as_tensor(squares) / count).sqrt()
        # A constant feature stays as it is. In whatever unit it comes: what is small against its mean is rounding.
        std = torch.where((std > 1e-6 * mean.abs()) & (std > 1e-30), std, torch.ones_like(std))
        self.mean.copy_(mean.view_as(self.mean))
        self.std.copy_(std.view_as(self.std))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Standardize uint8 or float inputs; the result has the floating type of the statistics."""
        return (x.to(self.mean.dtype) - self.mean) / self.std


class Embedder(nn.Module):
    """Center view -> standardize -> backbone -> linear head -> L2 normalization.

    Args:
        backbone: maps (N, C, H, W) or (N, D) to features (N, feature_dim).
        feature_dim: its output size.
        spec: what its inputs look like.
        embedding_dim: size of z; 512 in the paper, 2 for pictures. None: no head, z are the backbone's features.
        normalize: L2-normalize z (the paper does; its 2-D pictures do not).
        crop: side of the one deterministic view: the center of larger images. Random views of this size pass as they
            are. None: the whole image.
    """

    def __init__(
        self,
        backbone: nn.Module,
        feature_dim: int,
        spec: InputSpec,
        embedding_dim: int | None,
        normalize: bool,
        crop: int | None = None,
    ) -> None:
        super().__init__()
        self.crop = crop
        self.standardize = Standardize(spec)
        self.backbone = backbone
        self.head = nn.Identity() if embedding_dim is None else nn.Linear(feature_dim, embedding_dim)
        self.feature_dim = feature_dim
        self.embedding_dim = feature_dim if embedding_dim is None else embedding_dim
        self.normalize = normalize
        self.heads = nn.ModuleList()  # one per task, for objectives that classify; metric objectives have none

    def begin(self, images: torch.Tensor, seed: int) -> None:
        """Take from the first task's images what training does not: pixel statistics, and a backbone's own filters."""
        self.standardize.fit(images)
        if getattr(self.backbone, "learns_from_first_images", False):
            with torch.no_grad():
                parts = (self.view(part) for part in images.split(256))
                self.backbone.fit(parts, seeding.generator(seed, "patches"))  # type: ignore[operator]

    def view(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the backbone sees of x: its center if it is larger than `crop`, standardized."""
        out: torch.Tensor = self.standardize(x if self.crop is None else center_crop(x, self.crop))
        return out

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the backbone's pooled features, (N, feature_dim)."""
        out: torch.Tensor = self.backbone(self.view(x))
        return out

    def feature_maps(self, x: torch.Tensor) -> torch.Tensor:
        """Return the maps of the backbone's last convolution, (N, C, h, w), for methods that look at attention."""
        if not hasattr(self.backbone, "feature_maps"):
            raise InputError(
                f"{type(self.backbone).__name__} has no feature maps. This method needs a backbone with the methods "
                "feature_maps(x) -> (N, C, h, w) and from_maps(maps) -> (N, features)."
            )
        out: torch.Tensor = self.backbone.feature_maps(self.view(x))  # type: ignore[operator]
        return out

    def from_maps(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the pooled features of feature maps: `from_maps(feature_maps(x))` is `features(x)`."""
        out: torch.Tensor = self.backbone.from_maps(maps)  # type: ignore[operator]
        return out

    def pooled(self) -> Embedder:
        """Return this network without its embedding head: its z are the pooled features. All weights are shared."""
        if isinstance(self.head, nn.Identity):
            return self
        network = copy.copy(self)
        network._modules = {**self._modules, "head": nn.Identity()}
        network.embedding_dim = self.feature_dim
        return network

    def logits(self, z: torch.Tensor) -> list[torch.Tensor]:
        """Return the output of every classification head for embeddings z, (N, classes of its task) each."""
        return [head(z) for head in self.heads]

    def raw(self, x: torch.Tensor) -> torch.Tensor:
        """Return the embedding before normalization, (N, D): what MAS measures the sensitivity of."""
        out: torch.Tensor = self.head(self.features(x))
        return out

    def finish(self, raw: torch.Tensor) -> torch.Tensor:
        """Turn the raw embedding into z, (N, D): unit length if this network normalizes."""
        return F.normalize(raw, dim=1) if self.normalize else raw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return z = F(x), (N, D)."""
        return self.finish(self.raw(x))


def center_crop(images: torch.Tensor, size: int) -> torch.Tensor:
    """Cut the center of (..., H, W) images down to size x size; a side that is not longer stays as it is.

    >>> center_crop(torch.arange(12).view(1, 3, 4), 2)
    tensor([[[1, 2],
             [5, 6]]])
    """
    height, width = images.shape[-2:]
    top, left = max(0, height - size) // 2, max(0, width - size) // 2
    return images[..., top : top + size, left : left + size]


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put a network in eval mode inside the block, and every module back as it was after it."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def laid_out(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Bring a batch to a device, images in the memory layout that convolutions run fastest in (channels last).

    Done here and not in the network: the layout decides the last bits of a result, so every batch must get it, and
    vectorized gradients of single images (MAS) cannot set it.
    """
    if device.type == "cuda" and images.device.type == "cpu":
        images = images.pin_memory()  # only from such memory the copy runs beside the computation
    images = images.to(device, non_blocking=True)
    return images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images


def embed(network: Embedder, images: torch.Tensor, batch_size: int | None = None, *, fold: bool = True) -> torch.Tensor:
    """Embed images in one ordered, deterministic, un-augmented pass: (N, ...) -> (N, D) on the CPU.

    Row i of the result belongs to image i. That pairing is what drift vectors are made of (Eq. 9).

    Args:
        network: F; it may be in training, and is left as it was.
        images: N inputs.
        batch_size: None: chosen for the processor's cache.
        fold: run a copy whose batch norms are folded into its convolutions (`folding`), where there are enough images
            to pay for making it. It is made anew in every call, so that it is never older than the network. Without,
            and with a batch size of 256, results have the last bits that trainings have been made with.
    """
    parts = list(embed_in_parts(network, images, max(1, len(images)), batch_size, fold=fold))
    return parts[0]


def embed_in_parts(
    network: Embedder, images: torch.Tensor, rows: int, batch_size: int | None = None, *, fold: bool = True
) -> Iterator[torch.Tensor]:
    """Embed images as `embed` does, and yield the results of so many images at a time, (rows, D).

    The parts have the bits of the whole if `rows` is a multiple of the batch size (`block_rows`). Of no images there is
    one part, (0, D).
    """
    device = next(network.parameters()).device
    size = batch_size or cache_sized(images.shape[1:], network.crop, device)
    run: nn.Module = folded(network) if fold and len(images) >= _WORTH_FOLDING else network
    for some in images.split(rows):
        with own_modes(), evaluating(network), torch.inference_mode():
            parts = [run(laid_out(part, device)) for part in some.split(size)]
            z = torch.cat(parts).cpu()  # once: each copy to the CPU waits for the device
        yield z.clone()  # a normal tensor: inference tensors cannot be saved for backward


def block_rows(network: Embedder, shape: torch.Size | tuple[int, ...], size: int) -> int:
    """Return how many images of a shape have embeddings of about `size` bytes: a multiple of `embed`'s batch."""
    weight = next(network.parameters())
    batch = cache_sized(shape, network.crop, weight.device)
    return batch * max(1, size // (batch * network.embedding_dim * weight.element_size()))


_WORTH_FOLDING = 128  # images; making the copy takes as long as three of them, and it is a tenth faster


def cache_sized(shape: torch.Size | tuple[int, ...], crop: int | None, device: torch.device) -> int:
    """Return how many inputs of a shape to embed at once: as many as keep the maps of a layer in the cache.

    Measured: ResNet-32 at 32 x 32 and EfficientNet-Lite0 at 96 x 96 are fastest at 32 to 64 and at 16 images per
    thread; at 256 images they lose a third or more.

    >>> [cache_sized((3, side, side), None, torch.device("cpu")) // torch.get_num_threads() for side in (32, 64, 96)]
    [64, 32, 16]
    """
    if len(shape) < 3 or device.type != "cpu":
        return 256
    height, width = (side if crop is None else min(side, crop) for side in shape[-2:])
    fitting = 2**17 // max(1, height * width)
    return max(8, min(64, 8 * -(-fitting // 8))) * torch.get_num_threads()
