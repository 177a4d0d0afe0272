"""The package as it is released: built, installed in a fresh environment, and used outside of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def run(*command, cwd, **env):
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**clean, **env}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution, and the wheel that was made from it and not from the checkout."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (source,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return source, wheel


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """A fresh environment with the wheel; its dependencies are those that are installed here, without our own package.

    A line in a .pth file puts a directory behind the environment's own, and .pth files in that one, such as the one of
    an editable install, are not read.
    """
    home = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    python = home / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", built[1], cwd=home)
    (packages,) = (home / "venv").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def test_the_wheel_holds_the_package_and_nothing_else(built):
    names = zipfile.ZipFile(built[1]).namelist()
    inside = {name.partition("/")[0] for name in names}
    assert {name for name in inside if not name.endswith(".dist-info")} == {"protodrift"}
    files = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "protodrift").rglob("*.*")}
    missing = {name for name in files if "__pycache__" not in name and (ROOT / "src" / name).is_file()} - set(names)
    assert not missing  # also pages, templates and py.typed
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_demo_and_a_model_of_the_wheel_outside_of_the_checkout(installed, tmp_path):
    where = run(installed, "-c", "import protodrift; print(protodrift.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parents[1])
    said = run(installed.parent / "protodrift", "demo", "--out", "demo", cwd=tmp_path, OMP_NUM_THREADS="1")
    assert "E-FT+SDC" in said
    assert list((tmp_path / "demo").rglob("*.html"))
    program = (
        "from protodrift import IncrementalClassifier as C, Training; from sklearn.datasets import load_digits as d;"
        "X, y = d(return_X_y=True); c = C('mlp', training=Training(epochs=1)).fit(X, y); c.save('m');"
        "print((C.load('m').predict(X) == c.predict(X)).all(), c.score(X, y))"
    )
    same, score = run(installed, "-c", program, cwd=tmp_path).split()
    assert same == "True"
    assert float(score) > 0.7


def test_the_tests_of_the_source_distribution_hold_for_the_wheel(built, installed, tmp_path):
    with tarfile.open(built[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    (root / "src").rename(root / "not-the-source")
    paths = ("tests/paper", "tests/prototypes", "tests/test_metrics.py")
    said = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths, cwd=root, OMP_NUM_THREADS="1")
    assert " passed" in said
    assert "failed" not in said
