"""Bad input: each time an error that says what was wrong and what to do, and everything is as it was."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

from protodrift import (
    EWC,
    MAS,
    METHODS,
    SDC,
    Everything,
    IncrementalClassifier,
    LwF,
    Method,
    NearestClassMean,
    Schedule,
    Training,
    Triplet,
)
from protodrift.common.config import build, decode, encode
from protodrift.errors import InputError, NotLearnedError, ProtodriftError, did_you_mean
from protodrift.objectives import Contrastive, MetricLoss

X_NEW = np.random.RandomState(3).randn(6, 6)
Y_NEW = ["kea", "tui"] * 3
DIGIT = np.random.RandomState(4).randint(0, 256, (6, 8, 8), dtype=np.uint8)


@pytest.fixture
def unchanged():
    """Check that a classifier is what it was: the very same state, and the same answers bit for bit."""
    watched = []

    def watch(clf, X):
        watched.append((clf, X, clf.state_, clf.predict_proba(X), dict(clf.get_params())))

    yield watch
    for clf, X, state, probabilities, params in watched:
        assert clf.state_ is state
        clf.set_params(**params)
        assert np.array_equal(clf.predict_proba(X), probabilities)


def with_value(value):
    X = X_NEW.copy()
    X[2, 1] = value
    return X


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (
            X_NEW,
            ["kea", "owl"] * 3,
            "class 'owl' was learned in task 1; tasks must not share classes. Drop it, or start a",
        ),
        (X_NEW, ["kea", "jay"] * 3, "class 'jay' was learned in task 2"),
        (X_NEW[:0], [], "got no images: X is empty. Give at least one"),
        ([], [], "got no images: X is empty"),
        (X_NEW, Y_NEW[:5], "X has 6 images but y has 5 labels: give one label per image"),
        (X_NEW[:5], Y_NEW, "X has 5 images but y has 6 labels"),
        (X_NEW, [], "X has 6 images but y has 0 labels"),
        (X_NEW, None, "y is missing"),
        (
            with_value(np.nan),
            Y_NEW,
            r"NaN or infinite values in 1 of 6 rows \(the first is row 2\). Clean or drop them",
        ),
        (with_value(np.inf), Y_NEW, "the first is row 2"),
        (with_value(1e39), Y_NEW, "the first is row 2"),
        (
            X_NEW[:, :5],
            Y_NEW,
            "X has 5 features, but IncrementalClassifier is expecting 6 features as input",
        ),
        (DIGIT, Y_NEW, "made for vectors of 6 features; got 6 8 x 8 images with 1 channel"),
        (X_NEW[0], ["kea"], r"shape \(6,\).*A single image needs a first axis: X\[None\]"),
        (X_NEW, ["kea", 7] * 3, "labels mix int and str, for example 7 and 'kea'. Use one kind"),
        (X_NEW, [7, 8] * 3, "labels mix int and str: earlier tasks had 'emu', this one has 7"),
        (X_NEW, [0.5, 1.5] * 3, r"labels must be str or int, got 0.5 \(float\). Convert them first"),
        (X_NEW.astype(str), Y_NEW, "numbers are needed"),
        (None, Y_NEW, "numbers are needed"),
    ],
)
def test_a_bad_task_is_refused_and_the_model_is_what_it_was(two_clouds, unchanged, X, y, message):
    unchanged(two_clouds, X_NEW)
    with pytest.raises(InputError, match=message):
        two_clouds.partial_fit(X, y)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (DIGIT[:, :7], "made for 8 x 8 images with 1 channel, uint8 pixels; got 6 7 x 8 images"),
        (DIGIT.repeat(2, 1).repeat(2, 2), "got 6 16 x 16 images with 1 channel, uint8 pixels. Resize or convert"),
        (np.stack([DIGIT] * 3, axis=-1), "got 6 8 x 8 images with 3 channels"),
        (DIGIT / 255, "got float pixels. Convert them as for the first task"),
        (DIGIT.astype(int) + 300, r"integer images must lie in 0\.\.255"),
        (DIGIT.reshape(6, 64), "got 6 vectors of 64 features"),
        (DIGIT[0], r"A single image needs a first axis: X\[None\]"),
    ],
)
@pytest.mark.parametrize("call", ["partial_fit", "predict", "predict_proba", "transform"])
def test_images_that_look_different_are_refused_in_learning_and_answering(two_tasks, unchanged, X, message, call):
    unchanged(two_tasks, DIGIT)
    with pytest.raises(InputError, match=message):
        getattr(two_tasks, call)(X, *([[8, 9] * (len(X) // 2)] if call == "partial_fit" else []))


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        (
            DIGIT / 255,
            DIGIT / 1.0,
            r"X holds floats in \[0, 25\d\], but the first task had \[0, [\d.]+\], so \[0, 1\] is",
        ),
        (DIGIT / 1.0, DIGIT / 255, "the images look scaled to 0..1. Scale them as for the first task"),
        (DIGIT / 128 - 1, DIGIT / 1.0, "Scale the images as for the first task"),
    ],
)
def test_floats_outside_what_was_seen_before_are_refused(make_classifier, unchanged, first, later, message):
    clf = make_classifier().fit(first, [0, 1] * 3)
    unchanged(clf, first)
    with pytest.raises(InputError, match=message):
        clf.partial_fit(later, [2, 3] * 3)
    with pytest.raises(InputError, match=message):
        clf.predict(later)


@pytest.mark.parametrize("call", ["predict", "predict_proba", "transform"])
def test_answers_before_learning_are_refused(call):
    with pytest.raises(
        NotLearnedError, match=r"has not learned anything yet. Call partial_fit\(X, y\), or load a model"
    ):
        getattr(IncrementalClassifier(), call)(X_NEW)


@pytest.mark.parametrize("name", ["classes_", "prototypes_", "drift_", "tasks_"])
def test_what_was_learned_is_not_there_before_learning(name):
    assert not hasattr(IncrementalClassifier(), name)
    with pytest.raises(NotLearnedError, match="has not learned anything yet"):
        getattr(IncrementalClassifier(), name)


def test_score_before_learning_and_with_wrong_lengths(two_clouds):
    with pytest.raises(NotLearnedError):
        IncrementalClassifier().score(X_NEW, Y_NEW)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        two_clouds.score(X_NEW, Y_NEW[:2])


def test_predict_of_nothing_is_refused(two_clouds):
    with pytest.raises(InputError, match="X is empty"):
        two_clouds.predict(X_NEW[:0])


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"backbone": "resnet8"}, "backbone='resnet8' is unknown. Did you mean 'resnet18'"),
        ({"backbone": 18}, "backbone=18 must be a name or an nn.Module"),
        ({"backbone": "convnet"}, "backbone 'convnet' does not take feature vectors. Choices here: mlp"),
        ({"backbone": nn.Flatten()}, "no parameters: there is nothing to train"),
        ({"embedding_dim": 0}, "embedding_dim=0 must be at least 1"),
        ({"embedding_dim": 2.5}, "embedding_dim=2.5 must be a whole number"),
        ({"normalize": "yes"}, "normalize='yes' must be True or False"),
        ({"temperature": 0}, "temperature=0 must be greater than 0"),
        ({"temperature": float("nan")}, "temperature=nan must be a finite number"),
        ({"channels": "frist"}, "channels='frist' is unknown. Did you mean 'first'"),
        ({"random_state": -1}, "random_state=-1 must be at least 0"),
        ({"random_state": 1.5}, "random_state=1.5 must be a whole number"),
        ({"verbose": 1}, "verbose=1 must be True or False"),
        ({"device": "gpu"}, "device='gpu' cannot be used here.*Use device='cpu'"),
        ({"training": 30}, r"training=30 must be a Training object, e.g. Training\(epochs=30\)"),
        ({"training": Training}, "training=.* must be a Training object"),
        ({"augment": "crop"}, r"augment='crop' must be 'auto', None or an Augmentation such as CropFlip\(\)"),
        ({"weights": "/nowhere/resnet.pth"}, "there is no weight file /nowhere/resnet.pth"),
        ({"objective": "triplet"}, "objective must be .*; got 'triplet'"),
        ({"objective": Triplet}, r"for example objective=Triplet\(\)"),
        ({"objective": None}, "objective must be .*; got None"),
        ({"penalty": "EWC"}, r"penalty must be a Penalty object such as EWC\(gamma=1e7\), or several; got 'EWC'"),
        ({"penalty": EWC}, "penalty must be a Penalty object.*got <class"),
        ({"penalty": 5}, "penalty must be a Penalty object.*got 5"),
        ({"penalty": [LwF(), "MAS"]}, "penalty must be a Penalty object.*got 'MAS'"),
        ({"drift": "sdc"}, "drift must be .*; got 'sdc'"),
        ({"drift": SDC}, r"for example drift=SDC\(\)"),
        ({"exemplars": True}, "exemplars must be .*; got True"),
        ({"readout": "ncm"}, "readout must be .*; got 'ncm'"),
        ({"schedule": "first"}, "schedule must be .*; got 'first'"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_accepted(make_classifier, vectors, params, message):
    clf = make_classifier(**params)
    with pytest.raises(InputError, match=message):
        clf.fit(*vectors("a", "b"))
    assert not hasattr(clf, "state_")


def test_a_wrong_temperature_is_refused_when_it_would_act(two_clouds):
    two_clouds.set_params(temperature=-1.0)
    with pytest.raises(InputError, match=r"temperature=-1.0 must be greater than 0"):
        two_clouds.predict_proba(X_NEW)


def test_a_wrong_readout_is_refused_when_it_would_act(two_clouds):
    two_clouds.set_params(readout="ncm")
    with pytest.raises(InputError, match=r"readout must be .*; got 'ncm'"):
        two_clouds.predict(X_NEW)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SDC(sigma=0), "SDC: sigma=0 must be greater than 0"),
        (lambda: SDC(sigma="0.3"), "SDC: sigma='0.3' must be a finite number"),
        (lambda: SDC(sigma=float("inf")), "SDC: sigma=inf must be a finite number"),
        (lambda: SDC(sigma=True), "SDC: sigma=True must be a finite number"),
        (lambda: EWC(gamma=-1), "EWC: gamma=-1 must be at least 0"),
        (lambda: EWC(fisher="bach"), "EWC: fisher='bach' is unknown. Did you mean 'batch'"),
        (lambda: MAS(reading="relased"), "Did you mean 'released'"),
        (lambda: LwF(reading="papr"), "Did you mean 'paper'"),
        (lambda: Triplet(margin=-0.1), "Triplet: margin=-0.1 must be at least 0"),
        (lambda: Triplet(mining="semihard"), "mining='semihard' is unknown. Did you mean 'semi-hard'"),
        (lambda: Contrastive(negative_margin=0), "negative_margin=0 must be greater than 0"),
        (lambda: Schedule(train="frist"), "train='frist' is unknown. Did you mean 'first'"),
        (lambda: Schedule(batch_norm="freeze"), "Did you mean 'frozen'"),
        (lambda: Training(epochs=-1), "Training: epochs=-1 must be at least 0"),
        (lambda: Training(epochs=1.0), "Training: epochs=1.0 must be a whole number"),
        (lambda: Training(learning_rate=0), "learning_rate=0 must be greater than 0"),
        (lambda: Training(batch_size=3), "batch_size=3 must be at least 4"),
        (lambda: Training(images_per_class=1), "images_per_class=1 must be at least 2"),
        (lambda: Training(epoch="realeased"), "Did you mean 'released'"),
        (lambda: MetricLoss(nn.MSELoss()), "takes a loss of pytorch_metric_learning.losses, got MSELoss"),
        (lambda: build(SDC, {"sgima": 0.2}), "SDC has no option 'sgima'. Did you mean 'sigma'"),
        (lambda: decode({"type": "EWCC"}), "unknown configuration type 'EWCC': import .*Did you mean 'EWC'"),
        (lambda: decode({"no": "type"}), "unknown configuration type None"),
        (lambda: Method(drift=3), "drift must be .*; got 3"),
        (lambda: IncrementalClassifier.from_method("E-LWF"), "unknown method 'E-LWF'. Did you mean 'E-LwF'"),
        (lambda: IncrementalClassifier.from_method("finetune"), "unknown method 'finetune'. .*Choices: .*'E-EWC'"),
        (
            lambda: IncrementalClassifier.from_method("E-FT", backbne="mlp"),
            "no parameter 'backbne'. Did you mean 'backbone'",
        ),
        (lambda: IncrementalClassifier().set_params(epochs=3), "no parameter 'epochs'"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_accepted(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    "config",
    [*METHODS.values(), Training(), Everything(), NearestClassMean(), Triplet(mining="all"), EWC(fisher="single")],
    ids=str,
)
def test_configuration_is_frozen_comparable_hashable_and_survives_json(config):
    again = decode(encode(config))
    assert again == config
    assert hash(again) == hash(config)
    assert repr(again) == repr(config)
    with pytest.raises(AttributeError):
        config.anything = 1


def test_what_cannot_be_written_is_refused():
    with pytest.raises(InputError, match=r"cannot be written.*Pass the object again when loading"):
        encode(object())


def test_a_guess_comes_before_the_choices_and_only_when_near():
    assert did_you_mean("x", ["alpha", "beta"]) == "Choices: 'alpha', 'beta'."
    assert did_you_mean("ALPA", ["alpha", "beta"]).startswith("Did you mean 'alpha'? ")


@pytest.mark.parametrize("name", ["InputError", "ModelFileError", "NotLearnedError", "DivergedError"])
def test_every_error_is_ours_and_a_built_in_one(name):
    import protodrift.errors

    error = getattr(protodrift.errors, name)
    assert issubclass(error, ProtodriftError)
    assert issubclass(error, (ValueError, FloatingPointError))


def test_messages_end_as_sentences(two_clouds):
    """An error is read by a person: one text, with an end."""
    bad = [
        lambda: two_clouds.partial_fit(X_NEW, ["owl"] * 6),
        lambda: two_clouds.partial_fit(X_NEW[:, :3], Y_NEW),
        lambda: two_clouds.partial_fit(with_value(np.nan), Y_NEW),
        lambda: two_clouds.partial_fit(X_NEW, Y_NEW[:2]),
        lambda: IncrementalClassifier().predict(X_NEW),
        lambda: IncrementalClassifier.from_method("E-EWC+SCD"),
        lambda: two_clouds.predict(torch.zeros(2, 3, 4, 5, 6)),
    ]
    for make in bad:
        with pytest.raises(ProtodriftError) as caught:
            make()
        text = str(caught.value)
        assert re.search(r"[.\]]$", text), text
        assert "  " not in text
        assert "\n" not in text
