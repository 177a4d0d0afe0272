"""One task: from what was known before and the images of one task to what is known after it.

Its steps are functions: train and consolidate (`trainer.py`), embed, compute prototypes (Eq. 3), fit drift, move old
prototypes (Eq. 13, `prototypes/update.py`), read out, refresh, calibrate. `learn` composes them for a classifier; the
stages of an experiment call the same ones. Nothing that was given is changed.

On several ranks each embeds its share of the images. `shared` are the ranks that then hold only that share: what parts
declare as sums is merged. Where a part declares none, embeddings are gathered on every rank, and `shared` is `ALONE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..common import seeding
from ..common.covariance import class_covariances
from ..common.finite import check_finite
from ..common.labels import Label, sorted_labels
from ..common.progress import OnProgress, reporting
from ..data.arrays import InputSpec
from ..data.examples import Examples
from ..data.views import Augmentation
from ..distributed.batches import same_weights
from ..distributed.passes import can_merge, embedded, embedded_share, merged
from ..distributed.world import ALONE, World, current
from ..drift import FittedDrift
from ..drift.base import Leading
from ..errors import InputError
from ..methods import Method, training_name
from ..networks.embedder import Embedder, evaluating, laid_out
from ..networks.folding import folded
from ..penalties import Tensors
from ..prototypes.store import ClassSums, Prototypes
from ..prototypes.update import DriftReport, compensate, refresh_prototypes
from .calibration import Calibration, recalibrated
from .checking import check_answers, hold_out
from .checkpoint import Checkpoint
from .config import Training
from .moving import move_prototypes, move_readout
from .state import LearnedTask, LearnerState, class_drift, kept_for
from .trainer import Trained, consolidate, train_network

ONLY_KNOWN = "only known classes: the network stays as it is"


@dataclass(frozen=True)
class TaskPlan:
    """How a task is learned.

    Attributes:
        method, training, augment, seed: the configuration.
        fixed: the parameters that a first task fixes.
        held_out: share of each class that the network is not trained on, for checking its answers.
        build: makes the network of a first task.
        device: where it is trained.
        on_progress, checkpoint: of the training.
        verbose: whether to show progress where there is no `on_progress`.
        source: where the images come from, in a word.
    """

    method: Method
    training: Training
    augment: Augmentation | None
    seed: int
    fixed: dict[str, Any]
    held_out: float
    build: Callable[[], Embedder]
    device: str = "cpu"
    on_progress: OnProgress | None = None
    checkpoint: Checkpoint | None = None
    verbose: bool = False
    source: str = ""


def learn(plan: TaskPlan, state: LearnerState | None, spec: InputSpec, examples: Examples) -> LearnerState:
    """Return what is known after a task.

    Args:
        plan: how.
        state: what was known before it, or None.
        spec: what the images look like.
        examples: its images. Classes that are known already are refreshed: their images take part in training (unless
            each task has a head of its own) and in measuring drift, and are merged into the moved prototype, weighted
            by counts.
    """
    method, seed, world = plan.method, plan.seed, current()
    shared = world if can_merge(method) else ALONE
    task = 1 if state is None else len(state.tasks) + 1
    old = None if state is None else state.prototypes
    new, again = new_and_known(method, () if old is None else old.labels, examples)
    classes = sorted_labels(new.labels)
    targets = new.targets_of(classes)

    if state is None:
        before = Trained(first_network(plan, new.images, world))
    else:
        before = replace(state.trained, penalty_state=kept_for(method.penalties, state))
    held = hold_out(
        targets, plan.held_out if method.schedule.trains(task) else 0.0, seeding.generator(seed, "held out", task)
    )
    trained = (
        train(plan, before, new, again, held, task, world) if len(new) else replace(before, history=(), note=ONLY_KNOWN)
    )
    moved = trained.network is not before.network
    if method.reads_pooled:
        trained = replace(trained, network=trained.network.pooled())

    readout_state = {} if state is None else state.readout_state
    z_new, z_again = (embed(world, trained.network, part.images, shared) for part in (new, again))
    if len(new):
        exemplars = trained.exemplars
        kept = None if exemplars is None else (exemplars, embed(world, trained.network, exemplars.images, ALONE))
        computed = compute_prototypes(method, task, new, z_new, old=old, exemplars=kept, shared=shared)
        fitted = None
        if moved and old is not None and method.drift is not None:
            # New images of old classes tell best how old prototypes moved: they are where these are.
            both = Examples.concatenate([new, again]) if len(again) else new
            z_old = torch.cat([embed(world, before.network, part.images, shared) for part in (new, again)])
            fitted = fit_drift(
                method,
                old,
                z_old,
                torch.cat([z_new, z_again]),
                own_targets(sorted_labels(both.labels), new, again, shared),
                recomputed=computed.labels,
                networks=(before.network, trained.network),
                images=both.images,
                shared=shared,
            )
        prototypes, report = move_prototypes(method, old, computed, fitted)
        readout_state = move_readout(method, readout_state, old, fitted, task, seed)
    else:
        assert old is not None
        prototypes, report = compensate(old, None)

    learned = read_out(
        method,
        readout_state,
        torch.cat([z_new, z_again]),
        own_targets(trained.classes, new, again, shared),
        task=task,
        seed=seed,
        classes=len(prototypes),
        shared=shared,
    )
    if len(again):
        prototypes, learned = refresh(method, prototypes, learned, again, z_again, shared)

    learned = method.readout.settled(learned)
    calibration = Calibration.unknown(0) if state is None else state.calibration
    if old is not None and report.labels == old.labels:
        calibration = calibration.moved(report.diagnostics.get("uncertainty"))
    images = [(z_new, new.targets_of(prototypes.labels), held)]
    if not trained.history:  # images of known classes are trained on too, where the network is
        images.append((z_again, again.targets_of(prototypes.labels), torch.zeros(len(again), dtype=torch.bool)))
    fewer = partial(computed_from, method, prototypes, readout_state, task=task, seed=seed, shared=shared)
    found = check_answers(method.readout, prototypes, trained, learned, images, fewer, task, seed, shared)
    honest = bool(held.any()) or not trained.history  # the network was not trained on the images
    calibration = recalibrated(calibration, found, prototypes.means, trained=moved, honest=honest)
    checked = (len(found.targets), found.accuracy) if found is not None and honest else None

    record = LearnedTask(
        classes,
        tuple(torch.bincount(targets, minlength=len(classes)).tolist()),
        trained.history,
        trained.note,
        class_drift(report) if moved else (),
        _counted(again),
        checked,
        plan.source,
    )
    tasks = (*(() if state is None else state.tasks), record)
    if not moved:  # nothing drifts, so there is nothing to tell of it
        report = DriftReport((), prototypes.means[:0], prototypes.means[:0])
    space = method.readout.space_name
    return LearnerState(
        spec, plan.fixed, method.penalties, trained, prototypes, tasks, report, learned, calibration, space
    )


# -- the steps --------------------------------------------------------------------------------------------------------


def new_and_known(method: Method, known: tuple[Label, ...], examples: Examples) -> tuple[Examples, Examples]:
    """Return the images of new classes, and those of known ones.

    Raises:
        InputError: if there are images of known classes, and the method cannot refresh a class.
    """
    new, again = examples.of_classes(set(examples.labels) - set(known)), examples.of_classes(known)
    if len(again) and method.exemplars is not None:
        raise InputError(
            f"{type(method.exemplars).__name__} keeps images of known classes, so they cannot be refreshed with "
            "others. Drop those images, or use a model that keeps none."
        )
    return new, again


def first_network(plan: TaskPlan, images: torch.Tensor, world: World) -> Embedder:
    """Return the network that a first task starts from; pixel statistics are those of its images."""
    network = world.first_before_others(plan.build)  # weights may have to be downloaded, once
    network.begin(images, plan.seed)
    same_weights(world, network)
    return network.to(plan.device).eval()


def train(
    plan: TaskPlan, before: Trained, new: Examples, again: Examples, held: torch.Tensor, task: int, world: World
) -> Trained:
    """Train the network on all but the held-out images, (N,) bool, and consolidate: penalties and exemplars take what
    they keep."""
    # Images of known classes train along like kept exemplars, for this task only, where one head answers for all.
    seen = replace(before, exemplars=again) if len(again) and plan.method.objective.spans_tasks else before
    with (
        reporting(plan.verbose and plan.on_progress is None and world.is_first) as reporter,
        reporter.training(training_name(plan.method, task)) as shown,
    ):
        trained = train_network(
            seen,
            new.at((~held).nonzero().flatten()) if bool(held.any()) else new,
            task=task,
            method=plan.method,
            training=plan.training,
            augment=plan.augment,
            seed=plan.seed,
            on_progress=plan.on_progress or shown,
            checkpoint=plan.checkpoint,
            world=world,
        )
    return consolidate(trained, before, new, task=task, method=plan.method, seed=plan.seed, world=world)


def embed(world: World, network: Embedder, images: torch.Tensor, shared: World) -> torch.Tensor:
    """Return the embeddings of all images, (N, D); of this rank's share where embeddings are shared, (n, D)."""
    if not len(images):
        return torch.empty(0, network.embedding_dim)
    z = embedded(world, network, images) if shared.alone else embedded_share(world, network, images)
    check_finite(network.backbone, "the embeddings of a task's images", z)
    return z


