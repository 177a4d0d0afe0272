"""The constants of docs/scale.md: CPU time of what grows with images and classes, one thread, in one run.

    python -m benchmarks.scale --scratch DIR --out results/scale.json

Every number is the least of three rounds of CPU time (`time.process_time`): on a shared machine the rest is waiting.
NCM is measured in turn with FAISS's exact search, where that is installed.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import normalize

from protodrift.common.machine import usable_cpus
from protodrift.data.batches import class_balanced_batches
from protodrift.data.images import load_photo
from protodrift.data.spill import mapped
from protodrift.drift import kernel_sums
from protodrift.prototypes import ClassSums
from protodrift.readouts import nearest_class_mean

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", required=True, type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "command": "python -m benchmarks.scale",
        "machine": f"{platform.machine()}, {usable_cpus()} cores shared with other work, 1 thread",
        "decode_ms_per_photo": decoding(),
        "stored_read_us_per_photo": reading(args.scratch),
        "kernel_ns_per_pair_512": kernel(),
        "means_us_per_image_512": means(),
        **ncm(),
        **batches(),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


def seconds(work: Callable[[], object]) -> float:
    """Return the least CPU time of a few rounds."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def unit(count: int, seed: int) -> torch.Tensor:
    return normalize(torch.randn(count, 512, generator=torch.Generator().manual_seed(seed)), dim=1)


def decoding() -> float:
    """A JPEG of 500 x 375, ImageNet's usual size, to 256 x 256."""
    noise = np.random.RandomState(0).randint(0, 256, (24, 32, 3)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    data = buffer.getvalue()
    return round(1e3 * seconds(lambda: [load_photo(data, 256) for _ in range(50)]) / 50, 3)


def reading(scratch: Path) -> float:
    """Random batches of 32 photos of 256 x 256 out of a file that is in the page cache."""
    scratch.mkdir(parents=True, exist_ok=True)
    images = mapped((500, 3, 256, 256), torch.uint8, scratch)
    images.copy_((torch.arange(500) % 256).view(-1, 1, 1, 1).expand_as(images))
    rows = torch.randperm(500)[:480].split(32)
    return round(1e6 * seconds(lambda: [images[batch] for batch in rows]) / 480, 1)


def kernel() -> float:
    """Eqs. 9-11 for one image and one prototype."""
    z, mu = unit(16384, 0), unit(2048, 1)
    took = seconds(lambda: kernel_sums(mu, z, z + 0.01, 0.3))
    return round(1e9 * took / (len(z) * len(mu)), 2)


def means() -> float:
    z, rows = unit(32768, 0), torch.arange(32768) % 1000
    return round(1e6 * seconds(lambda: ClassSums.of(z, rows, 1000)) / len(z), 2)


def ncm() -> dict[str, float]:
    """One image against one class, of 100,000."""
    z, mu = unit(1024, 0), unit(100_000, 1)
    ours, theirs = [], []
    try:
        import faiss
    except ImportError:
        index = None
    else:
        faiss.omp_set_num_threads(1)
        index = faiss.IndexFlatL2(512)
        index.add(mu.numpy())
    for _ in range(ROUNDS):  # in turn
        start = time.process_time()
        nearest_class_mean(z, mu)
        ours.append(time.process_time() - start)
        if index is not None:
            start = time.process_time()
            index.search(z.numpy(), 1)
            theirs.append(time.process_time() - start)
    per = 1e9 / (len(z) * len(mu))
    return {
        "ncm_ns_per_pair_512": round(per * min(ours), 2),
        **({"faiss_ns_per_pair_512": round(per * min(theirs), 2)} if theirs else {}),
    }


def batches() -> dict[str, float]:
    """One class-balanced batch of 256, with 1,000 and 100,000 classes of 12 images."""
    found = {}
    for classes in (1000, 100_000):
        rows = torch.arange(12 * classes) % classes
        start = time.process_time()
        made = class_balanced_batches(
            rows, batch_size=256, images_per_class=8, epoch="full", generator=torch.Generator().manual_seed(0)
        )
        next(made)
        prepared = time.process_time()
        for _ in range(20):
            next(made)
        found[f"balanced_batch_ms_{classes}_classes"] = round(1e3 * (time.process_time() - prepared) / 20, 2)
        found[f"balanced_epoch_start_s_{classes}_classes"] = round(prepared - start, 2)
    return found


if __name__ == "__main__":
    main()
