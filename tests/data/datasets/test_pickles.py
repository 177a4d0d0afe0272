"""Pickles are read without running anything."""

from __future__ import annotations

import os
import pickle
import pickletools

import numpy as np
import pytest

from protodrift.data.datasets.pickles import read_pickle
from protodrift.errors import InputError

from .layouts import python2_pickle


def written(tmp_path, content: bytes):
    path = tmp_path / "p"
    path.write_bytes(content)
    return path


CONTENT = {b"data": np.arange(600, dtype=np.uint8).reshape(2, 300), b"labels": [3, 1], b"name": b"x" * 300}


def assert_read(path):
    got = read_pickle(path)
    assert list(got) == ["data", "labels", "name"]
    np.testing.assert_array_equal(got["data"], CONTENT[b"data"])
    assert got["data"].dtype == np.uint8
    assert (got["labels"], got["name"]) == ([3, 1], b"x" * 300)


def test_a_pickle_of_python_2_is_read_as_the_ordinary_unpickler_reads_it(tmp_path):
    content = python2_pickle(CONTENT)
    ordinary = pickle.loads(content, encoding="bytes")  # the fixture is a real pickle
    np.testing.assert_array_equal(ordinary[b"data"], CONTENT[b"data"])
    assert_read(written(tmp_path, content))


@pytest.mark.parametrize("protocol", range(2, 5))
def test_pickles_of_today_are_read(tmp_path, protocol):
    content = pickle.dumps(CONTENT, protocol)
    if protocol == 2:  # as in files that were written again: bytes as a call of _codecs.encode
        assert any(arg == "_codecs encode" for op, arg, _ in pickletools.genops(content) if op.name == "GLOBAL")
    assert_read(written(tmp_path, content))


class Call:
    """Pickles as a call of any function."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


def test_a_pickle_that_runs_a_command_is_refused_and_nothing_runs(tmp_path):
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
        b"\x80\x02cnumpy\ndtype\n}U\x01xU\x01yss\x86b.",  # changes of the reader itself
        b"\x80\x02cnumpy\ndtype\n}b.",
        b"\x80\x02c_codecs\nencode\n}U\x01xU\x01yss\x86b.",
        b"\x80\x02cnumpy\ndtype\nU\x01OJ\0\0\0\0J\1\0\0\0\x87R.",
        b"\x80\x02cnumpy\nndarray\n(J\1\0\0\0tR.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02]q\0.",  # a list
    ],
)
def test_whatever_else_a_pickle_names_is_refused(tmp_path, content):
    with pytest.raises(InputError):
        read_pickle(written(tmp_path, content))


@pytest.mark.parametrize("array", [np.array([{}, []], dtype=object), np.arange(5, dtype=">i4")])
def test_only_arrays_of_bytes_are_read(tmp_path, array):
    with pytest.raises(InputError, match="refused: it asks for an array of"):
        read_pickle(written(tmp_path, pickle.dumps({b"data": array}, 2)))


U1 = b"cnumpy\ndtype\nU\x02u1K\0K\1\x87R"
MINUS = b"J\xff\xff\xff\xff"


def array_of(dtype: bytes, shape: bytes = b"K\x10\x85", content: bytes = bytes(range(1, 17))) -> bytes:
    """A pickle of {"a": array}, with any description of its type."""
    start = b"\x80\x02}U\x01acnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01b\x87R(K\1"
    return start + shape + dtype + b"\x89U" + bytes([len(content)]) + content + b"tbs."


@pytest.mark.parametrize(
    "state",
    [
        b"(K\3U\1|NNN" + MINUS * 2 + b"K\0t",  # as numpy writes it
        b"(K\3U\1|" + U1 + b"M\x20\x4e\x85\x86NN" + MINUS * 2 + b"K\0t",  # "u1" that is 20,000 of them
        b"(K\3U\1|NNNM\x20\x4eK\1K\0t",  # "u1" of 20,000 bytes
        b"}",
    ],
)
def test_what_a_file_says_of_its_type_cannot_reach_beyond_its_bytes(tmp_path, state):
    got = read_pickle(written(tmp_path, array_of(U1 + state + b"b")))
    np.testing.assert_array_equal(got["a"], range(1, 17))


@pytest.mark.parametrize("shape", [b"K\x11\x85", b"K\x0f\x85", MINUS + b"J\xf0\xff\xff\xff\x86", b"N\x85"])
def test_an_array_has_as_many_numbers_as_bytes(tmp_path, shape):
    with pytest.raises(InputError, match="is damaged"):
        read_pickle(written(tmp_path, array_of(U1, shape)))


@pytest.mark.parametrize("keep", [0, 1, 10, 400, 650])
def test_a_pickle_that_is_cut_off_is_damaged(tmp_path, keep):
    with pytest.raises(InputError, match="is damaged"):
        read_pickle(written(tmp_path, python2_pickle(CONTENT)[:keep]))


def test_no_file_is_said(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        read_pickle(tmp_path / "none")


@pytest.mark.parametrize("end", [b"Ns", b"", b"(Nu"], ids=["one item", "cut off", "items without a key"])
def test_a_dictionary_whose_key_is_a_deep_tuple_is_refused_before_it_is_hashed(tmp_path, end):
    file = tmp_path / "train"
    file.write_bytes(b"\x80\x02})" + b"\x85" * 1_000_000 + end + b".")  # {(((...)))): None}
    with pytest.raises(InputError, match=r"train (is refused|is damaged|holds a)"):
        read_pickle(file)
