"""Pickles are read without running anything."""

from __future__ import annotations

import pickle
import pickletools

import numpy as np
import pytest

from protodrift.data.named.pickles import read_pickle
from protodrift.errors import InputError

from .layouts import python2_pickle


def written(tmp_path, content: bytes):
    path = tmp_path / "p"
    path.write_bytes(content)
    return path


CONTENT = {b"data": np.arange(600, dtype=np.uint8).reshape(2, 300), b"labels": [3, 1], b"name": b"x" * 300}


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    np.testing.assert_array_equal(got[b"data"], expected[b"data"])
    assert got[b"data"].dtype == expected[b"data"].dtype
    assert {k: v for k, v in got.items() if k != b"data"} == {k: v for k, v in expected.items() if k != b"data"}


def test_a_pickle_of_python_2_is_read_as_the_ordinary_unpickler_reads_it(tmp_path):
    content = python2_pickle(CONTENT)
    assert_same(pickle.loads(content, encoding="bytes"), CONTENT)  # the fixture is a real pickle
    assert_same(read_pickle(written(tmp_path, content)), CONTENT)


@pytest.mark.parametrize("protocol", range(2, 5))
def test_pickles_of_today_are_read(tmp_path, protocol):
    content = pickle.dumps(CONTENT, protocol)
    if protocol == 2:  # as in files that were written again: bytes as a call of _codecs.encode
        assert any(arg == "_codecs encode" for op, arg, _ in pickletools.genops(content) if op.name == "GLOBAL")
    assert_same(read_pickle(written(tmp_path, content)), CONTENT)


def test_the_byte_order_of_a_file_does_not_change_numpy(tmp_path):
    array = np.arange(5, dtype=">i4")
    got = read_pickle(written(tmp_path, pickle.dumps([array], 2)))[0]
    np.testing.assert_array_equal(got, array)
    assert np.dtype("i4") == np.int32
    assert np.dtype("i4").isnative


class Call:
    """Pickles as a call of any function."""

    def __init__(self, function, *args, state=None):
        self.function, self.args, self.state = function, args, state

    def __reduce__(self):
        return (self.function, self.args) if self.state is None else (self.function, self.args, self.state)


def test_a_pickle_that_runs_a_command_is_refused_and_nothing_runs(tmp_path):
    import os

    trace = tmp_path / "ran"
    content = pickle.dumps({b"data": Call(os.system, f"touch {trace}")}, 2)
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=r"is refused: it asks for .*system.*Nothing of it was run"):
        read_pickle(path)
    assert not trace.exists()
    pickle.loads(content)  # the same bytes do run in the ordinary unpickler
    assert trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"c__builtin__\ngetattr\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__class__\x93.",
        b"\x80\x02P1\n.",
        b"\x80\x02U\x011Q.",
        b"\x80\x02cnumpy\ndtype\n}U\x01xU\x01yss\x86b.",
        b"\x80\x02cnumpy\ndtype\n}b.",
        b"\x80\x02cnumpy\ndtype\nU\x01OJ\0\0\0\0J\1\0\0\0\x87R.",
        b"\x80\x02cnumpy\nndarray\n(J\1\0\0\0tR.",
        b"\x80\x02\x82\x01.",
    ],
)
def test_whatever_else_a_pickle_names_is_refused(tmp_path, content):
    with pytest.raises(InputError):
        read_pickle(written(tmp_path, content))


def test_an_array_of_objects_is_refused(tmp_path):
    content = pickle.dumps(np.array([{}, []], dtype=object), 2)
    with pytest.raises(InputError, match="refused: it asks for an array of object"):
        read_pickle(written(tmp_path, content))


@pytest.mark.parametrize("keep", [0, 1, 10, 400, 650])
def test_a_pickle_that_is_cut_off_is_damaged(tmp_path, keep):
    with pytest.raises(InputError, match="is damaged"):
        read_pickle(written(tmp_path, python2_pickle(CONTENT)[:keep]))


def test_no_file_is_said(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        read_pickle(tmp_path / "none")
