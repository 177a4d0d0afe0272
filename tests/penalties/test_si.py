"""Synaptic intelligence against a naive loop, and in real trainings."""

import copy
from dataclasses import replace

import pytest
import torch

from protodrift import Method
from protodrift.data.arrays import InputSpec
from protodrift.errors import InputError
from protodrift.networks import build_embedder
from protodrift.objectives import Softmax
from protodrift.penalties import EWC, SI
from protodrift.training.config import Training
from protodrift.training.context import TaskContext
from protodrift.training.step import Step
from tests.training.tasks import advance

RATE = 1e-2
OBJECTIVE = Softmax()


def problem(seed):
    """Return five batches of twelve points in two classes."""
    draw = torch.Generator().manual_seed(seed)
    return [(torch.randn(12, 5, generator=draw), torch.arange(12) % 2) for _ in range(5)]


def start(network=None):
    if network is None:
        spec = InputSpec((5,), "free", -3.0, 3.0)
        network = build_embedder("mlp", spec, embedding_dim=None, normalize=False, seed=0)
    network = copy.deepcopy(network)
    torch.manual_seed(0)
    OBJECTIVE.grow(network, 2)
    return network


def by_methods(si, network, network_old, kept, batches, task):
    """Train as the trainer does, and return Omega."""
    rows = torch.arange(12) % 2 + 2 * (task - 1)
    context = TaskContext(network if network_old is None else network_old, OBJECTIVE, batches[0][0], rows, task, 0)
    state = dict(si.start_task(context, kept, network))
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE, weight_decay=2e-4)
    for x, y in batches:
        step = Step(network, x, y + 2 * (task - 1), objective=OBJECTIVE, network_old=network_old)
        total = OBJECTIVE.loss(step)
        if network_old is not None:
            total = total + si.gamma * si.penalty(step, state)
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        optimizer.step()
        si.after_step(step, state)
    return si.end_task(TaskContext(network, OBJECTIVE, x, rows, task, 0), kept, state)


def naively(si, network, network_old, kept, batches):
    """Zenke et al. as written: the gradient of the loss alone is computed by itself."""
    names = [name for name, _ in network.named_parameters()]
    theta_0 = {n: w.detach().clone() for n, w in network.named_parameters()}
    omega = {n: torch.zeros_like(w) for n, w in network.named_parameters()}
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE, weight_decay=2e-4)
    for x, y in batches:
        weights = dict(network.named_parameters())
        loss = torch.nn.functional.cross_entropy(network.heads[-1](network(x)), y)
        alone = torch.autograd.grad(loss, list(weights.values()), allow_unused=True, retain_graph=True)
        if network_old is not None:
            for n, old in network_old.named_parameters():
                loss = loss + si.gamma * (kept[n] * (old.detach() - weights[n]) ** 2).sum()
        before = {n: w.detach().clone() for n, w in weights.items()}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for n, g in zip(names, alone, strict=True):
            if g is not None:
                omega[n] -= g * (weights[n].detach() - before[n])
    result = {}
    for n, w in network.named_parameters():
        result[n] = kept.get(n, 0) + omega[n] / ((w.detach() - theta_0[n]) ** 2 + si.xi)
        if si.reading == "released":
            result[n] = result[n].clamp(min=0)
    return result


