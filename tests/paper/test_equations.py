"""One test an equation of the paper, against a naive loop written from the equation. Indices as in paper.tex."""

import itertools
import math

import pytest
import torch

from protodrift.data import Examples
from protodrift.drift import SDC, semantic_drift
from protodrift.methods import Method
from protodrift.metrics import prototype_distance
from protodrift.networks import build_embedder, embed
from protodrift.objectives import Triplet, batch_hard_loss, triplet_loss, valid_triplets
from protodrift.penalties import EWC, MAS, LwF, alignment_loss, fisher, mas_importance, quadratic_penalty
from protodrift.prototypes.store import Prototypes, class_means
from protodrift.prototypes.update import compensate
from protodrift.readouts import nearest_class_mean
from protodrift.training.config import Training
from protodrift.training.context import TaskContext
from protodrift.training.step import Step
from protodrift.training.trainer import Trained, train_network
from tests.training.tasks import advance


def distance(a, b):
    return math.sqrt(sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True)))


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(1)
    z = torch.nn.functional.normalize(torch.randn(12, 5, generator=g, dtype=torch.float64), dim=1)
    return z, torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 4])


def small_network(digits_pair, *, normalize=True, seed=0):
    network = build_embedder("convnet", digits_pair.spec, embedding_dim=6, normalize=normalize, seed=seed)
    network.standardize.fit(digits_pair.train.images)
    return network.eval().double()


@pytest.mark.parametrize("mining", ["all", "batch-hard", "semi-hard", "random"])
def test_eq1_triplet_loss(batch, mining):
    """L_T = max(0, d_+ - d_- + m), unsquared distances, mean over the mined triplets, zeros included."""
    z, rows = batch
    margin = 0.3
    n = len(rows)
    d = [[distance(z[i], z[j]) for j in range(n)] for i in range(n)]
    positives = [[j for j in range(n) if j != i and rows[j] == rows[i]] for i in range(n)]
    negatives = [[j for j in range(n) if rows[j] != rows[i]] for i in range(n)]
    if mining == "all":
        triplets = [(a, p, q) for a in range(n) for p in positives[a] for q in negatives[a]]
    elif mining == "batch-hard":
        triplets = [
            (a, max(positives[a], key=lambda p: d[a][p]), min(negatives[a], key=lambda q: d[a][q]))
            for a in range(n)
            if positives[a]
        ]
    elif mining == "semi-hard":
        triplets = [
            (a, p, q)
            for a in range(n)
            for p in positives[a]
            for q in negatives[a]
            if d[a][p] < d[a][q] <= d[a][p] + margin
        ]
    else:
        drawn = valid_triplets(rows, torch.Generator().manual_seed(0))
        triplets = list(zip(*(index.tolist() for index in drawn), strict=True))
        assert sorted((a, p) for a, p, _ in triplets) == [(a, p) for a in range(n) for p in positives[a]]
        assert all(q in negatives[a] for a, _, q in triplets)
    losses = [max(0.0, d[a][p] - d[a][q] + margin) for a, p, q in triplets]
    assert any(loss == 0 for loss in losses) or mining in ("batch-hard", "semi-hard")
    expected = pytest.approx(sum(losses) / len(losses), abs=1e-7)
    assert float(triplet_loss(z, rows, margin, tuple(map(torch.tensor, zip(*triplets, strict=True))))) == expected
    objective = Triplet(margin=margin, mining=mining)
    assert float(objective.losses(z, rows, objective.draw(rows, torch.Generator().manual_seed(0)), "mean")) == expected
    if mining == "all":
        assert float(triplet_loss(z, rows, margin)) == expected
    if mining == "batch-hard":
        assert float(batch_hard_loss(z, rows, margin)) == expected


def test_eq2_nearest_class_mean(batch):
    """c* = argmin_c dist(z, mu_c)."""
    z, _ = batch
    prototypes = z[[0, 3, 6]] + 0.1
    naive = [min(range(3), key=lambda c: distance(row, prototypes[c])) for row in z]
    assert nearest_class_mean(z, prototypes).tolist() == naive


def test_eq3_prototype(batch):
    """mu_c = 1/n_c sum_i [y_i = c] z_i, not normalized again."""
    z, rows = batch
    means = class_means(z, rows, 5)
    for c in range(5):
        members = [z[i] for i in range(len(rows)) if rows[i] == c]
        naive = [sum(float(m[k]) for m in members) / len(members) for k in range(z.shape[1])]
        assert means[c].tolist() == pytest.approx(naive, abs=1e-15)
    assert float(means[0].norm()) < 0.999


