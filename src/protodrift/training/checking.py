"""What would be said of a task's images, had they never been seen: the answers that calibration is measured on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..common import seeding
from ..common.finite import check_scores
from ..data.batches import members_of
from ..distributed.world import ALONE, World
from ..penalties import Tensors
from ..prototypes.store import Prototypes
from ..readouts import Readout
from .calibration import Checked, distances_to
from .recognition import readout_view
from .trainer import Trained

Images = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""(n, D) embeddings of a rank's images, (N,) classes of all images, (N,) bool: the network was not trained on them."""

FOLDS = 5
"""Parts into which a task is cut for checking answers, where nothing can be left out in closed form."""

CHECKED_SCORES = 2**23
"""Scores of held-out images for a temperature, images x classes: 64 MB of float64, gone over about 20 times."""


def folds(targets: torch.Tensor, count: int, generator: torch.Generator) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Cut N images into `count` parts, class by class; return (the others, the part) for each part, as positions.

    Every image of a class with at least two is in one part; the one image of a class is in none.
    """
    part_of = torch.full((len(targets),), -1)
    for members in members_of(targets):
        if len(members) > 1:
            order = members[torch.randperm(len(members), generator=generator)]
            part_of[order] = torch.arange(len(order)) % min(count, len(order))
    parts = [((part_of != i).nonzero().flatten(), (part_of == i).nonzero().flatten()) for i in range(count)]
    return [(rest, part) for rest, part in parts if len(part)]


def hold_out(targets: torch.Tensor, share: float, generator: torch.Generator, most: int = 50) -> torch.Tensor:
    """Choose which images are held out, (N,) bool: of each class of five or more a share, from one to `most`."""
    held = torch.zeros(len(targets), dtype=torch.bool)
    if share <= 0:
        return held
    for members in members_of(targets):
        if len(members) >= 5:
            take = min(most, max(1, round(share * len(members))))
            held[members[torch.randperm(len(members), generator=generator)[:take]]] = True
    return held


def checked_images(
    targets: torch.Tensor, held: torch.Tensor, counts: torch.Tensor, *, seed: int, task: int
) -> torch.Tensor:
    """Return the positions of the images that are left out one at a time, ascending.

    Those that training did not see, or, where there are none, all; at most so many that their scores of all classes are
    `CHECKED_SCORES`. The one image of a class is none of them: without it the class is not known.

    Args:
        targets: (N,) their classes.
        held: (N,) bool, images that the network was not trained on.
        counts: (K,) images behind each prototype.
        seed, task: from which all randomness follows.
    """
    several = counts[targets] > 1
    usable = several & held if bool((several & held).any()) else several
    return _some(
        usable.nonzero().flatten(), CHECKED_SCORES // len(counts), seeding.generator(seed, "checked images", task)
    )


def _some(images: torch.Tensor, most: int, generator: torch.Generator) -> torch.Tensor:
    """Return at most so many of the images, in their order."""
    if len(images) <= max(1, most):
        return images
    return images[torch.randperm(len(images), generator=generator)[: max(1, most)].sort().values]


def splits_of(
    targets: torch.Tensor, held: torch.Tensor, *, classes: int, seed: int, task: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return how a task's images are checked: for each pass (the images that stay, those that are held out).

    Those that training did not see, or, where there are none, each image in turn (`FOLDS`). So few are held out at once
    that their scores of all classes are at most `CHECKED_SCORES`: temperature and the shape of distances are shared by
    all classes, so they can be measured on a sample.

    Args:
        targets: (N,) the task's classes, 0..C-1.
        held: (N,) bool, images that the network was not trained on.
        classes: K, all classes after the task.
        seed, task: from which all randomness follows.
    """
    if bool(held.any()):
        splits = [((~held).nonzero().flatten(), held.nonzero().flatten())]
    else:
        splits = folds(targets, FOLDS, seeding.generator(seed, "folds", task))
    most = CHECKED_SCORES // classes // max(1, len(splits))
    generator = seeding.generator(seed, "checked images", task)
    return [(rest, _some(part, most, generator)) for rest, part in splits]


