"""`protodrift export`: a model for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..common.ram import size_text

_EPILOG = """\
examples:
  protodrift export birds --onnx birds.onnx

The ONNX graph takes photos as uint8 tensors (N, 3, side, side), RGB, short side resized and center cropped, and gives
"embedding", "distances" (Euclidean, one a class) and "class" (a position in the labels). Labels and preprocessing stand
in its metadata as JSON.
Needs:  pip install 'protodrift[onnx]'
"""


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "export",
        help="write a model as ONNX",
        description="Writes network, prototypes and read-out as one ONNX file.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", type=Path, help="model directory")
    parser.add_argument("--onnx", metavar="FILE", type=Path, required=True, help="file to write")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Export, check in onnxruntime, and say how equal the two are."""
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
