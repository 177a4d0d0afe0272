"""Case b: embedding images (prototypes, drift and evaluation are made of it), against the loop that everybody writes.

- ours: `networks.embed`.
- the plain loop: `network.eval()`, `torch.no_grad()`, batches of 128, default memory layout; in a process of its own,
  with PyTorch's own settings. The same loop also runs in our process, which keeps freed memory: the difference between
  the two is what that setting gives, the rest is what `embed` does.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from protodrift.networks.build import in_layout
from protodrift.networks.embedder import Embedder, embed

from .elsewhere import Elsewhere
from .harness import Result, Setup, Side, clocked, compared, interleaved
from .material import network_for, pictures

OURS, PLAIN, HERE = "protodrift", "plain eval loop", "plain eval loop, our settings"


@dataclass(frozen=True)
class Work:
    """What is embedded: by which network, images of which side, how many."""

    backbone: str
    side: int
    count: int

    def made(self) -> tuple[Embedder, torch.Tensor]:
        """Return network and images."""
        images = pictures(8, self.count // 8, self.side).images
        return network_for(self.backbone, images), images


WORKS = {
    "ResNet-32, 32 x 32": (Work("resnet32", 32, 768), ">= 1.8"),
    "ResNet-18, 64 x 64": (Work("resnet18", 64, 384), ""),
    "EfficientNet-Lite0, 96 x 96": (Work("efficientnet-lite0", 96, 256), ""),
}


def run(setup: Setup) -> Iterator[Result]:
    """Measure embedding passes."""
    for name, (work, aim) in list(WORKS.items())[: 1 if setup.quick else None]:
        setup.say(f"embedding: {name}")
        network, images = work.made()
        sides = {
            OURS: clocked(partial(embed, network, images)),
            HERE: clocked(partial(plain_embedded, plain(network), images)),
        }
        with Elsewhere(plain_side, work) as elsewhere:
            seconds = interleaved({**sides, PLAIN: elsewhere}, setup.rounds(5))
        rate = {"images_per_second": round(len(images) / min(seconds[OURS]), 1)}
        yield compared("embedding", name, seconds, OURS, PLAIN, aim=aim, numbers=rate)
        yield compared("embedding", name, seconds, OURS, HERE, numbers=rate)


def plain_embedded(network: Embedder, images: torch.Tensor, batch_size: int = 128) -> torch.Tensor:
    """Embed by the plain loop, (N, D)."""
    network.eval()
    with torch.no_grad():
        return torch.cat([network(images[i : i + batch_size]) for i in range(0, len(images), batch_size)])


def plain(network: Embedder) -> Embedder:
    """Return a copy in PyTorch's default memory layout."""
    return in_layout(copy.deepcopy(network), torch.contiguous_format)


def plain_side(work: Work) -> Side:
    """Return the plain loop as a side."""
    network, images = work.made()
    network = plain(network)
    return clocked(lambda: plain_embedded(network, images))
