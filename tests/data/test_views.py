"""Random views: every view is a real crop of its own image, mirrored or not, resized as an image library does it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from protodrift.common.config import decode
from protodrift.data import CropFlip, InputSpec, RandomCropFlip, ResizedCropFlip
from protodrift.data.views import default_augmentation
from protodrift.errors import InputError


def images_like(shape, dtype):
    values = torch.from_numpy(np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8))
    return values if dtype == torch.uint8 else values.float() / 255


def padded(image: np.ndarray, pad: int, mode: str) -> np.ndarray:
    kind = "constant" if mode == "zeros" else "reflect" if pad < min(image.shape[1:]) else "edge"
    return np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode=kind)


def crops(image: np.ndarray, height: int, width: int, flip: bool) -> list[np.ndarray]:
    """All crops of a size by naive loops, straight and mirrored."""
    result = []
    for top in range(image.shape[1] - height + 1):
        for left in range(image.shape[2] - width + 1):
            crop = image[:, top : top + height, left : left + width]
            result.append(crop)
            if flip:
                result.append(crop[:, :, ::-1])
    return result


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("mode", ["reflect", "zeros"])
@pytest.mark.parametrize(
    ("shape", "pad"), [((12, 3, 9, 7), 2), ((12, 1, 5, 6), 4), ((6, 2, 3, 3), 4), ((6, 3, 8, 8), 0)]
)
def test_every_view_is_a_crop_or_mirror_of_its_own_image(shape, pad, mode, flip, dtype):
    images = images_like(shape, dtype)
    views = CropFlip(pad=pad, flip=flip, mode=mode)(images, torch.Generator().manual_seed(1))
    assert views.shape == images.shape
    assert views.dtype == dtype
    for image, view in zip(images.numpy(), views.numpy(), strict=True):
        possible = crops(padded(image, pad, mode), *shape[2:], flip)
        assert any(np.array_equal(view, crop) for crop in possible)


@pytest.mark.parametrize("augment", [CropFlip(2), RandomCropFlip(5), ResizedCropFlip(5)])
def test_views_follow_from_the_generator_alone(augment):
    images = images_like((16, 3, 8, 8), torch.uint8)
    first, again, other = (augment(images, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("augment", [CropFlip(0), RandomCropFlip(4), ResizedCropFlip(4, (1.0, 1.0), (1.0, 1.0))])
def test_about_half_of_the_images_are_mirrored_and_the_input_is_left_alone(augment):
    images = images_like((400, 1, 4, 4), torch.uint8)
    before = images.clone()
    views = augment(images, torch.Generator().manual_seed(0))
    straight = (views == images).flatten(1).all(dim=1)
    mirrored = (views == images.flip(3)).flatten(1).all(dim=1)
    assert bool((straight | mirrored).all())
    assert 150 < mirrored.sum() < 250
    assert torch.equal(images, before)
    never = replace(augment, flip=False)(images, torch.Generator().manual_seed(0))
    assert torch.equal(never, images)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("shape", [(12, 3, 9, 7), (12, 1, 6, 11), (6, 3, 5, 5)])
def test_a_random_crop_is_a_window_of_its_own_image(shape, flip, dtype):
    images = images_like(shape, dtype)
    views = RandomCropFlip(5, flip)(images, torch.Generator().manual_seed(1))
    assert views.shape == (*shape[:2], 5, 5)
    assert views.dtype == dtype
    for image, view in zip(images.numpy(), views.numpy(), strict=True):
        assert any(np.array_equal(view, crop) for crop in crops(image, 5, 5, flip))


def test_random_crops_reach_every_place():
    image = torch.arange(9 * 7, dtype=torch.uint8).view(1, 1, 9, 7)
    views = RandomCropFlip(5, flip=False)(image.expand(600, 1, 9, 7), torch.Generator().manual_seed(0))
    assert set(views[:, 0, 0, 0].tolist()) == {7 * top + left for top in range(5) for left in range(3)}


def test_a_crop_larger_than_the_image_is_refused():
    with pytest.raises(InputError, match="cannot crop 8 x 8 out of images of 9 x 7"):
        RandomCropFlip(8)(images_like((2, 3, 9, 7), torch.uint8), torch.Generator())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("height", "width", "size"), [(20, 31, 9), (13, 13, 13), (7, 9, 24)])
def test_a_resized_crop_is_the_resized_window_of_its_own_image(height, width, size, dtype):
    augment = ResizedCropFlip(size)
    images = images_like((30, 3, height, width), dtype)
    views = augment(images, torch.Generator().manual_seed(3))
    assert views.dtype == dtype
    generator = torch.Generator().manual_seed(3)
    parts = torch.stack(augment.parts(len(images), height, width, generator), dim=1).tolist()
    mirrored = (torch.rand(len(images), generator=generator) < 0.5).tolist()
    for image, view, (top, left, tall, wide), mirror in zip(images, views, parts, mirrored, strict=True):
        window = image[None, :, top : top + tall, left : left + wide].float()
        expected = F.interpolate(window, (size, size), mode="bilinear", antialias=True)[0]
        expected = expected.flip(2) if mirror else expected
        slack = 0.501 if dtype == torch.uint8 else 1e-5  # rounding
        assert (view.float() - expected).abs().max() <= slack


def test_a_resized_crop_is_what_pillow_gives():
    smooth = np.add.outer(np.arange(40) * 3, np.arange(40) * 2).astype(np.uint8)
    noise = np.random.RandomState(0).randint(0, 256, (40, 40)).astype(np.uint8)
    for image in (smooth, noise):
        augment = ResizedCropFlip(16, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=False)
        view = augment(torch.from_numpy(image)[None, None], torch.Generator().manual_seed(0))[0, 0].numpy()
        pillow = np.asarray(Image.fromarray(image).resize((16, 16), Image.Resampling.BILINEAR))
        assert np.abs(view.astype(int) - pillow).max() <= 1  # Pillow rounds between rows and columns


@pytest.mark.parametrize(("height", "width"), [(256, 256), (200, 320), (40, 30)])
def test_parts_have_the_area_and_shape_asked_for(height, width):
    augment = ResizedCropFlip(8, scale=(0.1, 0.3), ratio=(0.5, 1.5))
    parts = torch.stack(augment.parts(2000, height, width, torch.Generator().manual_seed(0)), dim=1)
    areas = []
    for top, left, tall, wide in parts.tolist():
        assert 0 <= top <= top + tall <= height
        assert 0 <= left <= left + wide <= width
        # Sides are rounded to whole pixels: allow one pixel either way.
        assert (tall + 1) * (wide + 1) >= 0.1 * height * width
        assert (tall - 1) * (wide - 1) <= 0.3 * height * width
        assert (wide + 1) / (tall - 1) >= 0.5
        assert (wide - 1) / (tall + 1) <= 1.5
        areas.append(tall * wide / (height * width))
    assert abs(np.mean(areas) - 0.2) < 0.01  # uniform in (0.1, 0.3), for every such part fits
    assert min(areas) < 0.12
    assert max(areas) > 0.28


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(10, 100, (0, 43, 10, 13)), (100, 10, (43, 0, 13, 10))],  # 4/3 of the short side, in the middle
)
def test_where_no_part_fits_the_largest_center_part_is_taken(height, width, expected):
    augment = ResizedCropFlip(8, scale=(1.0, 1.0))
    parts = torch.stack(augment.parts(5, height, width, torch.Generator().manual_seed(0)), dim=1)
    assert [tuple(part) for part in parts.tolist()] == [expected] * 5


@pytest.mark.parametrize("options", [{"pad": -1}, {"pad": 1.5}, {"flip": "no"}, {"mode": "zero"}])
def test_wrong_options_are_refused(options):
    with pytest.raises(InputError, match=f"CropFlip: {next(iter(options))}="):
        CropFlip(**options)


@pytest.mark.parametrize(
    "options",
    [{"size": 0}, {"scale": (0.0, 1.0)}, {"scale": (0.5, 1.1)}, {"scale": 0.5}, {"ratio": (2.0, 1.0)}, {"ratio": (1,)},
     {"ratio": (1.0, math.inf)}],
)  # fmt: skip
def test_wrong_options_of_resized_crops_are_refused(options):
    with pytest.raises(InputError, match=f"ResizedCropFlip: {next(iter(options))}="):
        ResizedCropFlip(**options)


@pytest.mark.parametrize("augment", [CropFlip(2, mode="zeros"), RandomCropFlip(64), ResizedCropFlip(64, (0.2, 1.0))])
def test_views_come_back_from_json(augment):
    assert decode(augment.to_json()) == augment


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3, 32, 32), CropFlip(4)), ((3, 64, 32), CropFlip(4)), ((1, 64, 64), None), ((3, 28, 28), None), ((64,), None)],
)
def test_only_color_images_of_some_size_are_augmented_by_default(shape, expected):
    assert default_augmentation(InputSpec(shape, "uint8", 0, 255)) == expected
