"""Adversarial pairs on networks whose answer is known."""

import pytest
import torch

from protodrift.common.config import decode, encode
from protodrift.drift import ADC, Ridge, adversarial_pairs
from protodrift.errors import InputError


@pytest.fixture
def world():
    """Linear networks on 6 pixels of variance about 1, two old classes, one current cloud."""
    g = torch.Generator().manual_seed(0)
    old, new = torch.randn(6, 3, generator=g), torch.randn(6, 3, generator=g)
    images = torch.randn(40, 6, generator=g)
    prototypes = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    return (lambda x: x @ old), (lambda x: x @ new), images, prototypes, old, new


def test_images_are_bent_by_gradient_steps_until_the_old_network_takes_them_for_the_class(world):
    f_old, f_new, images, prototypes, old, new = world
    probes = adversarial_pairs(f_old, f_new, images, prototypes, candidates=10, steps=4, step_size=0.05)
    step = 0.05 * float(images.var(correction=0))
    expected = []
    for row, p in enumerate(prototypes):
        order = (images @ old - p).square().sum(1).argsort()[:10]
        for x in images[order]:
            for _ in range(4):
                x = x - step * 2 * (x @ old - p) @ old.T
            if int((prototypes - x @ old).norm(dim=1).argmin()) == row:
                expected.append((row, x @ old, x @ new))
    assert probes.owner.tolist() == [row for row, _, _ in expected]
    torch.testing.assert_close(probes.z_old, torch.stack([z for _, z, _ in expected]), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(probes.z_new, torch.stack([z for _, _, z in expected]), atol=1e-4, rtol=1e-4)


def test_gradients_in_bfloat16_bend_alike_and_the_drift_is_measured_in_float32():
    torch.manual_seed(0)
    f_old, f_new = (torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3)) for _ in "ab")
    images, prototypes = torch.randn(40, 6), torch.tensor([[0.3, 0.0, 0.0], [0.0, 0.3, 0.0]])
    exact, rough = (
        adversarial_pairs(f_old, f_new, images, prototypes, candidates=20, step_size=0.5, precision=precision)
        for precision in ("float32", "bfloat16")
    )
    assert len(exact.owner) > 20
    assert torch.equal(exact.owner, rough.owner)
    assert not torch.equal(exact.z_old, rough.z_old)
    assert rough.z_old.dtype == rough.z_new.dtype == torch.float32
    torch.testing.assert_close(rough.z_old, exact.z_old, atol=5e-3, rtol=0)
    torch.testing.assert_close(rough.z_new, exact.z_new, atol=5e-3, rtol=0)


def test_many_prototypes_are_bent_for_in_shares_as_one_by_one(world):
    f_old, f_new, images, _, _, _ = world
    prototypes = torch.randn(30, 3, generator=torch.Generator().manual_seed(1)) * 2
    some = {"candidates": 7, "steps": 2, "step_size": 0.05}
    together = adversarial_pairs(f_old, f_new, images, prototypes, **some)
    assert len(together.owner) > 64  # more than one share
    step = 0.05 * float(images.var(correction=0))
    old = f_old(torch.eye(6))
    for row, p in enumerate(prototypes):
        x = images[(images @ old - p).square().sum(1).argsort()[:7]]
        for _ in range(2):
            x = x - step * 2 * (x @ old - p) @ old.T
        mine = torch.cdist(x @ old, prototypes).argmin(1) == row
        torch.testing.assert_close(together.z_old[together.owner == row], (x @ old)[mine], atol=1e-4, rtol=1e-4)


def test_a_prototype_moves_with_its_own_pairs_and_stays_without_any(world):
    f_old, f_new, images, prototypes, _, _ = world
    far = torch.cat([prototypes, prototypes[:1]])  # the first of two equal prototypes takes all images
    config = ADC(candidates=10, steps=4, step_size=0.05)
    fitted = config.probe(f_old, f_new, images, far)
    moved, told = fitted.explain(far)
    own = fitted.probes.owner == 0
    torch.testing.assert_close(moved[0], far[0] + (fitted.probes.z_new - fitted.probes.z_old)[own].mean(0))
    assert told["effective_samples"].tolist()[2] == 0
    assert torch.equal(moved[2], far[2])


def test_its_pairs_feed_any_estimator(world):
    f_old, f_new, images, prototypes, _, _ = world
    fitted = ADC(steps=4, step_size=0.05, estimator=Ridge()).probe(f_old, f_new, images, prototypes)
    probes = adversarial_pairs(f_old, f_new, images, prototypes, steps=4, step_size=0.05)
    torch.testing.assert_close(
        fitted.transport(prototypes), Ridge().fit(probes.z_old, probes.z_new).transport(prototypes)
    )


def test_what_it_cannot_do_is_said(world):
    with pytest.raises(InputError, match="needs them and both networks"):
        ADC().fit(torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(InputError, match="does not look at images"):
        Ridge().probe(*world[:4])
    with pytest.raises(ValueError, match="bent for 2 prototypes"):
        ADC().probe(*world[:4]).transport(torch.zeros(3, 3))
    assert decode(encode(ADC(estimator=Ridge(0.1)))) == ADC(estimator=Ridge(0.1))
