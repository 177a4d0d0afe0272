"""Exported graphs in onnxruntime: distances and classes are the model's."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest

from protodrift import NearestClassMean, Softmax, StreamingLDA
from protodrift.errors import InputError
from protodrift.model.export import export_onnx
from protodrift.readouts import MaxOverHeads, NearestExemplarMean
from protodrift.training.calibration import distances_to


@pytest.mark.parametrize("readout", [NearestClassMean(), NearestExemplarMean(), StreamingLDA(shrinkage=0.01)], ids=str)
def test_onnxruntime_gives_the_same_distances_and_classes(make_classifier, colors, tmp_path, readout):
    clf = make_classifier(backbone="convnet", readout=readout)
    clf.partial_fit(*colors(0, 1)).partial_fit(*colors(2, 3))
    result = export_onnx(clf, tmp_path / "out" / "m.onnx")
    assert result.largest_difference < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "out" / "m.onnx")
    X, _ = colors(0, 1, 2, 3, count=9)
    images = np.ascontiguousarray(X.transpose(0, 3, 1, 2))
    for count in (1, 7, 36):  # any number of images
        embedding, distances, chosen = session.run(None, {"images": images[:count]})
        assert np.allclose(embedding, clf.transform(X[:count]), atol=1e-5)
        expected = distances_to(readout.space(clf._embed(X[:count])), readout.centers(clf.state_.prototypes.means))
        assert np.abs(distances - expected.numpy()).max() < 1e-4
        scores = clf._scores(X[:count]).numpy()
        two = np.sort(scores, axis=1)[:, -2:]
        clear = two[:, 1] - two[:, 0] > 1e-3
        assert (chosen == scores.argmax(axis=1))[clear].all()
    assert clear.any()
    facts = json.loads(session.get_modelmeta().custom_metadata_map["protodrift.model"])
    assert facts["labels"] == [0, 1, 2, 3]
    assert facts["input"]["shape"] == [3, 16, 16]
    assert "center cropped" in facts["preprocessing"]


def test_a_readout_that_cannot_be_exported_is_refused_with_a_reason(make_classifier, vectors, tmp_path):
    clf = make_classifier(objective=Softmax(), readout=MaxOverHeads(), drift=None).fit(*vectors("a", "b"))
    with pytest.raises(InputError, match=r"MaxOverHeads cannot be exported: .*classification heads"):
        export_onnx(clf, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()
