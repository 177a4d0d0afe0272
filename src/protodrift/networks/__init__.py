"""x -> z: backbones, the embedding head, and how they are put together."""

from .build import BACKBONES, build_embedder, load_backbone_weights
from .embedder import Embedder, embed

__all__ = ["BACKBONES", "Embedder", "build_embedder", "embed", "load_backbone_weights"]
