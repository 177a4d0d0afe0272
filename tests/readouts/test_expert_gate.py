"""Expert Gate: the gate by a naive loop, the choice of expert, and the whole method on digits."""

import math

import pytest
import torch

from protodrift.common.config import decode, encode
from protodrift.data import load_digits
from protodrift.data.tasks import TaskStream
from protodrift.errors import InputError
from protodrift.experiments.store import Store
from protodrift.experiments.tree import Tree
from protodrift.methods import Method, Schedule
from protodrift.objectives import Softmax
from protodrift.readouts import ExpertGate, View, reconstruction_errors
from protodrift.training.config import Training

GATE = ExpertGate(hidden=2, epochs=40, learning_rate=1e-2)


@pytest.fixture(scope="module")
def clouds():
    """Three tasks of features, each near a plane of its own in eight dimensions."""
    g = torch.Generator().manual_seed(0)
    tasks = []
    for _ in range(3):
        plane = torch.randn(2, 8, generator=g)
        points = torch.randn(80, 2, generator=g) @ plane + 0.05 * torch.randn(80, 8, generator=g)
        tasks.append(points + torch.randn(8, generator=g))
    return tasks


@pytest.fixture(scope="module")
def kept(clouds):
    result = {}
    for t, z in enumerate(clouds, 1):
        result = GATE.learn(result, z[:60], torch.zeros(60, dtype=torch.long), t, 0)
    return result


def sigmoid(x):
    return 1 / (1 + math.exp(-float(x)))


def test_reconstruction_errors_follow_their_formula(clouds, kept):
    z = clouds[1][60:64]
    errors = reconstruction_errors(z, kept)
    assert errors.shape == (4, 3)
    for i in range(4):
        for t in range(1, 4):
            gate = {name.partition(".")[2]: value for name, value in kept.items() if name.startswith(f"gate{t}.")}
            x = [sigmoid((z[i, d] - gate["mean"][d]) / gate["std"][d]) for d in range(8)]
            w, b = gate["encoder.weight"], gate["encoder.bias"]
            code = [max(0.0, float(b[h]) + sum(float(w[h, d]) * x[d] for d in range(8))) for h in range(2)]
            w, b = gate["decoder.weight"], gate["decoder.bias"]
            back = [sigmoid(b[d] + sum(float(w[d, h]) * code[h] for h in range(2))) for d in range(8)]
            naive = sum((p - q) ** 2 for p, q in zip(x, back, strict=True))
            assert float(errors[i, t - 1]) == pytest.approx(naive, abs=1e-5)
    confidences = GATE.confidences(errors)
    naive = [math.exp(-float(e) / 2) for e in errors[0]]
    assert confidences[0].tolist() == pytest.approx([e / sum(naive) for e in naive], abs=1e-6)


def test_a_gate_keeps_statistics_of_its_task_and_is_undercomplete(clouds, kept):
    torch.testing.assert_close(kept["gate2.mean"], clouds[1][:60].mean(dim=0))
    torch.testing.assert_close(kept["gate2.std"], clouds[1][:60].std(dim=0, correction=0))
    assert kept["gate1.encoder.weight"].shape == (2, 8)
    wide = ExpertGate(hidden=100, epochs=1).learn({}, clouds[0], torch.zeros(80, dtype=torch.long), 1, 0)
    assert wide["gate1.encoder.weight"].shape == (4, 8)
    assert not any(tensor.requires_grad for tensor in kept.values())


def test_a_constant_feature_is_harmless():
    z = torch.ones(10, 4)
    z[:, 0] = torch.arange(10)
    kept = GATE.learn({}, z, torch.zeros(10, dtype=torch.long), 1, 0)
    assert bool(torch.isfinite(reconstruction_errors(z, kept)).all())


def test_new_features_go_to_their_own_task(clouds, kept):
    for t, z in enumerate(clouds):
        assert float((reconstruction_errors(z[60:], kept).argmin(dim=1) == t).float().mean()) > 0.8


def test_the_same_seed_trains_the_same_gate_and_the_global_generator_is_left_alone(clouds, kept):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    again = GATE.learn({}, clouds[0][:60], torch.zeros(60, dtype=torch.long), 1, 0)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(again[name], kept[name]) for name in again)
    other = GATE.learn({}, clouds[0][:60], torch.zeros(60, dtype=torch.long), 1, 1)
    assert not torch.equal(other["gate1.encoder.weight"], again["gate1.encoder.weight"])


def test_only_the_chosen_experts_classes_can_win(clouds, kept):
    g = torch.Generator().manual_seed(1)
    z = torch.cat([part[60:] for part in clouds])
    experts = {t: [torch.randn(60, size, generator=g)] for t, size in ((1, 2), (2, 3), (3, 2))}
    view = View(z, torch.zeros(0, 8), [], kept, lambda t: {0: z}[t], experts.__getitem__)
    scores = GATE.scores(view)
    chosen = reconstruction_errors(z, kept).argmin(dim=1)
    assert scores.shape == (60, 7)
    for i in range(60):
        for t, columns in enumerate((range(2), range(2, 5), range(5, 7))):
            if t == chosen[i]:
                expected = experts[t + 1][0][i].log_softmax(dim=0)
                torch.testing.assert_close(scores[i, list(columns)], expected)
            else:
                assert bool((scores[i, list(columns)] == -torch.inf).all())


def test_without_the_other_networks_it_says_so(kept):
    with pytest.raises(InputError, match="networks of all tasks"):
        GATE.scores(View(torch.zeros(1, 8), torch.zeros(0, 8), readout_state=kept))


def test_options():
    assert decode(encode(GATE)) == GATE
    with pytest.raises(InputError, match="greater than 0"):
        ExpertGate(temperature=0)


def test_the_method_on_digits(tmp_path):
    """Every expert starts from the initial network and knows its own classes; the gate finds them."""
    stream = TaskStream(load_digits(), classes=[[3, 8], [1, 7, 9], [0, 6]])
    schedule = Schedule(start="initial", batch_norm="train")
    method = Method(Softmax(), readout=ExpertGate(epochs=20), schedule=schedule)

    def tree():
        return Tree(stream, training=Training(epochs=4), store=Store(tmp_path))

    first = tree()
    result = first.run({"Expert Gate": method})["Expert Gate"]
    assert result.average_accuracy[-1] > 0.9
    assert [len(first.trained(method, t).network.heads) for t in range(4)] == [0, 1, 1, 1]
    kept = first.readout(method, 3).readout_state
    gates = sum(tensor.numel() * tensor.element_size() for tensor in kept.values())
    network = sum(t.numel() * t.element_size() for t in first.trained(method, 3).network.state_dict().values())
    assert result.bytes_stored == gates + 3 * network  # beside one network: the initial one, and two more experts
    again = tree()
    assert (again.run({"Expert Gate": method})["Expert Gate"].accuracy_matrix == result.accuracy_matrix)[2].all()
    assert not again.computed
