"""Dataset, its split, Examples, and the digits that come with the install."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from protodrift import Dataset
from protodrift.data import Examples, InputSpec, load_digits
from protodrift.errors import InputError


def uneven(sizes):
    labels = np.repeat([f"c{i}" for i in range(len(sizes))], sizes)
    return Dataset(np.arange(len(labels), dtype=float)[:, None], labels)


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5, 0.99])
@pytest.mark.parametrize("sizes", [[1, 1, 1], [1, 2, 3, 50], [20, 20]])
def test_a_split_loses_nothing_shares_nothing_and_leaves_every_class_a_training_image(sizes, fraction):
    dataset = uneven(sizes)
    split = dataset.split(fraction, seed=3)
    assert split.test is not None
    train, test = (set(part.images[:, 0].int().tolist()) for part in (split.train, split.test))
    assert not train & test
    assert train | test == set(range(sum(sizes)))
    assert split.classes == dataset.classes
    for part in (split.train, split.test):
        assert all(
            dataset.train.labels[int(x)] == label for x, label in zip(part.images[:, 0], part.labels, strict=True)
        )
    for i, size in enumerate(sizes):
        assert split.test.labels.count(f"c{i}") == min(round(fraction * size), size - 1)


def test_a_split_follows_from_its_seed():
    first, again, other = (uneven([30, 30]).split(0.4, seed=s).train.images for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5])
def test_a_share_outside_0_and_1_is_refused(fraction):
    with pytest.raises(InputError, match="must be between 0 and 1"):
        uneven([3]).split(fraction)


def test_digits_are_all_there_and_use_the_whole_range(digits):
    assert digits.classes == tuple(range(10))
    assert digits.test is not None
    assert len(digits.train) + len(digits.test) == 1797
    assert digits.spec.shape == (1, 8, 8)
    assert (digits.train.images.min(), digits.train.images.max()) == (0, 255)
    assert torch.equal(load_digits().train.images, digits.train.images)
    assert not torch.equal(load_digits(split_seed=1).train.images, digits.train.images)


def test_digits_are_scikit_learns(digits):
    from sklearn.datasets import load_digits as original

    stretched = {
        tuple(np.rint(x * 255 / 16).astype(int)): int(y) for x, y in zip(*original(return_X_y=True), strict=True)
    }
    for image, label in zip(digits.train.images.flatten(1).tolist(), digits.train.labels, strict=True):
        assert stretched[tuple(image)] == label


def test_a_dataset_keeps_labels_and_describes_itself():
    dataset = Dataset(np.zeros((3, 4, 4), np.uint8), [100, 20, 100], np.zeros((1, 4, 4), np.uint8), [20], name="x")
    assert dataset.classes == (20, 100)
    assert repr(dataset) == "Dataset('x': 3 training images of 2 classes, 1 test images)"


@pytest.mark.parametrize(
    ("X_test", "y_test", "message"),
    [
        (np.zeros((1, 4, 4), np.uint8), ["c"], r"classes that the training images lack: \['c'\]"),
        (np.zeros((1, 5, 4), np.uint8), ["a"], "made for 4 x 4"),
        (np.zeros((2, 4, 4), np.uint8), ["a"], "2 images but y has 1"),
        (np.zeros((1, 4, 4), np.uint8), None, "y is missing"),
    ],
)
def test_test_images_must_fit_the_training_images(X_test, y_test, message):
    with pytest.raises(InputError, match=message):
        Dataset(np.zeros((2, 4, 4), np.uint8), ["a", "b"], X_test, y_test)


def test_examples_are_picked_and_joined_by_label():
    examples = Examples(torch.arange(4.0)[:, None], ("b", "a", "c", "b"))
    assert examples.of_classes(["b", "c"]).images.flatten().tolist() == [0, 2, 3]
    assert examples.of_classes(["b", "c"]).labels == ("b", "c", "b")
    joined = Examples.concatenate([examples, examples.of_classes("a")])
    assert joined.labels == ("b", "a", "c", "b", "a")
    assert joined.images.flatten().tolist() == [0, 1, 2, 3, 1]
    with pytest.raises(InputError, match="4 images but 1 labels"):
        Examples(torch.zeros(4, 1), ("a",))


def test_images_that_are_checked_already_are_not_copied():
    images = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    examples = Examples(images, ("a", "b", "a"))
    dataset = Dataset.of_examples(
        examples, None, spec=InputSpec((1, 4, 4), "uint8", 0, 255), name="x", skipped=["1.jpg"]
    )
    assert dataset.train.images.data_ptr() == images.data_ptr()
    assert dataset.train.ids is not None
    assert dataset.train.ids.tolist() == [0, 1, 2]
    assert dataset.classes == ("a", "b")
    assert dataset.split(0.5).skipped == ("1.jpg",)


def test_examples_must_look_as_the_spec_says_and_share_their_classes():
    train = Examples(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), ("a", "b"))
    with pytest.raises(InputError, match=r"the spec says \(3, 4, 4\)"):
        Dataset.of_examples(train, None, spec=InputSpec((3, 4, 4), "uint8", 0, 255), name="x")
    other = Examples(train.images, ("a", "c"))
    with pytest.raises(InputError, match="classes that the training images lack"):
        Dataset.of_examples(train, other, spec=InputSpec((1, 4, 4), "uint8", 0, 255), name="x")