def own_targets(classes: tuple[Label, ...], new: Examples, again: Examples, shared: World) -> torch.Tensor:
    """Return the positions in `classes` of this rank's new images, then of those of known classes."""
    return torch.cat([part.targets_of(classes)[shared.own(len(part))] for part in (new, again)])


def compute_prototypes(
    method: Method,
    task: int,
    new: Examples,
    z: torch.Tensor,
    *,
    old: Prototypes | None = None,
    exemplars: tuple[Examples, torch.Tensor] | None = None,
    shared: World = ALONE,
) -> Prototypes:
    """Return the prototypes of a task's classes (Eq. 3), and anew those of old classes with exemplars.

    Args:
        method: its read-out says in which space, and what is kept beside the mean.
        task: t, counted from 1.
        new: D^t.
        z: (N, D) z^t, its embeddings by the network after the task.
        old: the prototypes before the task, or None.
        exemplars: the exemplars after the task, and their embeddings now: all prototypes are computed from these.
        shared: the ranks that z is spread over.
    """
    classes = sorted_labels(new.labels)
    if exemplars is not None:
        new, z = exemplars
        there = set(new.labels)
        classes = (*(label for label in (() if old is None else old.labels) if label in there), *classes)
    return _prototypes(method, task, classes, z, new.targets_of(classes)[shared.own(len(new))], shared)


