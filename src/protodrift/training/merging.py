"""Two classifiers with the same frozen network become one, equal to one that learned everything by itself.

A prototype is a sum over images and their number (Eq. 3), and what a read-out learns is sums over images. Where the
network is the same, sums that were made in different places add up, and no image is needed:

    n = n_one + n_other - n_base,   mu = (n_one mu_one + n_other mu_other - n_base mu_base) / n   per class

`base` is what both were copied from, if there is such a model: its images stand behind both, and must count once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from ..common.covariance import dense
from ..common.labels import Label
from ..errors import InputError
from ..networks.embedder import Embedder
from ..penalties import Tensors
from ..prototypes import DriftReport
from ..prototypes.store import ClassSums, Prototypes
from ..prototypes.update import refresh_prototypes
from ..readouts import Readout
from .state import LearnedTask, LearnerState, without


def merged(one: LearnerState, other: LearnerState, readout: Readout, base: LearnerState | None = None) -> LearnerState:
    """Return what one classifier would know if it had learned the tasks of both.

    Prototypes, counts and what the read-out keeps are those of all images together. Classes keep the order of `one`,
    then come the others. Limits and temperatures were measured in each place among its own classes, and stay with their
    classes until the next task measures them again.

    Args:
        one, other: what two classifiers know.
        readout: theirs.
        base: what both knew before they went their own ways; None: they have no image in common.

    Raises:
        InputError: if they cannot be merged; it says why.
    """
    check_alike(one, other)
    if base is not None:
        check_alike(one, base)
        _check_base(one, other, base)
    else:
        _check_apart(one, other)
    prototypes, readout_state = _with(one.prototypes, one.readout_state, other.prototypes, other.readout_state, readout)
    shared = 0 if base is None else len(base.tasks)
    known = set(one.prototypes.labels)
    fresh = [row for row, label in enumerate(other.prototypes.labels) if label not in known]
    later = other.prototypes.tasks[fresh] + (len(one.tasks) - shared)
    prototypes = replace(prototypes, tasks=torch.cat([one.prototypes.tasks, later]))
    result = replace(
        one,
        trained=replace(one.trained, classes=prototypes.labels, history=(), note="merged"),
        prototypes=prototypes,
        tasks=(*one.tasks, *(_again(task, known) for task in other.tasks[shared:])),
        drift=DriftReport((), prototypes.means[:0], prototypes.means[:0]),
        readout_state=readout_state,
        calibration=one.calibration.merged(other.calibration, fresh),
    )
    return result if base is None else _counted_once(result, one, other, base, readout)


def _with(
    prototypes: Prototypes,
    readout_state: Tensors,
    more: Prototypes,
    more_state: Tensors,
    readout: Readout,
    sign: int = 1,
) -> tuple[Prototypes, Tensors]:
    """Return prototypes and read-out with the images behind others added, or (sign -1) taken away."""
    known = _rows(prototypes)
    fresh = [row for row, label in enumerate(more.labels) if label not in known]
    again = [row for row, label in enumerate(more.labels) if label in known]
    labels = [more.labels[row] for row in again]
    rows = [known[label] for label in labels]
    joined = prototypes if sign < 0 else Prototypes.joined(prototypes, _at(more, fresh))
    place = _rows(joined)
    targets = torch.tensor([place.get(label, -1) for label in more.labels])
    state = readout.added(readout_state, more_state, targets, len(joined), sign)
    if state is None:
        raise InputError(
            f"{readout} keeps what cannot be added up: such models cannot be merged. StreamingLDA() and "
            "NearestClassMean() can."
        )
    # A class of which nothing is left has no mean; its row goes.
    stay = [i for i, row in enumerate(rows) if int(prototypes.counts[row]) + sign * int(more.counts[again[i]])]
    labels, rows, again = [labels[i] for i in stay], [rows[i] for i in stay], [again[i] for i in stay]
    if not labels:
        return joined, state
    counts, means = sign * more.counts[again], more.means[again]
    state = readout.refreshed(state, prototypes.means[rows], prototypes.counts[rows], means, counts)
    added = ClassSums(counts, counts[:, None] * means.double())
    covariances = dense(more.statistics, len(more))[again] if more.statistics else None
    return refresh_prototypes(joined, labels, added, covariances), state


def _rows(prototypes: Prototypes) -> dict[Label, int]:
    return {label: row for row, label in enumerate(prototypes.labels)}


def _at(prototypes: Prototypes, rows: Sequence[int]) -> Prototypes:
    """Return some of the classes; a covariance that all classes share is theirs too."""
    rows = list(rows)
    statistics = {name: value if name == "shared" else value[rows] for name, value in prototypes.statistics.items()}
    return Prototypes(
        tuple(prototypes.labels[row] for row in rows),
        prototypes.means[rows],
        prototypes.counts[rows],
        prototypes.tasks[rows],
        statistics,
    )


def _again(task: LearnedTask, known: set[Label]) -> LearnedTask:
    """Return a task as one that came later: its classes that are known already were refreshed by it."""
    counted = list(zip(task.classes, task.images, strict=True))
    new = [(label, images) for label, images in counted if label not in known]
    again = dict(task.refreshed) | {label: images for label, images in counted if label in known}
    return replace(
        task,
        classes=tuple(label for label, _ in new),
        images=tuple(images for _, images in new),
        refreshed=tuple(sorted(again.items(), key=lambda item: str(item[0]))),
    )


def _counted_once(
    both: LearnerState, one: LearnerState, other: LearnerState, base: LearnerState, readout: Readout
) -> LearnerState:
    """Take the images that both were copied with away once, and the classes that one of them has forgotten since."""
    prototypes, readout_state = _with(
        both.prototypes, both.readout_state, base.prototypes, base.readout_state, readout, sign=-1
    )
    result = replace(both, prototypes=prototypes, readout_state=readout_state)
    for label in _forgotten(one, other, base):
        result = without(result, label)
    return result


def _forgotten(one: LearnerState, other: LearnerState, base: LearnerState) -> list[Label]:
    """Return classes that one of the two has forgotten, or renamed, since the base, and the other has not."""
    left = set(one.prototypes.labels) ^ set(other.prototypes.labels)
    return [label for label in base.prototypes.labels if label in left]


# -- what cannot be merged --------------------------------------------------------------------------------------------


def check_alike(one: LearnerState, other: LearnerState) -> None:
    """Refuse two states whose embeddings mean different things, or that keep what does not add up."""
    if one.spec.shape != other.spec.shape or one.spec.scale != other.spec.scale:
        raise InputError(
            f"they were made for different images: one for {one.spec}, the other for {other.spec}. Only models that "
            "see images alike can be merged."
        )
    if one.space != other.space:
        raise InputError(f"their read-outs differ: prototypes are averaged in {one.space!r} and in {other.space!r}.")
    kinds = {type(label).__name__ for state in (one, other) for label in state.prototypes.labels}
    if len(kinds) > 1:
        raise InputError("one has labels that are text and the other numbers: 1 and '1' would be two classes.")
    different = _difference(one.trained.network, other.trained.network)
    if different:
        raise InputError(
            f"their networks differ: {different}. Embeddings of different networks cannot be compared, and without "
            "the photos they cannot be made again. Models merge if both began with the same pretrained network and "
            "left it as it is (`protodrift learn`, without --train), or are copies of one model that has not been "
            "trained since."
        )
    if one.trained.exemplars is not None or other.trained.exemplars is not None:
        raise InputError("one of them keeps images of old tasks. Only models that keep none can be merged.")
    if not _equal_states(one.trained.penalty_state, other.trained.penalty_state):
        raise InputError(
            "what their penalties keep differs: each measured on its own photos which weights matter. Only models "
            "whose network has not been trained since they were copied can be merged."
        )


def _difference(one: Embedder, other: Embedder) -> str:
    """Return in what two networks differ, or ""."""
    if len(one.heads) or len(other.heads):
        return "they have classification heads, which were trained for their own classes"
    if (one.crop, one.normalize, one.embedding_dim) != (other.crop, other.normalize, other.embedding_dim):
        return "crop, normalization or embedding size are not the same"
    mine, theirs = one.state_dict(), other.state_dict()
    if mine.keys() != theirs.keys() or any(mine[name].shape != theirs[name].shape for name in mine):
        return "they are not built alike"
    wrong = [name for name in mine if not torch.equal(mine[name].cpu(), theirs[name].cpu())]
    if not wrong:
        return ""
    if all(name.startswith("standardize.") for name in wrong):
        return (
            "each standardizes pixels by its own first photos, as networks without pretrained weights do (copy one "
            "model instead of making two)"
        )
    return f"{len(wrong)} of {len(mine)} tensors of weights are not the same, for example {wrong[0]}"


def _equal_states(one: tuple[Tensors, ...], other: tuple[Tensors, ...]) -> bool:
    mine, theirs = ([state for state in states if state] for states in (one, other))
    return len(mine) == len(theirs) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(mine, theirs, strict=True)
    )


def _check_apart(one: LearnerState, other: LearnerState) -> None:
    """Refuse states that rest on the same images, which would count twice."""
    mine, theirs = one.prototypes, other.prototypes
    rows = _rows(theirs)
    for row, label in enumerate(mine.labels):
        if label in rows:
            there = rows[label]
            if mine.counts[row] == theirs.counts[there] and torch.equal(mine.means[row], theirs.means[there]):
                raise _same_photos(f"class {label!r} rests on the very same photos in both")
    for task in one.tasks:
        if any(_facts(task) == _facts(later) for later in other.tasks):
            raise _same_photos(f"both have learned the task {task.source!r} of {len(task.classes)} classes")


def _facts(task: LearnedTask) -> tuple[object, ...]:
    counted = {*zip(task.classes, task.images, strict=True), *task.refreshed}
    return task.source, frozenset(counted), task.held_out


def _same_photos(what: str) -> InputError:
    return InputError(
        f"{what}, which would count twice. If both are copies of one model, say which: --base MODEL (it is found "
        "by itself as long as both keep the version that they were copied from)."
    )


def _began_as(task: LearnedTask, before: LearnedTask) -> bool:
    """Return whether a task was this one before some of its classes were forgotten or renamed."""
    alike = (task.source, task.held_out, task.history) == (before.source, before.held_out, before.history)
    return alike and not Counter(task.images) - Counter(before.images)


def _check_base(one: LearnerState, other: LearnerState, base: LearnerState) -> None:
    if base.prototypes.statistics:
        raise InputError("models that keep a covariance of every class can be merged only if they were made apart.")
    for state in (one, other):
        if len(state.tasks) < len(base.tasks) or not all(map(_began_as, state.tasks, base.tasks)):
            raise InputError("the first tasks are not those of the base: they cannot have been copied from it.")
    own, forgotten = base.prototypes, set(_forgotten(one, other, base))
    for prototypes in (one.prototypes, other.prototypes):
        rows = _rows(prototypes)
        for row, label in enumerate(own.labels):
            if label not in rows:
                continue
            more = int(prototypes.counts[rows[label]]) - int(own.counts[row])
            same = torch.equal(prototypes.means[rows[label]], own.means[row])
            if more < 0 or (more == 0 and not same):
                raise InputError(
                    f"class {label!r} is not what it was in the base: they cannot have been copied from it."
                )
            if more > 0 and label in forgotten:
                raise InputError(
                    f"one of the two has forgotten or renamed class {label!r}, and the other has learned {more} more "
                    "photos of it. Forget or rename it in both, then merge."
                )
