"""What an interrupt inside torch can leave set for the whole thread, set on purpose: results have the same bits."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch

from protodrift import MAS, Training
from protodrift.common.modes import own_modes
from tests.training.interrupting import calls_of, interrupted


@contextlib.contextmanager
def gradients_off():
    torch.set_grad_enabled(False)
    try:
        yield
    finally:
        torch.set_grad_enabled(True)


@contextlib.contextmanager
def autocast_on():
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_autocast_enabled("cpu", True)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", False)


@contextlib.contextmanager
def transform_open():
    torch._C._functorch._grad_increment_nesting()
    try:
        yield
    finally:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(0)


@contextlib.contextmanager
def other_generator():
    torch.manual_seed(12345)
    yield


@pytest.mark.parametrize("left", [gradients_off, autocast_on, transform_open, torch.inference_mode, other_generator])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_mode_that_was_left_set_changes_no_result(make_classifier, vectors, same, left, precision):
    training = Training(epochs=2, batch_size=8, precision=precision)
    first = make_classifier(penalty=MAS(gamma=10.0), training=training).partial_fit(*vectors("owl", "emu"))
    reference, again = copy.deepcopy(first).partial_fit(*vectors("kea", "tui")), copy.deepcopy(first)
    X = vectors("owl", "kea")[0]
    with left():
        again.partial_fit(*vectors("kea", "tui"))
        answers = again.predict_proba(X)
    assert same(again, reference)
    assert (answers == reference.predict_proba(X)).all()
    assert again.tasks_[-1].history[-1]["loss"] > 0


def test_modes_are_as_before_after_the_block():
    with torch.no_grad():
        with own_modes():
            assert torch.is_grad_enabled()
        assert not torch.is_grad_enabled()
    with torch.autocast("cpu", torch.bfloat16), own_modes():
        assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() <= 1
    torch.autocast_decrement_nesting()


def test_interrupts_at_bytecodes_leave_the_classifier_and_later_results_as_they_were(make_classifier, vectors, same):
    first = make_classifier(penalty=MAS(gamma=10.0)).partial_fit(*vectors("owl", "emu"))
    task, state = vectors("kea", "tui"), first.state_
    reference, start = copy.deepcopy(first).partial_fit(*task), copy.deepcopy(first)
    calls = calls_of(lambda: copy.deepcopy(first).partial_fit(*task))
    out = 0
    for at in range(1, calls, calls // 12):
        clf = copy.copy(first)
        out += interrupted(lambda clf=clf: clf.partial_fit(*task), at, at % 80)
        if clf.state_ is not state:
            assert same(clf, reference)
            clf.state_ = state
        assert same(clf, start)
        assert torch.is_grad_enabled()
    assert out > 6
    assert same(first.partial_fit(*task), reference)
