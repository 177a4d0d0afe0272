"""Weights with `requires_grad=False` take no part in penalties on weights: LoRA-style modules, through the learner."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from protodrift import EWC, MAS, IncrementalClassifier, Softmax, Training
from protodrift.penalties import REWC, SI
from protodrift.penalties.base import trainable
from protodrift.penalties.gradients import image_gradients, mean_squared_gradients


class LoRA(nn.Module):
    """A linear layer W x + B A x: W and its bias are frozen, A and B of rank 2 are trained."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.base = nn.Linear(size, out)
        with torch.no_grad():
            self.base.weight.copy_(torch.randn(out, size, generator=g) / size**0.5)
            self.base.bias.zero_()
        self.base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, size, generator=g) / size**0.5)
        self.b = nn.Parameter(0.1 * torch.randn(out, 2, generator=g))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def backbone():
    return nn.Sequential(LoRA(6, 16), nn.ReLU(), LoRA(16, 8))


FROZEN = {"0.base.weight", "0.base.bias", "2.base.weight", "2.base.bias"}
PENALTIES = [
    EWC(gamma=1e3),
    EWC(gamma=1e3, fisher="single", accumulate=True),
    MAS(gamma=1e3),
    MAS(gamma=1e3, reading="released"),
    SI(gamma=1e3),
    REWC(gamma=1e3),
]


@pytest.mark.parametrize("classifies", [False, True], ids=["metric", "softmax"])
@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
def test_low_rank_adapters_are_held_and_frozen_weights_left_alone(
    make_classifier, vectors, tmp_path, same, penalty, classifies
):
    objective = {"objective": Softmax()} if classifies else {}
    training = Training(epochs=2, batch_size=8, learning_rate=1e-2)
    module = backbone()
    clf = make_classifier(backbone=module, embedding_dim=None, penalty=penalty, training=training, **objective)
    for pair in (("owl", "emu"), ("kea", "tui"), ("jay", "ibis")):
        clf.partial_fit(*vectors(*pair))
    network = clf.network_.backbone
    for name, weight in module.named_parameters():
        now = network.get_parameter(name)
        assert torch.equal(now, weight) == (name in FROZEN), name
        assert now.requires_grad == (name not in FROZEN)
    (kept,) = clf.state_.trained.penalty_state
    assert not any(name in key for key in kept for name in FROZEN)
    assert {f"backbone.{name}" for name in ("0.a", "0.b", "2.a", "2.b")} <= set(kept)
    assert all(bool(kept[f"backbone.{name}"].any()) for name in ("0.a", "0.b", "2.a", "2.b"))
    assert clf.tasks_[1].history[-1]["penalty"] != 0
    again = IncrementalClassifier.load(clf.save(tmp_path / "m"), backbone=module)
    assert same(again.partial_fit(*vectors("rook", "crow")), clf.partial_fit(*vectors("rook", "crow")))


@pytest.mark.parametrize("penalty", PENALTIES[:-1], ids=str)
def test_frozen_weights_change_nothing_for_the_others(make_classifier, vectors, penalty):
    """A network with frozen weights is held as one in which these are constants."""

    class Constant(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.a, self.b = nn.Parameter(layer.a.detach().clone()), nn.Parameter(layer.b.detach().clone())
            self.register_buffer("w", layer.base.weight.detach().clone())

        def forward(self, x):
            return x @ self.w.T + x @ self.a.T @ self.b.T

    module = backbone()
    constant = nn.Sequential(Constant(module[0]), nn.ReLU(), Constant(module[2]))
    training = Training(epochs=2, batch_size=8, learning_rate=1e-2)
    found = []
    for one in (module, constant):
        clf = make_classifier(backbone=one, embedding_dim=None, penalty=penalty, training=training)
        for pair in (("owl", "emu"), ("kea", "tui")):
            clf.partial_fit(*vectors(*pair))
        found.append(clf)
    torch.testing.assert_close(*(clf.state_.prototypes.means for clf in found), atol=1e-4, rtol=1e-4)
    kept = [clf.state_.trained.penalty_state[0] for clf in found]
    for name in ("backbone.0.a", "backbone.2.b"):
        torch.testing.assert_close(kept[0][name], kept[1][name], atol=1e-3, rtol=1e-2)


def test_a_network_without_trainable_weights_has_no_importances():
    network = nn.Linear(2, 2).requires_grad_(False)
    x = torch.ones(3, 2)
    assert trainable(network) == {}
    assert mean_squared_gradients(network, [network(x).sum()]) == {}
    assert image_gradients(network, lambda image: network(image).sum(), [(x,)], torch.abs) == {}
