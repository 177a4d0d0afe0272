"""A model as an ONNX graph that answers as the model does: images in, classes, probabilities, unknown flags out.

The graph is `training.recognition.Recognizer`, traced behind the network, with all its constants. Extra: `onnx`.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..common import seeding
from ..common.files import replace_file
from ..common.machine import usable_cpus
from ..data.arrays import InputSpec
from ..errors import InputError
from ..learner import IncrementalClassifier
from ..training.recognition import Recognized, recognizer, temperatures_of

TOLERANCE = 1e-4
"""By how much a probability may differ from the model's. Answers that are nearer to another one are ties."""

_MADE_UP = 16  # images
_OPSET = 18
_BATCH = 32  # photos that are checked at once
_OUTPUTS = ("class", "probabilities", "unknown", "novelty", "embedding")

# What `data.images` does with a photo that is decoded, pixel by pixel as Pillow does it: whole blocks are averaged
# (`Image.reduce`), then the center square is resized by two products with matrices (`Image.resize`). Pillow computes
# with whole numbers: averages over n pixels are a product with floor(2^24 / n), weights are rounded to 22 bits, and the
# box is in float32. The same numbers are in float64 here, which holds them exactly.
_RESIZE = """
<ir_version: 10, opset_import: ["" : 18]>
resize (uint8[N, C, H, W] photos) => (uint8[N, C, S, S] resized) {{
   batch = Shape <start = 0, end = 2> (photos)
   sides = Shape <start = 2> (photos)
   short = ReduceMin <keepdims = 1> (sides)
   twice = Constant <value_ints = [{twice}]> ()
   fits = Div (short, twice)
   first = Constant <value_ints = [0]> ()
   last = Constant <value_ints = [1]> ()
   two = Constant <value_ints = [2]> ()
   factor = Max (fits, last)
   above = Add (sides, factor)
   up = Sub (above, last)
   blocks = Div (up, factor)
   covered = Mul (blocks, factor)
   missing = Sub (covered, sides)
   none = Constant <value_ints = [0, 0, 0, 0, 0, 0]> ()
   pads = Concat <axis = 0> (none, missing)
   whole = Pad (photos, pads)
   half = Constant <value = double {{0.5}}> ()
   zero = Constant <value = double {{0.0}}> ()
   one = Constant <value = double {{1.0}}> ()
   side = Constant <value = double {{{side}.0}}> ()
   bits = Constant <value = double {{4194304.0}}> ()
   sides_real = Cast <to = 11> (sides)
   factor_real = Cast <to = 11> (factor)
   extents = Div (sides_real, factor_real)
   shorter = ReduceMin <keepdims = 0> (extents)
   steps = Range (zero, side, one)
   middles = Add (steps, half)
   {rows}
   {columns}
   cuts = Concat <axis = 0> (batch, rows_count, factor, columns_count, factor)
   cut = Reshape (whole, cuts)
   numbers = Cast <to = 1> (cut)
   fifth = Constant <value_ints = [5]> ()
   third = Constant <value_ints = [3]> ()
   across = ReduceSum <keepdims = 0> (numbers, fifth)
   sums = ReduceSum <keepdims = 0> (across, third)
   sums_real = Cast <to = 11> (sums)
   rows_tall = Unsqueeze (rows_sizes, last)
   areas = Mul (rows_tall, columns_sizes)
   shift = Constant <value_ints = [16777216]> ()
   shares = Div (shift, areas)
   amends = Div (areas, two)
   shares_real = Cast <to = 11> (shares)
   amends_real = Cast <to = 11> (amends)
   shift_real = Cast <to = 11> (shift)
   raised = Add (sums_real, amends_real)
   scaled = Mul (raised, shares_real)
   means = Div (scaled, shift_real)
   pixels = Floor (means)
   turned = Transpose <perm = [1, 0]> (columns)
   narrow = MatMul (pixels, turned)
   narrow_share = Div (narrow, bits)
   narrow_half = Add (narrow_share, half)
   narrow_whole = Floor (narrow_half)
   small = MatMul (rows, narrow_whole)
   small_share = Div (small, bits)
   small_half = Add (small_share, half)
   values = Floor (small_half)
   resized = Cast <to = 2> (values)
}}
"""

