"""Class-balanced batches: P classes times K images, as metric losses need them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch


def class_balanced_batches(
    targets: torch.Tensor,
    *,
    batch_size: int,
    images_per_class: int,
    epoch: str,
    generator: torch.Generator,
) -> Iterator[torch.Tensor]:
    """Yield one epoch of batches as index tensors; no batch holds an image twice.

    A batch takes `images_per_class` images from each of `batch_size // images_per_class` classes. With fewer classes
    than that it takes more images of each, so that small tasks still have full batches. A class with fewer images gives
    what it has. A batch never consists of one class alone if there are two or more (it would have no negatives).

    Args:
        targets: (N,) class index of each image.
        batch_size: images in a batch; the last ones of an epoch may be smaller.
        images_per_class: K; at least 2.
        epoch: "full": every image at least once (images of a small class come again to fill batches);
            "released": every class once with K images, as in the paper's released code.
        generator: source of all randomness here.
    """
    members = members_of(targets)
    classes_in_batch = max(2, min(batch_size // images_per_class, len(members)))
    per_class = max(images_per_class, batch_size // classes_in_batch)
    if epoch == "released":
        yield from _released_epoch(members, classes_in_batch, images_per_class, generator)
    else:
        yield from _full_epoch(members, classes_in_batch, per_class, generator)


def members_of(targets: torch.Tensor) -> list[torch.Tensor]:
    """Return the positions of each class's images, in order, for each class that has any: one sort for all.

    >>> [where.tolist() for where in members_of(torch.tensor([7, 2, 7]))]
    [[1], [0, 2]]
    """
    _, counts = targets.unique(return_counts=True)
    return list(targets.argsort(stable=True).split(counts.tolist()))


def shuffled_batches(count: int, batch_size: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Return one epoch of batches as index tensors: every image once, in random order.

    A last batch of fewer than half joins the one before it: batch norm cannot use a handful of images.
    """
    order = torch.randperm(count, generator=generator)
    batches = list(order.split(batch_size))
    if len(batches) > 1 and 2 * len(batches[-1]) < batch_size:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def _shuffled(items: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return items[torch.randperm(len(items), generator=generator)]


def _released_epoch(
    members: list[torch.Tensor], classes_in_batch: int, per_class: int, generator: torch.Generator
) -> Iterator[torch.Tensor]:
    order = torch.randperm(len(members), generator=generator).tolist()
    chunks = [order[i : i + classes_in_batch] for i in range(0, len(order), classes_in_batch)]
    if len(chunks) > 1 and len(chunks[-1]) == 1:  # a last class alone would have no negatives
        chunks[-2:] = [chunks[-2] + chunks[-1]]
    for chunk in chunks:
        yield torch.cat([_shuffled(members[c], generator)[:per_class] for c in chunk])


def _full_epoch(
    members: list[torch.Tensor], classes_in_batch: int, per_class: int, generator: torch.Generator
) -> Iterator[torch.Tensor]:
    # Each class is cut into groups of K. A last group that is too small is filled from the class's other images, so
    # that no image is left alone without a positive.
    groups: list[list[torch.Tensor]] = []
    for images in members:
        order = _shuffled(images, generator)
        cut = list(order.split(per_class))
        short = per_class - len(cut[-1])
        if len(cut) > 1 and short:
            cut[-1] = torch.cat([cut[-1], _shuffled(order[: -len(cut[-1])], generator)[:short]])
        groups.append(cut)
    left = np.array([len(cut) for cut in groups])
    while left.any():
        # The classes with most groups left first, ties by chance: that empties them together, so a full pass needs
        # the fewest batches that are possible.
        tie = torch.rand(len(groups), generator=generator).numpy()
        batch = []
        for c in np.lexsort((tie, -left))[:classes_in_batch].tolist():
            # A class that is used up comes again with a new draw, to give the others negatives.
            batch.append(groups[c].pop() if groups[c] else _shuffled(members[c], generator)[:per_class])
            left[c] = len(groups[c])
        yield torch.cat(batch)
