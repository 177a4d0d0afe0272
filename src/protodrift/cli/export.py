"""`protodrift export`: a model for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.machine import size_text
from .arguments import Commands, add_command, add_model, add_unknown_rate, answering

if TYPE_CHECKING:
    import numpy as np

    from ..learner import IncrementalClassifier
    from ..model.export import Agreement

_EPILOG = """\
examples:
  protodrift export birds --onnx birds.onnx
  protodrift export birds --onnx birds.onnx --check photos/test    compares both on photos of yours

The ONNX graph takes photos as uint8 tensors (N, 3, height, width), RGB, of any size, and answers as `predict` does:
"class" (a position in "labels"), "probabilities" (calibrated), "unknown", "novelty" and "embedding". Before the file
takes its name, its answers are compared with the model's in onnxruntime. docs/onnx.md has complete programs, in Python
and for a browser.
Needs:  pip install 'protodrift[onnx]'
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "export",
        run,
        help="write a model as ONNX",
        description="Writes network, read-out and calibration as one ONNX file that answers as the model does.",
        epilog=_EPILOG,
    )
    add_model(parser)
    parser.add_argument("--onnx", metavar="FILE", type=Path, required=True, help="file to write")
    parser.add_argument(
        "--check",
        metavar="IMAGE|FOLDER",
        nargs="+",
        default=[],
        help="photos to compare the file and the model on, best such as it has not learned from",
    )
    parser.add_argument(
        "--fixed-size",
        action="store_true",
        help="take photos of the model's own size only, for programs without antialiased resizing",
    )
    add_unknown_rate(parser)


def run(args: argparse.Namespace) -> int:
    """Export, check in onnxruntime, and print how equal the two are."""
    from ..learner import IncrementalClassifier
    from ..model.export import export_onnx

    clf = IncrementalClassifier.load(args.model, **answering(args))
    photos = _photos(clf, args) if args.check else []
    result = export_onnx(clf, args.onnx, any_size=not args.fixed_size, check=photos)
    print(f"wrote {args.onnx}, {size_text(args.onnx.stat().st_size)}: {result.inputs} -> {result.outputs}")
    print(f"checked in onnxruntime on {_compared(result.made_up, 'made-up images')}")
    if result.photos is not None:
        print(f"                   and on {_compared(result.photos, 'photos')}")
    return 0


def _photos(clf: IncrementalClassifier, args: argparse.Namespace) -> list[np.ndarray]:
    from ..data.folder import find_images
    from ..data.images import load_photo
    from ..model.facts import photo_size

    size = photo_size(clf.state_.spec, args.model)
    return [load_photo(path, size) for path in find_images(args.check)]


def _compared(found: Agreement, what: str) -> str:
    ties = f" but for {found.ties} ties" if found.ties else ""
    return f"{found.images} {what}: same class, same unknown{ties}; probabilities equal to {found.difference:.0e}"