@pytest.mark.parametrize("reading", ["paper", "released"])
def test_eq4_alignment_loss(batch, reading):
    """L_LwF = ||z^t - z^{t-1}||; the released code takes half the sum of squares."""
    z, _ = batch
    z_old = z.roll(1, dims=0)
    lengths = [distance(a, b) for a, b in zip(z, z_old, strict=True)]
    naive = sum(lengths) / len(lengths) if reading == "paper" else 0.5 * sum(length**2 for length in lengths)
    assert float(alignment_loss(z, z_old, reading)) == pytest.approx(naive, rel=1e-12)


def naive_penalty(importance, network, network_old):
    old = dict(network_old.named_parameters())
    total = 0.0
    for name, theta in network.named_parameters():
        for i, now, before in zip(
            importance[name].flatten().tolist(), theta.flatten().tolist(), old[name].flatten().tolist(), strict=True
        ):
            total += 0.5 * i * (now - before) ** 2
    return total


def moved_copy(digits_pair):
    other = small_network(digits_pair)
    with torch.no_grad():
        for i, weight in enumerate(other.parameters()):
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(i)).double(), alpha=0.01)
    return other


@pytest.mark.parametrize("penalty", [EWC(), EWC(fisher="single"), MAS(), MAS(reading="released")])
def test_eq5_eq6_quadratic_penalty(digits_pair, penalty):
    """L = sum_p 1/2 I_p (theta_p - theta_p^{t-1})^2, and its gradient I (theta - theta^{t-1})."""
    old = small_network(digits_pair)
    rows = digits_pair.train.targets_of(digits_pair.classes)
    context = TaskContext(old, Triplet(margin=0.5), digits_pair.train.images, rows, 1, 0)
    kept = penalty.end_task(context, {}, {})
    network = moved_copy(digits_pair)
    objective = Triplet(margin=0.5)
    images = digits_pair.train.images
    step = Step(network, images, rows, objective=objective, network_old=old)
    loss = penalty.penalty(step, penalty.start_task(context, kept, network))
    pure = quadratic_penalty(dict(network.named_parameters()), dict(old.named_parameters()), kept)
    assert loss.item() == pure.item() == pytest.approx(naive_penalty(kept, network, old), rel=1e-9)
    loss.backward()
    for (name, theta), before in zip(network.named_parameters(), old.parameters(), strict=True):
        torch.testing.assert_close(theta.grad, kept[name] * (theta - before).detach(), rtol=1e-9, atol=1e-12)


def test_eq5_fisher_is_the_mean_squared_gradient_of_batch_losses(digits_pair):
    network = small_network(digits_pair)
    rows = digits_pair.train.targets_of(digits_pair.classes)
    objective = Triplet(margin=0.5, mining="all")
    context = TaskContext(network, objective, digits_pair.train.images, rows, 1, 0)
    kept = EWC().importance(context)
    squares, batches = dict.fromkeys(kept, 0.0), 0
    for step in context.steps():
        assert len(step.targets) <= 32  # gamma 1e7 belongs to mini-batches of 32
        network.zero_grad()
        objective.loss(step).backward()
        batches += 1
        for name, weight in network.named_parameters():
            squares[name] = squares[name] + weight.grad.square()
    pure = fisher(network, (triplet_loss(step.z, step.targets, 0.5) for step in context.steps()))
    for name, value in kept.items():
        assert torch.equal(value, pure[name])
        torch.testing.assert_close(value, squares[name] / batches, rtol=1e-10, atol=1e-20)
        assert float(value.max()) > 0, f"no importance in {name}"


def test_eq5_fisher_of_anchors_is_the_mean_over_anchors_divided_by_the_batch_size(digits_pair):
    """mean_a (d l_a / d theta)^2 / 32, so that the gamma of batches of 32 fits."""
    network = small_network(digits_pair)
    images, rows = digits_pair.train.images[6:18], torch.tensor([0] * 6 + [1] * 6)
    context = TaskContext(network, Triplet(margin=0.5, mining="all"), images, rows, 1, 0)
    squares, anchors = 0.0, 0
    for step in context.steps():
        d = torch.cdist(step.z, step.z)
        for a in range(len(step.targets)):
            terms = [
                torch.relu(d[a, p] - d[a, n] + 0.5)
                for p in range(len(step.targets))
                for n in range(len(step.targets))
                if p != a and step.targets[p] == step.targets[a] and step.targets[n] != step.targets[a]
            ]
            (gradient,) = torch.autograd.grad(sum(terms) / len(terms), [network.head.weight], retain_graph=True)
            squares, anchors = squares + gradient.square(), anchors + 1
    kept = EWC(fisher="single").importance(context)
    torch.testing.assert_close(kept["head.weight"], squares / anchors / 32, rtol=1e-6, atol=1e-15)


