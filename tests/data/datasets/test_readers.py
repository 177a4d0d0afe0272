"""Each dataset in its publisher's layout: images, labels, split; and folders that are not as they should be."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from protodrift.data import read_image
from protodrift.data.datasets import DATASETS, check_dataset, find_dataset, load_dataset
from protodrift.data.datasets.counting import counts, require_counts
from protodrift.data.datasets.mnist import read_idx
from protodrift.data.tasks import TaskStream
from protodrift.errors import InputError, SkippedImagesWarning

from . import layouts


def load(name, data, **options):
    return load_dataset(name, data, check=False, **options)


def colors(examples) -> list[list[int]]:
    return examples.images[:, :, 2, 2].tolist()


# ---------------------------------------------------------------------------------------------------------- finding it


def test_the_data_directory_or_the_folder_itself_may_be_named(tmp_path):
    folder = layouts.cifar(tmp_path)
    assert find_dataset("cifar100", tmp_path) == folder
    assert find_dataset("cifar100", folder) == folder


def test_the_environment_and_then_the_users_cache_are_looked_in(tmp_path, monkeypatch):
    here = layouts.cifar(tmp_path / "cache-home" / "protodrift" / "data")
    assert find_dataset("cifar100") == here
    monkeypatch.setenv("PROTODRIFT_DATA", str(tmp_path / "named"))
    assert find_dataset("cifar100") == here
    there = layouts.cifar(tmp_path / "named")
    assert find_dataset("cifar100") == there


def test_a_directory_that_is_named_is_the_only_one_looked_in(tmp_path):
    layouts.cifar(tmp_path / "cache-home" / "protodrift" / "data")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="CIFAR-100 is not in"):
        find_dataset("cifar100", tmp_path / "empty")


@pytest.mark.parametrize("name", DATASETS)
def test_what_is_missing_is_named_with_its_place_and_its_publisher(tmp_path, name):
    dataset = DATASETS[name]
    with pytest.raises(InputError) as caught:
        load_dataset(name, tmp_path)
    said = str(caught.value)
    assert str(tmp_path / dataset.folders[0]) in said
    for needed in dataset.needs:
        assert needed in said
    if dataset.files:
        assert f"protodrift data prepare {name}" in said
        assert all(file.url in said for file in dataset.files)
    else:
        assert dataset.page in said


def test_a_folder_with_a_part_of_it_is_told_what_it_lacks(tmp_path):
    folder = layouts.cub(tmp_path)
    (folder / "train_test_split.txt").unlink()
    with pytest.raises(InputError, match=r"holds a part of it, but not train_test_split.txt"):
        load("cub200", tmp_path)


def test_a_home_directory_of_nobody_is_said(monkeypatch):
    with pytest.raises(InputError, match=r"--data .* is '~nosuchuser/x', but the system knows no home directory"):
        find_dataset("cifar100", "~nosuchuser/x")
    monkeypatch.setenv("PROTODRIFT_DATA", "~nosuchuser/x")
    with pytest.raises(InputError, match="PROTODRIFT_DATA is '~nosuchuser/x'"):
        find_dataset("cifar100")


def test_unknown_names_get_a_guess(tmp_path):
    with pytest.raises(InputError, match="Did you mean 'cifar100'"):
        load_dataset("cifar10", tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        load_dataset("cifar100", tmp_path / "none")


# ------------------------------------------------------------------------------------------------------- the datasets


@pytest.mark.parametrize("write", [layouts.python2_pickle, lambda content: pickle.dumps(content, 2)])
def test_cifar100(tmp_path, write):
    layouts.cifar(tmp_path, write)
    dataset = load("cifar100", tmp_path)
    parts = layouts.cifar_parts()
    assert dataset.train.labels == ("apple", "bee", "cup", "apple", "bee", "cup")
    np.testing.assert_array_equal(dataset.train.images, parts["train"][b"data"].reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(dataset.test.images, parts["test"][b"data"].reshape(-1, 3, 32, 32))
    assert dataset.train.images.dtype == torch.uint8


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("meta", {b"fine_label_names": [b"apple", b"apple", b"bee"]}, "twice"),
        ("meta", {b"label_names": []}, "no 'fine_label_names'"),
        ("meta", {b"\xff": []}, "no 'fine_label_names'"),
        ("meta", {b"fine_label_names": 3}, "not a list of names"),
        ("meta", {b"fine_label_names": [b"apple", 3]}, "not a list of names"),
        ("meta", {b"fine_label_names": [b"apple", b"\xff"]}, r"class name b'.xff' is not UTF-8"),
        ("train", {b"data": np.zeros((3, 3072), np.int32), b"fine_labels": [0, 1, 2]}, "an array of 'i4'"),
        ("train", {b"data": np.zeros((3, 3071), np.uint8), b"fine_labels": [0, 1, 2]}, "not uint8"),
        ("test", {b"data": np.zeros((3, 3072), np.uint8), b"fine_labels": [0, 1]}, "not as many fine_labels"),
        ("test", {b"data": np.zeros((3, 3072), np.uint8), b"fine_labels": [0, 1, 3]}, "not in 0..2"),
        ("test", [1, 2], "not CIFAR-100's dictionary"),
    ],
)
def test_cifar100_that_is_damaged_is_named(tmp_path, name, change, said):
    folder = layouts.cifar(tmp_path)
    (folder / name).write_bytes(pickle.dumps(change, 2))
    with pytest.raises(InputError, match=said) as caught:
        load("cifar100", tmp_path)
    assert str(folder / name) in str(caught.value)


def test_cub200(tmp_path):
    layouts.cub(tmp_path)
    dataset = load("cub200", tmp_path, size=8)
    assert dataset.classes == ("001.Bird_z", "002.Bird_y", "003.Bird_x")
    assert len(dataset.train) == 9
    assert dataset.test.labels == dataset.classes
    expected = [[60 * c, 60 * i, 100] for c in range(3) for i in range(3)]
    np.testing.assert_allclose(colors(dataset.train), expected, atol=4)
    np.testing.assert_allclose(colors(dataset.test), [[60 * c, 180, 100] for c in range(3)], atol=4)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("images.txt", "1 001.Bird_z/Bird_0.jpg\n1 001.Bird_z/Bird_1.jpg\n", "only 1 different ids"),
        ("images.txt", "1\n", "line 1: '1' has fewer than 2 parts"),
        ("image_class_labels.txt", "1 1\n", "disagree about image"),
        ("train_test_split.txt", "".join(f"{i} 2\n" for i in range(1, 13)), "not 0 or 1"),
        ("image_class_labels.txt", "".join(f"{i} 9\n" for i in range(1, 13)), "class 9, which classes.txt"),
        ("images.txt", "".join(f"{i} ../../etc/{i}.jpg\n" for i in range(1, 13)), "not below it"),
        ("images.txt", "".join(f"{i} /etc/{i}.jpg\n" for i in range(1, 13)), "in the folder 'etc', but"),
        ("images.txt", "".join(f"{i} 001.Bird_z/Bird_0.jpg\n" for i in range(1, 13)), "twice"),
        ("classes.txt", "1 001.Bird\n2 001.bird\n3 x\n", "differ only in case"),
    ],
)
def test_lists_of_cub200_that_are_damaged_are_named(tmp_path, file, content, said):
    folder = layouts.cub(tmp_path)
    (folder / file).write_text(content)
    with pytest.raises(InputError, match=said):
        load("cub200", tmp_path)


def test_a_label_of_cub200_that_is_not_its_folder_is_named(tmp_path):
    folder = layouts.cub(tmp_path)
    file = folder / "image_class_labels.txt"
    file.write_text(file.read_text().replace("\n2 1\n", "\n2 2\n").replace("\n5 2\n", "\n5 1\n"))  # the sums are right
    with pytest.raises(InputError, match=r"images/001.Bird_z/Bird_1.jpg is in .*'001.Bird_z', .*class '002.Bird_y'"):
        load("cub200", tmp_path)


def test_folders_of_cub200_that_differ_only_in_case_are_an_error(tmp_path):
    folder = layouts.cub(tmp_path)
    shutil.copytree(folder / "images" / "002.Bird_y", folder / "images" / "002.bird_y")
    with pytest.raises(InputError, match=r"'images/002.Bird_y' and 'images/002.bird_y', which differ only in case"):
        load("cub200", tmp_path)


def test_flowers102_trains_on_the_training_and_validation_parts(tmp_path):
    layouts.flowers(tmp_path)
    dataset = load("flowers102", tmp_path, size=8)
    assert dataset.train.labels == (1, 2, 1, 2)
    assert dataset.test.labels == (1, 1, 2, 2)
    np.testing.assert_allclose([c[0] for c in colors(dataset.train)], [30, 60, 90, 120], atol=4)


def test_flowers102_that_is_damaged_is_named(tmp_path):
    folder = layouts.flowers(tmp_path)
    whole = (folder / "setid.mat").read_bytes()
    (folder / "setid.mat").write_bytes(whole[:150])
    with pytest.raises(InputError, match=r"setid.mat (is damaged|has no variable)"):
        load("flowers102", tmp_path)
    shutil.copy(folder / "imagelabels.mat", folder / "setid.mat")
    with pytest.raises(InputError, match=r"setid.mat has no variable 'trnid'"):
        load("flowers102", tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("imagelabels.mat", {"labels": np.array(["a", "b"], object)}, "'labels' must be whole numbers, but .* object"),
        ("imagelabels.mat", {"labels": "abc"}, "'labels' must be whole numbers"),
        ("imagelabels.mat", {"labels": np.array([[1.0, np.nan]])}, "'labels' must be whole numbers, but .* nan"),
        ("imagelabels.mat", {"labels": np.array([[1.0, 2.5]])}, "'labels' must be whole numbers, but .* 2.5"),
        ("imagelabels.mat", {"labels": np.ones((2, 4))}, r"'labels' must be whole numbers, but .* shape \(2, 4\)"),
        ("setid.mat", {"trnid": "abc"}, "'trnid' must be whole numbers"),
    ],
)
def test_numbers_of_flowers102_that_are_none_are_named(tmp_path, file, content, said):
    from scipy.io import savemat

    folder = layouts.flowers(tmp_path)
    savemat(folder / file, content)
    with pytest.raises(InputError, match=f"{file} is damaged: {said}"):
        load("flowers102", tmp_path)


def test_whole_numbers_in_floating_point_are_read(tmp_path):
    from scipy.io import savemat

    folder = layouts.flowers(tmp_path)
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1.0, 2, 1, 2, 1, 1, 2, 2]])})
    assert load("flowers102", tmp_path, size=8).train.labels == (1, 2, 1, 2)


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (np.zeros((0,)), "00001.jpg has 0 classes, not one"),
        (np.array([1, 2]), "00001.jpg has 2 classes, not one"),
        ("abc", "'class' must be whole numbers"),
        (np.nan, "'class' must be whole numbers"),
    ],
)
def test_classes_of_cars196_that_are_none_are_named(tmp_path, label, said):
    from scipy.io import savemat

    folder = layouts.cars(tmp_path)
    table = np.empty((1, 2), [("class", object), ("fname", object)])
    table[0, :] = [(label, "00001.jpg"), (np.uint8(1), "00002.jpg")]
    savemat(folder / "devkit" / "cars_train_annos.mat", {"annotations": table})
    with pytest.raises(InputError, match=f"cars_train_annos.mat is damaged: {said}"):
        load("cars196", tmp_path)


@pytest.mark.parametrize("test_in_devkit", [False, True])
def test_cars196_keeps_the_publishers_order_of_classes(tmp_path, test_in_devkit):
    layouts.cars(tmp_path, test_in_devkit)
    dataset = load("cars196", tmp_path, size=8)
    assert dataset.classes == ("001.Zeta Coupe 2012", "002.Alfa Wagon 2007")
    assert dataset.train.labels == ("001.Zeta Coupe 2012", "002.Alfa Wagon 2007", "001.Zeta Coupe 2012")
    assert dataset.test.labels == ("002.Alfa Wagon 2007", "001.Zeta Coupe 2012")
    np.testing.assert_allclose([c[1] for c in colors(dataset.train)], [0, 40, 80], atol=4)


def test_caltech101_draws_thirty_training_images_a_class_by_seed(tmp_path):
    folder = layouts.caltech(tmp_path)
    scan = DATASETS["caltech101"].scan
    first, again, other = scan(folder, seed=1), scan(folder, seed=1), scan(folder, seed=2)
    assert first == again
    assert first.train != other.train
    assert sorted(first.train + first.test) == sorted(other.train + other.test)
    assert not set(first.train) & set(first.test)
    labels = [label for _, label in first.train]
    assert {label: labels.count(label) for label in set(labels)} == dict.fromkeys(
        ("accordion", "Faces", "Faces_easy", "yin_yang"), 30
    )
    assert scan(folder) == scan(folder, seed=0)


def test_a_file_more_in_one_class_of_caltech101_leaves_the_others_as_they_are(tmp_path):
    folder = layouts.caltech(tmp_path)
    before = DATASETS["caltech101"].scan(folder)
    layouts.photo(folder / "Faces" / "image_9999.jpg")
    after = DATASETS["caltech101"].scan(folder)
    assert [row for row in before.train if row[1] != "Faces"] == [row for row in after.train if row[1] != "Faces"]


def test_imagenet_subset_takes_the_first_classes_or_seeded_ones(tmp_path):
    layouts.imagenet(tmp_path)
    dataset = load("imagenet-subset", tmp_path, size=8, classes=3)
    assert dataset.classes == ("n00000000", "n00000001", "n00000002")
    assert (len(dataset.train), len(dataset.test)) == (9, 6)
    seeded = load("imagenet-subset", tmp_path, size=8, classes=3, seed=1993)
    order = np.random.RandomState(1993).permutation(5)[:3]
    assert seeded.classes == tuple(sorted(f"n{c:08d}" for c in order))
    for count in (6, 0, 2.5):
        with pytest.raises(InputError, match="the dataset has 5 classes"):
            load("imagenet-subset", tmp_path, classes=count)


def test_the_counts_of_imagenet_subset_go_with_its_number_of_classes(tmp_path):
    subset = DATASETS["imagenet-subset"]
    train, test = ["a"] * 1300 + ["b"] * 732, ["a"] * 50 + ["b"] * 50
    require_counts(subset, tmp_path, train, test, classes=2)
    with pytest.raises(InputError, match=r"test images 100 \(published: 5,000\), classes 2 \(published: 100\)"):
        require_counts(subset, tmp_path, train, test)


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (["a"] * 1300 + ["b"], r"smallest training class 1 \(published: 732\)"),
        (["a"] * 1301 + ["b"] * 732, r"largest training class 1,301 \(published: 1,300\)"),
        (["a"] * 1300, r"training classes 1 \(published: 2\), smallest training class 0 \(published: 732\)"),
        ([], r"training classes 0 \(published: 2\), smallest training class 0 \(published: 732\)"),
    ],
)
def test_a_class_of_imagenet_subset_has_732_to_1300_training_images(tmp_path, train, said):
    with pytest.raises(InputError, match=said):
        require_counts(DATASETS["imagenet-subset"], tmp_path, train, ["a"] * 50 + ["b"] * 50, classes=2)


def test_a_class_without_test_images_is_noticed_where_the_sum_is_right(tmp_path):
    train = ["a"] * 1300 + ["b"] * 732
    with pytest.raises(InputError, match=r"test classes 1 \(published: 2\)"):
        require_counts(DATASETS["imagenet-subset"], tmp_path, train, ["a"] * 100, classes=2)


def test_a_check_of_imagenet_subset_sees_an_empty_class_folder(tmp_path):
    folder = layouts.imagenet(tmp_path)
    shutil.rmtree(folder / "train" / "n00000003")
    (folder / "train" / "n00000003").mkdir()
    found = check_dataset("imagenet-subset", tmp_path)
    assert ("classes", 5, 100) in found.counts
    assert ("training classes", 4, 100) in found.counts
    assert ("smallest training class", 0, 732) in found.counts
    assert ("largest training class", 3, None) in found.counts


def test_tiny_imagenet_reads_the_annotations_of_its_validation_images(tmp_path):
    folder = layouts.tiny_imagenet(tmp_path)
    dataset = load("tiny-imagenet", tmp_path)
    assert dataset.train.images.shape == (6, 3, 64, 64)
    assert dataset.test.labels == ("n00000000", "n00000001")
    np.testing.assert_allclose([c[0] for c in colors(dataset.test)], [0, 90], atol=4)
    (folder / "val" / "val_annotations.txt").write_text("../../train/x.JPEG\tn00000000\t0\t0\t1\t1\n")
    with pytest.raises(InputError, match="not a file of val/images"):
        load("tiny-imagenet", tmp_path)


def test_tiny_imagenet_compares_its_annotations_with_its_folder(tmp_path):
    folder = layouts.tiny_imagenet(tmp_path)
    file = folder / "val" / "val_annotations.txt"
    whole = file.read_text()
    layouts.photo(folder / "val" / "images" / "new.JPEG")
    (folder / "val" / "images" / "val_1.JPEG").unlink()
    found = check_dataset("tiny-imagenet", tmp_path)
    assert (found.missing, found.extra) == (("val/images/val_1.JPEG",), ("val/images/new.JPEG",))
    assert "train/n00000000/n00000000_boxes.txt" in found.ignored
    file.write_text(whole + whole.splitlines(keepends=True)[0])
    with pytest.raises(InputError, match=r"the lists name val/images/val_0.JPEG twice"):
        load("tiny-imagenet", tmp_path)
    file.write_text(whole.replace("\tn0", "\tN0"))
    with pytest.raises(InputError, match="differ only in case"):
        load("tiny-imagenet", tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("compressed", [True, False])
def test_mnist_files_are_read_compressed_or_not(tmp_path, name, compressed):
    layouts.mnist(tmp_path, DATASETS[name].folders[0], compressed)
    dataset = load(name, tmp_path)
    rng = np.random.RandomState(0)
    np.testing.assert_array_equal(dataset.train.images[:, 0], rng.randint(0, 256, (6, 28, 28)))
    assert dataset.train.labels == (0, 1, 0, 1, 0, 1)
    assert dataset.test.images.shape == (4, 1, 28, 28)


def test_idx_files_that_are_damaged_are_named(tmp_path):
    folder = layouts.mnist(tmp_path)
    file = folder / "train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    for content in (whole[:-20], b"", b"\x1f\x8b", layouts.idx(np.zeros((2, 3), np.uint8))[:-1], b"\0\0\x0d\x01" * 4):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"train-images-idx3-ubyte.gz is damaged"):
            read_idx(file)
    file.write_bytes(layouts.idx(np.zeros((5, 28, 28), np.uint8)))
    with pytest.raises(InputError, match="one label per image"):
        load("mnist", tmp_path)


# ------------------------------------------------------------------------------------------------------------- options


def test_squash_and_center_are_the_two_fits(tmp_path):
    folder = layouts.cub(tmp_path, classes=1, images=2)
    file = folder / "images" / "001.Bird_z" / "Bird_0.jpg"
    picture = np.zeros((8, 16, 3), np.uint8)
    picture[:, 4:12] = 255  # the middle half is white: all that "center" keeps
    from PIL import Image

    Image.fromarray(picture).save(file, "PNG")
    squashed = load("cub200", tmp_path, size=8, fit="squash").train.images[0]
    centered = load("cub200", tmp_path, size=8, fit="center").train.images[0]
    assert centered.min() > 100
    assert squashed[:, :, 0].max() < 100
    np.testing.assert_array_equal(centered, read_image(file, 8).transpose(2, 0, 1))
    with pytest.raises(InputError, match="fit='stretch'"):
        load("cub200", tmp_path, fit="stretch")


def test_photos_are_256_by_256_if_nothing_else_is_asked_for(tmp_path):
    layouts.cub(tmp_path)
    assert load("cub200", tmp_path).spec.shape == (3, 256, 256)


@pytest.mark.parametrize("size", [0, -1, 2.5, True, 10**6])
def test_sizes_are_checked(tmp_path, size):
    layouts.cifar(tmp_path)
    with pytest.raises(InputError, match="whole number of pixels"):
        load("cifar100", tmp_path, size=size)


def test_packed_images_can_be_resized(tmp_path):
    layouts.cifar(tmp_path)
    small = load("cifar100", tmp_path, size=16).train.images
    assert small.shape == (6, 3, 16, 16)
    whole = load("cifar100", tmp_path).train.images.float()
    means = whole.unfold(2, 2, 2).unfold(3, 2, 2).mean(dim=(4, 5))
    assert (small.float() - means).abs().mean() < 25  # a half-size image is near the mean of each 2 x 2


def test_a_seed_chooses_classes_as_the_field_does(tmp_path):
    layouts.cifar(tmp_path)
    names = np.array(layouts.CIFAR_NAMES)
    chosen = load("cifar100", tmp_path, classes=2, seed=1993)
    assert set(chosen.classes) == set(names[np.random.RandomState(1993).permutation(3)[:2]])
    assert set(chosen.test.labels) == set(chosen.classes)
    assert load("cifar100", tmp_path, classes=2).classes == ("apple", "bee")


def test_a_stream_permutes_the_publishers_indices(tmp_path):
    """Sorted labels are in the publisher's order, so the seed means what it means in other code."""
    layouts.cub(tmp_path)
    stream = TaskStream(load("cub200", tmp_path, size=8), tasks=3, class_order=1993)
    order = np.random.RandomState(1993).permutation(3)
    assert [task.classes[0] for task in stream] == [f"{i + 1:03d}.Bird_{'zyx'[i]}" for i in order]


