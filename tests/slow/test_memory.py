"""Memory that does not grow with the data: embeddings in shards, photos in a file, a hundred thousand classes.

Each is measured in a process of its own, by the most memory of its own that it ever had (RssAnon of /proc). Mapped
files do not count: their pages are the system's cache, which it takes back when memory is needed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

PEAK = """
import threading, time
most = [0]
def look():
    while True:
        status = open("/proc/self/status").read()
        most[0] = max(most[0], 1024 * int(status.split("RssAnon:")[1].split()[0]))
        time.sleep(0.002)
threading.Thread(target=look, daemon=True).start()
def peak():
    time.sleep(0.01)
    return most[0]
"""


def measured(script: str, *args: object, **environment: str) -> list[float]:
    """Run a script in a process of its own; it prints numbers."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK + script, *map(str, args)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        cwd=ROOT,  # benchmarks/ is imported from there
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    return [float(word) for word in done.stdout.split()]


WRITE = """
import sys, torch
from benchmarks.shards import ShardWriter
count, width = int(sys.argv[2]), 256
with ShardWriter(sys.argv[1], width, classes=range(100)) as writer:
    g = torch.Generator().manual_seed(0)
    for start in range(0, count, 4096):
        z = torch.nn.functional.normalize(torch.randn(min(4096, count - start), width, generator=g), dim=1)
        writer.write((start + torch.arange(len(z))) % 100, z_old=z, z_new=z + 0.01)
print(peak())
"""

ONE_PASS = """
import sys, torch
from protodrift import SDC
from protodrift.prototypes.store import Prototypes
from benchmarks.shards import Shards, update_from_shards
ones = torch.ones(100, dtype=torch.long)
mu = torch.nn.functional.normalize(torch.randn(100, 256, generator=torch.Generator().manual_seed(1)), dim=1)
old = Prototypes(tuple(range(-100, 0)), mu, ones, ones)
before = peak()
new, report = update_from_shards(old, Shards(sys.argv[1]), SDC(0.3), task=2)
print(peak() - before, float((report.vectors - 0.01).abs().max()))
"""


def test_ten_times_the_embeddings_take_the_same_memory(tmp_path):
    grown = {}
    for count in (40_000, 400_000):  # 82 MB and 819 MB of pairs
        folder = tmp_path / f"{count}"
        (wrote,) = measured(WRITE, folder, count)
        one_pass, off = measured(ONE_PASS, folder)
        grown[count] = wrote, one_pass
        assert off < 1e-6  # all images moved by 0.01, so every prototype does
    for few, many in zip(*grown.values(), strict=True):
        assert many < few + 64 * 2**20
    assert grown[400_000][1] < 400_000 * 256 * 8 / 3


LEARN = """
import sys
from protodrift import Schedule
from protodrift.model import defaults, learn as learning
from protodrift.data.folder import find_photos
defaults.pretrained_installed = lambda: False
with learning.locked_model(sys.argv[1]) as place:
    found = find_photos(sys.argv[2])
    before = peak()
    plan = learning.plan_task(place, found, options={"epochs": 1, "size": 192}, ram=int(sys.argv[3]))
    read = peak() - before
    # A pass over all photos, without the time of a training.
    plan.choice.classifier.set_params(schedule=Schedule(train="none"), backbone="convnet", embedding_dim=16, crop=32)
    learning.learn_task(plan)
    print(plan.photos.examples.images.numel(), read, peak() - before)
"""


def test_photos_that_do_not_fit_the_budget_are_not_in_memory(tmp_path):
    rng = np.random.RandomState(0)
    for name in ("auk", "emu", "jay", "owl"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(400):
            pixels = rng.randint(0, 256, (24, 24, 3)).astype(np.uint8)
            Image.fromarray(pixels).resize((192, 192)).save(tmp_path / "photos" / name / f"{i}.jpg")
    size, held, learned = measured(LEARN, tmp_path / "a", tmp_path / "photos", 2**40)
    same, streamed, learned_streamed = measured(LEARN, tmp_path / "b", tmp_path / "photos", 2**20)
    assert size == same == 1600 * 3 * 192 * 192  # 177 MB
    assert held > 0.9 * size
    assert streamed < size / 4
    assert learned_streamed < learned - 0.7 * size  # what is left is the network at work


CLASSES = """
import resource, sys, torch
import numpy as np
from protodrift import IncrementalClassifier, Schedule
from protodrift.model.evaluate import evaluate
K = 100_000
rng = np.random.RandomState(0)
X = rng.randn(K, 64).astype(np.float32)
clf = IncrementalClassifier(embedding_dim=64, schedule=Schedule(train="none"), temperature="auto")
clf.partial_fit(X, list(range(K)))
some = rng.permutation(K)[:3000]
before = peak()
near = X[some] + 0.001 * rng.randn(3000, 64).astype(np.float32)
right = float((clf.predict(near) == some).mean())
found = evaluate(clf, near[:500], [int(c) for c in some[:500]])
print(right, found.all.accuracy, peak() - before)
"""


def test_a_hundred_thousand_classes_are_learned_asked_and_evaluated_in_bounded_memory(tmp_path):
    right, evaluated, grown = measured(CLASSES)
    assert min(right, evaluated) > 0.99
    assert grown < 2**30  # all scores of 3,000 images would be 1.2 GB, a confusion matrix 80 GB


def test_the_memory_is_measured_on_linux():
    assert Path("/proc/self/status").exists()
