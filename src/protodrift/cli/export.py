"""`protodrift export`: a model for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..common.machine import size_text
from .arguments import Commands, add_command, add_model

_EPILOG = """\
examples:
  protodrift export birds --onnx birds.onnx

The ONNX graph takes photos as uint8 tensors (N, 3, side, side), RGB, short side resized and center cropped, and gives
"embedding", "distances" (Euclidean, one per class) and "class" (a position in the labels). Labels and preprocessing
are in its metadata as JSON.
Needs:  pip install 'protodrift[onnx]'
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "export",
        run,
        help="write a model as ONNX",
        description="Writes network, prototypes and read-out as one ONNX file.",
        epilog=_EPILOG,
    )
    add_model(parser)
    parser.add_argument("--onnx", metavar="FILE", type=Path, required=True, help="file to write")


def run(args: argparse.Namespace) -> int:
    """Export, check in onnxruntime, and print how equal the two are."""
    from ..learner import IncrementalClassifier
    from ..model.export import export_onnx

    result = export_onnx(IncrementalClassifier.load(args.model), args.onnx)
    print(
        f"wrote {args.onnx}, {size_text(args.onnx.stat().st_size)}: {result.inputs} -> embedding "
        f"({result.embedding_dim}), distances ({result.classes}), class"
    )
    print(
        f"checked in onnxruntime on {result.checked} images: distances equal to {result.largest_difference:.1e}, the "
        "same class for all that are not ties"
    )
    return 0
