"""What penalties do to a training (their equations are in tests/paper)."""

import pytest
import torch

from protodrift.data import load_digits
from protodrift.errors import ImportanceWarning, InputError
from protodrift.methods import Method
from protodrift.networks import build_embedder
from protodrift.objectives import Triplet
from protodrift.penalties import EWC, MAS, LwF
from protodrift.training.config import Training
from protodrift.training.trainer import Trained
from tests.training.tasks import advance

OBJECTIVE = Triplet(margin=0.6)


@pytest.fixture(scope="module")
def two_tasks():
    train = load_digits().train
    return [train.of_classes(pair) for pair in ([3, 8], [1, 7])]


def learn(tasks, penalty, epochs=1):
    network = build_embedder("convnet", load_digits().spec, embedding_dim=16, seed=0)
    network.standardize.fit(tasks[0].images)
    state = Trained(network.eval())
    for t, examples in enumerate(tasks, 1):
        state = advance(
            state,
            examples,
            task=t,
            method=Method(OBJECTIVE, penalty),
            training=Training(epochs=epochs, learning_rate=1e-3),
            augment=None,
            seed=0,
        )
    return state


def weights(state):
    return torch.cat([weight.detach().flatten() for weight in state.network.parameters()])


@pytest.fixture(scope="module")
def fine_tuned(two_tasks):
    return weights(learn(two_tasks, None))


@pytest.mark.parametrize(
    "penalty", [LwF(), LwF(reading="released"), EWC(), EWC(accumulate=True), MAS(), MAS(reading="released")]
)
def test_a_penalty_changes_what_the_second_task_does_and_holds_the_old_weights(two_tasks, fine_tuned, penalty):
    after_first = weights(learn(two_tasks[:1], penalty))
    held = weights(learn(two_tasks, penalty))
    assert not torch.equal(held, fine_tuned)
    if not isinstance(penalty, LwF):  # LwF holds embeddings, not weights
        assert (held - after_first).norm() < (fine_tuned - after_first).norm()


@pytest.mark.parametrize("penalty", [LwF(gamma=0), EWC(gamma=0), MAS(gamma=0), (EWC(gamma=0), LwF(gamma=0))])
def test_a_gamma_of_zero_is_fine_tuning_bit_for_bit(two_tasks, fine_tuned, penalty):
    assert torch.equal(weights(learn(two_tasks, penalty)), fine_tuned)


@pytest.mark.parametrize("penalty", [EWC(), EWC(fisher="single"), MAS(), MAS(reading="released")])
def test_every_trained_layer_has_importance(two_tasks, penalty):
    small = [task.of_classes([3, 8]) for task in two_tasks[:1]]
    state = learn(small, penalty)
    names = {name for name, _ in state.network.named_parameters()}
    assert set(state.penalty_state[0]) == names
    for name, importance in state.penalty_state[0].items():
        assert bool((importance >= 0).all())
        assert float(importance.max()) > 0, f"{name} has no importance"


def test_mas_on_normalized_embeddings_would_be_zero_so_it_looks_before_normalization(two_tasks):
    state = learn(two_tasks[:1], MAS())
    z = state.network(two_tasks[0].images[:8])
    gradients = torch.autograd.grad(z.square().sum(), list(state.network.parameters()))
    assert max(float(g.abs().max()) for g in gradients) < 1e-3 * max(
        float(o.max()) for o in state.penalty_state[0].values()
    )


def test_several_penalties_act_together(two_tasks):
    both = weights(learn(two_tasks, (LwF(), EWC())))
    assert not torch.equal(both, weights(learn(two_tasks, LwF())))
    assert not torch.equal(both, weights(learn(two_tasks, EWC())))


def test_an_importance_of_zero_is_said():
    """Training until the margin is met everywhere leaves no gradient to measure."""
    easy = load_digits().train.of_classes([0, 1])
    network = build_embedder("convnet", load_digits().spec, embedding_dim=16, seed=0)
    network.standardize.fit(easy.images)
    with pytest.warns(ImportanceWarning, match="importances after task 1 are zero"):
        advance(
            Trained(network.eval()),
            easy,
            task=1,
            method=Method(Triplet(margin=0.1), EWC()),
            training=Training(epochs=5, learning_rate=1e-3),
            augment=None,
            seed=0,
        )


def test_a_first_task_of_one_class_leaves_ewc_nothing_to_hold_and_the_next_task_learns(two_tasks):
    one = two_tasks[0].of_classes([3])
    with pytest.warns(UserWarning, match="one class"):
        state = learn([one, two_tasks[1]], EWC())
    assert state.history
    assert state.history[-1]["penalty"] == 0


def test_a_one_class_task_does_not_wipe_out_older_importances(two_tasks):
    with pytest.warns(UserWarning, match="one class"):
        after = learn([two_tasks[0], two_tasks[1].of_classes([1])], EWC())
    before = learn(two_tasks[:1], EWC())
    assert all(
        torch.equal(after.penalty_state[0][name], before.penalty_state[0][name]) for name in before.penalty_state[0]
    )


@pytest.mark.parametrize("make", [lambda: EWC(gamma=-1), lambda: MAS(reading="papre"), lambda: EWC(accumulate="False")])
def test_wrong_options_are_refused(make):
    with pytest.raises(InputError, match=r"at least 0|Did you mean 'paper'|True or False"):
        make()
