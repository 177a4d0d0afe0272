"""The rules of the layout (docs/architecture.md), read off the source: who imports whom, what lies where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "protodrift"
FILES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({path.relative_to(PACKAGE).parts[0] for path in FILES if path.parent != PACKAGE})
ROOT_MODULES = {"errors", "exemplars", "experiment", "learner", "methods", "metrics"}

MATHEMATICS = ("drift", "metrics", "objectives", "penalties", "prototypes", "readouts")
"""What a researcher copies into a loop of their own."""

KNOWS_RANKS = {"cli", "distributed", "experiments", "model", "training"}

LAYERS = (
    {"errors"},
    {"common"},
    set(MATHEMATICS),
    {"data"},
    {"exemplars", "networks"},
    {"methods"},
    {"distributed"},
    {"training"},
    {"experiments"},
    {"learner", "model"},
    {"vectors"},
    {"report"},
    {"experiment"},
    {"serve"},
    {"cli"},
)
"""From bottom to top: each may import those below it. The classifier and its files know each other."""

HEAVY = {
    "altair": "report",
    "cryptography": "model",
    "faiss": "vectors",
    "fastapi": "serve",
    "huggingface_hub": "networks",
    "onnx": "model",
    "pandas": "report",
    "peft": "networks",
    "onnxruntime": "model",
    "prometheus_client": "serve",
    "pyarrow": "vectors",
    "ray": "experiments",
    "starlette": "serve",
    "timm": "networks",
    "torchvision": "networks",
    "transformers": "networks",
    "uvicorn": "serve",
    "vl_convert": "report",
}
"""Extras, and the one folder that may import each."""


def home(path: Path) -> str:
    """Return the folder, or the root module, that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, *, typing: bool = True) -> Iterator[tuple[str, int]]:
    """Yield (dotted name, line) of everything that a file imports, anywhere in it; relative imports made absolute.

    Args:
        typing: whether what is imported for type checkers only counts.
    """
    inside = ["protodrift", *path.relative_to(PACKAGE).parent.parts]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    skipped = set() if typing else {inner for block in blocks for inner in ast.walk(block)}
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = inside[: len(inside) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((f"{module}.{name.name}", node.lineno) for name in node.names)


def ours(path: Path, *, typing: bool = True) -> Iterator[tuple[str, int]]:
    """Yield (folder or root module, line) of what a file imports of protodrift."""
    for name, line in imports(path, typing=typing):
        if name.startswith("protodrift."):
            yield name.split(".")[1], line


def where(path: Path, line: int) -> str:
    """Return file:line for a message."""
    return f"{path.relative_to(PACKAGE)}:{line}"


def test_the_root_has_six_modules_and_the_folders_of_the_design():
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert modules == ROOT_MODULES
    assert set(FOLDERS) == {
        "cli", "common", "data", "distributed", "drift", "experiments", "model", "networks", "objectives",
        "penalties", "prototypes", "readouts", "report", "serve", "training", "vectors",
    }  # fmt: skip


@pytest.mark.parametrize("path", [p for p in FILES if home(p) == "common"], ids=str)
def test_common_imports_nobody(path):
    assert not [where(path, line) for target, line in ours(path) if target not in ("common", "errors", "__version__")]


@pytest.mark.parametrize("part", MATHEMATICS)
def test_rule_1_the_mathematics_imports_only_common(part):
    allowed = {part, "common", "errors"}
    wrong = [
        f"{where(path, line)} imports {target}"
        for path in FILES
        if home(path) == part
        for target, line in ours(path)
        if target not in allowed
    ]
    assert not wrong


def test_every_layer_imports_only_those_below_it():
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    wrong = [
        f"{where(path, line)} imports {target}"
        for path in FILES
        if home(path) in level
        for target, line in ours(path, typing=False)
        if target != home(path)
        and level.get(target, -1) >= level[home(path)]
        and {target, home(path)} != {"learner", "model"}
    ]
    assert not wrong


def test_rule_2_only_some_folders_know_of_ranks_and_few_ask():
    wrong = [
        where(path, line)
        for path in FILES
        if home(path) not in KNOWS_RANKS
        for target, line in ours(path)
        if target == "distributed"
    ]
    assert not wrong
    asked = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if home(path) != "distributed"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "current"
    }
    assert {name for name in asked if not name.startswith("cli/")} <= {
        "experiments/run.py",
        "model/learn.py",
        "training/task.py",
    }


def test_rule_3_every_kind_of_stage_is_a_class_with_the_same_five_methods():
    from protodrift.experiments import stages

    assert set(stages.KINDS) == {"warm", "root", "train", "consolidate", "embed", "readout"}
    for kind in stages.KINDS.values():
        for method in ("key", "parents", "compute", "pack", "unpack"):
            assert hasattr(kind, method), (kind, method)


def test_rule_5_extras_are_imported_in_their_own_folder_only():
    wrong = [
        f"{where(path, line)} imports {name}"
        for path in FILES
        for name, line in imports(path)
        if home(path) != HEAVY.get(name.split(".")[0], home(path))
    ]
    assert not wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_classes_stay_readable(path):
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 500
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            assert (node.end_lineno or 0) - node.lineno < 300, node.name


RETIRED = (
    "HERE", "Pool", "fit_in", "learns_from_sums", "lesson", "lessons", "Lesson", "close_task", "rows_of",
    "memory_budget", "normalise", "standardise", "recognise", "optimiser", "colour", "centre", "neighbour", "licence",
)  # fmt: skip


def test_retired_words_are_gone():
    import re

    pattern = re.compile(r"\b(" + "|".join(RETIRED) + r")\b")
    found = [
        f"{where(path, number)}: {line.strip()}"
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


def test_tests_mirror_the_source():
    tests = Path(__file__).parent
    assert {folder for folder in FOLDERS if not (tests / folder).is_dir()} == set()