# ------------------------------------------------------------------------------------------------------------ counting


def test_counts_other_than_the_published_ones_are_an_error(tmp_path):
    layouts.cub(tmp_path)
    with pytest.raises(InputError, match=r"training images 9 \(published: 5,994\), test images 3 .*check=False"):
        load_dataset("cub200", tmp_path)
    layouts.cifar(tmp_path)
    with pytest.raises(InputError, match=r"training images 6 \(published: 50,000\)"):
        load_dataset("cifar100", tmp_path)
    with pytest.raises(InputError, match="published"):
        load_dataset("cifar100", tmp_path)  # a failed check leaves no entry that passes


def test_published_counts_pass_and_wrong_labels_do_not(tmp_path):
    cifar = DATASETS["cifar100"]
    train = [f"{i // 500:02d}" for i in range(50_000)]
    test = [f"{i // 100:02d}" for i in range(10_000)]
    require_counts(cifar, tmp_path, train, test)
    train[0] = "01"  # the sums are right, one label is not
    with pytest.raises(InputError, match=r"training images per class 499 \(published: 500\)|501"):
        require_counts(cifar, tmp_path, train, test)


def test_the_published_totals_are_the_papers():
    """Sec. 5 and the issue: 60,000, 11,788, 8,189, 16,185; Caltech-101 without its background folder."""
    totals = {name: (d.train or 0) + d.test for name, d in DATASETS.items()}
    assert totals["cifar100"] == 60_000
    assert totals["cub200"] == 11_788
    assert totals["flowers102"] == 8_189
    assert totals["cars196"] == 16_185
    assert totals["caltech101"] == 8_677
    assert totals["mnist"] == totals["fashion-mnist"] == 70_000
    assert totals["tiny-imagenet"] == 110_000


