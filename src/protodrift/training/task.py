"""One task: from what was known before and the images of one task to what is known after it.

Its steps are functions: train and consolidate (`trainer.py`), embed, compute prototypes (Eq. 3), fit drift, move old
prototypes (Eq. 13, `prototypes/update.py`), read out, refresh, calibrate. `learn` composes them for a classifier; the
stages of an experiment call the same ones. Nothing that was given is changed.

On several ranks each embeds its share of the images. `shared` are the ranks that then hold only that share: what parts
declare as sums is merged. Where a part declares none, embeddings are gathered on every rank, and `shared` is `ALONE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..common import seeding
from ..common.covariance import class_covariances
from ..common.labels import Label, sorted_labels
from ..common.progress import OnProgress, reporting
from ..data.arrays import InputSpec
from ..data.examples import Examples
from ..data.views import Augmentation
from ..distributed.batches import same_weights
from ..distributed.passes import can_merge, embedded, embedded_share, merged
from ..distributed.world import ALONE, World, current
from ..drift import FittedDrift
from ..errors import InputError
from ..methods import Method, training_name
from ..networks.embedder import Embedder, evaluating, laid_out
from ..networks.folding import folded
from ..penalties import Tensors
from ..prototypes.store import ClassSums, Prototypes
from ..prototypes.update import compensate, refresh_prototypes, update_prototypes
from .calibration import Calibration, Checked, hold_out, measured, splits_of
from .checkpoint import Checkpoint
from .config import Training
from .recognition import readout_view
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
        examples: its images. Classes that are known already are refreshed: their images take part in training and in
            measuring drift, and are merged into the moved prototype, weighted by counts.
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
        prototypes, report = update_prototypes(old, computed, fitted)
    else:
        assert old is not None
        prototypes, report = compensate(old, None)

    readout_state = {} if state is None else state.readout_state
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

    calibration = Calibration.unknown(0) if state is None else state.calibration
    if old is not None and report.labels == old.labels:
        calibration = calibration.moved(report.diagnostics.get("uncertainty"))
    checked = None
    if len(new):
        honest = bool(held.any()) or not trained.history  # the network was not trained on the images
        calibration, checked = calibrate(
            method,
            prototypes,
            trained.network,
            readout_state,
            z_new,
            targets,
            calibration,
            splits_of(targets, held, classes=len(prototypes), seed=seed, task=task),
            task=task,
            seed=seed,
            honest=honest,
            shared=shared,
        )

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
    return LearnerState(
        spec,
        plan.fixed,
        method.penalties,
        trained,
        prototypes,
        (*(() if state is None else state.tasks), record),
        report,
        learned,
        calibration,
        method.readout.space_name,
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
    if len(again) and not method.objective.spans_tasks:
        raise InputError(
            f"{method.objective} trains each task's head alone, so known classes cannot be refreshed. Drop those "
            "images."
        )
    return new, again


def first_network(plan: TaskPlan, images: torch.Tensor, world: World) -> Embedder:
    """Return the network that a first task starts from: pixels are standardized by its images."""
    network = world.first_before_others(plan.build)  # weights may have to be downloaded, once
    network.standardize.fit(images)
    same_weights(world, network)
    return network.to(plan.device).eval()


def train(
    plan: TaskPlan, before: Trained, new: Examples, again: Examples, held: torch.Tensor, task: int, world: World
) -> Trained:
    """Train the network on all but the held-out images, (N,) bool, and consolidate: penalties and exemplars take what
    they keep."""
    # Images of known classes train along like kept exemplars, for this task only.
    seen = replace(before, exemplars=again) if len(again) else before
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
    return embedded(world, network, images) if shared.alone else embedded_share(world, network, images)


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
    z_old, z_new = space(z_old), space(z_new)
    sums = None if shared.alone else drift.sums(old.means, z_old, z_new, targets)
    if sums is None:
        return drift.fit(z_old, z_new, targets)
    return drift.fit_sums(old.means, merged(shared, sums))


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
        return readout.learn(readout_state, z, targets, task, seed)
    return readout.learn_sums(readout_state, merged(shared, sums), task, seed)


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


def calibrate(
    method: Method,
    prototypes: Prototypes,
    network: Embedder,
    readout_state: Tensors,
    z: torch.Tensor,
    targets: torch.Tensor,
    calibration: Calibration,
    splits: Sequence[tuple[torch.Tensor, torch.Tensor]],
    *,
    task: int,
    seed: int,
    honest: bool,
    shared: World = ALONE,
) -> tuple[Calibration, tuple[int, float] | None]:
    """Return the calibration of all classes, and how many held-out images were answered how well (None: not known).

    Args:
        method: its read-out answers.
        prototypes: after the task; its C new classes are the last ones.
        network: after the task.
        readout_state: what the read-out kept before the task.
        z: (N, D) embeddings of the task's new images.
        targets: (N,) classes of all new images, 0..C-1, on every rank.
        calibration: of the old classes.
        splits: for each pass the images that stay and those that are held out, as if they had never been seen.
        task, seed: t and the run's seed.
        honest: whether the network was not trained on those that are held out.
        shared: the ranks that z is spread over.
    """
    first = len(calibration)
    classes, own = prototypes.labels[first:], shared.own(len(targets))
    parts = []
    for rest, part in ((_among(rest, own), _among(part, own)) for rest, part in splits):
        fewer = _prototypes(method, task, classes, z[rest], targets[own][rest], shared)
        statistics = {
            name: value if name == "shared" else torch.cat([value[:first], fewer.statistics[name]])
            for name, value in prototypes.statistics.items()
        }
        there = replace(prototypes, means=torch.cat([prototypes.means[:first], fewer.means]), statistics=statistics)
        state = read_out(
            method,
            readout_state,
            z[rest],
            targets[own][rest] + first,
            task=task,
            seed=seed,
            classes=len(prototypes),
            shared=shared,
        )
        view = readout_view(z[part], there, network, state)
        parts.append(Checked.of(method.readout, view, targets[own][part], first))
    checked = _gathered(Checked.joined(parts), [part for _, part in splits], targets, shared) if parts else None
    rows = measured(checked, calibration, len(classes), honest)
    answered = (len(checked.targets), checked.accuracy(first)) if checked is not None and honest else None
    return calibration.joined(rows).settled(), answered


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

    scores, distances, relative = map(gathered, (checked.scores, checked.distances, checked.relative))
    return Checked(scores, distances, relative, targets[everywhere])


def _counted(examples: Examples) -> tuple[tuple[Label, int], ...]:
    counts = Counter(examples.labels)
    return tuple((label, counts[label]) for label in sorted_labels(examples.labels))
