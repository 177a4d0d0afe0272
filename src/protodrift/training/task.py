"""One lesson: from what a classifier knew and the images of one task to what it knows after it.

Train the network, measure how the images moved meanwhile, move the old prototypes along, add the new ones, and measure
on held-out images how sure an answer is. Nothing that was given is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..common import seeding
from ..common.covariance import class_covariances
from ..common.labels import Label, sorted_labels
from ..common.progress import OnProgress
from ..common.sums import S
from ..data.arrays import InputSpec
from ..data.examples import Examples
from ..data.views import Augmentation
from ..distributed.passes import can_merge, embedded, embedded_share, merged
from ..distributed.world import current
from ..drift import FittedDrift
from ..errors import InputError
from ..methods import Method
from ..networks.embedder import Embedder
from ..penalties import Penalty, Tensors
from ..prototypes import update
from ..prototypes.covariance import refreshed
from ..prototypes.store import ClassSums, Prototypes
from ..prototypes.update import DriftReport, compensate
from .calibration import (
    Calibration,
    class_quantiles,
    distances_to,
    fit_temperature,
    folds,
    hold_out,
    relative_distances,
)
from .checkpoint import Checkpoint
from .config import Training
from .evolution import kept_covariance, probed, readout_view, update_prototypes
from .state import LearnedTask, LearnerState, class_drift, merged_means
from .trainer import Trained, consolidate, train_network

SEVERAL = 3
"""Classes from which on a distance can be told relative to the others."""

Split = tuple[torch.Tensor, torch.Tensor]
"""Positions of the images that stay, and of those that are held out."""

CHECKED_SCORES = 2**23
"""Scores of held-out images for a temperature, images x classes: 64 MB of float64, gone over about 24 times. More
images are sampled."""

FOLDS = 5
"""Parts into which a task is cut for checking answers, where the network does not learn from it."""


@dataclass(frozen=True)
class Lesson:
    """How a task is learned.

    Attributes:
        method, training, augment, seed: the configuration.
        fixed: the parameters that a first task fixes.
        held_out: share of each class that the network is not trained on, for checking its answers.
        first_network: makes the network of a first task.
        on_progress, checkpoint: of the training.
        source: where the images come from, in a word.
    """

    method: Method
    training: Training
    augment: Augmentation | None
    seed: int
    fixed: dict[str, Any]
    held_out: float
    first_network: Callable[[], Embedder]
    on_progress: OnProgress | None = None
    checkpoint: Checkpoint | None = None
    source: str = ""


def learn(lesson: Lesson, state: LearnerState | None, spec: InputSpec, examples: Examples) -> LearnerState:
    """Return what is known after a task.

    Args:
        lesson: how.
        state: what was known before it, or None.
        spec: what the images look like.
        examples: its images. Classes that are known already are refreshed: their images take part in training and in
            measuring drift, and are merged into the moved prototype, weighted by counts.
    """
    known = set() if state is None else set(state.prototypes.labels)
    new = examples.of_classes(set(examples.labels) - known)
    again = examples.of_classes(known)
    if len(again) and lesson.method.exemplars is not None:
        raise InputError(
            f"{type(lesson.method.exemplars).__name__} keeps images of known classes, so they cannot be refreshed with "
            "others. Drop those images, or use a model that keeps none."
        )
    if len(again) and not lesson.method.objective.spans_tasks:
        raise InputError(
            f"{lesson.method.objective} trains each task's head alone, so known classes cannot be refreshed. Drop "
            "those images."
        )
    return _Work(lesson, state, spec, new, again).done()


class _Work:
    """The steps of one lesson."""

    def __init__(
        self, lesson: Lesson, state: LearnerState | None, spec: InputSpec, new: Examples, again: Examples
    ) -> None:
        self.lesson, self.state, self.spec = lesson, state, spec
        self.new, self.again = new, again
        self.task = 1 if state is None else len(state.tasks) + 1
        self.classes = sorted_labels(new.labels)
        self.targets = new.targets_of(self.classes)
        self.world = current()
        # On several ranks each has the embeddings of its own share, where sums over images are all that is needed.
        self.in_shares = not self.world.alone and can_merge(lesson.method)
        self.own, self.own_again = self._own(len(new)), self._own(len(again))

    def _own(self, count: int) -> slice:
        return self.world.own(count) if self.in_shares else slice(0, count)

    def _merged(self, sums: S) -> S:
        """Return sums over all images, from those over the images that this rank has."""
        return merged(self.world, sums) if self.in_shares else sums

    def _rows_among(self, classes: tuple[Label, ...]) -> torch.Tensor:
        """Return the rows of this rank's new and refreshed images among these classes."""
        return torch.cat([self.new.targets_of(classes)[self.own], self.again.targets_of(classes)[self.own_again]])

    def done(self) -> LearnerState:
        """Go through all steps."""
        lesson, state = self.lesson, self.state
        previous = Trained(lesson.first_network()) if state is None else self._previous(state)
        held = hold_out(self.targets, self._share(), seeding.generator(lesson.seed, "held out", self.task))
        trained = self._train(previous, held)
        self.network_before, self.network = previous.network, trained.network
        z_new, z_again = self._embedded(trained.network)
        z_old, z_again_old = (None, None) if trained.network is previous.network else self._embedded(previous.network)
        prototypes, report = self._prototypes(trained, z_new, z_old, z_again, z_again_old)
        space = lesson.method.readout.space
        readout = self._read_out(space(torch.cat([z_new, z_again])), self._rows_among(trained.classes))
        if len(self.again):
            prototypes, readout = self._refreshed(prototypes, readout, space(z_again))
        calibration, checked = self._calibrated(prototypes, report, z_new, held, bool(trained.history))
        counts = torch.bincount(self.targets, minlength=len(self.classes)).tolist()
        record = LearnedTask(
            self.classes,
            tuple(counts),
            trained.history,
            trained.note,
            class_drift(report) if trained.network is not previous.network else (),
            _counted(self.again),
            checked,
            lesson.source,
        )
        tasks = (*(() if state is None else state.tasks), record)
        penalties = lesson.method.penalties
        space_name = lesson.method.readout.space_name
        return LearnerState(
            self.spec, lesson.fixed, penalties, trained, prototypes, tasks, report, readout, calibration, space_name
        )

    def _previous(self, state: LearnerState) -> Trained:
        return replace(state.trained, penalty_state=kept_for(self.lesson.method.penalties, state))

    def _share(self) -> float:
        return self.lesson.held_out if self.lesson.method.schedule.trains(self.task) else 0.0

    def _train(self, previous: Trained, held: torch.Tensor) -> Trained:
        lesson = self.lesson
        if not len(self.new):
            return replace(previous, history=(), note="only known classes: the network stays as it is")
        # Images of known classes train along like kept exemplars, for this task only.
        seen = replace(previous, exemplars=self.again) if len(self.again) else previous
        trained = train_network(
            seen,
            self.new.at((~held).nonzero().flatten()) if bool(held.any()) else self.new,
            task=self.task,
            method=lesson.method,
            training=lesson.training,
            augment=lesson.augment,
            seed=lesson.seed,
            on_progress=lesson.on_progress,
            checkpoint=lesson.checkpoint,
            world=self.world,
        )
        return consolidate(
            trained, previous, self.new, task=self.task, method=lesson.method, seed=lesson.seed, world=self.world
        )

    def _embedded(self, network: Embedder) -> tuple[torch.Tensor, torch.Tensor]:
        nothing = torch.empty(0, network.embedding_dim)
        make = embedded_share if self.in_shares else embedded
        return tuple(  # type: ignore[return-value]
            make(self.world, network, part.images) if len(part) else nothing for part in (self.new, self.again)
        )

    def _prototypes(
        self,
        trained: Trained,
        z_new: torch.Tensor,
        z_old: torch.Tensor | None,
        z_again: torch.Tensor,
        z_again_old: torch.Tensor | None,
    ) -> tuple[Prototypes, DriftReport]:
        method, old = self.lesson.method, None if self.state is None else self.state.prototypes
        if not len(self.new):
            assert old is not None
            return compensate(old, None)
        fitted = None
        if old is not None and z_old is not None and z_again_old is not None:
            fitted = self._fitted(old, (z_old, z_again_old), (z_new, z_again))
        if self.in_shares:
            computed = self._shared_prototypes(method.readout.space(z_new), self.targets[self.own])
            return update.update_prototypes(old, computed, fitted)
        exemplars = trained.exemplars
        return update_prototypes(
            old,
            method,
            task=self.task,
            new=self.new,
            z_new=z_new,
            z_old=z_old,
            kept=None if exemplars is None else (exemplars, embedded(self.world, trained.network, exemplars.images)),
            fitted=fitted,
        )

    def _fitted(
        self, old: Prototypes, z_old: tuple[torch.Tensor, ...], z_new: tuple[torch.Tensor, ...]
    ) -> FittedDrift | None:
        """Return the estimator that has seen all there is to see; None: new images are all, and one fit sees them."""
        method = self.lesson.method
        if method.drift is not None and method.drift.needs_networks:
            images = Examples.concatenate([self.new, self.again]).images
            return probed(method, self.network_before, self.network, images, old)
        if method.drift is None or not (self.in_shares or len(self.again)):
            return None
        # New images of old classes tell best how old prototypes moved: they are where these are.
        space, classes = method.readout.space, sorted_labels((*self.new.labels, *self.again.labels))
        before, after, targets = space(torch.cat(z_old)), space(torch.cat(z_new)), self._rows_among(classes)
        sums = method.drift.sums(old.means, before, after, targets) if self.in_shares else None
        if sums is None:
            return method.drift.fit(before, after, targets)
        return method.drift.fit_sums(old.means, self._merged(sums))

    def _shared_prototypes(self, z: torch.Tensor, targets: torch.Tensor) -> Prototypes:
        """Return the prototypes of the new classes from the embeddings that each rank has."""
        sums = self._merged(ClassSums.of(z, targets, len(self.classes)))
        return Prototypes.from_sums(self.classes, sums, self.task, z.dtype)

    def _refreshed(self, prototypes: Prototypes, readout: Tensors, z: torch.Tensor) -> tuple[Prototypes, Tensors]:
        """Return prototypes and read-out with the images of known classes, (M, D) in the read-out's space, merged."""
        labels = sorted_labels(self.again.labels)
        at = {label: row for row, label in enumerate(prototypes.labels)}
        targets = [at[label] for label in labels]
        of = self.again.targets_of(labels)
        added = torch.bincount(of, minlength=len(labels))
        means, counts, statistics = prototypes.means.clone(), prototypes.counts.clone(), prototypes.statistics
        more = self._merged(ClassSums.of(z, of[self.own_again], len(labels))).means(z.dtype)
        if statistics:  # then no rank has only its share of the images
            covariances = class_covariances(z, of, len(labels))
            statistics = refreshed(statistics, counts, targets, covariances, added, means[targets] - more)
        readout = self.lesson.method.readout.refreshed(readout, means[targets], counts[targets], more, added)
        means[targets] = merged_means(means[targets], counts[targets], more, added)
        counts[targets] += added
        return replace(prototypes, means=means, counts=counts, statistics=statistics), readout

    def _read_out(self, z: torch.Tensor, targets: torch.Tensor) -> Tensors:
        before = {} if self.state is None else self.state.readout_state
        readout = self.lesson.method.readout
        known = 0 if self.state is None else len(self.state.prototypes)
        sums = readout.sums(z, targets, known + len(self.classes)) if self.in_shares else None
        if sums is None:
            return readout.learn(before, z, targets, self.task, self.lesson.seed)
        return readout.learn_sums(before, self._merged(sums), self.task, self.lesson.seed)

    def _without_part(self, prototypes: Prototypes, z: torch.Tensor, targets: torch.Tensor) -> Prototypes:
        """Return the prototypes as they would be if the new classes had only these images."""
        first = len(prototypes) - len(self.classes)
        if self.in_shares:
            new = self._shared_prototypes(z, targets)
        else:
            new = Prototypes.of(self.classes, z, targets, self.task, kept_covariance(self.lesson.method))
        kept = prototypes.statistics
        statistics = {n: v if n == "shared" else torch.cat([v[:first], new.statistics[n]]) for n, v in kept.items()}
        return replace(prototypes, means=torch.cat([prototypes.means[:first], new.means]), statistics=statistics)

    def _calibrated(
        self, prototypes: Prototypes, report: DriftReport, z: torch.Tensor, held: torch.Tensor, trained: bool
    ) -> tuple[Calibration, tuple[int, float] | None]:
        """Return the calibration of all classes, and how many held-out images were answered how well."""
        before = Calibration.unknown(0) if self.state is None else self.state.calibration
        if report.labels == (() if self.state is None else self.state.prototypes.labels):
            before = before.moved(report.diagnostics.get("uncertainty"))
        if not len(self.new):
            return before, None
        if bool(held.any()):
            splits, honest = [((~held).nonzero().flatten(), held.nonzero().flatten())], True
        else:  # a network that did not learn from these images has seen none of them: each may be held out in turn
            splits = folds(self.targets, FOLDS, seeding.generator(self.lesson.seed, "folds", self.task))
            honest = not trained
        space, first = self.lesson.method.readout.space, len(prototypes) - len(self.classes)
        splits = self._fewer(splits, len(prototypes))
        parts = []
        own_rows = self.targets[self.own]
        for rest, part in ((self._mine(rest), self._mine(part)) for rest, part in splits):
            there = self._without_part(prototypes, space(z[rest]), own_rows[rest])
            means = there.means[first:]
            kept = self._read_out(space(z[rest]), own_rows[rest] + first)
            view = readout_view(z[part], there, self.network, kept)
            scores = self.lesson.method.readout.scores(view)
            targets = own_rows[part, None]
            own = distances_to(space(z[part]), means).gather(1, targets).squeeze(1)
            relative = relative_distances(*self.lesson.method.readout.coordinates(view)).gather(1, targets + first)
            parts.append(_Checked(scores, own, relative.squeeze(1).float(), own_rows[part]))
        if self.in_shares and parts:
            parts = [self._gathered(parts, splits)]
        new = _measured(parts, before, len(self.classes), first, honest)
        if not parts:
            return before.joined(new).settled(), None
        all_checked = _Checked.joined(parts)
        right = float((all_checked.scores.argmax(dim=1) == all_checked.targets + first).double().mean())
        return before.joined(new).settled(), (len(all_checked.targets), right) if honest else None

    def _mine(self, images: torch.Tensor) -> torch.Tensor:
        """Return which of this rank's images are among these of the task."""
        mine: torch.Tensor = images[(images >= self.own.start) & (images < self.own.stop)] - self.own.start
        return mine

    def _gathered(self, parts: list[_Checked], splits: list[tuple[torch.Tensor, torch.Tensor]]) -> _Checked:
        """Return the held-out images of all ranks, in the order in which one process has them."""
        mine, own = torch.cat([self._mine(part) for _, part in splits]), _Checked.joined(parts)
        everywhere = torch.cat([part for _, part in splits])

        def gathered(value: torch.Tensor) -> torch.Tensor:
            targets = value.new_zeros(self.own.stop - self.own.start, *value.shape[1:])
            targets[mine] = value
            return self.world.gather(targets, len(self.new), "passes")[everywhere]

        return _Checked(gathered(own.scores), gathered(own.distances), gathered(own.relative), self.targets[everywhere])

    def _fewer(self, splits: list[Split], classes: int) -> list[Split]:
        """Return the splits with so few images held out that their scores of all classes are at most `CHECKED_SCORES`.

        With 100,000 classes that is 80 images. Temperature and the shape of distances are shared by all classes, so
        they can be measured on a sample.
        """
        most = max(1, CHECKED_SCORES // classes // max(1, len(splits)))
        chance = seeding.generator(self.lesson.seed, "checked images", self.task)

        def some(part: torch.Tensor) -> torch.Tensor:
            return part[torch.randperm(len(part), generator=chance)[:most].sort().values] if len(part) > most else part

        return [(rest, some(part)) for rest, part in splits]


@dataclass(frozen=True)
class _Checked:
    """Held-out images: (N, K) scores, (N,) distance and relative distance to the own prototype, (N,) new class."""

    scores: torch.Tensor
    distances: torch.Tensor
    relative: torch.Tensor
    targets: torch.Tensor

    @staticmethod
    def joined(parts: list[_Checked]) -> _Checked:
        return _Checked(*(torch.cat([getattr(p, name) for p in parts]) for name in _Checked.__dataclass_fields__))


def _counted(examples: Examples) -> tuple[tuple[Label, int], ...]:
    counts = Counter(examples.labels)
    return tuple((label, counts[label]) for label in sorted_labels(examples.labels))


def _measured(parts: list[_Checked], before: Calibration, count: int, first: int, honest: bool) -> Calibration:
    """Return the rows of `count` new classes from held-out images."""
    known = before.at([row for row in range(len(before)) if int(before.images[row])])
    if not parts:  # one image a class: nothing can be held out, so the other classes speak for these
        unknown = Calibration.unknown(count)
        if not len(known):
            return unknown
        return replace(
            unknown,
            quantiles=known.quantiles.median(dim=0).values.repeat(count, 1),
            relative=known.relative.median(dim=0).values.repeat(count, 1),
        )
    all_checked = _Checked.joined(parts)
    targets = all_checked.targets
    images = torch.bincount(targets, minlength=count)
    quantiles = class_quantiles(all_checked.distances, targets, count)
    several = first + count >= SEVERAL
    return Calibration(
        quantiles,
        class_quantiles(all_checked.relative, targets, count) if several else torch.full_like(quantiles, torch.inf),
        torch.full((count,), fit_temperature(all_checked.scores, targets + first)),
        images,
        torch.full((count,), honest) & (images > 0),
    )


def kept_for(penalties: tuple[Penalty, ...], state: LearnerState) -> tuple[Tensors, ...]:
    """Return for each penalty what the same one kept after the last task; another one's importances mean other things.

    Only gamma may differ: it weighs what was measured.
    """

    def measured(penalty: Penalty) -> dict[str, Any]:
        return {**penalty.to_json(), "gamma": None}

    # `kept` is empty when no task could train yet.
    kept = [
        (measured(old), tensors) for old, tensors in zip(state.penalties, state.trained.penalty_state, strict=False)
    ]
    return tuple(next((t for old, t in kept if old == measured(penalty)), {}) for penalty in penalties)


def check_new_classes(state: LearnerState, classes: tuple[Label, ...], known: str = "error") -> None:
    """Refuse labels of another kind, and known ones unless they are to be skipped or refreshed."""
    learned = {label: t for t, task in enumerate(state.tasks, 1) for label in task.classes}
    if type(next(iter(learned))) is not type(classes[0]):
        raise InputError(
            f"labels mix int and str: earlier tasks had {next(iter(learned))!r}, this one has {classes[0]!r}. Use one "
            "kind: 1 and '1' would be two classes."
        )
    if known != "error":
        return
    for label in classes:
        if label in learned:
            raise InputError(
                f"class {label!r} was learned in task {learned[label]}; tasks must not share classes. Drop it, or "
                "start a new model; known='skip' passes over its images, known='refresh' merges them into its "
                "prototype."
            )