def test_mnist_in_the_place_of_fashion_mnist_is_noticed(tmp_path):
    digits = [i % 10 for i in range(59_990)] + [1] * 10
    rows = counts(DATASETS["fashion-mnist"], digits, [i % 10 for i in range(10_000)])
    assert ("training images per class", 6009, 6000) in rows


def test_fashion_mnist_in_the_place_of_mnist_is_noticed(tmp_path):
    mnist = DATASETS["mnist"]
    train, test = ([label for label, n in enumerate(part) for _ in range(n)] for part in mnist.per_class)
    require_counts(mnist, tmp_path, train, test)
    clothes = [i % 10 for i in range(60_000)], [i % 10 for i in range(10_000)]
    with pytest.raises(
        InputError, match=r"training images of 1 6,000 \(published: 6,742\), test images of 1 1,000 \(published: 1,135"
    ):
        require_counts(mnist, tmp_path, *clothes)
    two = counts(mnist, [0, 1], [0, 1])  # no class to compare with: the number of classes tells
    assert [row[0] for row in two if "images of" in row[0]] == []


@pytest.mark.parametrize("dataset", [d for d in DATASETS.values() if d.per_class], ids=lambda d: d.name)
def test_the_published_counts_of_each_class_sum_to_the_published_totals(dataset):
    assert [sum(part) for part in dataset.per_class] == [dataset.train, dataset.test]
    assert [len(part) for part in dataset.per_class] == [dataset.classes] * 2


