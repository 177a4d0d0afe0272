"""Model directories with any byte changed, lost or added: a clear error, or the very same model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from protodrift import EWC, Everything, IncrementalClassifier
from protodrift.errors import ModelFileError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(make_classifier, vectors, tmp_path_factory):
    """A classifier with importances and a memory, saved twice, and its directory."""
    clf = make_classifier(penalty=EWC(gamma=1e3), exemplars=Everything())
    folder = tmp_path_factory.mktemp("fuzz") / "birds"
    clf.partial_fit(*vectors("owl", "emu")).save(folder, store_images=True)
    clf.partial_fit(*vectors("jay", "ibis")).save(folder, store_images=True)
    return clf, folder


def files_of(folder: Path) -> list[Path]:
    return sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file() and p.name != ".lock")


def flip(data: bytes, at: float, value: int) -> bytes:
    position = min(int(at * len(data)), len(data) - 1)
    return data[:position] + bytes([data[position] ^ (value or 1)]) + data[position + 1 :]


def cut(data: bytes, at: float, value: int) -> bytes:
    return data[: int(at * len(data))]


def insert(data: bytes, at: float, value: int) -> bytes:
    position = int(at * len(data))
    return data[:position] + bytes([value]) * (1 + value % 5) + data[position:]


def drop(data: bytes, at: float, value: int) -> bytes:
    position = int(at * len(data))
    return data[:position] + data[position + 1 + value % 9 :]


def fill(data: bytes, at: float, value: int) -> bytes:
    return bytes([value]) * int(at * len(data))


CHANGES = {change.__name__: change for change in (flip, cut, insert, drop, fill)}


@settings(
    max_examples=1000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, 30), st.sampled_from(sorted(CHANGES)), st.floats(0, 1, exclude_max=True), st.integers(0, 255)
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_change_is_an_error_or_changes_nothing(model, same, tmp_path_factory, edits):
    clf, folder = model
    copy = tmp_path_factory.mktemp("case") / "birds"
    shutil.copytree(folder, copy)
    files = files_of(copy)
    for which, change, at, value in edits:
        path = copy / files[which % len(files)]
        data = path.read_bytes()
        path.write_bytes(CHANGES[change](data, at, value) if data else bytes([value]))
    try:
        loaded = IncrementalClassifier.load(copy)
    except ModelFileError:
        event("an error")
    else:
        assert same(loaded, clf)
        assert loaded.get_params() == clf.get_params()
        event("the same model")
    finally:
        shutil.rmtree(copy.parent)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(repr))
def test_any_other_current_file_is_an_error(model, tmp_path_factory, content):
    _, folder = model
    copy = tmp_path_factory.mktemp("case") / "birds"
    shutil.copytree(folder, copy)
    (copy / "CURRENT").write_bytes(content.encode(errors="replace") if isinstance(content, str) else content)
    try:
        with pytest.raises(ModelFileError):
            IncrementalClassifier.load(copy)
    finally:
        shutil.rmtree(copy.parent)
