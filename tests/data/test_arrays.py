"""X of any kind becomes (N, C, H, W) or (N, D), or a clear error."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from protodrift.data import InputSpec, read_images
from protodrift.errors import InputError

rng = np.random.RandomState(0)
GRAY = rng.randint(0, 256, (5, 6, 7)).astype(np.uint8)
COLOR = rng.randint(0, 256, (5, 6, 7, 3)).astype(np.uint8)


@pytest.mark.parametrize(
    ("X", "expected"),
    [
        (GRAY, GRAY[:, None]),
        (GRAY[..., None], GRAY[:, None]),
        (GRAY[:, None], GRAY[:, None]),
        (COLOR, COLOR.transpose(0, 3, 1, 2)),
        (COLOR.transpose(0, 3, 1, 2), COLOR.transpose(0, 3, 1, 2)),
        (np.asfortranarray(COLOR), COLOR.transpose(0, 3, 1, 2)),
        (COLOR[::-1], COLOR[::-1].transpose(0, 3, 1, 2)),
        (rng.randint(0, 256, (2, 6, 7, 4)), None),
    ],
    ids=["NHW", "NHW1", "N1HW", "NHW3", "N3HW", "fortran order", "negative stride", "NHW4"],
)
def test_every_layout_becomes_channels_first(X, expected):
    expected = X.transpose(0, 3, 1, 2) if expected is None else expected
    images, spec = read_images(X)
    assert images.dtype == torch.uint8
    assert np.array_equal(images.numpy(), expected)
    assert spec.shape == expected.shape[1:]
    assert spec.is_image


@pytest.mark.parametrize(
    ("convert", "dtype"),
    [
        (lambda a: a.astype(np.int64), torch.uint8),
        (lambda a: a.astype(np.int16), torch.uint8),
        (lambda a: a.astype(np.uint16), torch.uint8),
        (lambda a: a.astype(np.uint64), torch.uint8),
        (lambda a: a.astype(">i4"), torch.uint8),
        (lambda a: a.astype(">f4"), torch.float32),
        (lambda a: a.astype(np.float64), torch.float32),
        (lambda a: a.astype(np.float16), torch.float32),
        (lambda a: a.astype(np.longdouble), torch.float32),
        (torch.from_numpy, torch.uint8),
        (lambda a: torch.from_numpy(a).float().requires_grad_(), torch.float32),
        (lambda a: torch.from_numpy(a).bfloat16(), torch.float32),
        (lambda a: torch.from_numpy(a).to(torch.uint16), torch.uint8),
        (lambda a: a.tolist(), torch.uint8),
        (lambda a: [row.tolist() for row in a.astype(float)], torch.float32),
        (lambda a: list(a), torch.uint8),
    ],
)
def test_every_kind_of_number_keeps_its_values(convert, dtype):
    images, _ = read_images(convert(GRAY.clip(0, 200) // 2 * 2))  # even values: exact in float16 and bfloat16
    assert images.dtype == dtype
    assert np.array_equal(images[:, 0].numpy().astype(int), GRAY.clip(0, 200) // 2 * 2)


def test_bools_are_zero_and_one():
    images, spec = read_images(GRAY > 100)
    assert np.array_equal(images[:, 0].numpy(), (GRAY > 100).astype(np.uint8))
    assert spec.scale == "uint8"


@pytest.mark.parametrize("X", [np.arange(12).reshape(4, 3), np.arange(12.0).reshape(4, 3), [[0, 1, 2]] * 4])
def test_two_axes_are_feature_vectors_in_float32(X):
    vectors, spec = read_images(X)
    assert vectors.dtype == torch.float32
    assert np.array_equal(vectors.numpy(), np.asarray(X, np.float32))
    assert spec.shape == (3,)
    assert not spec.is_image
    assert str(spec) == "vectors of 3 features"


@pytest.mark.parametrize("X", [GRAY.copy(), GRAY[:, None].astype(np.float32), torch.from_numpy(GRAY.copy())[:, None]])
def test_what_is_read_is_a_copy(X):
    images, _ = read_images(X)
    before = images.clone()
    X[:] = 0
    assert torch.equal(images, before)


@pytest.mark.parametrize("shape", [(2, 3, 5, 3), (2, 1, 4, 4), (2, 5, 6, 7), (2, 2, 9, 9)])
def test_ambiguous_channels_are_an_error_that_channels_settles(shape):
    X = rng.rand(*shape)
    with pytest.raises(InputError, match=r"(both|neither).*channels='first' or channels='last'"):
        read_images(X)
    assert read_images(X, channels="first")[1].shape == shape[1:]
    assert read_images(X, channels="last")[1].shape == (shape[3], *shape[1:3])


def test_a_known_spec_settles_what_is_ambiguous_by_itself():
    X = rng.rand(2, 3, 5, 3)
    _, first = read_images(X, channels="first")
    _, last = read_images(X, channels="last")
    assert np.allclose(read_images(X, spec=first)[0].numpy(), X)
    assert np.allclose(read_images(X, spec=last)[0].numpy(), X.transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([], "X is empty"),
        (np.zeros((0, 8, 8)), "X is empty"),
        (np.zeros((3, 0)), r"0 feature\(s\) \(shape=\(3, 0\)\) while a minimum of 1"),
        (np.zeros((3, 0, 8)), r"shape \(3, 0, 8\).*no pixels"),
        (np.zeros(8), r"shape \(8,\); accepted are .*X\[None\]"),
        (np.zeros((1, 2, 3, 4, 5)), r"shape \(1, 2, 3, 4, 5\); accepted are"),
        (5.0, r"shape \(\); accepted are"),
        (None, "dtype object; numbers are needed"),
        (["a.jpg", "b.jpg"], "dtype <U5; numbers are needed"),
        ([[1, 2], [3]], "not a rectangular array.*one size"),
        (np.array([np.zeros((2, 2)), np.zeros((3, 3))], dtype=object), "resized to one size"),
        (np.zeros((2, 4, 4), complex), "dtype complex128"),
        (torch.zeros(2, 4, 4, dtype=torch.complex64), "dtype torch.complex64"),
        (np.full((2, 4, 4), 256), r"0\.\.255, got 256\.\.256.*astype\('uint8'\)"),
        (np.full((2, 4, 4), -1), r"0\.\.255, got -1\.\.-1"),
    ],
)
def test_what_is_no_images_is_refused_with_its_shape_or_type(X, message):
    with pytest.raises(InputError, match=message):
        read_images(X)


def test_an_unknown_channels_word_is_refused():
    with pytest.raises(InputError, match="channels='middle'"):
        read_images(GRAY, channels="middle")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 4), (5, 6, 6, 3)])
def test_values_that_are_not_finite_are_counted_and_the_first_row_named(bad, shape):
    X = rng.rand(*shape)
    X[3].flat[1] = bad
    X[4].flat[0] = bad
    with pytest.raises(InputError, match=r"NaN or infinite values in 2 of 5 rows \(the first is row 3\)"):
        read_images(X)


def test_a_value_too_large_for_float32_is_reported_by_its_row():
    X = np.zeros((3, 4))
    X[1, 2] = 1e300
    with pytest.raises(InputError, match="the first is row 1"):
        read_images(X)


@pytest.mark.parametrize(
    ("low", "high", "scale"), [(0, 1, "unit"), (0, 16, "byte"), (0, 255, "byte"), (-1, 1, "free"), (0, 300, "free")]
)
def test_the_scale_of_floats_follows_from_their_range(low, high, scale):
    X = np.linspace(low, high, 32).reshape(2, 4, 4)
    spec = read_images(X)[1]
    assert (spec.scale, spec.low, spec.high) == (scale, low, high)


@pytest.mark.parametrize(
    ("first", "later", "accepted"),
    [
        ((0, 1), (0.2, 0.7), True),
        ((0.3, 0.6), (0, 1), True),
        ((0, 1), (0, 1.0005), True),
        ((0, 1), (0, 255), False),
        ((0, 1), (-1, 1), False),
        ((0, 255), (0, 200), True),
        ((0, 255), (0, 0), True),
        ((0, 255), (0, 1), False),
        ((0, 255), (-100, 255), False),
        ((-2, 2), (-3, 3), True),
        ((-2, 2), (0, 255), False),
        ((0, 0), (0, 1), True),
    ],
)
def test_later_floats_must_lie_in_the_range_of_the_first_task(first, later, accepted):
    spec = read_images(np.linspace(*first, 32).reshape(2, 4, 4))[1]
    X = np.linspace(*later, 16).reshape(1, 4, 4)
    if accepted:
        assert read_images(X, spec=spec)[1] is spec
    else:
        with pytest.raises(InputError, match=r"first task had .*[Ss]cale"):
            read_images(X, spec=spec)


def test_vectors_may_have_any_range():
    spec = read_images(np.zeros((2, 3)))[1]
    assert len(read_images(np.full((2, 3), 1e6), spec=spec)[0]) == 2


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((4, 9, 9), np.uint8), r"made for 8 x 8 images with 1 channel, uint8 pixels; got 4 9 x 9 .*Resize"),
        (np.zeros((4, 8, 8, 3), np.uint8), "got 4 8 x 8 images with 3 channels"),
        (np.zeros((4, 64), np.uint8), "got 4 vectors of 64 features"),
        (np.zeros((4, 8, 8)), "uint8 pixels, got float pixels.*Convert them as for the first task"),
        (np.zeros((8, 8), np.uint8), r"A single image needs a first axis: X\[None\]"),
        (np.zeros((8, 8, 1), np.uint8), r"A single image needs a first axis: X\[None\]"),
    ],
)
def test_later_images_must_look_like_those_of_the_first_task(X, message):
    spec = read_images(np.zeros((2, 8, 8), np.uint8))[1]
    with pytest.raises(InputError, match=message):
        read_images(X, spec=spec)


def test_uint8_after_floats_is_refused():
    spec = read_images(np.random.RandomState(0).rand(2, 8, 8))[1]
    with pytest.raises(InputError, match="got uint8 pixels"):
        read_images(np.zeros((2, 8, 8), np.uint8), spec=spec)


@pytest.mark.parametrize("X", [GRAY, COLOR, rng.rand(3, 5)])
def test_a_spec_survives_json(X):
    spec = read_images(X)[1]
    assert InputSpec.from_json(spec.to_json()) == spec
