"""Properties of class-balanced batches, for tasks of every size."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protodrift.data import class_balanced_batches

tasks = st.lists(st.integers(1, 23), min_size=1, max_size=13).map(
    lambda sizes: torch.cat([torch.full((n,), row) for row, n in enumerate(sizes)])[
        torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(len(sizes)))
    ]
)
options = {
    "rows": tasks,
    "batch_size": st.integers(4, 40),
    "images_per_class": st.integers(2, 9),
    "seed": st.integers(0, 9),
}


def epoch_of(rows, batch_size, images_per_class, seed, epoch):
    generator = torch.Generator().manual_seed(seed)
    batches = class_balanced_batches(
        rows, batch_size=batch_size, images_per_class=images_per_class, epoch=epoch, generator=generator
    )
    return list(batches)


@settings(max_examples=120, deadline=None)
@given(**options, epoch=st.sampled_from(["full", "released"]))
def test_no_batch_holds_an_image_twice_or_a_single_class(rows, batch_size, images_per_class, seed, epoch):
    batches = epoch_of(rows, batch_size, images_per_class, seed, epoch)
    assert batches
    for batch in batches:
        assert len(batch.unique()) == len(batch) > 0
        assert len(rows[batch].unique()) >= min(2, len(rows.unique()))


@settings(max_examples=120, deadline=None)
@given(**options)
def test_a_full_epoch_shows_every_image(rows, batch_size, images_per_class, seed):
    seen = torch.cat(epoch_of(rows, batch_size, images_per_class, seed, "full"))
    assert torch.equal(seen.unique(), torch.arange(len(rows)))


@settings(max_examples=120, deadline=None)
@given(**options)
def test_a_released_epoch_shows_every_class_once(rows, batch_size, images_per_class, seed):
    batches = epoch_of(rows, batch_size, images_per_class, seed, "released")
    classes = torch.cat([rows[batch].unique() for batch in batches])
    assert sorted(classes.tolist()) == rows.unique().tolist()
    seen = torch.cat(batches)
    sizes = torch.bincount(rows).clamp(max=images_per_class)
    assert torch.equal(torch.bincount(rows[seen]), sizes)


@settings(max_examples=120, deadline=None)
@given(**options)
def test_an_image_is_alone_in_its_class_only_if_the_class_has_one_image(rows, batch_size, images_per_class, seed):
    sizes = torch.bincount(rows)
    for batch in epoch_of(rows, batch_size, images_per_class, seed, "full"):
        present = torch.bincount(rows[batch], minlength=len(sizes))
        assert bool(((present != 1) | (sizes == 1)).all())


@settings(max_examples=60, deadline=None)
@given(**options)
def test_a_batch_is_no_larger_than_asked_for_when_two_groups_fit(rows, batch_size, images_per_class, seed):
    limit = max(batch_size, 2 * images_per_class)
    assert all(len(batch) <= limit for batch in epoch_of(rows, batch_size, images_per_class, seed, "full"))


@settings(max_examples=60, deadline=None)
@given(**options, epoch=st.sampled_from(["full", "released"]))
def test_batches_follow_from_the_generator_alone(rows, batch_size, images_per_class, seed, epoch):
    first, again = (epoch_of(rows, batch_size, images_per_class, seed, epoch) for _ in range(2))
    assert len(first) == len(again)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_another_seed_gives_other_batches():
    rows = torch.arange(4).repeat_interleave(20)
    assert not torch.equal(torch.cat(epoch_of(rows, 32, 8, 0, "full")), torch.cat(epoch_of(rows, 32, 8, 1, "full")))


def test_few_classes_still_fill_a_batch():
    rows = torch.arange(2).repeat_interleave(64)
    batches = epoch_of(rows, 32, 8, 0, "full")
    assert [len(batch) for batch in batches] == [32] * 4
    assert all(torch.bincount(rows[batch]).tolist() == [16, 16] for batch in batches)


def test_one_large_class_meets_the_small_ones_in_turn():
    rows = torch.cat([torch.zeros(40), torch.arange(1, 11).repeat_interleave(2)]).long()
    partners = [set(rows[b].tolist()) - {0} for b in epoch_of(rows, 8, 4, 0, "full")]
    assert set().union(*partners) == set(range(1, 11))


@settings(max_examples=60, deadline=None)
@given(**options)
def test_a_full_epoch_is_that_of_the_plain_rule(rows, batch_size, images_per_class, seed):
    """Batch for batch as one would write it down: a pass over the data per class, a sort of all classes per batch."""
    g = torch.Generator().manual_seed(seed)

    def shuffled(items):
        return items[torch.randperm(len(items), generator=g)]

    members = [(rows == row).nonzero().flatten() for row in rows.unique().tolist()]
    classes = max(2, min(batch_size // images_per_class, len(members)))
    per_class = max(images_per_class, batch_size // classes)
    groups = []
    for images in members:
        order = shuffled(images)
        cut = list(order.split(per_class))
        short = per_class - len(cut[-1])
        if len(cut) > 1 and short:
            cut[-1] = torch.cat([cut[-1], shuffled(order[: -len(cut[-1])])[:short]])
        groups.append(cut)
    plain = []
    while any(groups):
        tie = torch.rand(len(groups), generator=g).tolist()
        ranked = sorted(range(len(groups)), key=lambda c: (-len(groups[c]), tie[c]))[:classes]
        plain.append(torch.cat([groups[c].pop() if groups[c] else shuffled(members[c])[:per_class] for c in ranked]))
    made = epoch_of(rows, batch_size, images_per_class, seed, "full")
    assert len(made) == len(plain)
    assert all(torch.equal(one, other) for one, other in zip(made, plain, strict=True))
