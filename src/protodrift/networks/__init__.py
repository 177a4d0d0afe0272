"""x -> z: backbones, the embedding head, and how they are put together."""

from .build import BACKBONES, build_embedder
from .embedder import Embedder, embed
from .weights import describe_weights, load_backbone_weights

__all__ = ["BACKBONES", "Embedder", "build_embedder", "describe_weights", "embed", "load_backbone_weights"]
