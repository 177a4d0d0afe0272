"""Case e: images on their way to the network, against Pillow one by one; and how long the trainer waits for them.

- from memory: what the trainer does with a batch (take it, crop and flip, lay it out), against the same views made
  with Pillow image by image.
- from a folder of JPEG files: `photos.read_photos`, which `protodrift learn` uses and which also looks for damaged and
  repeated files, and `decode_files`, which recipes use, with one process per core; against a plain Pillow loop.
- photos as phones make them, JPEG files of 12 megapixels, which are decoded smaller; against the same loop.
- waiting: time for making the batches of an epoch over the time of that epoch in `train_network`, ResNet-32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from protodrift.data.datasets.decode import decode_files
from protodrift.data.examples import Examples
from protodrift.data.folder import find_photos, read_photos
from protodrift.data.views import CropFlip
from protodrift.networks.embedder import laid_out

from .harness import Result, Setup, clocked, compared, interleaved
from .material import pictures
from .training import PAD, Work, our_side

OURS, PILLOW = "protodrift", "Pillow one by one"
BATCH, SIZE = 128, 96
PHONE = 192  # pixels, as `protodrift learn` chooses


def run(setup: Setup) -> Iterator[Result]:
    """Measure the input pipeline."""
    setup.say("pipeline: from memory")
    images = pictures(16, 128, 32).images
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    sides = {OURS: clocked(lambda: from_memory(images, order)), PILLOW: clocked(lambda: one_by_one(images, order))}
    seconds = interleaved(sides, setup.rounds(7))
    rate = {"images_per_second": round(len(images) / min(seconds[OURS]))}
    yield compared("pipeline", "crop and flip from memory, 32 x 32", seconds, OURS, PILLOW, numbers=rate)

    count = 256 if setup.quick else 1024
    setup.say(f"pipeline: {count} JPEG files")
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder), count)
        files = sorted(Path(folder).rglob("*.jpg"))
        found = find_photos(folder)
        array = Path(folder) / "pixels.npy"
        checked, several = "protodrift, checked", "protodrift, one process per core"
        sides = {
            checked: clocked(lambda: read_photos(found, SIZE)),
            several: clocked(lambda: decode_files([(files, array)], size=SIZE, fit="center", skip_bad=False)),
            PILLOW: clocked(lambda: plain_photos(files)),
        }
        seconds = interleaved(sides, setup.rounds(5))
    for side in (checked, several):
        rate = {"images_per_second": round(count / min(seconds[side]))}
        yield compared("pipeline", f"JPEG files of 320 x 240 to {SIZE} x {SIZE}", seconds, side, PILLOW, numbers=rate)

    count = 4 if setup.quick else 16
    setup.say(f"pipeline: {count} JPEG files of 12 megapixels")
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder), count, 4000, 3000)
        files, found = sorted(Path(folder).rglob("*.jpg")), find_photos(folder)
        sides = {OURS: clocked(lambda: read_photos(found, PHONE)), PILLOW: clocked(lambda: plain_photos(files, PHONE))}
        seconds = interleaved(sides, setup.rounds(5))
    rate = {"images_per_second": round(count / min(seconds[OURS]))}
    name = f"JPEG files of 4000 x 3000 to {PHONE} x {PHONE}"
    yield compared("pipeline", name, seconds, OURS, PILLOW, aim=">= 3", numbers=rate)

    for batch in (32, 128)[: 1 if setup.quick else 2]:
        setup.say(f"pipeline: waiting, batch {batch}")
        work = Work("resnet32", 32, batch, 320 // batch)
        sides = {"making batches": clocked(waiting, work, work.examples), "training": our_side(work)}
        seconds = interleaved(sides, setup.rounds(3))
        name = f"the trainer waits for data, ResNet-32, batch {batch}"
        yield compared(
            "pipeline", name, seconds, "making batches", "training", aim="<= 0.03", unit="of its time", inverse=True
        )  # fmt: skip


def from_memory(images: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Make random views of images as the trainer does; return the last batch, (N, C, H, W)."""
    augment, draw = CropFlip(PAD, mode="zeros"), torch.Generator().manual_seed(0)
    last = images[:0]
    for batch in order.split(BATCH):
        last = laid_out(augment(images[batch], draw), torch.device("cpu"))
    return last


def one_by_one(images: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Make the same kind of views with Pillow, image by image; return the last batch."""
    draw = np.random.default_rng(0)
    last = images[:0]
    for batch in order.split(BATCH):
        views = []
        for i in batch.tolist():
            picture = Image.fromarray(images[i].permute(1, 2, 0).numpy())
            top, left = draw.integers(0, 2 * PAD + 1, 2)
            views.append(pillow_view(picture, int(top), int(left), bool(draw.random() < 0.5)))
        last = torch.stack(views)
    return last


def pillow_view(picture: Image.Image, top: int, left: int, mirror: bool) -> torch.Tensor:
    """Pad, crop back to size and mirror one image with Pillow, (C, H, W) uint8."""
    width, height = picture.size
    view = ImageOps.expand(picture, PAD).crop((left, top, left + width, top + height))
    if mirror:
        view = ImageOps.mirror(view)
    return torch.from_numpy(np.array(view)).permute(2, 0, 1)


def write_photos(folder: Path, count: int, width: int = 320, height: int = 240) -> None:
    """Write JPEG files into eight class folders: seeded noise over coarse shapes, no two alike."""
    draw = np.random.default_rng(0)
    for i in range(count):
        place = folder / f"class{i % 8}"
        place.mkdir(exist_ok=True)
        coarse = draw.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        large = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = large + draw.integers(-20, 20, large.shape, dtype=np.int16)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(place / f"{i:05}.jpg", quality=90)


def plain_photos(files: list[Path], size: int = SIZE) -> torch.Tensor:
    """Decode files by the loop that people write, (N, 3, size, size) uint8."""
    result = []
    for file in files:
        with Image.open(file) as image:
            fitted = ImageOps.fit(image.convert("RGB"), (size, size), method=Image.Resampling.BILINEAR)
        result.append(torch.from_numpy(np.array(fitted)).permute(2, 0, 1))
    return torch.stack(result)


def waiting(work: Work, examples: Examples) -> int:
    """Make all batches of one epoch of a training, and do nothing with them; return how many images they hold."""
    rows = torch.tensor(examples.labels)
    draw = torch.Generator().manual_seed(0)
    augment, count = CropFlip(PAD, mode="zeros"), 0
    for batch in work.batches(rows, 1):
        laid_out(augment(examples.images[batch], draw), torch.device("cpu"))
        count += len(rows[batch])
    return count