@pytest.mark.parametrize("reading", ["paper", "released"])
def test_si_equals_a_naive_loop_over_two_tasks_with_a_new_head(reading):
    si = SI(gamma=3.0, xi=0.01, reading=reading)
    first, plain = start(), start()
    kept = by_methods(si, first, None, {}, problem(1), 1)
    expected = naively(si, plain, None, {}, problem(1))
    second, plain_second = start(first), start(plain)
    kept_2 = by_methods(si, second, first, kept, problem(2), 2)
    expected_2 = naively(si, plain_second, plain, expected, problem(2))
    assert kept.keys() == expected.keys()
    assert kept_2.keys() == expected_2.keys() == dict(second.named_parameters()).keys()
    for got, want in ((kept, expected), (kept_2, expected_2)):
        for name in want:
            torch.testing.assert_close(got[name], want[name], atol=1e-5, rtol=1e-4)
    for a, b in zip(second.parameters(), plain_second.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    assert max(float(kept_2[name].max()) for name in kept_2 if name.startswith("heads.1")) > 0


def test_the_path_integral_is_the_decrease_of_the_loss():
    """On one batch with small steps, the weights' shares sum to what was gained: sum_p omega_p = L(start) - L(end)."""
    network, batches = start(), problem(1)[:1] * 200
    x, y = batches[0]
    context = TaskContext(network, OBJECTIVE, x, y, 1, 0)
    si = SI()
    state = dict(si.start_task(context, {}, network))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    losses = []
    for _ in batches:
        step = Step(network, x, y, objective=OBJECTIVE)
        loss = OBJECTIVE.loss(step)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        si.after_step(step, state)
    end = float(OBJECTIVE.loss(Step(network, x, y, objective=OBJECTIVE)).detach())
    shares = sum(float(value.sum()) for name, value in state.items() if name.startswith("omega:"))
    assert losses[0] - end > 0.01
    assert shares == pytest.approx(losses[0] - end, rel=0.02)


def test_si_holds_what_its_path_found_important(learn, objective):
    free, held = learn(objective, None), learn(objective, SI(gamma=1e3, reading="released"))
    omega = held[1].penalty_state[0]

    def moved(states):
        old = dict(states[1].network.named_parameters())
        new = dict(states[2].network.named_parameters())
        return sum(float((omega[name] * (new[name] - old[name]).detach() ** 2).sum()) for name in old)

    assert moved(held) < 0.1 * moved(free)
    assert all(bool((value >= 0).all()) for value in omega.values())
    assert held[2].penalty_state[0].keys() == dict(held[2].network.named_parameters()).keys()
    assert held[2].history[-1]["penalty"] > 0


def test_si_watches_the_first_task_without_changing_it(learn, objective):
    free, held = learn(objective, None, 1)[-1], learn(objective, SI(), 1)[-1]
    assert free.history == held.history
    for a, b in zip(free.network.parameters(), held.network.parameters(), strict=True):
        assert torch.equal(a, b)


def test_si_is_the_same_twice_and_after_an_interruption(learn, interrupted, same_state, objective):
    once = learn(objective, SI())[-1]
    assert same_state(once, learn(objective, SI())[-1])
    assert same_state(once, interrupted(objective, SI()))


def test_si_in_a_tree_of_stages(tree_twice, objective):
    tree_twice(Method(objective, SI()))


def test_a_gamma_of_zero_is_fine_tuning(learn, objective):
    free, zero = learn(objective, None)[-1], learn(objective, SI(gamma=0))[-1]
    assert all(torch.equal(a, b) for a, b in zip(free.network.parameters(), zero.network.parameters(), strict=True))


def test_a_task_that_trains_nothing_keeps_what_was_known():
    network = start()
    kept = {name: torch.rand_like(weight) for name, weight in network.named_parameters() if name.startswith("back")}
    context = TaskContext(network, OBJECTIVE, torch.zeros(2, 5), torch.zeros(2, dtype=torch.long), 2, 0)
    after = SI().end_task(context, kept, {})
    assert all(torch.equal(after[name], kept[name]) for name in kept)
    assert not after["heads.0.weight"].any()


def test_si_needs_the_path_of_every_task(learn, tiny):
    trained = learn(OBJECTIVE, EWC(), 1)[-1]
    for kept in ((), ({},)):
        with pytest.raises(InputError, match="from the first task on"):
            advance(
                replace(trained, penalty_state=kept),
                tiny[1],
                task=2,
                method=Method(OBJECTIVE, SI()),
                training=Training(epochs=1),
                augment=None,
                seed=0,
            )


def test_wrong_options_are_refused():
    with pytest.raises(InputError, match="greater than 0"):
        SI(xi=0)
    with pytest.raises(InputError, match="Did you mean 'released'"):
        SI(reading="relased")
