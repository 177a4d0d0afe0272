"""`IncrementalClassifier`: where the rooms meet, for a user."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import nn

from . import saving, seeding
from .config import check, decode, encode, flag, number, one_of, optional, whole
from .data.arrays import InputSpec, read_images, read_labels
from .data.dataset import Examples
from .data.transforms import CropFlip, default_augmentation
from .drift import SDC, Drift, DriftReport
from .errors import InputError, ModelFileError, NotLearnedError, did_you_mean
from .evolution import readout_view, update_prototypes
from .labels import Label, sorted_labels
from .memory import Memory
from .methods import Method, Schedule, get_method
from .networks.build import BACKBONES, build_embedder, embedding_options
from .networks.embedder import Embedder, embed
from .objectives import Objective, Triplet
from .penalties import Penalty, Tensors
from .progress import reporting
from .prototypes import Prototypes
from .readouts import NearestClassMean, Readout
from .trainer import Trained, Training, advance

Self = TypeVar("Self", bound="IncrementalClassifier")

DEFAULT_TRAINING = Training(epochs=10, learning_rate=3e-4, later_learning_rate=3e-5)
"""For networks from random weights. A later rate as large as the first one forgets more than drift compensation mends
(measured in `results/defaults.md`)."""

_FIXED = ("backbone", "embedding_dim", "normalise", "objective")
"""What the first task fixes: later tasks must train the same network for the same thing."""

_RULES = {
    "embedding_dim": optional(whole(1)),
    "normalise": flag,
    "temperature": number(above=0),
    "channels": one_of("auto", "first", "last"),
    "random_state": whole(0),
    "verbose": flag,
}


@dataclass(frozen=True)
class LearnedTask:
    """What is remembered about a task: its classes, and how many images each had."""

    classes: tuple[Label, ...]
    images: tuple[int, ...]
    history: tuple[dict[str, float], ...]
    note: str


@dataclass(frozen=True)
class LearnerState:
    """Everything a classifier has learned. One object, never changed, replaced in one assignment.

    Attributes:
        spec: what the images look like.
        fixed: the parameters that the first task fixed.
        penalties: the last task's penalties, whose importances and the like `trained.kept` holds.
        trained: network, what penalties keep, memory.
        prototypes: mu_c of all classes seen.
        tasks: one entry a task.
        drift: what the last task's drift compensation did; empty after the first task.
        readout: what the read-out has learned.
    """

    spec: InputSpec
    fixed: dict[str, Any]
    penalties: tuple[Penalty, ...]
    trained: Trained
    prototypes: Prototypes
    tasks: tuple[LearnedTask, ...]
    drift: DriftReport
    readout: Tensors


class IncrementalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns classes task after task without keeping old images; an image gets the class of the nearest prototype.

    `partial_fit` learns one task: it trains the embedding network on the new classes, measures how the new images moved
    meanwhile, moves the prototypes of the old classes along (semantic drift compensation), and adds the new prototypes.
    It is all or nothing: after an error or Ctrl-C the classifier is what it was.

    Parameters
    ----------
    backbone : str or nn.Module, default="auto"
        "resnet18", "resnet18-cifar", "resnet32", "vgg16", "convnet", "mlp", or a module that maps a batch of inputs to
        (N, features). "auto" fits the first task's inputs.
    embedding_dim : int or None, default=512
        Size of the embedding z; None takes the backbone's features as they are.
    normalise : bool, default=True
        L2-normalise embeddings.
    weights : str, Path or None, default=None
        A file with weights for the backbone to start from, with torchvision's names.
    objective : Objective, default=Triplet()
        What the network is trained for.
    penalty : Penalty, sequence of Penalty or None, default=None
        What holds the old knowledge: LwF(), EWC(), MAS().
    memory : Memory or None, default=None
        Which old images are kept; None keeps none.
    drift : Drift or None, default=SDC(sigma=0.3)
        How old prototypes are moved; None leaves them where they were.
    readout : Readout, default=NearestClassMean()
        How an embedding gets its class.
    schedule : Schedule, default=Schedule()
        Which tasks train the network, and the batch-norm policy.
    training : Training, default=Training(epochs=10, learning_rate=3e-4, later_learning_rate=3e-5)
        Epochs, learning rate, batches.
    augment : CropFlip, None or "auto", default="auto"
        Random views in training; "auto": crop and flip for colour images of at least 32 x 32, none otherwise.
    temperature : float, default=0.1
        Of `predict_proba`: softmax of -d^2 / temperature.
    channels : {"auto", "first", "last"}, default="auto"
        Where the channel axis of four-dimensional X is.
    random_state : int, default=0
        One seed, one result: bit for bit on the same machine, torch and thread count.
    device : str, default="cpu"
        Where to train and predict.
    verbose : bool, default=False
        Show progress on standard error.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        All labels learned, in task order, sorted within a task. The columns of `predict_proba`.
    prototypes_ : ndarray of shape (n_classes, embedding_dim)
        One row a class, in the order of `classes_`.
    drift_ : DriftReport
        What drift compensation did to each old class in the last task.
    tasks_ : tuple of LearnedTask
        Classes, images a class, losses and notes of every task.
    state_ : LearnerState
        All of the above in one object.

    References
    ----------
    L. Yu et al., Semantic Drift Compensation for Class-Incremental Learning, CVPR 2020.

    Examples
    --------
    >>> from protodrift import IncrementalClassifier
    >>> from protodrift.data import load_digits
    >>> digits = load_digits()
    >>> first, second = digits.train.of_classes([0, 1]), digits.train.of_classes([2, 3])
    >>> clf = IncrementalClassifier()
    >>> clf.partial_fit(first.images, first.labels).partial_fit(second.images, second.labels).classes_
    array([0, 1, 2, 3])
    >>> clf.drift_.labels
    (0, 1)
    >>> test = digits.test.of_classes([0, 1, 2, 3])
    >>> bool(clf.score(test.images, test.labels) > 0.9)
    True
    """

    def __init__(
        self,
        backbone: str | nn.Module = "auto",
        *,
        embedding_dim: int | None = 512,
        normalise: bool = True,
        weights: str | Path | None = None,
        objective: Objective = Triplet(),
        penalty: Penalty | Sequence[Penalty] | None = None,
        memory: Memory | None = None,
        drift: Drift | None = SDC(),
        readout: Readout = NearestClassMean(),
        schedule: Schedule = Schedule(),
        training: Training = DEFAULT_TRAINING,
        augment: CropFlip | str | None = "auto",
        temperature: float = 0.1,
        channels: str = "auto",
        random_state: int = 0,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.backbone = backbone
        self.embedding_dim = embedding_dim
        self.normalise = normalise
        self.weights = weights
        self.objective = objective
        self.penalty = penalty
        self.memory = memory
        self.drift = drift
        self.readout = readout
        self.schedule = schedule
        self.training = training
        self.augment = augment
        self.temperature = temperature
        self.channels = channels
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    @classmethod
    def from_method(cls: type[Self], name: str, **params: Any) -> Self:
        """Return a classifier for a named method, such as "E-EWC+SDC"; `params` are the other parameters.

        >>> IncrementalClassifier.from_method("E-EWC+SDC", random_state=1).penalty
        (EWC(gamma=10000000.0, fisher='batch', accumulate=False),)
        """
        method = get_method(name)
        _check_names(cls, params)
        axes = {axis: getattr(method, axis) for axis in ("objective", "memory", "drift", "readout", "schedule")}
        return cls(**{**axes, "penalty": method.penalties, **params})

    def set_params(self: Self, **params: Any) -> Self:
        """Set parameters by name; they act from the next task on."""
        _check_names(type(self), params)
        for name, value in params.items():
            setattr(self, name, value)
        return self

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self: Self, X: Any, y: Any) -> Self:
        """Forget everything and learn one task."""
        self.state_ = self._learn(None, X, y)
        return self

    def partial_fit(self: Self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn one task of new classes.

        Args:
            X: (N, H, W), (N, H, W, C), (N, C, H, W) images, uint8 or float, or (N, D) feature vectors.
            y: N labels, all str or all int; none of them learned before.
            classes: accepted for scikit-learn's sake and not required: classes that come later are the point.

        Raises:
            InputError: for anything that cannot be used. The classifier is what it was.
            DivergedError: if training met a loss that is not finite. The classifier is what it was.
        """
        self.state_ = self._learn(getattr(self, "state_", None), X, y, announced=classes)
        return self

    def _learn(self, state: LearnerState | None, X: Any, y: Any, announced: Any = None) -> LearnerState:
        method = self._validated_method()
        images, spec = read_images(X, spec=None if state is None else state.spec, channels=self.channels)
        new = Examples(images, read_labels(y, len(images)))
        fixed = {name: getattr(self, name) for name in _FIXED}
        classes = sorted_labels(new.labels)
        if announced is not None:
            listed = set(read_labels(announced, np.size(announced)))
            surprise = [label for label in classes if label not in listed]
            if surprise:
                raise InputError(f"y holds class {surprise[0]!r}, which classes=... does not list. Add it, or drop it.")
        if state is None:
            trained = Trained(self._initial_network(spec, new))
        else:
            _check_new_classes(state, classes)
            _check_fixed(state, fixed)
            trained = replace(state.trained, kept=_kept_for(method.penalties, state))
        task = 1 if state is None else len(state.tasks) + 1
        with reporting(self.verbose) as reporter, reporter.training(method, task) as on_progress:
            trained_now = advance(
                trained,
                new,
                task=task,
                method=method,
                training=self.training,
                augment=default_augmentation(spec) if self.augment == "auto" else self.augment,  # type: ignore[arg-type]
                seed=self.random_state,
                on_progress=on_progress,
            )
        network, memory = trained_now.network, trained_now.memory
        z_new = embed(network, new.images)
        prototypes, report = update_prototypes(
            None if state is None else state.prototypes,
            method,
            task=task,
            new=new,
            z_new=z_new,
            z_old=None if trained.network is network else embed(trained.network, new.images),
            kept=None if memory is None else (memory, embed(network, memory.images)),
        )
        learned = method.readout.learn(
            {} if state is None else state.readout,
            method.readout.space(z_new),
            new.rows_of(trained_now.classes),
            task,
            self.random_state,
        )
        counts = torch.bincount(new.rows_of(classes), minlength=len(classes)).tolist()
        record = LearnedTask(classes, tuple(counts), trained_now.history, trained_now.note)
        tasks = (*(() if state is None else state.tasks), record)
        return LearnerState(spec, fixed, method.penalties, trained_now, prototypes, tasks, report, learned)

    def _initial_network(self, spec: InputSpec, first: Examples) -> Embedder:
        network = build_embedder(
            self.backbone,
            spec,
            **embedding_options(self.objective, self.embedding_dim, self.normalise),
            weights=self.weights,
            seed=self.random_state,
        )
        network.standardise.fit(first.images)
        return network.to(self.device).eval()

    def _validated_method(self) -> Method:
        name = type(self).__name__
        check(name, _RULES, {key: getattr(self, key) for key in _RULES})
        if not isinstance(self.backbone, (str, nn.Module)):
            raise InputError(f"{name}: backbone must be a name or an nn.Module, got {self.backbone!r}.")
        if isinstance(self.backbone, str) and self.backbone not in BACKBONES:
            raise InputError(f"{name}: unknown backbone {self.backbone!r}. {did_you_mean(self.backbone, BACKBONES)}")
        if not isinstance(self.training, Training):
            raise InputError(
                f"{name}: training must be a Training object, e.g. Training(epochs=30); got {self.training!r}."
            )
        if not (self.augment is None or self.augment == "auto" or isinstance(self.augment, CropFlip)):
            raise InputError(f"{name}: augment must be 'auto', None or a CropFlip object; got {self.augment!r}.")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError, TypeError) as error:
            raise InputError(
                f"{name}: device {self.device!r} cannot be used here ({error}). Use device='cpu'."
            ) from None
        if isinstance(self.schedule, Schedule) and self.schedule.start == "initial":
            raise InputError(
                f"{name}: Schedule(start='initial') trains a network of its own for every task, and this classifier "
                "keeps one network. Run it as an experiment (protodrift run)."
            )
        if isinstance(self.readout, Readout) and self.readout.needs_every_network:
            raise InputError(
                f"{name}: {type(self.readout).__name__} asks the networks of all earlier tasks, and this classifier "
                "keeps one network. Run it as an experiment (protodrift run), or use another read-out."
            )
        if self.drift is not None and isinstance(self.drift, Drift) and self.drift.evaluation_only:
            raise InputError(
                f"{name}: {type(self.drift).__name__} is for evaluation only: it needs old images, which a learner "
                "does not have. Use SDC() or None."
            )
        return Method(
            self.objective,
            self.penalty,  # type: ignore[arg-type]
            self.memory,
            self.drift,
            self.readout,
            self.schedule,
        )

    # -- answering -----------------------------------------------------------------------------------------------

    def transform(self, X: Any) -> np.ndarray:
        """Return the embeddings z of X, (N, embedding_dim)."""
        return self._embed(X).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of each image: the user's labels, over all classes seen so far."""
        labels: np.ndarray = self.classes_[self._scores(X).argmax(dim=1).numpy()]
        return labels

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return (N, n_classes) probabilities in the order of `classes_`: softmax of -d^2 / temperature.

        Rows sum to 1. They are not calibrated: a share of nearness, not a frequency.
        """
        check(type(self).__name__, {"temperature": _RULES["temperature"]}, {"temperature": self.temperature})
        probabilities: np.ndarray = (self._scores(X).double() / self.temperature).softmax(dim=1).numpy()
        return probabilities

    def _scores(self, X: Any) -> torch.Tensor:
        state, z = self._learned(), self._embed(X)
        readout = Method(
            objective=self.objective, readout=self.readout
        ).readout  # checked: it may have been set since the last task
        return readout.scores(readout_view(z, state.prototypes, state.trained.network, state.readout))

    def _embed(self, X: Any) -> torch.Tensor:
        state = self._learned()
        images, _ = read_images(X, spec=state.spec, channels=self.channels)
        return embed(state.trained.network, images)

    def _learned(self) -> LearnerState:
        state = getattr(self, "state_", None)
        if state is None:
            raise NotLearnedError(
                f"this {type(self).__name__} has not learned anything yet. Call partial_fit(X, y), or load a model."
            )
        assert isinstance(state, LearnerState)
        return state

    @property
    def classes_(self) -> np.ndarray:
        """All labels learned, in task order, sorted within a task."""
        return np.array(self._learned().prototypes.labels)

    @property
    def prototypes_(self) -> np.ndarray:
        """(n_classes, embedding_dim), in the order of `classes_`."""
        return self._learned().prototypes.means.numpy().copy()

    @property
    def drift_(self) -> DriftReport:
        """What drift compensation did to each old class in the last task."""
        return self._learned().drift

    @property
    def tasks_(self) -> tuple[LearnedTask, ...]:
        """Classes, images a class, losses and notes of every task."""
        return self._learned().tasks

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "state_", None) is not None

    # -- saving --------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, store_images: bool = False) -> Path:
        """Write the model as a new version of the directory `path`; a reader sees the old or the new one, whole.

        Args:
            path: a directory: new, or a model that gets one more version.
            store_images: a memory keeps images of old tasks; they are written only if this is True.

        Raises:
            ModelFileError: if `path` is something else, or cannot be written. What was there before is unchanged.
        """
        state = self._learned()
        if state.trained.memory is not None and not store_images:
            raise InputError(
                f"{type(self.memory).__name__} keeps {len(state.trained.memory)} images of old tasks. Writing them to "
                "disk must be asked for: save(path, store_images=True)."
            )
        params = {name: _encode_param(name, value) for name, value in self.get_params(deep=False).items()}
        saving.write(path, {**_manifest(state), "parameters": params}, _tensors(state))
        return Path(path)

    @classmethod
    def load(cls: type[Self], path: str | Path, **params: Any) -> Self:
        """Read a model. Nothing in it is executed, and every byte is checked.

        Args:
            path: a model directory.
            params: parameters to set, e.g. `device="cuda"`; a model with a backbone module or a `MetricLoss` of yours
                needs that object again: `load(path, backbone=MyNet())`.

        Raises:
            ModelFileError: if it is missing, damaged, tampered with, or of a newer format.
        """
        saved = saving.read(path)
        try:
            clf = cls(**_decode_params(cls, saved.manifest["parameters"], params))
            clf._validated_method()
            clf.state_ = _restore(clf, saved)
        except ModelFileError:
            raise
        except KeyError as error:
            raise ModelFileError(f"the model at {path} is damaged: it lacks {error}.") from error
        except (InputError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ModelFileError(f"the model at {path} cannot be used: {error}") from error
        return clf


def _check_names(cls: type[IncrementalClassifier], params: dict[str, Any]) -> None:
    known = cls._get_param_names()
    for name in params:
        if name not in known:
            raise InputError(f"{cls.__name__} has no parameter {name!r}. {did_you_mean(name, known)}")


def _check_new_classes(state: LearnerState, classes: tuple[Label, ...]) -> None:
    known = {label: t for t, task in enumerate(state.tasks, 1) for label in task.classes}
    if type(next(iter(known))) is not type(classes[0]):
        raise InputError(
            f"labels mix int and str: earlier tasks had {next(iter(known))!r}, this one has {classes[0]!r}. Use one "
            "kind: 1 and '1' would be two classes."
        )
    for label in classes:
        if label in known:
            raise InputError(
                f"class {label!r} was learned in task {known[label]}; tasks must not share classes. Drop it, or "
                "start a new model."
            )


def _check_fixed(state: LearnerState, fixed: dict[str, Any]) -> None:
    for name, value in fixed.items():
        if value is not state.fixed[name] and value != state.fixed[name]:
            raise InputError(
                f"{name} was {state.fixed[name]!r} when this model learned its first task and is {value!r} now. It "
                "cannot change between tasks: set it back, or start a new model."
            )


def _kept_for(penalties: tuple[Penalty, ...], state: LearnerState) -> tuple[Tensors, ...]:
    """Return for each penalty what the same one kept after the last task; another one's importances mean other things.

    Only gamma may differ: it weighs what was measured.
    """

    def measured(penalty: Penalty) -> dict[str, Any]:
        return {**penalty.to_json(), "gamma": None}

    # `kept` is empty when no task could train yet.
    kept = [(measured(old), tensors) for old, tensors in zip(state.penalties, state.trained.kept, strict=False)]
    return tuple(next((t for old, t in kept if old == measured(penalty)), {}) for penalty in penalties)


# -- between state and files -----------------------------------------------------------------------------------------


def _encode_param(name: str, value: Any) -> Any:
    if isinstance(value, (Path, torch.device)):
        return str(value)
    try:
        return encode(value)
    except InputError:  # a module or a loss of the user's: only its name can be kept
        return {"type": "given by the user", "name": type(value).__name__}


def _decode_params(cls: type[IncrementalClassifier], saved: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    _check_names(cls, given)
    result = {}
    for name, value in saved.items():
        if name in given:
            continue
        if isinstance(value, dict) and value.get("type") == "given by the user":
            raise InputError(
                f"its {name} is one of yours ({value.get('name')}), which cannot be stored. Pass it again: "
                f"load(path, {name}=...)."
            )
        result[name] = decode(value)
    return {**result, **given}


def _manifest(state: LearnerState) -> dict[str, Any]:
    from . import __version__

    return {
        "made_with": {"protodrift": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "input": state.spec.to_json(),
        "fixed": {name: _encode_param(name, value) for name, value in state.fixed.items()},
        "labels": list(state.prototypes.labels),
        "tasks": [
            {
                "classes": list(task.classes),
                "images": list(task.images),
                "history": list(task.history),
                "note": task.note,
            }
            for task in state.tasks
        ],
        "last_task": {"history": list(state.trained.history), "note": state.trained.note},
        "penalties": encode(state.penalties),
        "kept": len(state.trained.kept),
        "drift_labels": list(state.drift.labels),
        "memory_labels": None if state.trained.memory is None else list(state.trained.memory.labels),
    }


def _tensors(state: LearnerState) -> dict[str, saving.Tensors]:
    drift = {"before": state.drift.before, "after": state.drift.after}
    drift.update({f"diagnostics.{name}": value for name, value in state.drift.diagnostics.items()})
    prototypes = state.prototypes
    result = {
        "network": dict(state.trained.network.state_dict()),
        "prototypes": {"means": prototypes.means, "counts": prototypes.counts, "tasks": prototypes.tasks},
        "drift": drift,
        "readout": state.readout,
    }
    for i, kept in enumerate(state.trained.kept):
        result[f"penalty{i}"] = kept
    if state.trained.memory is not None:
        result["memory"] = {"images": state.trained.memory.images}
    return result


def _restore(clf: IncrementalClassifier, saved: saving.Saved) -> LearnerState:
    manifest, tensors = saved.manifest, saved.tensors
    spec = InputSpec.from_json(manifest["input"])
    fixed = {
        # An object of the user's was passed again just now; everything else is what the first task had.
        name: getattr(clf, name)
        if isinstance(value, dict) and value.get("type") == "given by the user"
        else decode(value)
        for name, value in manifest["fixed"].items()
    }
    objective = fixed["objective"]
    network = build_embedder(
        fixed["backbone"], spec, **embedding_options(objective, fixed["embedding_dim"], fixed["normalise"]), seed=0
    )
    with seeding.global_seed(0):  # the heads' first weights are drawn, only to be replaced
        for task in manifest["tasks"]:
            objective.grow(network, len(task["classes"]))
    network.load_state_dict(tensors["network"], strict=True)
    network = network.to(clf.device).eval()
    labels = tuple(manifest["labels"])
    means, counts, tasks = (tensors["prototypes"][name] for name in ("means", "counts", "tasks"))
    learned = tuple(
        LearnedTask(tuple(t["classes"]), tuple(t["images"]), tuple(t["history"]), t["note"]) for t in manifest["tasks"]
    )
    _check_consistent(labels, learned, means, counts, tasks, network)
    diagnostics = {
        name.removeprefix("diagnostics."): value
        for name, value in tensors["drift"].items()
        if name.startswith("diagnostics.")
    }
    drift = DriftReport(
        tuple(manifest["drift_labels"]), tensors["drift"]["before"], tensors["drift"]["after"], diagnostics
    )
    memory = None
    if manifest["memory_labels"] is not None:
        memory = Examples(tensors["memory"]["images"], tuple(manifest["memory_labels"]))
    kept = tuple(tensors[f"penalty{i}"] for i in range(manifest["kept"]))
    last = manifest["last_task"]
    trained = Trained(network, labels, kept, memory, tuple(last["history"]), last["note"])
    _check_belonging(spec, trained, drift, labels)
    prototypes = Prototypes(labels, means, counts, tasks)
    penalties = decode(manifest["penalties"])
    return LearnerState(spec, fixed, penalties, trained, prototypes, learned, drift, tensors["readout"])


def _check_consistent(
    labels: tuple[Label, ...],
    learned: tuple[LearnedTask, ...],
    means: torch.Tensor,
    counts: torch.Tensor,
    tasks: torch.Tensor,
    network: Embedder,
) -> None:
    """Refuse parts that are each whole but do not belong together."""
    if labels != tuple(label for task in learned for label in task.classes) or len(set(labels)) != len(labels):
        raise ModelFileError("the model is damaged: its labels are not those of its tasks.")
    if len({type(label) for label in labels}) != 1 or not isinstance(labels[0], (str, int)):
        raise ModelFileError("the model is damaged: its labels are neither all str nor all int.")
    if means.shape != (len(labels), network.embedding_dim) or not means.is_floating_point():
        raise ModelFileError(
            f"the model is damaged: prototypes of shape {tuple(means.shape)} for {len(labels)} classes and embeddings "
            f"of size {network.embedding_dim}."
        )
    if counts.shape != (len(labels),) or tasks.shape != (len(labels),):
        raise ModelFileError("the model is damaged: counts and tasks do not fit its classes.")
    values = [means, *network.state_dict().values()]
    if not all(bool(torch.isfinite(value).all()) for value in values if value.is_floating_point()):
        raise ModelFileError("the model is damaged: a weight or prototype is not finite.")


def _check_belonging(spec: InputSpec, trained: Trained, drift: DriftReport, labels: tuple[Label, ...]) -> None:
    """Refuse what only a later task would stumble over: importances, drift and kept images of another model."""
    own = {name: weight.shape for name, weight in trained.network.named_parameters()}
    for kept in trained.kept:
        for name, value in kept.items():
            if value.shape != own.get(name, value.shape) or not bool(torch.isfinite(value).all()):
                raise ModelFileError(f"the model is damaged: what a penalty keeps for {name} does not fit its network.")
    size = (len(drift.labels), trained.network.embedding_dim)
    if drift.before.shape != size or drift.after.shape != size or not set(drift.labels) <= set(labels):
        raise ModelFileError("the model is damaged: its drift does not fit its classes.")
    memory = trained.memory
    if memory is not None and (tuple(memory.images.shape[1:]) != spec.shape or not set(memory.labels) <= set(labels)):
        raise ModelFileError("the model is damaged: the images it keeps are not those of its classes.")