def check_answers(
    readout: Readout,
    prototypes: Prototypes,
    trained: Trained,
    readout_state: Tensors,
    images: Sequence[Images],
    fewer: Callable[[torch.Tensor, torch.Tensor], tuple[Prototypes, Tensors]],
    task: int,
    seed: int,
    shared: World = ALONE,
) -> Checked | None:
    """Return what is said of a task's images where each is as if it had never been seen; None: there is no such image.

    One image at a time is left out in closed form, if the read-out can do that. Otherwise prototypes and read-out are
    computed without some of the images of new classes: those that were held out, or a fifth of them at a time.

    Args:
        readout: it answers.
        prototypes: after the task.
        trained: the network after the task, and what is kept with it.
        readout_state: what the read-out keeps after the task.
        images: those of new classes, then those of known ones.
        fewer: returns prototypes and what the read-out keeps, had the task had only these images of new classes.
        task, seed: from which all randomness follows.
        shared: the ranks that embeddings are spread over.
    """
    if not readout.leaves_out or trained.exemplars is not None:
        return _check_in_folds(readout, prototypes, trained, images[0], fewer, task, seed, shared)
    parts = []
    for z, targets, held in images:
        chosen, own = checked_images(targets, held, prototypes.counts, seed=seed, task=task), shared.own(len(targets))
        here = _among(chosen, own)
        view, of = readout_view(z[here], prototypes, trained.network, readout_state), targets[own][here]
        found = readout.left_out(view, of)
        assert found is not None  # `leaves_out` says so
        plain, n = distances_to(readout.space(view.z), prototypes.means), prototypes.counts[of]
        plain[torch.arange(len(of)), of] *= n / (n - 1)  # |z - (n mu - z) / (n - 1)|
        one = Checked.of(check_scores(readout, found[0]), plain, found[1], of)
        parts.append(_gathered(one, [chosen], targets, shared))
    checked = Checked.joined(parts)
    return checked if len(checked.targets) else None


def _check_in_folds(
    readout: Readout,
    prototypes: Prototypes,
    trained: Trained,
    images: Images,
    fewer: Callable[[torch.Tensor, torch.Tensor], tuple[Prototypes, Tensors]],
    task: int,
    seed: int,
    shared: World,
) -> Checked | None:
    z, targets, held = images
    own = shared.own(len(targets))
    splits = splits_of(targets, held, classes=len(prototypes), seed=seed, task=task)
    parts = []
    for rest, part in ((_among(rest, own), _among(part, own)) for rest, part in splits):
        there, state = fewer(z[rest], targets[own][rest])
        view = readout_view(z[part], there, trained.network, state)
        plain, distances = distances_to(readout.space(view.z), there.means), distances_to(*readout.coordinates(view))
        parts.append(Checked.of(check_scores(readout, readout.scores(view)), plain, distances, targets[own][part]))
    return _gathered(Checked.joined(parts), [part for _, part in splits], targets, shared) if parts else None


def _among(images: torch.Tensor, own: slice) -> torch.Tensor:
    """Return which of a rank's own images are among these of the task."""
    found: torch.Tensor = images[(images >= own.start) & (images < own.stop)] - own.start
    return found


def _gathered(checked: Checked, parts: list[torch.Tensor], targets: torch.Tensor, shared: World) -> Checked:
    """Return the held-out images of all ranks, in the order in which one process has them."""
    if shared.alone:
        return checked
    own, everywhere = shared.own(len(targets)), torch.cat(parts)
    at = torch.cat([_among(part, own) for part in parts])

    def gathered(value: torch.Tensor) -> torch.Tensor:
        rows = value.new_zeros(own.stop - own.start, *value.shape[1:])
        rows[at] = value
        return shared.gather(rows, len(targets), "passes")[everywhere]

    scores, novelty, distances = map(gathered, (checked.scores, checked.novelty, checked.distances))
    return Checked(scores, novelty, distances, targets[everywhere])