# For one axis: the number of blocks, their sizes, and their weights in each pixel of the result, (side, blocks).
_WEIGHTS = """
   {axis}_at = Constant <value_ints = [{position}]> ()
   {axis}_side = Gather (sides, {axis}_at)
   {axis}_count = Gather (blocks, {axis}_at)
   {axis}_real = Cast <to = 11> ({axis}_count)
   {axis}_blocks = Squeeze ({axis}_real, first)
   {axis}_range = Range (zero, {axis}_blocks, one)
   {axis}_numbers = Cast <to = 7> ({axis}_range)
   {axis}_passed = Mul ({axis}_numbers, factor)
   {axis}_rest = Sub ({axis}_side, {axis}_passed)
   {axis}_sizes = Min ({axis}_rest, factor)
   {axis}_extent = Gather (extents, {axis}_at)
   {axis}_over = Sub ({axis}_extent, shorter)
   {axis}_begin = Mul ({axis}_over, half)
   {axis}_end = Add ({axis}_begin, shorter)
   {axis}_begin_float = Cast <to = 1> ({axis}_begin)
   {axis}_end_float = Cast <to = 1> ({axis}_end)
   {axis}_box = Sub ({axis}_end_float, {axis}_begin_float)
   {axis}_box_real = Cast <to = 11> ({axis}_box)
   {axis}_scale = Div ({axis}_box_real, side)
   {axis}_support = Max ({axis}_scale, one)
   {axis}_inverse = Div (one, {axis}_support)
   {axis}_scaled = Mul (middles, {axis}_scale)
   {axis}_from = Cast <to = 11> ({axis}_begin_float)
   {axis}_moved = Add ({axis}_scaled, {axis}_from)
   {axis}_centers = Unsqueeze ({axis}_moved, last)
   {axis}_middles = Add ({axis}_range, half)
   {axis}_apart = Sub ({axis}_middles, {axis}_centers)
   {axis}_far = Abs ({axis}_apart)
   {axis}_share = Mul ({axis}_far, {axis}_inverse)
   {axis}_near = Sub (one, {axis}_share)
   {axis}_raw = Max ({axis}_near, zero)
   {axis}_sum = ReduceSum <keepdims = 1> ({axis}_raw, last)
   {axis}_weights = Div ({axis}_raw, {axis}_sum)
   {axis}_exact = Mul ({axis}_weights, bits)
   {axis}_half = Add ({axis}_exact, half)
   {axis} = Floor ({axis}_half)
"""


@dataclass(frozen=True)
class Agreement:
    """How an exported graph in onnxruntime compared with the model.

    Attributes:
        images: how many were compared.
        ties: of them, how many have two answers that differ by less than `TOLERANCE`: they were not compared.
        difference: the largest of a probability.
    """

    images: int
    ties: int
    difference: float


@dataclass(frozen=True)
class Exported:
    """What was exported, and how it compared: on made-up images, and on photos if some were given."""

    inputs: str
    outputs: str
    made_up: Agreement
    photos: Agreement | None


class _Graph(nn.Module):
    """x -> z = F(x), and all that `recognize` says of z."""

    temperatures: torch.Tensor
    limits: torch.Tensor

    def __init__(self, clf: IncrementalClassifier) -> None:
        super().__init__()
        state, readout = clf._learned(), clf.readout
        self.network, self.recognizer = state.trained.network, recognizer(state, readout)
        if self.recognizer.scorer is None or not self.recognizer.is_affine:
            raise InputError(
                f"{type(readout).__name__} cannot be exported: its scores are no function with constants that ONNX can "
                "hold (`Readout.scorer`), they take more than 1 GB, or it needs more networks than one. "
                "NearestClassMean, StreamingLDA, RidgeClassifier, LiftedRidge and the read-outs of heads can."
            )
        self.register_buffer("temperatures", temperatures_of(state, clf.temperature))
        self.register_buffer("limits", state.calibration.limits(clf.unknown_rate).double())

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        assert self.recognizer.scorer is not None
        z = self.network(images)
        scores = self.recognizer.scorer(z, self.network.logits(z))
        best, sure, _, far = self.recognizer.answer(scores, z, self.temperatures, self.limits)
        return best, sure.float(), far > 1, far.float(), z


def export_onnx(
    clf: IncrementalClassifier, path: str | Path, *, any_size: bool = True, check: Sequence[np.ndarray] = ()
) -> Exported:
    """Write a classifier as ONNX, and check it in onnxruntime before the file takes its name.

    Args:
        clf: a classifier that has learned.
        path: the file to write.
        any_size: photos of any size, that the graph resizes; False: only of the model's own. Models of other inputs
            than square uint8 images take their own size either way.
        check: photos to compare the two on, as `clf.recognize` takes them: such as the model has not learned from.

    Raises:
        InputError: if its read-out cannot be exported, the extra is not installed, or the two do not agree.
    """
    path = Path(path)
    runtime = _extra()
    state = clf._learned()
    spec = state.spec
    graph = _Graph(clf).eval()
    images = _made_up(spec)
    resizes = any_size and spec.is_image and spec.scale == "uint8" and spec.shape[1] == spec.shape[2]
    model = _exported(graph, images[:2])
    if resizes:
        model = _resizing(model, spec.shape[1])
    _name_classes(model, [str(label) for label in state.prototypes.labels])
    for name, value in _metadata(clf, resizes).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = name, value
    content = model.SerializeToString()
    session = _session(runtime, content)
    made_up = _agreement(session, [images.numpy()], clf)
    photos = None
    if len(check):
        parts = [np.stack(check[at : at + _BATCH]) for at in range(0, len(check), _BATCH)]
        photos = _agreement(session, parts, clf)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    shape = [spec.shape[0], "height", "width"] if resizes else spec.shape
    inputs = f"{'uint8' if spec.scale == 'uint8' else 'float32'} (N, {', '.join(map(str, shape))})"
    sizes = {"probabilities": len(state.prototypes.labels), "embedding": state.trained.network.embedding_dim}
    outputs = ", ".join(f"{name} ({sizes[name]})" if name in sizes else name for name in _OUTPUTS)
    return Exported(inputs, outputs, made_up, photos)


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


