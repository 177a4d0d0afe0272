"""`jobs=2` from a script without a `__main__` guard says that, and from one with it works."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
from protodrift.experiments.recipe import Recipe
from protodrift.experiments.recipes import get_recipe, with_settings
from protodrift.experiments.run import run

recipe = with_settings(get_recipe("digits").only(["E-Pre"]), {{"tasks": "2", "train_images": "8", "test_images": "4"}})
{guard}run(recipe, "out", jobs=2)
"""


@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__": '], ids=["without", "with"])
def test_a_script_without_a_guard_is_told_so(tmp_path, guard):
    script = tmp_path / "experiment.py"
    script.write_text(SCRIPT.format(guard=guard))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if guard:
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "out" / "results.json").exists()
        return
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("protodrift.errors.InputError: ")
    assert f"{script} starts processes (jobs=2 or more), and each of them runs it again" in last
    assert 'if __name__ == "__main__":' in last
    assert "memory ran out" not in done.stderr
    assert done.stderr.count("Traceback") == 1  # the workers say it in a line
