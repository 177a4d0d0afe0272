"""Task streams: how classes are cut, and every way to walk through them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from protodrift import Dataset, TaskStream
from protodrift.data import load_digits
from protodrift.data.tasks import format_split, split_sizes
from protodrift.errors import InputError


def dataset_of(labels, with_test=False):
    labels = list(labels)
    X = np.arange(2 * len(labels), dtype=float)[:, None]
    return Dataset(X, labels * 2, *((X, labels * 2) if with_test else ()), name="toy")


@pytest.mark.parametrize(
    ("count", "cut", "split"),
    [
        (200, {"tasks": 6}, "35 + 5x33"),
        (102, {"tasks": 6}, "6x17"),
        (10, {"tasks": 1}, "10"),
        (10, {"tasks": 10}, "10x1"),
        (11, {"tasks": 3}, "5 + 2x3"),
        (100, {"first": 50, "step": 5}, "50 + 10x5"),
        (100, {"first": 50, "step": 20}, "50 + 2x20 + 10"),
        (7, {"first": 7, "step": 3}, "7"),
        (7, {"first": 1, "step": 100}, "1 + 6"),
    ],
)
def test_every_class_is_in_one_task_of_the_stated_size(count, cut, split):
    stream = TaskStream(dataset_of(range(count)), **cut)
    assert stream.split == split
    assert sorted(stream.classes) == list(range(count))
    assert split in repr(stream)
    assert format_split(split_sizes(count, **cut)) == split


def test_a_seed_orders_classes_as_the_field_does():
    names = [f"{i:03}" for i in range(100)]
    stream = TaskStream(dataset_of(names), tasks=10, class_order=1993)
    order = np.random.RandomState(1993).permutation(100)
    for t, task in enumerate(stream):
        assert task.classes == tuple(sorted(names[i] for i in order[10 * t : 10 * t + 10]))
    assert order[:5].tolist() == [68, 56, 78, 8, 23]  # the order that iCaRL and its successors print


def test_numpy_seeds_and_labels_are_taken():
    assert TaskStream(dataset_of(range(6)), tasks=2, class_order=np.int64(3)).classes == (
        TaskStream(dataset_of(range(6)), tasks=2, class_order=3).classes
    )
    stream = TaskStream(dataset_of(range(4)), tasks=2, class_order=np.array([3, 0, 1, 2]))
    assert stream.task_classes == ((0, 3), (1, 2))
    explicit = TaskStream(dataset_of(range(4)), classes=np.array([[3, 0], [1, 2]]))
    assert explicit.task_classes == ((0, 3), (1, 2))
    assert {type(label) for label in stream.classes + explicit.classes} == {int}


def test_a_given_order_and_explicit_lists_are_kept():
    birds = dataset_of(["owl", "emu", "jay", "ibis"])
    assert TaskStream(birds, tasks=2, class_order=["owl", "ibis", "emu", "jay"]).task_classes == (
        ("ibis", "owl"),
        ("emu", "jay"),
    )
    stream = TaskStream(birds, classes=[["owl"], ("jay", "emu")])
    assert stream.task_classes == (("owl",), ("emu", "jay"))
    assert "ibis" not in stream.classes


def test_int_labels_sort_by_value_not_as_text():
    assert TaskStream(dataset_of([100, 20, 3, 1000]), tasks=2).task_classes == ((3, 20), (100, 1000))


def test_a_task_holds_exactly_its_classes_images():
    stream = TaskStream(dataset_of(["b", "a", "c"], with_test=True), tasks=3)
    task = stream[1]
    assert (task.index, task.classes, task.data.labels) == (2, ("b",), ("b", "b"))
    assert task.data.images.flatten().tolist() == [0, 3]
    assert task.test is not None
    assert task.test.labels == ("b", "b")
    assert TaskStream(dataset_of("ab"), tasks=2)[0].test is None
    assert repr(task) == "Task(2: 1 classes, 2 images)"


def test_a_stream_can_be_walked_twice_and_nested():
    stream = TaskStream(dataset_of(range(6)), tasks=3)
    indices = [task.index for task in stream]
    assert indices == [task.index for task in stream] == [1, 2, 3]
    pairs = [(a.index, b.index) for a in stream for b in stream]
    assert pairs == list(itertools.product([1, 2, 3], repeat=2))


def test_indices_count_as_in_a_list():
    stream = TaskStream(dataset_of(range(6)), tasks=3)
    assert len(stream) == 3
    assert stream[-1].classes == stream[2].classes == (4, 5)
    for outside in (3, -4):
        with pytest.raises(IndexError):
            stream[outside]


@pytest.mark.parametrize(
    ("part", "indices"),
    [
        (slice(1, None), [2, 3, 4, 5]),
        (slice(None, 2), [1, 2]),
        (slice(-2, None), [4, 5]),
        (slice(1, -1), [2, 3, 4]),
        (slice(4, 2), []),
        (slice(None, 99), [1, 2, 3, 4, 5]),
    ],
)
def test_a_slice_is_a_stream_whose_tasks_keep_their_index(part, indices):
    stream = TaskStream(dataset_of(range(5)), tasks=5)
    assert [task.index for task in stream[part]] == indices
    assert [task.classes for task in stream[part]] == [(i - 1,) for i in indices]
    assert len(stream[part]) == len(indices)


def test_a_slice_of_a_slice_keeps_indices_too():
    assert [t.index for t in TaskStream(dataset_of(range(6)), tasks=6)[1:][2:4]] == [4, 5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "in one way: tasks=6, or first=50 with step=5"),
        ({"tasks": 2, "first": 1, "step": 1}, "in one way"),
        ({"tasks": 2, "classes": [["a"]]}, "in one way"),
        ({"tasks": 0}, "cannot be cut into 0 tasks"),
        ({"tasks": 4}, "3 classes cannot be cut into 4 tasks"),
        ({"tasks": 1.5}, "tasks=1.5 must be a whole number"),
        ({"tasks": True}, "tasks=True must be a whole number"),
        ({"first": 2}, "first and step go together"),
        ({"step": 2}, "first and step go together"),
        ({"first": 0, "step": 1}, "do not fit 3 classes"),
        ({"first": 4, "step": 1}, "do not fit 3 classes"),
        ({"first": 1, "step": 0}, "do not fit 3 classes"),
        ({"first": 1, "step": "2"}, "step='2' must be a whole number"),
        ({"classes": []}, "gives no task"),
        ({"classes": [["a"], []]}, "task 2 of classes=... is empty"),
        ({"classes": ["a", "b"]}, "task 1 of classes=... is 'a', not a list"),
        ({"classes": [["a"], ["z"]]}, "task 2 names class 'z', which the dataset does not have"),
        ({"classes": [["a"], ["b", "a"]]}, "class 'a' stands twice"),
        ({"classes": [["a"]], "class_order": 3}, "drop class_order"),
        ({"tasks": 1, "class_order": ["a", "b"]}, r"each of the 3 classes once; missing \['c'\], unknown \[\]"),
        ({"tasks": 1, "class_order": ["a", "b", "z"]}, r"missing \['c'\], unknown \['z'\]"),
        ({"tasks": 1, "class_order": ["a", "b", "c", "c"]}, "4 given"),
        ({"tasks": 1, "class_order": "abc"}, "must be a seed or the labels"),
    ],
)
def test_an_impossible_cut_says_why(options, message):
    with pytest.raises(InputError, match=message):
        TaskStream(dataset_of("abc"), **options)


def test_a_slice_with_a_stride_is_refused():
    with pytest.raises(InputError, match="step 1 only"):
        TaskStream(dataset_of("abc"), tasks=3)[::2]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"tasks": 2, "class_order": 99999999999}, "class_order=99999999999 is no seed"),
        ({"classes": 5}, "classes=5 must be the classes of each task"),
        ({"classes": [[0, [1]], [2, 3]]}, r"task 1 names class \[1\]"),
    ],
)
def test_streams_that_cannot_be(how, message):
    with pytest.raises(InputError, match=message):
        TaskStream(load_digits(), **how)


def test_some_classes_of_a_dataset_are_a_whole_dataset():
    some = load_digits().of_classes([0, 1])
    assert some.split(0.2).first_of_each(5, 5).classes == (0, 1)
    assert some.skipped == ()