def _made_up(spec: InputSpec) -> torch.Tensor:
    """Return random images of the model's kind: smooth ones, so that they are spread like photos rather than noise."""
    generator = seeding.generator(0, "export")
    if not spec.is_image:
        return torch.randn(_MADE_UP, *spec.shape, generator=generator) * (spec.high - spec.low) / 6
    coarse = torch.rand(_MADE_UP, spec.shape[0], 4, 4, generator=generator)
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
            output_names=list(_OUTPUTS),
            dynamic_shapes={"images": {0: torch.export.Dim("N", min=1)}},
            opset_version=_OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def _resizing(model: Any, side: int) -> Any:
    """Return a model that takes images of any size, cuts their center out, and resizes it to the model's side."""
    import onnx

    weights = {axis: _WEIGHTS.format(axis=axis, position=at) for at, axis in enumerate(("rows", "columns"))}
    first = onnx.parser.parse_model(_RESIZE.format(side=side, twice=2 * side, **weights))
    first.ir_version = model.ir_version
    channels = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    first.graph.input[0].type.tensor_type.shape.dim[1].dim_value = channels
    first = onnx.compose.add_prefix(first, "resize/")
    merged = onnx.compose.merge_models(first, model, io_map=[("resize/resized", "images")])
    for node in merged.graph.node:
        for i, name in enumerate(node.input):
            if name == "resize/photos":
                node.input[i] = "images"
    merged.graph.input[0].name = "images"
    merged.producer_name, merged.producer_version = model.producer_name, model.producer_version
    return merged


def _name_classes(model: Any, labels: list[str]) -> None:
    """Add the output "labels", (K,) strings: programs in a browser cannot read metadata."""
    from onnx import TensorProto, helper

    texts: Any = [label.encode() for label in labels]  # its annotation knows only numbers
    value = helper.make_tensor("labels_value", TensorProto.STRING, [len(labels)], texts)
    model.graph.node.append(helper.make_node("Constant", [], ["labels"], value=value))
    model.graph.output.append(helper.make_tensor_value_info("labels", TensorProto.STRING, [len(labels)]))


def _metadata(clf: IncrementalClassifier, resizes: bool) -> dict[str, str]:
    """Return what is written into the file beside the graph."""
    from .. import __version__

    state = clf._learned()
    spec, before = state.spec, "none"
    if spec.is_image:
        before = "RGB, EXIF orientation applied, transparent parts white"
        if not resizes:
            before += "; short side resized with antialiasing, center cropped"
    facts = {
        "labels": list(state.prototypes.labels),
        "input": {**spec.to_json(), "layout": "N, C, H, W" if spec.is_image else "N, D", "any_size": resizes},
        "before": before,
        "outputs": {
            "class": "position in labels",
            "probabilities": "calibrated, one per label" if clf.temperature == "auto" else "one per label",
            "unknown": "whether the image is called none of the classes",
            "novelty": "distance over the limit: unknown above 1",
            "embedding": "z",
            "labels": "as text",
        },
        "readout": type(clf.readout).__name__,
        "temperature": clf.temperature,
        "unknown_rate": clf.unknown_rate,
    }
    return {"protodrift": __version__, "protodrift.model": json.dumps(facts)}


def _session(runtime: Any, content: bytes) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = min(4, usable_cpus())
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _agreement(session: Any, parts: Sequence[np.ndarray], clf: IncrementalClassifier) -> Agreement:
    """Compare with the classifier; `parts` are batches of images as the classifier takes them.

    Raises:
        InputError: if they are not equal: such a file must not be used.
    """
    images, ties, difference = 0, 0, 0.0
    for part in parts:
        expected = clf.recognize(part)
        inputs, _, _ = clf._read(part, None, clf._learned().spec)
        chosen, sure, unknown, far, _, _ = session.run(None, {"images": inputs.numpy()})
        tied = _tied(expected)
        difference = max(difference, float(np.abs(sure - expected.probabilities)[~tied].max(initial=0)))
        same = (chosen == expected.best) & (unknown == expected.unknown)
        if difference > TOLERANCE or not same[~tied].all() or not np.isfinite(sure).all() or np.isnan(far).any():
            raise InputError(
                f"the exported graph does not agree with the model (probabilities differ by {difference:.2g}): nothing "
                "was written. Please report this."
            )
        images, ties = images + len(part), ties + int(tied.sum())
    return Agreement(images, ties, difference)


def _tied(found: Recognized) -> np.ndarray:
    """Return (N,) whether another class is as likely as the answer, or the image is as far away as its limit."""
    two = np.sort(found.probabilities, axis=1)[:, -2:]
    near = np.abs(found.novelty - 1) < TOLERANCE
    alike: np.ndarray = near | (two[:, -1] - two[:, 0] < TOLERANCE) if two.shape[1] > 1 else near
    return alike
