"""Class statistics beyond the mean: forms, sizes, joining tasks, and the way through drift."""

import numpy as np
import pytest
import torch

from protodrift.common.covariance import Covariance, class_covariances, dense, form_of
from protodrift.drift import RidgeToIdentity
from protodrift.errors import InputError
from protodrift.prototypes.store import Prototypes
from protodrift.prototypes.update import compensate

FORMS = [Covariance(), Covariance("diagonal"), Covariance("low-rank", 2), Covariance("shared")]


@pytest.fixture(scope="module")
def clouds():
    rng = np.random.RandomState(0)
    z = np.concatenate([rng.randn(6) + rng.randn(n, 6) @ rng.randn(6, 6) for n in (20, 30, 50)])
    return torch.from_numpy(z), torch.tensor([0] * 20 + [1] * 30 + [2] * 50)


def test_covariances_are_numpys(clouds):
    z, rows = clouds
    ours = class_covariances(z, rows, 4)
    for c in range(3):
        np.testing.assert_allclose(ours[c], np.cov(z[rows == c].numpy().T, bias=True))
    assert float(ours[3].abs().max()) == 0  # a class without an image


def test_every_form_says_what_it_can(clouds):
    z, rows = clouds
    full = class_covariances(z, rows, 3)
    kept = {form.form: form.measure(z, rows, 3) for form in FORMS}
    torch.testing.assert_close(dense(kept["full"], 3), full)
    torch.testing.assert_close(dense(kept["diagonal"], 3), torch.diag_embed(full.diagonal(dim1=1, dim2=2)))
    shared = (20 * full[0] + 30 * full[1] + 50 * full[2]) / 100
    torch.testing.assert_close(dense(kept["shared"], 3), shared.expand(3, 6, 6))
    short = dense(kept["low-rank"], 3)
    for c in range(3):
        values, vectors = torch.linalg.eigh(full[c])
        values[:4] = values[:4].mean()  # two leading directions, and the rest a sphere
        torch.testing.assert_close(short[c], vectors @ torch.diag(values) @ vectors.T)
        assert float(short[c].trace()) == pytest.approx(float(full[c].trace()))
    torch.testing.assert_close(dense(Covariance("low-rank", 6).measure(z, rows, 3), 3), full)


@pytest.mark.parametrize(("form", "numbers"), list(zip(FORMS, [3 * 36, 3 * 6, 3 * (2 * 6 + 1), 36], strict=True)))
def test_how_many_numbers_each_form_keeps(clouds, form, numbers):
    z, rows = clouds
    store = Prototypes.of("abc", z.float(), rows, 1, form)
    assert sum(part.numel() for part in store.statistics.values()) == numbers
    assert form_of(store.statistics) == (form if form.form == "low-rank" else Covariance(form.form))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.form)
def test_tasks_one_after_the_other_give_what_one_task_gives(clouds, form):
    z, rows = clouds
    whole = Prototypes.of("abc", z, rows, 1, form)
    first = Prototypes.of("ab", z[rows < 2], rows[rows < 2], 1, form)
    second = Prototypes.of("c", z[rows == 2], rows[rows == 2] - 2, 2, form)
    joined = Prototypes.joined(first, second)
    torch.testing.assert_close(dense(joined.statistics, 3), dense(whole.statistics, 3))
    again = Prototypes.joined(whole, Prototypes.of("b", 2 * z[rows == 1], rows[rows == 1] - 1, 2, form))
    if form.form != "shared":  # a class that comes again takes its new covariance
        torch.testing.assert_close(dense(again.statistics, 3)[1], 4 * dense(whole.statistics, 3)[1])
        torch.testing.assert_close(dense(again.statistics, 3)[0], dense(whole.statistics, 3)[0])


def test_what_is_kept_cannot_change_between_tasks(clouds):
    z, rows = clouds
    first = Prototypes.of("ab", z[rows < 2], rows[rows < 2], 1)
    second = Prototypes.of("c", z[rows == 2], rows[rows == 2] - 2, 2, Covariance())
    with pytest.raises(
        InputError, match=r"kept only the mean of every class, and this one keeps a covariance \(full\)"
    ):
        Prototypes.joined(first, second)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.form)
def test_statistics_move_with_the_prototypes(clouds, form):
    """A linear drift: what the moved statistics say is what they would be in the new space (as far as the form can)."""
    z, rows = clouds
    g = torch.Generator().manual_seed(0)
    turn = torch.eye(6).double() + 0.2 * torch.randn(6, 6, generator=g).double()
    old = Prototypes.of("abc", z, rows, 1, form)
    moved, report = compensate(old, RidgeToIdentity(1e-9).fit(z, z @ turn))
    torch.testing.assert_close(moved.means, Prototypes.of("abc", z @ turn, rows, 1).means, atol=1e-6, rtol=0)
    torch.testing.assert_close(report.after, moved.means)
    wanted = form.shorten(turn.T @ dense(old.statistics, 3) @ turn, old.counts)
    torch.testing.assert_close(dense(moved.statistics, 3), dense(wanted, 3), atol=1e-5, rtol=0)
    still, _ = compensate(old, None)
    assert still.statistics is old.statistics
