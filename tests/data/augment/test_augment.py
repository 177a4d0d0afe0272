"""Operations against Pillow, image by image; policies against their papers; training with them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from protodrift.common.config import decode, encode
from protodrift.data import (
    AutoAugment,
    ColorJitter,
    Composed,
    CropFlip,
    Cutout,
    Examples,
    InputSpec,
    RandomCropFlip,
    TrivialAugment,
)
from protodrift.data.augment.operations import OPERATIONS
from protodrift.data.augment.policies import CIFAR10_POLICY, _wide
from protodrift.data.views import share_of
from protodrift.errors import InputError
from protodrift.experiments.recipe import POLICIES
from protodrift.experiments.recipes import get_recipe
from protodrift.experiments.settings import with_settings
from protodrift.methods import METHODS
from protodrift.networks import build_embedder
from protodrift.training.config import Training
from protodrift.training.trainer import Trained, train_network
from tests.penalties.conftest import Notebook

NAMES = list(OPERATIONS)


def resized(values: np.ndarray, height: int, width: int) -> np.ndarray:
    return np.array(Image.fromarray(values.astype(np.uint8)).resize((width, height), Image.Resampling.BILINEAR))


def photos(count: int, height: int, width: int, channels: int = 3) -> torch.Tensor:
    """Noise, smooth images, few levels, one level: all kinds of histograms."""
    g = np.random.RandomState(0)
    noise = g.randint(0, 256, (count, channels, height, width))
    coarse = g.randint(0, 256, (count, channels, 4, 4))
    smooth = np.stack([[resized(channel, height, width) for channel in image] for image in coarse])
    kinds = [noise, smooth, noise // 64 * 60 + 30, np.full_like(noise, 77), smooth // 4 + 100]
    return torch.from_numpy(np.stack([kinds[i % 5][i] for i in range(count)]).astype(np.uint8))


def pillow(name: str, image: torch.Tensor, v: float, fill: int) -> np.ndarray:
    """The operation as the policies' own code calls Pillow."""
    pixels = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    color = (fill,) * 3 if pixels.shape[2] == 3 else fill

    def moved(*matrix):
        kind, nearest = Image.Transform.AFFINE, Image.Resampling.NEAREST
        return picture.transform(picture.size, kind, matrix, nearest, fillcolor=color)

    result = {
        "Identity": lambda: picture,
        "ShearX": lambda: moved(1, v, 0, 0, 1, 0),
        "ShearY": lambda: moved(1, 0, 0, v, 1, 0),
        "TranslateX": lambda: moved(1, 0, -int(v), 0, 1, 0),
        "TranslateY": lambda: moved(1, 0, 0, 0, 1, -int(v)),
        "Rotate": lambda: picture.rotate(v, Image.Resampling.NEAREST, fillcolor=color),
        "Brightness": lambda: ImageEnhance.Brightness(picture).enhance(1 + v),
        "Color": lambda: ImageEnhance.Color(picture).enhance(1 + v),
        "Contrast": lambda: ImageEnhance.Contrast(picture).enhance(1 + v),
        "Sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(1 + v),
        "Posterize": lambda: ImageOps.posterize(picture, int(v)),
        "Solarize": lambda: ImageOps.solarize(picture, v),
        "AutoContrast": lambda: ImageOps.autocontrast(picture),
        "Equalize": lambda: ImageOps.equalize(picture),
        "Invert": lambda: ImageOps.invert(picture),
    }[name]()
    found = np.array(result)
    return found[None] if found.ndim == 2 else found.transpose(2, 0, 1)


STRENGTHS = {
    "Shear": [-0.99, -0.3, -0.033, 0.0, 0.17, 0.99],
    "Translate": [-32.0, -14.4, -1.07, 0.0, 3.9, 13.0],
    "Rotate": [-135.0, -90.0, -4.5, 0.0, 13.5, 67.5, 90.0, 121.5],
    "Posterize": [2.0, 4.0, 7.0, 8.0],
    "Solarize": [0.0, 63.75, 128.0, 255.0],
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("height", "width", "channels"), [(32, 32, 3), (24, 40, 3), (17, 9, 1), (2, 5, 3)])
def test_operations_are_pillows_bit_for_bit(name, height, width, channels):
    images = photos(5, height, width, channels)
    strengths = STRENGTHS.get(name.rstrip("XY"), [-0.99, -0.9, -0.1, 0.0, 0.33, 0.7, 0.99])
    for at in range(len(strengths)):  # every image meets every strength, and all are different in a batch
        strength = torch.tensor([strengths[(at + i) % len(strengths)] for i in range(5)], dtype=torch.float64)
        fill = 128 * (at % 2)
        found = OPERATIONS[name](images, strength, fill)
        for i in range(5):
            expected = pillow(name, images[i], float(strength[i]), fill)
            assert np.array_equal(found[i].numpy(), expected), (name, i, float(strength[i]))


