"""CropFlip: every view is a real crop of the padded image, mirrored or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from protodrift import CropFlip
from protodrift.data import InputSpec
from protodrift.data.transforms import default_augmentation
from protodrift.errors import InputError


def images_like(shape, dtype):
    values = torch.from_numpy(np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8))
    return values if dtype == torch.uint8 else values.float() / 255


def crops(image: np.ndarray, pad: int, flip: bool) -> list[np.ndarray]:
    """All crops by naive loops, straight and mirrored."""
    _, height, width = image.shape
    mode = "reflect" if pad < min(height, width) else "edge"
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode=mode)
    result = []
    for top in range(2 * pad + 1):
        for left in range(2 * pad + 1):
            crop = padded[:, top : top + height, left : left + width]
            result.append(crop)
            if flip:
                result.append(crop[:, :, ::-1])
    return result


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(
    ("shape", "pad"), [((12, 3, 9, 7), 2), ((12, 1, 5, 6), 4), ((6, 2, 3, 3), 4), ((6, 3, 8, 8), 0)]
)
def test_every_view_is_a_crop_or_mirror_of_its_own_image(shape, pad, flip, dtype):
    images = images_like(shape, dtype)
    views = CropFlip(pad=pad, flip=flip)(images, torch.Generator().manual_seed(1))
    assert views.shape == images.shape
    assert views.dtype == dtype
    for image, view in zip(images.numpy(), views.numpy(), strict=True):
        assert any(np.array_equal(view, crop) for crop in crops(image, pad, flip))


def test_views_follow_from_the_generator_alone():
    images = images_like((16, 3, 8, 8), torch.uint8)
    first, again, other = (CropFlip(2)(images, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_about_half_of_the_images_are_mirrored_and_the_input_is_left_alone():
    images = images_like((400, 1, 4, 4), torch.uint8)
    before = images.clone()
    views = CropFlip(pad=0)(images, torch.Generator().manual_seed(0))
    mirrored = (views == images.flip(3)).flatten(1).all(dim=1).sum()
    assert 150 < mirrored < 250
    assert torch.equal(images, before)


@pytest.mark.parametrize("options", [{"pad": -1}, {"pad": 1.5}, {"flip": "no"}])
def test_wrong_options_are_refused(options):
    with pytest.raises(InputError, match=f"CropFlip: {next(iter(options))}="):
        CropFlip(**options)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3, 32, 32), CropFlip(4)), ((3, 64, 32), CropFlip(4)), ((1, 64, 64), None), ((3, 28, 28), None), ((64,), None)],
)
def test_only_colour_images_of_some_size_are_augmented_by_default(shape, expected):
    assert default_augmentation(InputSpec(shape, "uint8", 0, 255)) == expected
