"""What an object of the user's is known by: its code, its settings, its weights, and nothing that is not it."""

from __future__ import annotations

import functools
import importlib.util
import sys

import pytest
import torch
from pytorch_metric_learning import losses
from torch import nn

from protodrift.common.outside import outside
from protodrift.errors import InputError


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3))


def test_weights_settings_and_what_is_trained_count_and_the_mode_does_not():
    same = outside(network())
    assert outside(network()) == same == outside(network().eval())
    assert outside(network(1)) != same
    frozen = network()
    frozen[1].weight.requires_grad_(False)
    assert outside(frozen) != same
    other = network()
    other[2].momentum = 0.2
    assert outside(other) != same


def test_losses_are_told_apart_by_their_options():
    assert outside(losses.NTXentLoss(0.2)) == outside(losses.NTXentLoss(0.2)) != outside(losses.NTXentLoss(0.3))


def test_functions_are_known_by_source_defaults_and_what_they_close_over():
    def made(by):
        return lambda x: x * by

    assert outside(made(2)) == outside(made(2)) != outside(made(3))
    assert outside(functools.partial(torch.add, alpha=2)) != outside(functools.partial(torch.add, alpha=3))


def test_changed_source_of_a_module_is_another_one(tmp_path):
    def load(text: str):
        path = tmp_path / "own_net.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("own_net", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules["own_net"] = module
        spec.loader.exec_module(module)
        import linecache

        linecache.clearcache()
        return module.Net()

    code = "from torch import nn\nclass Net(nn.Module):\n    def forward(self, x): return x * 2\n"
    before = outside(load(code))
    assert outside(load(code)) == before != outside(load(code.replace("* 2", "* 3")))


def test_what_has_no_lasting_content_is_refused():
    with pytest.raises(InputError, match="no content that a run could know it by"):
        outside(object())