def every_call(policy: Composed, images: torch.Tensor, seed: int = 0) -> tuple[torch.Tensor, tuple]:
    count, _, height, width = images.shape
    drawn = policy.draw(count, height, width, torch.Generator().manual_seed(seed))
    return policy(images, torch.Generator().manual_seed(seed)), drawn


def test_trivial_augment_applies_what_it_drew_evenly():
    policy, images = TrivialAugment(fill=9), photos(200, 8, 8)
    views, (which, strength) = every_call(policy, images)
    for i in range(200):
        assert np.array_equal(views[i].numpy(), pillow(NAMES[which[i]], images[i], float(strength[i]), 9))
    which, _ = policy.draw(2800, 8, 8, torch.Generator().manual_seed(1))
    counts = Counter(NAMES[k] for k in which.tolist())
    assert counts.keys() == set(NAMES) - {"Invert"}
    assert all(abs(count - 200) < 5 * math.sqrt(200) for count in counts.values())


def test_strengths_of_trivial_augment_are_the_wide_ones():
    table, signed = _wide(31)
    rows = {name: table[i] for i, name in enumerate(NAMES[:14])}
    assert {name for name, sign in zip(NAMES, signed.tolist(), strict=False) if sign} == {
        "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness",
    }  # fmt: skip
    for name, most in {"ShearX": 0.99, "TranslateY": 32, "Rotate": 135, "Color": 0.99, "Sharpness": 0.99}.items():
        np.testing.assert_allclose(rows[name], np.linspace(0, most, 31))
    np.testing.assert_allclose(rows["Solarize"], np.linspace(255, 0, 31), atol=1e-12)
    assert rows["Posterize"].tolist() == [8 - round(i / 5) for i in range(31)]
    _, strength = TrivialAugment().draw(5000, 32, 32, torch.Generator().manual_seed(0))
    assert float((strength < 0).float().mean()) == pytest.approx(9 / 14 / 2 * 30 / 31, abs=0.03)


def test_auto_augment_applies_pairs_of_its_policy_with_their_probabilities():
    policy, images = AutoAugment(fill=128), photos(200, 32, 32)
    views, drawn = every_call(policy, images)
    first, v1, second, v2 = drawn
    for i in range(200):
        middle = torch.from_numpy(pillow(NAMES[first[i]], images[i], float(v1[i]), 128).copy())
        assert np.array_equal(views[i].numpy(), pillow(NAMES[second[i]], middle, float(v2[i]), 128))
    count = 100_000
    first, v1, second, v2 = policy.draw(count, 32, 32, torch.Generator().manual_seed(1))
    for ops, half in ((first, 0), (second, 1)):
        for name in set(NAMES) - {"Identity"}:
            expected = sum(pair[half][1] for pair in CIFAR10_POLICY if pair[half][0] == name) / 25
            assert float((ops == NAMES.index(name)).float().mean()) == pytest.approx(expected, abs=0.006)
    for name, values in {
        "Rotate": {30 * 2 / 9}, "ShearY": {0.3 * 7 / 9, 0.3 * 8 / 9},
        "TranslateX": {32 * 150 / 331, 32 * 150 / 331 * 8 / 9},
        "Posterize": {8 - round(4 * 7 / 9)}, "Solarize": {255 * 7 / 9, 255 / 9, 255 * 4 / 9, 255 * 6 / 9},
        "Contrast": {0.6, 0.7}, "Brightness": {0.3, 0.6, 0.7, 0.9},
    }.items():  # fmt: skip
        found = {
            round(abs(float(v)), 6)
            for ops, strength in ((first, v1), (second, v2))
            for v in strength[ops == NAMES.index(name)].unique()
        }
        assert found == {round(value, 6) for value in values}, name
    assert len(CIFAR10_POLICY) == 25