# ------------------------------------------------------------------------------------------------------------ bad input


def test_a_missing_image_is_named_or_left_out(tmp_path):
    folder = layouts.cub(tmp_path)
    (folder / "images" / "002.Bird_y" / "Bird_1.jpg").unlink()
    with pytest.raises(InputError, match=r"lacks 1 image .*images/002.Bird_y/Bird_1.jpg.*--skip-bad-images"):
        load("cub200", tmp_path, size=8)
    with pytest.warns(SkippedImagesWarning, match=r"1 damaged or missing image was left out"):
        dataset = load("cub200", tmp_path, size=8, skip_bad_images=True)
    assert len(dataset.train) == 8
    assert len(dataset.skipped) == 1
    assert "002.Bird_y/Bird_1.jpg is missing" in dataset.skipped[0]


def test_an_image_missing_of_a_set_without_a_list_is_counted_or_left_out(tmp_path, monkeypatch):
    folder = layouts.caltech(tmp_path)
    full = load_dataset("caltech101", tmp_path, size=8, check=False, cache=False)
    counted = replace(DATASETS["caltech101"], classes=len(full.classes), train=len(full.train), test=len(full.test))
    monkeypatch.setitem(DATASETS, "caltech101", counted)
    next(path for path in sorted(folder.rglob("*.jpg")) if path.parent.name in full.classes).unlink()
    with pytest.raises(InputError, match=r"does not hold Caltech-101 as published: .*images \d+ \(published: \d+\)"):
        load_dataset("caltech101", tmp_path, size=8, cache=False)
    with pytest.warns(SkippedImagesWarning, match=r"holds fewer images than Caltech-101 has: .*images \d+"):
        rest = load_dataset("caltech101", tmp_path, size=8, skip_bad_images=True, cache=False)
    assert len(rest.train) + len(rest.test) == len(full.train) + len(full.test) - 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_jpeg_that_is_cut_off_is_named_or_left_out(tmp_path, workers):
    folder = layouts.cub(tmp_path)
    bad = layouts.cut_short(folder / "images" / "002.Bird_y" / "Bird_1.jpg")
    bad_test = folder / "images" / "003.Bird_x" / "Bird_3.jpg"
    bad_test.write_bytes(b"")
    with pytest.raises(InputError, match=r"Bird_\d.jpg cannot be read as an image .*--skip-bad-images"):
        load("cub200", tmp_path, size=8, workers=workers)
    left = (tmp_path / "cache-home" / "protodrift" / "decoded").iterdir()
    assert [path for path in left if path.suffix != ".lock"] == []
    with pytest.warns(SkippedImagesWarning, match="2 damaged or missing images"):
        dataset = load("cub200", tmp_path, size=8, skip_bad_images=True, workers=workers)
    assert [str(file) in line for file, line in zip((bad, bad_test), dataset.skipped, strict=True)] == [True, True]
    expected = [[60 * c, 60 * i, 100] for c in range(3) for i in range(3) if (c, i) != (1, 1)]
    np.testing.assert_allclose(colors(dataset.train), expected, atol=4)
    assert dataset.test.labels == ("001.Bird_z", "002.Bird_y")
    with pytest.warns(SkippedImagesWarning, match="2 damaged or missing images"):  # from the cache too
        load("cub200", tmp_path, size=8, skip_bad_images=True, workers=workers)
    with pytest.raises(InputError, match=r"Bird_1.jpg cannot be read as an image .*--skip-bad-images"):
        load("cub200", tmp_path, size=8, workers=workers)


