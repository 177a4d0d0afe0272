"""Parts that are defined in a notebook: their source is that of the cells, and what they use."""

from __future__ import annotations

import linecache
import sys
from types import ModuleType

import pytest

from protodrift.common.cells import defining_cells
from protodrift.errors import InputError
from protodrift.experiments.identity import described

HELPER = "def helper(x):\n    return x + 1\n"
CLASS = """\
from dataclasses import dataclass
from protodrift.drift import Drift

@dataclass(frozen=True)
class {name}(Drift):
    strength: float = 1.0

    def fit(self, z_old, z_new, targets=None):
        return [helper(z) for z in z_new]
"""
OTHER = "def unrelated(x):\n    return x\n"


@pytest.fixture
def notebook(monkeypatch):
    """Return a function that runs cells as a notebook's kernel does: a module without a file, cells in linecache."""

    def run(*cells: str) -> ModuleType:
        module = ModuleType("a_notebook")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        for number, cell in enumerate(cells):
            name = f"<cell {number} of {id(module)}>"
            monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name))
            exec(compile(cell, name, "exec"), vars(module))
        return module

    return run


def test_the_cells_of_a_class_and_of_what_it_uses(notebook):
    cell = CLASS.format(name="CellDrift1")
    assert defining_cells(notebook(HELPER, cell, OTHER).CellDrift1) == sorted([HELPER, cell])


def test_a_part_of_a_notebook_has_another_identity_when_what_it_calls_changes(notebook):
    cells = [CLASS.format(name="CellDrift2"), OTHER]
    one = described(notebook(HELPER, *cells).CellDrift2())
    assert one == described(notebook(HELPER, *cells[:1], OTHER.replace("return x", "return -x")).CellDrift2())
    assert one != described(notebook(HELPER.replace("+ 1", "+ 2"), *cells).CellDrift2())


def test_numbers_of_the_notebook_count_and_values_that_could_change_unseen_are_refused(notebook):
    cell = CLASS.format(name="CellDrift3").replace("helper(z)", "z * SCALE")
    assert described(notebook("SCALE = 2", cell).CellDrift3()) != described(notebook("SCALE = 3", cell).CellDrift3())
    with pytest.raises(InputError, match="Define it in a file"):
        described(notebook("SCALE = [2]", cell).CellDrift3())


def test_an_attribute_is_not_the_notebooks_variable_of_that_name(notebook):
    cell = CLASS.format(name="CellDrift4").replace("helper(z)", "z * self.strength")
    assert defining_cells(notebook("strength = [2]", cell).CellDrift4) == [cell]