def test_color_jitter_is_pillows_enhancement_by_an_even_factor():
    jitter, images = ColorJitter(brightness=63 / 255), photos(60, 16, 16)
    views, (bright, *others) = every_call(jitter, images)
    for i in range(60):
        assert np.array_equal(views[i].numpy(), pillow("Brightness", images[i], float(bright[i]), 0))
    assert not any(bool(other.any()) for other in others)
    bright, *_ = jitter.draw(20_000, 8, 8, torch.Generator().manual_seed(0))
    assert float(bright.abs().max()) <= 63 / 255
    np.testing.assert_allclose(np.histogram(bright, bins=10)[0], 2000, atol=250)
    full, drawn = every_call(ColorJitter(0.4, 0.3, 0.2), images)
    for i in range(20):
        image = images[i]
        for name, strength in zip(("Brightness", "Contrast", "Color"), drawn, strict=True):
            image = torch.from_numpy(pillow(name, image, float(strength[i]), 0).copy())
        assert torch.equal(full[i], image)


@pytest.mark.parametrize("size", [1, 7, 8])
def test_cutout_paints_a_square_whose_center_is_any_pixel(size):
    cutout, images = Cutout(size, fill=3), photos(400, 6, 9)
    views, (rows, columns) = every_call(cutout, images)
    for image, view, y, x in zip(images, views, rows.tolist(), columns.tolist(), strict=True):
        expected = image.clone()
        top, left = y - size // 2, x - size // 2
        expected[:, max(0, top) : top + size, max(0, left) : left + size] = 3
        assert torch.equal(view, expected)
    assert set(rows.tolist()) == set(range(6))
    assert set(columns.tolist()) == set(range(9))


def test_parts_are_composed_in_order_with_the_sizes_they_see():
    images = photos(30, 40, 40)
    composed = Composed((RandomCropFlip(32), TrivialAugment(), Cutout(8)))
    views, drawn = every_call(composed, images)
    g = torch.Generator().manual_seed(0)
    expected = images
    for part in composed.parts:
        expected = part(expected, g)
    assert torch.equal(views, expected)
    assert torch.equal(composed.apply(images, drawn), expected)
    own = slice(7, 19)
    assert torch.equal(composed.apply(images[own], share_of(drawn, own)), expected[own])  # a rank's share
    assert composed.can_be_shared
    assert composed.size_of(40, 40) == (32, 32)
    assert decode(encode(composed)) == composed
    with pytest.raises(InputError, match=r"parts=.*must be some augmentations"):
        Composed((CropFlip, TrivialAugment()))


@pytest.mark.parametrize("augment", [TrivialAugment(), AutoAugment(), ColorJitter(), Cutout()])
def test_what_is_not_whole_gray_levels_is_refused(augment):
    for images in (photos(4, 8, 8).float(), photos(4, 8, 8).repeat(1, 2, 1, 1)):
        with pytest.raises(InputError, match=r"uint8.*one or three channels; got (float32 in 3|uint8 in 6)"):
            augment(images, torch.Generator())


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "none"])
def test_recipes_choose_a_policy_by_name(policy):
    recipe = with_settings(get_recipe("cifar100-ten"), {"policy": policy})
    view = replace(recipe, policy="none").augment
    assert recipe.augment == Composed((view, *POLICIES[policy]))
    with pytest.raises(InputError, match="set view to cifar"):
        _ = replace(recipe, view="plain").augment
    with pytest.raises(InputError, match="trivial"):
        with_settings(recipe, {"policy": "trivail"})


def test_a_training_with_policies_resumes_bit_for_bit():
    images = photos(40, 16, 16)
    examples = Examples(images, tuple(i % 2 for i in range(40)))
    spec = InputSpec((3, 16, 16), "uint8", 0.0, 255.0)
    network = build_embedder("convnet", spec, embedding_dim=None, normalize=False, seed=0)
    network.standardize.fit(images)
    options = {
        "task": 1,
        "method": METHODS["LwF+NCM"],
        "training": Training(epochs=3, batch_size=16, epoch="shuffled"),
        "augment": Composed((CropFlip(2), *POLICIES["auto"], *POLICIES["trivial+cutout"])),
        "seed": 0,
    }

    def stop(progress):
        if progress.epoch == 2:
            raise KeyboardInterrupt

    notebook, start = Notebook(), Trained(network.eval())
    with pytest.raises(KeyboardInterrupt):
        train_network(start, examples, checkpoint=notebook, on_progress=stop, **options)
    resumed = train_network(start, examples, checkpoint=notebook, **options)
    undisturbed = train_network(start, examples, **options)
    assert resumed.history == undisturbed.history
    for name, value in undisturbed.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], value), name
