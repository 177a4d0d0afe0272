"""Pickles are read without running anything."""

from __future__ import annotations

import pickle
import pickletools

import numpy as np
import pytest

from protodrift.data.datasets import pickles
from protodrift.data.datasets.pickles import read_pickle
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


U1 = b"cnumpy\ndtype\nU\x02u1K\0K\1\x87R"


def array_of(dtype: bytes, shape: bytes = b"K\x10\x85", content: bytes = bytes(range(1, 17))) -> bytes:
    """A pickle of an array, with any description of its type."""
    start = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01b\x87R(K\1"
    return start + shape + dtype + b"\x89U" + bytes([len(content)]) + content + b"tb."


MINUS = b"J\xff\xff\xff\xff"


@pytest.mark.parametrize(
    "state",
    [
        b"(K\3U\1|" + U1 + b"M\x20\x4e\x85\x86NN" + MINUS * 2 + b"K\0t",  # "u1" that is 20,000 of them
        b"(K\3U\1|NU\1x\x85}" + MINUS * 2 + b"K\0t",
        b"(K\3U\1|NNNM\x20\x4eK\1K\0t",  # "u1" of 20,000 bytes
        b"(K\3U\1|NNN" + MINUS * 2 + b"K\x3ft",
        b"(K\4U\1|NNN" + MINUS * 2 + b"K\0}t",
        b"(K\3U\1xNNN" + MINUS * 2 + b"K\0t",
        b"(K\3K\1NNN" + MINUS * 2 + b"K\0t",
        b"}",
        b")",
    ],
)
def test_only_plain_descriptions_of_numbers_reach_numpy(tmp_path, state):
    good = b"(K\3U\1|NNN" + MINUS * 2 + b"K\0tb"
    np.testing.assert_array_equal(read_pickle(written(tmp_path, array_of(U1 + good))), range(1, 17))
    with pytest.raises(InputError, match="refused: it asks for an array of uint8 with a description"):
        read_pickle(written(tmp_path, array_of(U1 + state + b"b")))


@pytest.mark.parametrize("shape", [b"K\x11\x85", b"K\x0f\x85", MINUS + b"J\xf0\xff\xff\xff\x86", b"K\x10", b"N\x85"])
def test_an_array_has_as_many_numbers_as_bytes(tmp_path, shape):
    with pytest.raises(InputError, match=r"cannot be uint8 of shape|a form that numpy does not write"):
        read_pickle(written(tmp_path, array_of(U1, shape)))


DEEP = 3_000_000  # a key of as many tuples, one in another, ends the process


@pytest.mark.parametrize(
    "tuples",
    [
        b")" + b"\x85" * DEEP,
        b")" + b"\x85q\0" * DEEP,
        b")" + b"\x85q\00h\0" * DEEP,  # each one kept, thrown away, and fetched
        b"(" * DEEP + b"t" * DEEP,
    ],
    ids=["plain", "kept", "fetched", "marked"],
)
def test_tuples_in_tuples_do_not_end_the_process(tmp_path, tuples):
    with pytest.raises(InputError, match=r"refused: it asks for more than 1,000 tuples"):
        read_pickle(written(tmp_path, b"\x80\x02}" + tuples + b"Ns."))


@pytest.mark.parametrize(
    "call",
    [
        b"cnumpy.core.multiarray\n_reconstruct\nU\1x)\x85U\1b\x87q\0R",
        b"cnumpy.core.multiarray\n_reconstruct\nU\1xK\0\x85)\x87q\0R",
        b"cnumpy\ndtype\nU\2u1))\x87q\0R",
        b"c_codecs\nencode\nX\1\0\0\0x)\x86q\0R",
    ],
)
def test_what_a_function_is_called_with_is_never_deep(tmp_path, call):
    """Tuples of calls are not counted, so they must not hold other tuples."""
    with pytest.raises(InputError, match="refused"):
        read_pickle(written(tmp_path, b"\x80\x02" + call + b"."))


def test_many_tuples_that_functions_are_called_with_are_read(tmp_path):
    names = [b"%d" % i for i in range(5_000)]  # each a call of _codecs.encode
    assert read_pickle(written(tmp_path, pickle.dumps(names, 2))) == names
    assert read_pickle(written(tmp_path, pickle.dumps([(i, i) for i in range(1_000)], 2)))[-1] == (999, 999)


@pytest.mark.parametrize("put", [b"r\xff\xff\xff\x7f", b"p2147483647\n"])
def test_a_memo_with_a_gap_is_refused_before_it_is_allocated(tmp_path, put):
    with pytest.raises(InputError, match="refused: it asks for a memo of 2,147,483,647 entries"):
        read_pickle(written(tmp_path, b"\x80\x02N" + put + b"."))


@pytest.mark.parametrize("protocol", range(5))
def test_the_screen_steps_from_instruction_to_instruction_as_pickletools_does(protocol):
    value = [
        1,
        -3,
        2**40,
        2**3000,
        1.5,
        "text\n",
        "x" * 300,
        b"y" * 300,
        None,
        True,
        {"k": (1, 2, 3, 4)},
        {1},
        frozenset(),
    ]
    content = pickle.dumps(value, protocol)
    seen = []

    class Steps(bytes):
        def __getitem__(self, key):
            if isinstance(key, int):
                seen.append(key)
            return super().__getitem__(key)

    pickles._screen(Steps(content))
    assert seen == [at for _, _, at in pickletools.genops(content)]


@pytest.mark.parametrize("keep", [0, 1, 10, 400, 650])
def test_a_pickle_that_is_cut_off_is_damaged(tmp_path, keep):
    with pytest.raises(InputError, match="is damaged"):
        read_pickle(written(tmp_path, python2_pickle(CONTENT)[:keep]))


def test_no_file_is_said(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        read_pickle(tmp_path / "none")
