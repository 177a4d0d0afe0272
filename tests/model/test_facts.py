"""Which models are for photos, and that facts and answers are what JSON can hold."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from protodrift.data.arrays import InputSpec
from protodrift.errors import InputError
from protodrift.model.answers import finite, predictions
from protodrift.model.audit import class_bytes
from protodrift.model.facts import classes_document, inspected, model_document, photo_size


def test_a_photo_has_three_channels_of_bytes_and_is_square():
    assert photo_size(InputSpec((3, 64, 64), "uint8", 0, 255), "birds") == 64
    for shape, scale in (((1, 64, 64), "uint8"), ((3, 64, 32), "uint8"), ((3, 64, 64), "unit"), ((6,), "free")):
        with pytest.raises(InputError, match=r"birds was made for .*, not for photos"):
            photo_size(InputSpec(shape, scale, 0, 255), "birds")


def test_facts_are_strict_json_and_agree(make_classifier, colors):
    clf = make_classifier().partial_fit(*colors(0, 1)).partial_fit(*colors(2, 3))
    everything = inspected(clf, class_bytes(clf.state_))
    served = {**model_document("birds", 2, clf), "classes": classes_document(2, clf.state_)["classes"]}
    for document in (everything, served):
        json.dumps(document, allow_nan=False)
    for name in ("backbone", "parameters", "embedding_dim"):
        assert everything[name] == served[name]
    for one, other in zip(everything["classes"], served["classes"], strict=True):
        assert {name: one[name] for name in ("class", "task", "images")} == {
            name: other[name] for name in ("class", "task", "images")
        }


def test_predictions_are_strict_json_whatever_the_distance(two_clouds, vectors):
    X, _ = vectors("owl", "emu", count=2)
    found = two_clouds.recognize(np.concatenate([X, np.full_like(X[:1], 1e30)]))
    answers = predictions([str(i) for i in range(len(found.labels))], found, top=2, always_name=True)
    json.dumps(answers, allow_nan=False)
    assert [one["class"] for one in answers[: len(X)]] == found.labels[: len(X)].tolist()
    assert (finite(math.inf), finite(math.nan), finite(1 / 3)) == (None, None, 0.333333)