def test_eq6_omega_is_the_mean_absolute_gradient_of_the_squared_norm(digits_pair):
    """Per image, on the embedding before its normalization; accumulated over the tasks."""
    network = small_network(digits_pair)
    images = digits_pair.train.images[:9]
    context = TaskContext(network, Triplet(), images, torch.zeros(9, dtype=torch.long), 1, 0)
    omega = MAS().end_task(context, {}, {})
    pure = mas_importance(network, images, network.raw)
    naive = {name: torch.zeros_like(weight) for name, weight in network.named_parameters()}
    for image in images:
        network.zero_grad()
        network.raw(image[None]).square().sum().backward()
        for name, weight in network.named_parameters():
            naive[name] += weight.grad.abs() / len(images)
    for name, value in omega.items():
        assert torch.equal(value, pure[name])
        torch.testing.assert_close(value, naive[name], rtol=1e-9, atol=1e-12)
        assert float(value.max()) > 0, f"no importance in {name}"
    again = MAS().end_task(context, omega, {})
    torch.testing.assert_close(again["head.weight"], 2 * omega["head.weight"])
    replaced = MAS(reading="released").end_task(context, omega, {})
    torch.testing.assert_close(replaced, MAS(reading="released").end_task(context, {}, {}))


def test_eq6_released_omega_is_the_squared_gradient_of_the_summed_norm(digits_pair):
    network = small_network(digits_pair)
    rows = digits_pair.train.targets_of(digits_pair.classes)
    context = TaskContext(network, Triplet(), digits_pair.train.images, rows, 1, 0)
    squares, batches = 0.0, 0
    for step in context.steps():
        network.zero_grad()
        network.raw(step.images).norm(dim=1).sum().backward()
        squares, batches = squares + network.head.weight.grad.square(), batches + 1
    omega = MAS(reading="released").importance(context)
    torch.testing.assert_close(omega["head.weight"], squares / batches)


