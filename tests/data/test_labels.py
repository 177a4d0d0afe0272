"""y of any kind becomes Python str or int, the user's own."""

from __future__ import annotations

import enum

import numpy as np
import pytest
import torch

from protodrift.common.labels import sorted_labels
from protodrift.data import read_labels
from protodrift.errors import InputError


class Series:
    """As pandas' Series: not a list, turned into an array by numpy."""

    def __init__(self, values):
        self.values = np.array(values, dtype=object)

    def __array__(self, dtype=None, copy=None):
        return self.values

    def __len__(self):
        return len(self.values)


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        ([3, 1], (3, 1)),
        ((3, 1), (3, 1)),
        (range(2), (0, 1)),
        (["owl", "ému"], ("owl", "ému")),
        (["1", "2"], ("1", "2")),
        (np.array([3, 1], np.int8), (3, 1)),
        (np.array([3, 1], np.uint64), (3, 1)),
        (np.array(["owl", "emu"]), ("owl", "emu")),
        (np.array(["owl", "emu"], dtype=object), ("owl", "emu")),
        (Series(["owl", "emu"]), ("owl", "emu")),
        (Series([np.int64(7), 8]), (7, 8)),
        ([np.int64(7), np.int32(8)], (7, 8)),
        ([np.str_("a"), "b"], ("a", "b")),
        (torch.tensor([3, 1]), (3, 1)),
        ([-1, 10**30], (-1, 10**30)),
    ],
)
def test_labels_keep_their_value_and_become_plain_python(y, expected):
    labels = read_labels(y, 2)
    assert labels == expected
    assert {type(label) for label in labels} == {type(expected[0])}


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1, "a"], "labels mix int and str, for example 1 and 'a'"),
        (["a", np.int64(1)], "labels mix int and str, for example 1 and 'a'"),
        ([1.0, 2.0], r"got 1\.0 \(float\).*astype\(int\)"),
        (np.array([1.5, 2.5]), r"got 1\.5 \(float\)"),
        ([1, float("nan")], r"got nan \(float\)"),
        ([True, False], r"got True \(bool\)"),
        (np.array([True, False]), r"got True \(bool\)"),
        (torch.tensor([0.5, 1.0]), r"got 0\.5 \(float\)"),
        (["a", None], r"got None \(NoneType\)"),
        ([b"a", b"b"], r"got b'a' \(bytes\)"),
        ([1, 2, 3], "X has 2 images but y has 3 labels"),
        ([], "X has 2 images but y has 0 labels"),
        (np.zeros((2, 1), int), r"one-dimensional.*got shape \(2, 1\)"),
        (np.eye(2, dtype=int), r"one-dimensional.*got shape \(2, 2\)"),
        ("ab", r"one-dimensional.*got shape \(\)"),
        (7, r"one-dimensional.*got shape \(\)"),
        (None, "y is missing"),
    ],
)
def test_unusable_labels_are_refused_and_shown(y, message):
    with pytest.raises(InputError, match=message):
        read_labels(y, 2)


def test_enums_give_their_plain_value():
    class Bird(enum.IntEnum):
        OWL = 4

    class Name(str, enum.Enum):
        EMU = "emu"

    assert read_labels([Bird.OWL, 3], 2) == (4, 3)
    assert list(map(type, read_labels([Bird.OWL, 3], 2))) == [int, int]
    assert list(map(type, read_labels([Name.EMU, "owl"], 2))) == [str, str]
    assert read_labels([Name.EMU, "owl"], 2) == ("emu", "owl")


def test_ints_sort_by_value_and_strings_by_letter():
    assert sorted_labels([100, 20, -3, 20]) == (-3, 20, 100)
    assert sorted_labels(["100", "20", "20"]) == ("100", "20")
