"""Models and runs with parts of one's own: what says that they are not imported, and `--import`, which imports them."""

from __future__ import annotations

import json

import pytest
from PIL import Image

PARTS = '''
from dataclasses import dataclass

from protodrift.drift import Drift
from protodrift.drift.base import Known


@dataclass(frozen=True)
class KNNDrift(Drift):
    """Leaves all where it is."""

    k: int = 3

    def fit(self, z_old, z_new, targets=None):
        return Still()


class Still(Known):
    def __init__(self):
        pass

    def explain(self, prototypes):
        return prototypes, {}
'''

MAKE = """
import numpy as np
from knn_parts import KNNDrift
from protodrift import IncrementalClassifier, Method, TaskStream, Training
from protodrift.data import Dataset, load_digits
from protodrift.experiments.recipe import Recipe
from protodrift.experiments.run import run
from protodrift.experiments.setup import Network
from protodrift.methods import Schedule

rng = np.random.RandomState(0)
clf = IncrementalClassifier(drift=KNNDrift(k=5), schedule=Schedule(train="none"), image_size=32)
clf.partial_fit(rng.randint(0, 256, (8, 32, 32, 3), dtype=np.uint8), ["owl", "emu"] * 4).save("model")
row = Method(schedule=Schedule(train="none"), drift=KNNDrift())
recipe = Recipe("own", "own parts", rows=(("own", row),), data="digits", tasks=2, network=Network("convnet", 8))
run(recipe, "run")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a model and a run, made with KNNDrift, and beside it the module that defines it."""
    import os
    import subprocess
    import sys

    root = tmp_path_factory.mktemp("own")
    (root / "knn_parts.py").write_text(PARTS)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", MAKE], cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    Image.new("RGB", (40, 40), "red").save(root / "photo.png")
    return root


READERS = [
    ("inspect", "model"),
    ("predict", "model", "photo.png"),
    ("forget", "model", "nobody"),
    ("export", "model", "--onnx", "m.onnx"),
    ("report", "run", "--format", "md"),
    ("report", "run", "--format", "json"),
]


@pytest.mark.parametrize("args", READERS, ids=" ".join)
def test_a_part_that_is_not_imported_is_no_damage(made, fails, args):
    said = fails(*args, cwd=made)
    assert "import the module that defines KNNDrift (--import MODULE" in said
    assert "damaged" not in said


@pytest.mark.parametrize("name", ["knn_parts", "./knn_parts.py"])
def test_import_imports_it(made, command, tmp_path, name):
    shown = command("inspect", "model", "--json", "--import", name, cwd=made)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)
    assert command("predict", "model", "photo.png", "--import", name, cwd=made).returncode == 0
    table = command("report", "run", "--format", "csv", "--import", name, cwd=made)
    assert (table.returncode, "own" in table.stdout) == (0, True), table.stderr


def test_a_module_that_cannot_be_imported_is_one_line(made, fails, tmp_path):
    assert "--import nowhere: ModuleNotFoundError" in fails("inspect", "model", "--import", "nowhere", cwd=made)
    (tmp_path / "broken.py").write_text("1 / 0")
    said = fails("inspect", "model", "--import", str(tmp_path / "broken.py"), cwd=made)
    assert "broken.py: ZeroDivisionError: division by zero" in said


def test_python_says_it_too(made):
    from protodrift import IncrementalClassifier
    from protodrift.errors import ModelFileError, RunError
    from protodrift.report import read_runs, report

    with pytest.raises(ModelFileError, match=r"import the module that defines KNNDrift \(--import MODULE"):
        IncrementalClassifier.load(made / "model")
    with pytest.raises(RunError, match="import the module that defines KNNDrift"):
        report(read_runs([made / "run"]), "md")
