"""The package as a whole: what importing it costs, and which folder may import which."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import protodrift

ROOT = Path(__file__).parents[1]


def modules_after(statement: str) -> set[str]:
    """The modules that a fresh Python holds after one statement."""
    script = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout.splitlines()[-1]))


def ours(modules: set[str]) -> set[str]:
    """The folders of protodrift among modules: the first name below the package."""
    return {name.split(".")[1] for name in modules if name.startswith("protodrift.")}


def test_importing_the_package_imports_nothing_heavy():
    modules = modules_after("import protodrift; protodrift.__version__; dir(protodrift)")
    assert not modules & {"torch", "numpy", "sklearn", "PIL", "rich", "safetensors"}
    assert ours(modules) == set()


@pytest.mark.parametrize("name", protodrift.__all__)
def test_every_public_name_is_there(name):
    assert getattr(protodrift, name) is not None
    assert name in dir(protodrift)


def test_public_names_are_imported_for_type_checkers_too():
    source = (ROOT / "src/protodrift/__init__.py").read_text()
    typed = set(re.findall(r"import (\w+) as \1", source))
    assert typed == set(protodrift.__all__) - {"__version__"}


def test_there_are_few_public_names():
    assert len(protodrift.__all__) <= 23  # with the version; whatever else there is, is imported from its folder


def test_every_error_has_one_base_class():
    from protodrift import errors

    found = [error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, Exception)]
    kinds = [error for error in [*found, errors.NotLearnedError] if not issubclass(error, Warning)]
    assert len(kinds) >= 6
    assert all(issubclass(error, protodrift.ProtodriftError) for error in kinds)
    copied = pickle.loads(pickle.dumps(errors.NotLearnedError("nothing yet")))
    assert (type(copied), str(copied)) == (errors.NotLearnedError, "nothing yet")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = protodrift.Nothing


SHARED = {"common", "errors", "prototypes", "drift"}


@pytest.mark.parametrize("folder", ["drift", "prototypes", "readouts", "metrics"])
def test_a_folder_can_be_copied_into_a_loop_of_ones_own(folder):
    modules = modules_after(f"import protodrift.{folder}")
    assert "torch" in modules
    assert ours(modules) <= SHARED | {folder}
    assert not modules & {"sklearn", "PIL", "pytorch_metric_learning", "safetensors", "rich", "filelock"}


def test_training_does_not_import_the_learner_reports_or_the_command_line():
    assert not ours(modules_after("import protodrift.training.trainer")) & {
        "learner",
        "model",
        "report",
        "cli",
        "experiments",
    }


def test_the_version_has_one_value():
    text = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'^version = "(.+)"$', text, re.MULTILINE)[1] == protodrift.__version__


def test_the_package_is_marked_as_typed():
    assert (ROOT / "src/protodrift/py.typed").exists()


def test_the_workflow_runs_targets_of_the_makefile_and_all_that_ci_runs():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    steps = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    run = {step.removeprefix("make ") for step in steps}
    assert run <= targets
    assert set(re.findall(r"^make ([\w-]+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)) <= run


@pytest.mark.parametrize(
    "path", [".pre-commit-config.yaml", *(f".github/ISSUE_TEMPLATE/{n}.yml" for n in ("bug", "idea"))]
)
def test_files_for_pre_commit_and_github_can_be_read(path):
    document = yaml.safe_load((ROOT / path).read_text())
    assert document.keys() >= ({"repos"} if path.startswith(".pre") else {"name", "description", "body"})
    for entry in document.get("body", ()):
        assert entry["attributes"]["label"]


def test_the_citation_names_this_version_and_its_license():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == protodrift.__version__
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text()