def test_eq7_total_loss_is_objective_plus_gamma_times_penalty(digits_pair):
    """One Adam step of the trainer equals one of a hand-written loop on L_ML + gamma L_C."""
    data = Examples(digits_pair.train.images[4:20], digits_pair.train.labels[4:20])
    start = build_embedder("convnet", digits_pair.spec, embedding_dim=6, seed=0)
    start.standardize.fit(data.images)
    start = start.eval().double()
    # A second task whose old network is another one, so that the penalty is not zero at the first step.
    gamma, rate = 0.7, 1e-3
    method = Method(objective=Triplet(margin=0.5, mining="all"), penalty=LwF(gamma=gamma))
    training = Training(epochs=2, learning_rate=rate, batch_size=16, weight_decay=0.01)
    trained = train_network(
        Trained(start), data, task=2, method=method, training=training, augment=None, seed=0, on_progress=None
    ).network

    network = build_embedder("convnet", digits_pair.spec, embedding_dim=6, seed=0).double()
    network.load_state_dict(start.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=rate, weight_decay=0.01)
    network.eval()  # the default policy freezes batch norm after the first task; nothing else here has modes
    rows = data.targets_of(sorted(set(data.labels)))
    triplets = [
        (a, p, n)
        for a, p, n in itertools.product(range(16), repeat=3)
        if a != p and rows[a] == rows[p] and rows[a] != rows[n]
    ]
    a, p, n = map(list, zip(*triplets, strict=True))
    for _ in range(2):
        z, z_old = network(data.images), start(data.images).detach()
        d = torch.cdist(z, z)
        loss = torch.relu(d[a, p] - d[a, n] + 0.5).mean() + gamma * (z - z_old).norm(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for ours, naive in zip(trained.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours, naive, rtol=1e-6, atol=1e-9)


def test_eq8_semantic_drift_is_the_way_from_the_stored_to_the_true_mean(batch):
    """Delta^{s->t} = mu^t - mu^s; its length is what `prototype_distance` reports."""
    z, rows = batch
    mu_s, mu_t = class_means(z, rows, 5), class_means(z * 1.3 + 0.1, rows, 5)
    naive = [distance(now, before) for now, before in zip(mu_t, mu_s, strict=True)]
    assert prototype_distance(mu_s, mu_t).tolist() == pytest.approx(naive, abs=1e-14)


def naive_sdc(prototypes, z_old, z_new, sigma):
    moved = []
    for mu in prototypes.tolist():
        weighted, total = [0.0] * len(mu), 0.0
        for old, new in zip(z_old.tolist(), z_new.tolist(), strict=True):
            delta = [b - a for a, b in zip(old, new, strict=True)]  # Eq. 9
            w = math.exp(-sum((a - m) ** 2 for a, m in zip(old, mu, strict=True)) / (2 * sigma**2))  # Eq. 11
            weighted = [s + w * x for s, x in zip(weighted, delta, strict=True)]
            total += w
        moved.append([s / total for s in weighted])  # Eq. 10
    return torch.tensor(moved, dtype=torch.float64)


@pytest.fixture
def drifting():
    g = torch.Generator().manual_seed(3)
    unit = lambda *shape: torch.nn.functional.normalize(torch.randn(*shape, generator=g, dtype=torch.float64), dim=1)  # noqa: E731
    z_old = unit(200, 16)
    return unit(7, 16), z_old, torch.nn.functional.normalize(z_old + 0.3 * unit(200, 16), dim=1)


@pytest.mark.parametrize("sigma", [0.1, 0.2, 0.3, 1.0, 100.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_eq9_eq10_eq11_drift_equals_the_naive_loop(drifting, sigma, dtype, tolerance):
    prototypes, z_old, z_new = (part.to(dtype) for part in drifting)
    ours = semantic_drift(prototypes, z_old, z_new, sigma)
    assert ours.dtype == dtype
    naive = naive_sdc(*(part.double() for part in (prototypes, z_old, z_new)), sigma)
    assert float((ours.double() - naive).abs().max()) < tolerance


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("sigma", "norm"), [(0.01, 1.0), (0.3, 20.0), (0.01, 20.0), (1e-4, 1.0), (0.3, 1e4)])
def test_eq10_is_finite_and_within_the_deltas_where_the_quotient_is_not(drifting, dtype, sigma, norm):
    prototypes, z_old, z_new = (norm * part.to(dtype) for part in drifting)
    ours = semantic_drift(prototypes, z_old, z_new, sigma)
    delta = z_new - z_old
    slack = 1e-5 * float(delta.abs().max())
    assert bool(torch.isfinite(ours).all())
    assert bool((ours >= delta.min(dim=0).values - slack).all())
    assert bool((ours <= delta.max(dim=0).values + slack).all())


def test_eq9_pairs_the_same_image_in_one_ordered_pass(digits_pair):
    """delta_i = z_i^t - z_i^{t-1}: row i of both passes is image i, whatever the batch size."""
    old, new = small_network(digits_pair), small_network(digits_pair, seed=1)
    images = digits_pair.train.images[:20]
    delta = embed(new, images, batch_size=7) - embed(old, images, batch_size=20)
    for i in (0, 7, 19):
        alone = embed(new, images[i : i + 1]) - embed(old, images[i : i + 1])
        torch.testing.assert_close(delta[i], alone[0], rtol=1e-9, atol=1e-9)


def test_eq12_eq13_compensation_over_tasks_is_the_sum_of_the_steps(drifting):
    """mu^t = mu^s + Delta^{s->s+1} + ... + Delta^{t-1->t}, applied recursively."""
    prototypes, z_old, z_new = drifting
    store = Prototypes(("a", "b", "c", "d", "e", "f", "g"), prototypes, torch.ones(7), torch.ones(7))
    total, here = torch.zeros_like(prototypes), prototypes
    for scale in (1.0, 0.5, -0.7):  # three later tasks
        moved_images = z_old + scale * (z_new - z_old)
        store, report = compensate(store, SDC(sigma=0.3).fit(z_old, moved_images))
        step = naive_sdc(here, z_old, moved_images, 0.3)
        torch.testing.assert_close(report.vectors, step, rtol=1e-9, atol=1e-12)
        total, here = total + step, here + step
    torch.testing.assert_close(store.means, prototypes + total, rtol=1e-9, atol=1e-12)


def test_the_trainer_begins_penalties_with_the_second_task(digits_pair):
    """Task 1 has nothing to hold: all E-methods share it bit for bit."""
    start = build_embedder("convnet", digits_pair.spec, embedding_dim=6, seed=0)
    start.standardize.fit(digits_pair.train.images)
    first = [
        advance(
            Trained(start.eval()),
            digits_pair.train,
            task=1,
            method=Method(penalty=penalty, objective=Triplet(margin=0.5)),
            training=Training(epochs=1),
            augment=None,
            seed=0,
        ).network.state_dict()
        for penalty in (None, LwF(), EWC(), MAS())
    ]
    for other in first[1:]:
        assert all(torch.equal(first[0][name], other[name]) for name in first[0])
