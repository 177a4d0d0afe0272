"""Exported graphs in onnxruntime: what they say is what the model says."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from protodrift import IncrementalClassifier, Softmax, StreamingLDA
from protodrift.cli import main
from protodrift.data.images import load_photo
from protodrift.errors import InputError
from protodrift.model import export
from protodrift.model.export import export_onnx
from protodrift.readouts import (
    Bayes,
    FeCAM,
    LiftedRidge,
    Mahalanobis,
    MaxOverHeads,
    NearestExemplarMean,
    RidgeClassifier,
    gaussian,
)
from tests.cli.photo_models import frozen_model, photos

PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"


def answers(path, images, **options):
    session = onnxruntime.InferenceSession(path, **options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"images": images}), strict=True))


@pytest.mark.parametrize(
    ("readout", "more"),
    [
        (StreamingLDA(shrinkage=0.01), {"temperature": "auto", "held_out": 0.3, "unknown_rate": 0.4}),
        (RidgeClassifier(tukey=0.5, unit=True), {"temperature": "auto"}),
        (LiftedRidge(units=50, ridge=0.01), {}),
        (MaxOverHeads(), {"objective": Softmax(), "drift": None}),
        (FeCAM(), {"drift": None}),
        (Bayes(prior="counts"), {"drift": None, "temperature": "auto"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_onnxruntime_says_what_the_model_says(make_classifier, colors, tmp_path, readout, more):
    clf = make_classifier(backbone="convnet", readout=readout, **more)
    clf.partial_fit(*colors(0, 1)).partial_fit(*colors(2, 3))
    X, _ = colors(0, 1, 2, 3, 7, count=9)
    result = export_onnx(clf, tmp_path / "out" / "m.onnx", check=list(X))
    assert result.photos.images == 45
    assert result.photos.difference < 1e-4
    images = np.ascontiguousarray(X.transpose(0, 3, 1, 2))
    for count in (1, 7, 45):  # any number of images
        expected, found = clf.recognize(X[:count]), answers(tmp_path / "out" / "m.onnx", images[:count])
        assert np.allclose(found["embedding"], expected.embeddings, atol=1e-5)
        assert np.abs(found["probabilities"] - expected.probabilities).max() < 1e-4
        clear = ~export._tied(expected)
        assert (found["class"] == expected.best)[clear].all()
        assert (found["unknown"] == expected.unknown)[clear].all()
        assert np.allclose(found["novelty"], expected.novelty, atol=1e-4)
        assert found["labels"].tolist() == ["0", "1", "2", "3"]
    assert clear.sum() > 30
    if more.get("unknown_rate"):
        assert 0 < expected.unknown.sum() < 45  # both answers were compared
    facts = json.loads(
        onnxruntime.InferenceSession(tmp_path / "out" / "m.onnx")
        .get_modelmeta()
        .custom_metadata_map["protodrift.model"]
    )
    assert facts["labels"] == [0, 1, 2, 3]
    assert facts["input"]["shape"] == [3, 16, 16]
    assert facts["input"]["any_size"]
    assert facts["temperature"] == more.get("temperature", 0.1)


def test_vectors_and_a_fixed_size(make_classifier, vectors, colors, tmp_path):
    X, y = vectors("owl", "emu", "jay")
    clf = make_classifier(temperature="auto", held_out=0.3, readout=NearestExemplarMean()).fit(X, y)
    export_onnx(clf, tmp_path / "v.onnx")
    found = answers(tmp_path / "v.onnx", X.astype(np.float32))
    assert (found["labels"][found["class"]] == clf.predict(X)).all()
    clf = make_classifier(backbone="convnet").fit(*colors(0, 1))
    result = export_onnx(clf, tmp_path / "f.onnx", any_size=False)
    assert result.inputs == "uint8 (N, 3, 16, 16)"
    with pytest.raises(Exception, match="invalid dimensions"):
        answers(tmp_path / "f.onnx", np.zeros((1, 3, 20, 20), np.uint8))


def test_a_readout_that_cannot_be_exported_is_refused_with_a_reason(make_classifier, vectors, tmp_path, monkeypatch):
    monkeypatch.setattr(gaussian, "FACTORS_AT_ONCE", 100)
    clf = make_classifier(readout=Mahalanobis(), drift=None).fit(*vectors("a", "b"))
    with pytest.raises(InputError, match=r"Mahalanobis cannot be exported: .*Readout\.scorer"):
        export_onnx(clf, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_a_graph_that_says_something_else_is_not_written(make_classifier, vectors, tmp_path, monkeypatch):
    clf = make_classifier().fit(*vectors("a", "b", "c"))
    honest = export.temperatures_of
    monkeypatch.setattr(export, "temperatures_of", lambda *args: 1.01 * honest(*args))
    with pytest.raises(InputError, match="does not agree with the model"):
        export_onnx(clf, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with a photo model, `birds`, its `birds.onnx`, what the command printed, and photos."""
    root = tmp_path_factory.mktemp("exported")
    frozen_model(root / "birds", photos(root / "photos", "red", "green", "blue", "gray"))
    held_back = photos(root / "new", "red", "green", "dark", seed=5, count=4)
    with redirect_stdout(io.StringIO()) as printed:
        arguments = ["--onnx", str(root / "birds.onnx"), "--check", str(held_back)]
        assert main(["export", str(root / "birds"), *arguments]) == 0
    return root, printed.getvalue()


def test_the_command_says_what_it_wrote_and_how_it_compared(exported):
    _, printed = exported
    assert "uint8 (N, 3, height, width) -> class, probabilities (4), unknown, novelty, embedding (" in printed
    assert "checked in onnxruntime on 16 made-up images: same class, same unknown" in printed
    assert "and on 12 photos: same class, same unknown" in printed


@pytest.mark.parametrize("size", [(32, 32), (47, 33), (300, 200), (1536, 1021), (24, 20), (33, 47)])
def test_photos_of_any_size_are_resized_as_the_library_does(exported, size):
    root, _ = exported
    rng = np.random.RandomState(3)
    smooth = Image.fromarray(rng.randint(0, 256, (6, 6, 3)).astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)
    file = io.BytesIO()
    smooth.save(file, "PNG")
    expected = IncrementalClassifier.load(root / "birds").recognize(load_photo(file.getvalue(), 32)[None])
    found = answers(root / "birds.onnx", np.asarray(smooth).transpose(2, 0, 1)[None])
    assert found["class"] == expected.best
    assert found["unknown"] == expected.unknown
    apart = np.abs(found["embedding"] - expected.embeddings).max() / np.abs(expected.embeddings).max()
    # Pillow 13 resizes a tall photo's rows before its columns: then a pixel may be rounded up in place of down.
    assert apart < (1e-5 if size[0] >= size[1] else 0.01)


def test_the_pages_program_runs(exported, monkeypatch):
    root, _ = exported
    program = PAGE.read_text().split("```python\n")[1].split("```")[0]
    Image.open(root / "new" / "red" / "5-0.png").resize((90, 70)).save(root / "new.jpg", quality=95)
    monkeypatch.chdir(root)
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, str(PAGE), "exec"), {})
    lines = printed.getvalue().splitlines()
    assert len(lines) == 4
    expected = IncrementalClassifier.load("birds").recognize(["new.jpg"])
    name = expected.labels[0]
    assert lines[0].split()[0] == name == "red"
    assert lines[3] == ("none of them, it seems" if expected.unknown[0] else "this is red")
