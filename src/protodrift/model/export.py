"""A model as an ONNX graph: a preprocessed image tensor in, embedding, distances and class out. Extra: `onnx`."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..common import seeding
from ..common.files import replace_file
from ..common.machine import usable_cpus
from ..errors import InputError
from ..learner import IncrementalClassifier
from ..networks.embedder import Embedder
from ..training.calibration import distances_to
from ..training.recognition import readout_view

DISTANCE_TOLERANCE = 1e-4
TIE = 1e-3
_CHECKED = 16
_OPSET = 18


@dataclass(frozen=True)
class Exported:
    """What was exported, and how it compared in onnxruntime."""

    inputs: str
    embedding_dim: int
    classes: int
    checked: int
    largest_difference: float


class _Graph(nn.Module):
    """z = F(x); d_k = |space(z) - mu_k|; the class by the read-out's linear map."""

    means: torch.Tensor
    weights: torch.Tensor
    bias: torch.Tensor

    def __init__(
        self,
        network: Embedder,
        space: Callable[[torch.Tensor], torch.Tensor],
        means: torch.Tensor,
        weights: torch.Tensor,
        bias: torch.Tensor,
    ):
        super().__init__()
        self.network, self.space = network, space
        self.register_buffer("means", means)
        self.register_buffer("weights", weights)
        self.register_buffer("bias", bias)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        z = self.network(images)
        space = self.space(z)
        # As differences, not as |z|^2 - 2 z.mu + |mu|^2: float32 has few digits left after that cancels.
        distances = (space[:, None, :] - self.means[None]).square().sum(dim=2).sqrt()
        scores = space @ self.weights + self.bias
        return z, distances, scores.argmax(dim=1)


def export_onnx(clf: IncrementalClassifier, path: str | Path) -> Exported:
    """Write a classifier as ONNX, and check it in onnxruntime before the file takes its name.

    Args:
        clf: a classifier that has learned.
        path: the file to write.

    Raises:
        InputError: if its read-out cannot be exported, or the extra is not installed.
    """
    path = Path(path)
    runtime = _extra()
    state = clf._learned()
    graph = _graph(clf)
    spec = state.spec
    dtype = torch.uint8 if spec.scale == "uint8" else torch.float32
    example = _examples(clf, 2)
    model = _exported(graph, example.to(dtype))
    labels = list(state.prototypes.labels)
    metadata = {
        "labels": labels,
        "input": {**spec.to_json(), "layout": "N, C, H, W" if spec.is_image else "N, D"},
        "preprocessing": "RGB uint8, EXIF orientation applied, short side resized (bilinear), center cropped; nothing "
        "else: pixel statistics are inside the graph"
        if spec.is_image
        else "none: statistics are inside the graph",
        "readout": type(clf.readout).__name__,
        "unknown_beyond": [
            None if t == float("inf") else t for t in state.calibration.limits(clf.unknown_rate).tolist()
        ],
        "temperatures": state.calibration.temperatures.tolist(),
    }
    from .. import __version__

    for name, value in {"protodrift": __version__, "protodrift.model": json.dumps(metadata)}.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = name, value
    content = model.SerializeToString()
    difference = _check(clf, runtime, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    described = f"{'uint8' if dtype == torch.uint8 else 'float32'} (N, {', '.join(map(str, spec.shape))})"
    return Exported(described, state.trained.network.embedding_dim, len(labels), _CHECKED, difference)


def _extra() -> Any:
    try:
        import onnx  # noqa: F401  and this, by torch's exporter
        import onnxruntime
        import onnxscript  # noqa: F401  torch's exporter needs it
    except ImportError as error:
        raise InputError(
            f"exporting needs the extra: pip install 'protodrift[onnx]' ({error.name} is missing)."
        ) from None
    return onnxruntime


def _graph(clf: IncrementalClassifier) -> _Graph:
    """Write the read-out as a linear map of the embedding: argmax_k space(z) . w_k + b_k."""
    state, readout = clf._learned(), clf.readout
    prototypes, network = state.prototypes, state.trained.network
    linear = readout.linear(readout_view(prototypes.means[:0], prototypes, network, state.readout_state))
    if linear is None:
        raise InputError(
            f"{type(readout).__name__} cannot be exported: an exported graph scores classes by a linear map of the "
            "embedding, and this read-out has none (`Readout.linear`), or needs classification heads or more networks. "
            "NearestClassMean and StreamingLDA can."
        )
    weights, bias = linear
    centers = readout.centers(prototypes.means)
    return _Graph(network, readout.space, centers.float(), weights.float(), bias.float()).eval()


def _examples(clf: IncrementalClassifier, count: int) -> torch.Tensor:
    """Return random images of the model's kind: smooth ones, so that they are spread like photos rather than noise."""
    spec = clf._learned().spec
    generator = seeding.generator(0, "export")
    if not spec.is_image:
        return torch.randn(count, *spec.shape, generator=generator) * (spec.high - spec.low) / 6
    coarse = torch.rand(count, spec.shape[0], 4, 4, generator=generator)
    images = nn.functional.interpolate(coarse, size=spec.shape[1:], mode="bilinear")
    images = spec.low + (spec.high - spec.low) * images
    return images.round().to(torch.uint8) if spec.scale == "uint8" else images


def _exported(graph: _Graph, example: torch.Tensor) -> Any:
    """Run torch's exporter quietly, and return the ONNX model with its weights inside."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph,
            (example,),
            input_names=["images"],
            output_names=["embedding", "distances", "class"],
            dynamic_shapes={"images": {0: torch.export.Dim("N", min=1)}},
            opset_version=_OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def _check(clf: IncrementalClassifier, runtime: Any, content: bytes) -> float:
    """Compare with the classifier on random images; return the largest difference of a distance.

    Raises:
        InputError: if they are not equal: such a file must not be used.
    """
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = min(4, usable_cpus())
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    images = _examples(clf, _CHECKED)
    embedding, distances, chosen = session.run(None, {"images": images.numpy()})
    state = clf._learned()
    from ..networks.embedder import embed

    z = embed(state.trained.network, images)
    expected = distances_to(clf.readout.space(z).double(), clf.readout.centers(state.prototypes.means).double())
    difference = float(np.abs(distances - expected.numpy()).max())
    scores = clf.readout.scores(readout_view(z, state.prototypes, state.trained.network, state.readout_state))
    top = scores.topk(min(2, scores.shape[1]), dim=1).values
    clear = (top[:, 0] - top[:, -1] > TIE).numpy() if scores.shape[1] > 1 else np.ones(len(scores), dtype=bool)
    same = (chosen == scores.argmax(dim=1).numpy())[clear].all()
    scale = max(1.0, float(expected.max()))
    if difference > DISTANCE_TOLERANCE * scale or not same or not np.isfinite(embedding).all():
        raise InputError(
            f"the exported graph does not agree with the model (distances differ by {difference:.2g}): nothing was "
            "written. Please report this."
        )
    return difference
