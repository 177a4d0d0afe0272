"""A folder of class folders: `photos/owl/1.jpg`, `photos/owl/2.png`, `photos/emu/...`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from ..errors import InputError
from .dataset import Dataset


@dataclass(frozen=True)
class FolderScan:
    """What was found in a folder: image files with their class, and what was passed over."""

    root: Path
    files: tuple[tuple[Path, str], ...]
    ignored: tuple[Path, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, sorted."""
        return tuple(sorted({label for _, label in self.files}))


def scan_folder(root: str | Path) -> FolderScan:
    """List the images of a folder of class folders; nothing is decoded.

    The name of a class folder is the label. Sub-folders of a class folder belong to it. Hidden files and folders, and
    files that Pillow cannot read by their ending, are ignored and listed.

    Raises:
        InputError: if the folder is missing, holds no class folder, or no image.
    """
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder. Give a folder with one sub-folder a class.")
    folders = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not folders:
        raise InputError(
            f"{root} has no class folders. Put the images of each class in a sub-folder, e.g. {root}/owl/1.jpg."
        )
    endings = _endings()
    files: list[tuple[Path, str]] = []
    ignored = [p for p in sorted(root.iterdir()) if p.is_file()]
    for folder in folders:
        for path in sorted(_walk(folder)):
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if not hidden and path.suffix.lower() in endings:
                files.append((path, folder.name))
            else:
                ignored.append(path)
    if not files:
        raise InputError(f"{root} has class folders but no image that Pillow reads ({len(ignored)} other files).")
    return FolderScan(root, tuple(files), tuple(ignored))


def read_image(path: str | Path, size: int) -> np.ndarray:
    """Decode one image of any kind as (size, size, 3) uint8.

    EXIF orientation is honoured; transparent parts become white; grey, palette, CMYK and 16-bit images become RGB; the
    short side is resized to `size` and the centre is cropped.

    Raises:
        InputError: naming the file, if it cannot be decoded.
    """
    try:
        with Image.open(path) as image:
            upright = to_rgb(ImageOps.exif_transpose(image))
            fitted = ImageOps.fit(upright, (size, size), method=Image.Resampling.BILINEAR)
            return np.asarray(fitted, dtype=np.uint8)
    except FileNotFoundError:
        raise InputError(f"there is no image {path}.") from None
    except Exception as error:  # whatever a damaged file makes one of Pillow's many decoders say
        raise InputError(f"{path} cannot be read as an image ({error}). Remove or replace it.") from None


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to RGB; what is transparent becomes white, not whatever colour hides below it."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in ("I", "I;16", "I;16B", "I;16L", "F"):
        # Pillow clips these at 255: a 16-bit image would turn white. Stretch its own range instead.
        values = np.asarray(image, dtype=np.float64)
        top = 65535.0 if image.mode != "F" else max(float(values.max()), 1e-12)
        scaled = values if values.max() <= 255 and image.mode != "F" else values * (255.0 / top)
        return Image.fromarray(np.clip(scaled, 0, 255).astype(np.uint8)).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def load_folder(
    root: str | Path, size: int = 64, *, test: str | Path | None = None, classes: Sequence[str] | None = None
) -> Dataset:
    """Read a folder of class folders into memory.

    Args:
        root: the folder.
        size: images become size x size.
        test: a second folder of the same classes, as test images.
        classes: read only these class folders.

    Returns:
        A `Dataset` whose labels are the names of the class folders.
    """
    parts = []
    for folder in (root, test):
        if folder is None:
            continue
        scan = scan_folder(folder)
        wanted = set(scan.classes if classes is None else classes)
        if wanted - set(scan.classes):
            raise InputError(f"{folder} has no class folder {sorted(wanted - set(scan.classes))[0]!r}.")
        picked = [(path, label) for path, label in scan.files if label in wanted]
        images = np.stack([read_image(path, size) for path, _ in picked])
        parts += [images, [label for _, label in picked]]
    return Dataset(*parts, name=Path(root).name, channels="last")


def _endings() -> set[str]:
    """Return the endings of what Pillow can decode: not PDF, which it only writes, nor kinds it only recognises."""
    only_recognised = {"BUFR", "GRIB", "HDF5", "MPEG"}
    known = Image.registered_extensions().items()
    return {ending for ending, kind in known if kind in Image.OPEN and kind not in only_recognised}


def _walk(folder: Path, seen: frozenset[Path] = frozenset()) -> Iterator[Path]:
    here = folder.resolve()
    if here in seen:  # a link that leads back up
        return
    for path in folder.iterdir():
        if path.is_dir():
            yield from _walk(path, seen | {here})
        else:
            yield path
