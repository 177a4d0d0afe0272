"""`standardize`: what a network sees of its inputs, and that it is saved, fixed by the first task, and said."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch
from torch import nn

from protodrift import IncrementalClassifier
from protodrift.data.arrays import InputSpec
from protodrift.errors import InputError
from protodrift.experiments.recipes import get_recipe
from protodrift.experiments.settings import with_settings
from protodrift.experiments.setup import Network
from protodrift.networks.build import build_embedder

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


class Own(nn.Module):
    """A module of the user's that remembers what it was given last."""

    seen: torch.Tensor

    def __init__(self, size: int = 768) -> None:
        super().__init__()
        self.layer = nn.Linear(size, 8)

    def forward(self, x):
        Own.seen = x.detach().clone()
        return self.layer(x.flatten(1))


def seen_by(clf, X):
    clf.predict(X)
    return Own.seen


@pytest.fixture
def own(make_classifier):
    return lambda **params: make_classifier(backbone=Own(), **params)


def test_float_inputs_of_an_own_module_are_left_alone_and_that_is_said(own, colors, caplog):
    (X, y), (more, z) = colors(0, 1), colors(2, 3)
    scaled = [(part / 255 - 0.5).astype(np.float32) for part in (X, more)]  # standardized already
    with caplog.at_level(logging.INFO, "protodrift"):
        clf = own().partial_fit(scaled[0], y)
    assert [m for m in caplog.messages if "float inputs go to Own as they are (standardize='auto')" in m] != []
    assert torch.equal(seen_by(clf, scaled[0][:4]), torch.from_numpy(scaled[0][:4]).permute(0, 3, 1, 2))
    caplog.clear()
    with caplog.at_level(logging.INFO, "protodrift"):
        clf.partial_fit(scaled[1], z)
    assert not caplog.messages  # once
    assert torch.equal(seen_by(clf, scaled[0][:4]), torch.from_numpy(scaled[0][:4]).permute(0, 3, 1, 2))


def test_bytes_of_an_own_module_and_inputs_of_named_networks_have_the_first_tasks_statistics(own, colors, caplog):
    X, y = colors(0, 1)
    with caplog.at_level(logging.INFO, "protodrift"):
        seen = seen_by(own().partial_fit(X, y), X)
        named = build_embedder("convnet", InputSpec((3, 16, 16), "unit", 0.0, 1.0))
    assert not caplog.messages
    torch.testing.assert_close(seen.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(seen.std(dim=(0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)
    assert not named.standardize.fixed


@pytest.mark.parametrize("kind", ["uint8", "byte", "unit"])
def test_imagenet_none_and_own_statistics_in_every_scale(own, colors, kind):
    X, y = colors(0, 1)
    scale = 1.0 if kind == "unit" else 255.0
    X = X if kind == "uint8" else (X / (255.0 / scale)).astype(np.float32)
    plain = torch.from_numpy(X[:5]).permute(0, 3, 1, 2).float()
    mean, std = (scale * torch.tensor(part)[:, None, None] for part in IMAGENET)
    seen = seen_by(own(standardize="imagenet").partial_fit(X, y), X[:5])
    torch.testing.assert_close(seen, (plain - mean) / std)
    assert torch.equal(seen_by(own(standardize="none").partial_fit(X, y), X[:5]), plain)
    half = seen_by(own(standardize=(0.5, (1.0, 2.0, 4.0))).partial_fit(X, y), X[:5])
    torch.testing.assert_close(half, (plain - 0.5) / torch.tensor([1.0, 2.0, 4.0])[:, None, None])


@pytest.mark.parametrize("standardize", ["auto", "imagenet", "none", ([0.1, 0.2, 0.3], 2.0)])
def test_it_is_saved_and_loaded_with_the_model(own, colors, tmp_path, same, standardize):
    X, y = colors(0, 1)
    X = (X / 255).astype(np.float32)
    clf = own(standardize=standardize).partial_fit(X, y)
    again = IncrementalClassifier.load(clf.save(tmp_path / "m"), backbone=Own())
    assert same(again, clf)
    assert torch.equal(seen_by(again, X), seen_by(clf, X))
    more = (colors(2, 3)[0] / 255).astype(np.float32), colors(2, 3)[1]
    again.set_params(standardize=standardize)  # a list where JSON gave a tuple: the same
    again.backbone = again.state_.fixed["backbone"]
    assert same(again.partial_fit(*more), clf.partial_fit(*more))
    wrong = again.set_params(standardize=(0.0, 3.0))
    with pytest.raises(InputError, match=r"standardize was .* cannot change between tasks"):
        wrong.partial_fit((colors(4)[0] / 255).astype(np.float32), [4] * 12)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("imagnet", "Did you mean 'imagenet'"),
        (None, "must be 'auto', 'imagenet', 'none' or"),
        ((1.0,), r"or \(mean, std\)"),
        ((0.0, 0.0), "std that is not above 0"),
        ((0.0, float("nan")), "numbers"),
        ((0.0, ()), "numbers"),
        (("a", 1.0), "numbers"),
    ],
)
def test_what_cannot_be_meant_is_refused(make_classifier, colors, value, message):
    with pytest.raises(InputError, match=message):
        make_classifier(standardize=value).partial_fit(*colors(0, 1))
    with pytest.raises(InputError, match=message):
        Network(standardize=value)


def test_statistics_that_do_not_fit_the_inputs_are_refused(make_classifier, colors, vectors):
    with pytest.raises(InputError, match="2 values for inputs with 3 channels"):
        make_classifier(standardize=((1.0, 2.0), 1.0)).partial_fit(*colors(0, 1))
    with pytest.raises(InputError, match="'imagenet' needs color images"):
        make_classifier(standardize="imagenet").partial_fit(*vectors("a", "b"))
    X, y = vectors("a", "b")
    clf = make_classifier(standardize=(1.0, 2.0)).partial_fit(X, y)
    assert float(clf.network_.standardize.std.mean()) == 2.0


def test_recipes_and_the_command_line_say_it_too(small_digits):
    from protodrift.data.tasks import TaskStream
    from protodrift.experiments.tree import Tree
    from protodrift.methods import Method

    recipe = get_recipe("digits")
    assert with_settings(recipe, {"network.standardize": "none"}).network.standardize == "none"
    changed = with_settings(recipe, {"standardize": "[0.5, [0.25]]"}).network
    assert changed.standardize == (0.5, (0.25,))
    assert hash(changed) == hash(Network(**changed.options()))
    assert json.loads(json.dumps(changed.to_json()))["standardize"] == [0.5, [0.25]]
    stream = TaskStream(small_digits, classes=[[0, 1], [2, 3]])
    trees = [Tree(stream, network=Network("convnet", standardize=s)) for s in ("auto", "none", (0.5, 0.25))]
    assert len({tree.stage("root", Method(), 0).key for tree in trees}) == 3
    means = [tree.trained(Method(), 0).network.standardize.mean.flatten().tolist() for tree in trees]
    assert means[1:] == [[0.0], [0.5]]
    assert means[0][0] > 1