def _prototypes(
    method: Method, task: int, classes: tuple[Label, ...], z: torch.Tensor, targets: torch.Tensor, shared: World
) -> Prototypes:
    z = method.readout.space(z)
    if shared.alone:
        return Prototypes.of(classes, z, targets, task, method.covariance)
    return Prototypes.from_sums(classes, merged(shared, ClassSums.of(z, targets, len(classes))), task, z.dtype)


def fit_drift(
    method: Method,
    old: Prototypes,
    z_old: torch.Tensor,
    z_new: torch.Tensor,
    targets: torch.Tensor,
    *,
    recomputed: tuple[Label, ...] = (),
    networks: tuple[Embedder, Embedder] | None = None,
    images: torch.Tensor | None = None,
    shared: World = ALONE,
    moving: int | None = None,
) -> FittedDrift | None:
    """Return the method's drift estimator, fitted on how a task's images moved; None where there is nothing to move.

    Args:
        method: its drift is fitted, in its read-out's space.
        old: the prototypes before the task.
        z_old, z_new: (N, D) z^{t-1} and z^t, by the networks before and after the task.
        targets: (N,) their classes.
        recomputed: classes whose prototypes are computed from images: these need not be moved.
        networks, images: the two networks and the task's images, for estimators that look at them.
        shared: the ranks that z_old, z_new and targets are spread over.
        moving: how many dimensions, the first ones, can have moved; None: all.
    """
    drift, space = method.drift, method.readout.space
    if drift is None or not set(old.labels) - set(recomputed):  # exemplars may begin late, or be of some classes
        return None
    if drift.needs_networks:
        assert networks is not None
        assert images is not None
        device = next(networks[1].parameters()).device
        with evaluating(networks[0]), evaluating(networks[1]):
            before, after = folded(networks[0]), folded(networks[1])
            return drift.probe(
                lambda x: space(before(laid_out(x, device))),
                lambda x: space(after(laid_out(x, device))),
                images,
                old.means,
            )
    size = z_old.shape[1] if moving is None else moving
    means, z_old, z_new = old.means[:, :size], space(z_old)[:, :size], space(z_new)[:, :size]
    sums = None if shared.alone else drift.sums(means, z_old, z_new, targets)
    fitted = drift.fit(z_old, z_new, targets) if sums is None else drift.fit_sums(means, merged(shared, sums))
    return fitted if size == old.means.shape[1] else Leading(fitted, size)