def test_class_folders_that_differ_only_in_case_are_an_error(tmp_path):
    folder = layouts.imagenet(tmp_path)
    layouts.photo(folder / "train" / "N00000001" / "x.JPEG")
    with pytest.raises(InputError, match="'N00000001' and 'n00000001', which differ only in case"):
        load("imagenet-subset", tmp_path)


def test_missing_extra_and_other_files_are_found_by_a_check(tmp_path):
    folder = layouts.cub(tmp_path)
    (folder / "images" / "002.Bird_y" / "Bird_1.jpg").unlink()
    layouts.photo(folder / "images" / "002.Bird_y" / "new.jpg")
    (folder / "images" / "001.Bird_z" / "Thumbs.db").write_bytes(b"x")
    layouts.cut_short(folder / "images" / "003.Bird_x" / "Bird_0.jpg")
    found = check_dataset("cub200", tmp_path)
    assert found.counts == (
        ("training images", 8, 5_994),
        ("test images", 3, 5_794),
        ("images in all", 11, 11_788),
        ("classes", 3, 200),
        ("training classes", 3, 200),
        ("test classes", 3, 200),
    )
    assert found.missing == ("images/002.Bird_y/Bird_1.jpg",)
    assert found.extra == ("images/002.Bird_y/new.jpg",)
    assert found.ignored == ("images/001.Bird_z/Thumbs.db",)
    assert not found.damaged
    assert not found.good
    (damaged,) = check_dataset("cub200", tmp_path, images=True).damaged
    assert "Bird_x/Bird_0.jpg" in damaged


def test_files_that_no_list_names_do_not_change_the_data(tmp_path):
    folder = layouts.cub(tmp_path)
    before = load("cub200", tmp_path, size=8)
    layouts.photo(folder / "images" / "002.Bird_y" / "new.jpg")
    (folder / "images" / "notes.txt").write_text("x")
    after = load("cub200", tmp_path, size=8)
    assert torch.equal(before.train.images, after.train.images)
    assert before.train.labels == after.train.labels


def test_a_folder_with_no_images_at_all_is_said(tmp_path):
    folder = layouts.cub(tmp_path)
    for name in ("images.txt", "image_class_labels.txt", "train_test_split.txt"):
        (folder / name).write_text("")
    with pytest.raises(InputError, match="no training images"):
        load("cub200", tmp_path)