def read_out(
    method: Method,
    readout_state: Tensors,
    z: torch.Tensor,
    targets: torch.Tensor,
    *,
    task: int,
    seed: int,
    classes: int,
    shared: World = ALONE,
) -> Tensors:
    """Return what the read-out keeps after it has learned from a task's embeddings.

    Args:
        method: its read-out learns.
        readout_state: what it kept before.
        z: (N, D) embeddings; of the initial network for read-outs that need every network.
        targets: (N,) positions among all classes seen so far.
        task, seed: t and the run's seed.
        classes: K, the number of classes seen so far.
        shared: the ranks that z and targets are spread over.
    """
    readout, z = method.readout, method.readout.space(z)
    sums = None if shared.alone else readout.sums(z, targets, classes)
    if sums is None:
        learned = readout.learn(readout_state, z, targets, task, seed)
    else:
        learned = readout.learn_sums(readout_state, merged(shared, sums), task, seed)
    check_finite(readout, "what it keeps as", learned)
    return learned


def refresh(
    method: Method, prototypes: Prototypes, readout_state: Tensors, again: Examples, z: torch.Tensor, shared: World
) -> tuple[Prototypes, Tensors]:
    """Return prototypes and read-out with more images of known classes merged, weighted by counts.

    Args:
        method: its read-out says in which space, and takes its part.
        prototypes: of all classes, moved.
        readout_state: what the read-out keeps after it has learned from these images too.
        again: the images of known classes.
        z: (M, D) their embeddings.
        shared: the ranks that z is spread over.
    """
    labels, z = sorted_labels(again.labels), method.readout.space(z)
    targets = again.targets_of(labels)
    added = merged(shared, ClassSums.of(z, targets[shared.own(len(again))], len(labels)))
    # Where covariances are kept, no rank has only its share of the images.
    covariances = class_covariances(z, targets, len(labels)) if prototypes.statistics else None
    rows = [prototypes.row(label) for label in labels]
    means, counts = prototypes.means[rows], prototypes.counts[rows]
    readout_state = method.readout.refreshed(readout_state, means, counts, added.means(z.dtype), added.counts)
    return refresh_prototypes(prototypes, labels, added, covariances), readout_state


def computed_from(
    method: Method,
    prototypes: Prototypes,
    readout_state: Tensors,
    z: torch.Tensor,
    targets: torch.Tensor,
    *,
    task: int,
    seed: int,
    shared: World = ALONE,
) -> tuple[Prototypes, Tensors]:
    """Return prototypes and read-out as if a task had had fewer images.

    Args:
        method: its read-out learns.
        prototypes: after the task; its new classes are the last ones.
        readout_state: what the read-out kept before the task.
        z: (N, D) embeddings of the images of new classes that the task would have had.
        targets: (N,) their classes, positions among all classes.
        task, seed: t and the run's seed.
        shared: the ranks that z and targets are spread over.
    """
    first = int((prototypes.tasks < task).sum())
    fewer = _prototypes(method, task, prototypes.labels[first:], z, targets - first, shared)
    statistics = {
        name: value if name == "shared" else torch.cat([value[:first], fewer.statistics[name]])
        for name, value in prototypes.statistics.items()
    }
    there = replace(prototypes, means=torch.cat([prototypes.means[:first], fewer.means]), statistics=statistics)
    count = len(prototypes)
    return there, read_out(method, readout_state, z, targets, task=task, seed=seed, classes=count, shared=shared)


def _counted(examples: Examples) -> tuple[tuple[Label, int], ...]:
    counts = Counter(examples.labels)
    return tuple((label, counts[label]) for label in sorted_labels(examples.labels))
