"""`IncrementalClassifier`: where the rooms meet, for a user."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import column_or_1d
from torch import nn

from .common.config import check, flag, nested, number, one_of, optional, plain, whole, with_nested
from .common.labels import Label, sorted_labels
from .common.progress import OnProgress, reporting
from .data.arrays import InputSpec, read_inputs, read_labels
from .data.examples import Examples
from .data.views import Augmentation, default_augmentation
from .distributed.batches import same_weights
from .distributed.world import current
from .drift import SDC, Drift
from .errors import InputError, ModelFileError, NotLearnedError, did_you_mean
from .exemplars import Exemplars
from .methods import Method, Schedule, get_method, training_name
from .model import format as model_format
from .model import versions
from .networks.build import BACKBONES, build_embedder, embedding_options
from .networks.embedder import Embedder, embed
from .objectives import Objective, Triplet
from .penalties import Penalty
from .prototypes import DriftReport
from .readouts import NearestClassMean, Readout, View
from .training.calibration import distances_to, relative_distances
from .training.checkpoint import Checkpoint
from .training.config import Training
from .training.evolution import readout_view
from .training.state import LearnedTask, LearnerState
from .training.task import Lesson, check_new_classes, learn

Self = TypeVar("Self", bound="IncrementalClassifier")

DEFAULT_TRAINING = Training(epochs=10, learning_rate=3e-4, later_learning_rate=3e-5)
"""For networks from random weights. A later rate as large as the first one forgets more than drift compensation mends
(measured in `results/defaults.md`)."""

_FIXED = ("backbone", "embedding_dim", "normalize", "crop", "objective")
"""What the first task fixes: later tasks must train the same network for the same thing."""


def _temperature(value: Any) -> str | None:
    return None if value == "auto" else number(above=0)(value)


_RULES = {
    "embedding_dim": optional(whole(1)),
    "normalize": flag,
    "crop": optional(whole(1)),
    "image_size": whole(8),
    "held_out": number(0, 0.5),
    "temperature": _temperature,
    "channels": one_of("auto", "first", "last"),
    "random_state": whole(0),
    "verbose": flag,
}


@dataclass(frozen=True)
class Recognized:
    """Answers for N images over K classes.

    Attributes:
        classes: (K,) all labels.
        best: (N,) the answer, as a position in `classes`.
        probabilities: (N, K) confidence.
        distances: (N, K) Euclidean distance to each prototype.
        novelty: (N,) how far from the answer's prototype, over how far 95 % of held-out images of that class are; 0
            where no image could be held out.
        embeddings: (N, D) z.
    """

    classes: np.ndarray
    best: np.ndarray
    probabilities: np.ndarray
    distances: np.ndarray
    novelty: np.ndarray
    embeddings: np.ndarray

    @property
    def unknown(self) -> np.ndarray:
        """(N,) whether an image is far from every class."""
        far: np.ndarray = self.novelty > 1
        return far

    @property
    def labels(self) -> np.ndarray:
        """(N,) the label of the best class, also of images that are unknown."""
        named: np.ndarray = self.classes[self.best]
        return named

    def top(self, row: int, count: int) -> list[tuple[Label, float, float]]:
        """Return the `count` likeliest classes of an image: label, probability, distance."""
        order = np.argsort(-self.probabilities[row], kind="stable")
        order = order[order != self.best[row]]  # the answer first, also among equals
        order = np.concatenate([[self.best[row]], order])[:count]
        return [
            (self.classes[i].item(), float(self.probabilities[row, i]), float(self.distances[row, i])) for i in order
        ]


class IncrementalClassifier(ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learns classes task after task without keeping old images; an image gets the class of the nearest prototype.

    `partial_fit` learns one task: it trains the embedding network on the new classes, measures how the new images moved
    meanwhile, moves the prototypes of the old classes along (semantic drift compensation), and adds the new prototypes.
    It is all or nothing: after an error or Ctrl-C the classifier is what it was.

    Parameters
    ----------
    backbone : str or nn.Module, default="auto"
        "resnet18", "resnet18-cifar", "resnet32", "vgg16", "efficientnet-lite0" to "efficientnet-lite4", "convnet",
        "mlp", or a module that maps a batch of inputs to (N, features). "auto" fits the first task's inputs.
    embedding_dim : int or None, default=512
        Size of the embedding z; None takes the backbone's features as they are.
    normalize : bool, default=True
        L2-normalize embeddings.
    weights : str, Path or None, default=None
        Weights for the backbone to start from: "imagenet", "pip", "hf:owner/name", "https://..." or a file with
        torchvision's names (see `protodrift.networks.weights`).
    crop : int or None, default=None
        Side of the center view that prototypes, drift and predictions see of larger images; random views in training
        should have this size too, e.g. RandomCropFlip(224). None: the whole image.
    objective : Objective, default=Triplet()
        What the network is trained for.
    penalty : Penalty, sequence of Penalty or None, default=None
        What holds the old knowledge: LwF(), EWC(), MAS().
    exemplars : Exemplars or None, default=None
        Which old images are kept; None keeps none.
    drift : Drift or None, default=SDC(sigma=0.3)
        How old prototypes are moved; None leaves them where they were.
    readout : Readout, default=NearestClassMean()
        How an embedding gets its class.
    schedule : Schedule, default=Schedule()
        Which tasks train the network, and the batch-norm policy.
    training : Training, default=Training(epochs=10, learning_rate=3e-4, later_learning_rate=3e-5)
        Epochs, learning rate, batches.
    augment : Augmentation, None or "auto", default="auto"
        Random views in training; "auto": crop and flip for color images of at least 32 x 32, none otherwise.
    image_size : int, default=128
        Image files are resized and cropped to this side; where X holds arrays it says nothing.
    held_out : float, default=0
        Share of each new class (of five images or more) that the network is not trained on, so that confidence can be
        measured on it. It still counts in the prototypes.
    temperature : float or "auto", default=0.1
        Of `predict_proba`: softmax of scores (-d^2) / temperature. "auto": the one measured when a class was learned.
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
        normalize: bool = True,
        weights: str | Path | None = None,
        crop: int | None = None,
        objective: Objective = Triplet(),
        penalty: Penalty | Sequence[Penalty] | None = None,
        exemplars: Exemplars | None = None,
        drift: Drift | None = SDC(),
        readout: Readout = NearestClassMean(),
        schedule: Schedule = Schedule(),
        training: Training = DEFAULT_TRAINING,
        augment: Augmentation | str | None = "auto",
        image_size: int = 128,
        held_out: float = 0.0,
        temperature: float | str = 0.1,
        channels: str = "auto",
        random_state: int = 0,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.backbone = backbone
        self.embedding_dim = plain(embedding_dim)
        self.normalize = normalize
        self.weights = weights
        self.crop = plain(crop)
        self.objective = objective
        self.penalty = penalty
        self.exemplars = exemplars
        self.drift = drift
        self.readout = readout
        self.schedule = schedule
        self.training = training
        self.augment = augment
        self.image_size = plain(image_size)
        self.held_out = plain(held_out)
        self.temperature = plain(temperature)
        self.channels = channels
        self.random_state = plain(random_state)
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
        axes = {axis: getattr(method, axis) for axis in ("objective", "exemplars", "drift", "readout", "schedule")}
        return cls(**{**axes, "penalty": method.penalties, **params})

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; if `deep`, also the options of their parts, such as "drift__sigma"."""
        params: dict[str, Any] = super().get_params(deep=False)
        return nested(params) if deep else params

    def set_params(self: Self, **params: Any) -> Self:
        """Set parameters by name, also options of their parts (`drift__sigma=0.2`); they act from the next task on."""
        for name, value in with_nested(self.get_params(deep=False), params, type(self).__name__).items():
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True  # images
        tags.input_tags.string = True  # paths of image files
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self: Self, X: Any, y: Any = None) -> Self:
        """Forget everything and learn one task."""
        self.state_ = self._learn(None, X, y)
        return self

    def partial_fit(self: Self, X: Any, y: Any = None, classes: Any = None, *, known: str = "error") -> Self:
        """Learn one task of new classes.

        Args:
            X: (N, H, W), (N, H, W, C), (N, C, H, W) images, uint8 or float; (N, D) feature vectors; N paths of image
                files; or a PyTorch dataset of (image, label) pairs, and no y.
            y: N labels, all str or all int; none of them learned before.
            classes: accepted for scikit-learn's sake and not required: classes that come later are the point.
            known: what to do with images of classes that were learned before: "error"; "skip" them; "refresh": let them
                train along, and merge them into the moved prototype, weighted by counts.

        Raises:
            InputError: for anything that cannot be used. The classifier is what it was.
            DivergedError: if training met a loss that is not finite. The classifier is what it was.
        """
        check(type(self).__name__, {"known": one_of("error", "skip", "refresh")}, {"known": known})
        self.state_ = self._learn(getattr(self, "state_", None), X, y, announced=classes, known=known)
        return self

    def _learn(
        self, state: LearnerState | None, X: Any, y: Any, announced: Any = None, known: str = "error"
    ) -> LearnerState:
        self._validated_method()  # before anything large is read
        if getattr(y, "ndim", 1) == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        images, y, spec = self._read(X, y, None if state is None else state.spec)
        examples = Examples(images, read_labels(y, len(images)))
        if announced is not None:
            listed = set(read_labels(announced, np.size(announced)))
            surprise = [label for label in sorted_labels(examples.labels) if label not in listed]
            if surprise:
                raise InputError(f"y holds class {surprise[0]!r}, which classes=... does not list. Add it, or drop it.")
        if state is not None:
            check_new_classes(state, sorted_labels(examples.labels), known)
            if known == "skip":
                examples = examples.of_classes(set(examples.labels) - set(state.prototypes.labels))
                if not len(examples):
                    return state
        return self.learned_from(state, spec, examples)

    def _read(self, X: Any, y: Any, spec: InputSpec | None) -> tuple[torch.Tensor, Any, InputSpec]:
        size: tuple[int, ...] = getattr(X, "shape", ())
        if spec is not None and not spec.is_image and len(size) == 2 and size[1] != spec.shape[0]:
            raise InputError(
                f"X has {size[1]} features, but {type(self).__name__} is expecting {spec.shape[0]} features as input: "
                f"this model was made for {spec}."
            )
        return read_inputs(X, y, spec=spec, channels=self.channels, size=self.image_size)

    def learned_from(
        self,
        state: LearnerState | None,
        spec: InputSpec,
        examples: Examples,
        *,
        on_progress: OnProgress | None = None,
        checkpoint: Checkpoint | None = None,
        source: str = "",
    ) -> LearnerState:
        """Return what is known after one more task, with this classifier's parameters; the classifier does not change.

        Args:
            state: what was known before, or None.
            spec, examples: the images, read and checked. Classes that are known already are refreshed.
            on_progress: called after every epoch; None: shown if `verbose`.
            checkpoint: keeps the last finished epoch; a training that was interrupted goes on from there.
            source: where the images come from, in a word.
        """
        method = self._validated_method()
        fixed = {name: getattr(self, name) for name in _FIXED}
        if state is not None:
            _check_fixed(state, fixed)
            if state.space != method.readout.space_name:
                raise InputError(
                    f"prototypes were averaged in the space {state.space!r} of the read-out that this model learned "
                    f"with, and {method.readout} would average the new ones in {method.readout.space_name!r}. Set the "
                    "read-out back, or start a new model."
                )
        task = 1 if state is None else len(state.tasks) + 1
        with (
            reporting(self.verbose and on_progress is None and current().is_first) as reporter,
            reporter.training(training_name(method, task)) as shown,
        ):
            lesson = Lesson(
                method,
                self.training,
                default_augmentation(spec) if self.augment == "auto" else self.augment,  # type: ignore[arg-type]
                self.random_state,
                fixed,
                self.held_out,
                lambda: self._initial_network(spec, examples),
                on_progress or shown,
                checkpoint,
                source,
            )
            return learn(lesson, state, spec, examples)

    def _initial_network(self, spec: InputSpec, first: Examples) -> Embedder:
        build = partial(
            build_embedder,
            self.backbone,
            spec,
            **embedding_options(self.objective, self.embedding_dim, self.normalize),
            weights=self.weights,
            seed=self.random_state,
            crop=self.crop,
        )
        network = current().first_before_others(build)  # weights may have to be downloaded, once
        network.standardize.fit(first.images)
        same_weights(current(), network)
        return network.to(self.device).eval()

    def _validated_method(self) -> Method:
        name = type(self).__name__
        check(name, _RULES, {key: getattr(self, key) for key in _RULES})
        if not isinstance(self.backbone, (str, nn.Module)):
            raise InputError(f"{name}: backbone must be a name or an nn.Module, got {self.backbone!r}.")
        if isinstance(self.backbone, str) and self.backbone not in BACKBONES:
            raise InputError(f"{name}: unknown backbone {self.backbone!r}. {did_you_mean(self.backbone, BACKBONES)}")
        if not (self.weights is None or isinstance(self.weights, (str, Path))):
            raise InputError(f"{name}: weights must be a name, a file or None, got {self.weights!r}.")
        if not isinstance(self.training, Training):
            raise InputError(
                f"{name}: training must be a Training object, e.g. Training(epochs=30); got {self.training!r}."
            )
        if not (self.augment is None or self.augment == "auto" or isinstance(self.augment, Augmentation)):
            raise InputError(
                f"{name}: augment must be 'auto', None or an Augmentation such as CropFlip(); got {self.augment!r}."
            )
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
            self.exemplars,
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
        z = self._embed(X)
        labels: np.ndarray = self.classes_[self._checked_readout().predict(self._view(z)).numpy()]
        return labels

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return (N, n_classes) probabilities in the order of `classes_`: softmax of -d^2 / temperature.

        Rows sum to 1. With a temperature that was chosen they are a share of nearness, not a frequency; with
        `temperature="auto"` they are calibrated on what was held out when the answer's class was learned.
        """
        check(type(self).__name__, {"temperature": _RULES["temperature"]}, {"temperature": self.temperature})
        return self._probabilities(self._scores(X))

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the read-out's scores, larger is likelier: (N, n_classes); of two classes (N,), second minus first."""
        scores: np.ndarray = self._scores(X).numpy()
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def recognize(self, X: Any) -> Recognized:
        """Return the answers with all that is known about them: probabilities, distances, whether they are unknown."""
        state, z = self._learned(), self._embed(X)
        scores = self._scores_of(z)
        distances = distances_to(self.readout.space(z), state.prototypes.means)
        view = readout_view(z, state.prototypes, state.trained.network, state.readout_state)
        best = scores.argmax(dim=1)
        novelty = state.calibration.novelty(best, distances, relative_distances(*self.readout.coordinates(view)))
        return Recognized(
            self.classes_, best.numpy(), self._probabilities(scores), distances.numpy(), novelty.numpy(), z.numpy()
        )

    def _probabilities(self, scores: torch.Tensor) -> np.ndarray:
        if self.temperature == "auto":
            temperature = self._learned().calibration.temperatures[scores.argmax(dim=1), None].double()
        else:
            temperature = torch.tensor(float(self.temperature), dtype=torch.float64)
        probabilities: np.ndarray = (scores.double() / temperature).softmax(dim=1).numpy()
        return probabilities

    def _scores(self, X: Any) -> torch.Tensor:
        return self._scores_of(self._embed(X))

    def _scores_of(self, z: torch.Tensor) -> torch.Tensor:
        return self._checked_readout().scores(self._view(z))

    def _checked_readout(self) -> Readout:
        """Return the read-out, checked: it may have been set since the last task."""
        return Method(objective=self.objective, readout=self.readout).readout

    def _view(self, z: torch.Tensor) -> View:
        state = self._learned()
        return readout_view(z, state.prototypes, state.trained.network, state.readout_state)

    def _embed(self, X: Any) -> torch.Tensor:
        state = self._learned()
        images, _, _ = self._read(X, None, state.spec)
        z = embed(state.trained.network, images)
        broken = (~torch.isfinite(z).all(dim=1)).nonzero().flatten()
        if len(broken):
            raise InputError(
                f"row {int(broken[0])} of X is so far from anything that was learned that the network overflows"
                f"{f' (and {len(broken) - 1} more)' if len(broken) > 1 else ''}. Check its scale, and fill values such "
                "as 3.4e38."
            )
        return z

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
        labels = self._learned().prototypes.labels
        found = np.array(labels)
        return found if found.dtype.kind != "f" else np.array(labels, dtype=object)  # small ints and ints from 2^63 on

    @property
    def n_features_in_(self) -> int:
        """Values per input: D of feature vectors, C x H x W of images."""
        return math.prod(self._learned().spec.shape)

    @property
    def network_(self) -> Embedder:
        """The embedding network after the last task; a copy, if it is to be trained further."""
        return self._learned().trained.network

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

    def save(
        self,
        path: str | Path,
        *,
        store_images: bool = False,
        keep: int | None = None,
    ) -> Path:
        """Write the model as a new version of the directory `path`; a reader sees the old or the new one, whole.

        Args:
            path: a directory: new, or a model that gets one more version.
            store_images: exemplars are images of old tasks; they are written only if this is True.
            keep: versions to keep, the newest ones; None: all.

        Raises:
            ModelFileError: if `path` is something else, or cannot be written. What was there before is unchanged.
        """
        versions.write(path, *self.files(store_images=store_images), keep=keep)
        return Path(path)

    def files(self, *, store_images: bool = False) -> tuple[dict[str, Any], model_format.Files]:
        """Return what a saved version of this classifier consists of: its manifest, and for each file named tensors."""
        state = self._learned()
        if state.trained.exemplars is not None and not store_images:
            raise InputError(
                f"{type(self.exemplars).__name__} keeps {len(state.trained.exemplars)} images of old tasks. Writing "
                "them to disk must be asked for: save(path, store_images=True)."
            )
        return model_format.manifest_of(state, self.get_params(deep=False)), model_format.tensors_of(state)

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
        return cls.from_saved(versions.read(path), path, **params)

    @classmethod
    def from_saved(cls: type[Self], saved: versions.Saved, path: str | Path, **params: Any) -> Self:
        """Return the classifier of a version that was read; as `load`."""
        try:
            _check_names(cls, params)
            clf = cls(**model_format.decode_params(saved.manifest["parameters"], params))
            clf._validated_method()
            clf.state_ = model_format.restored(clf, saved)
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


def _check_fixed(state: LearnerState, fixed: dict[str, Any]) -> None:
    for name, value in fixed.items():
        if value is not state.fixed[name] and value != state.fixed[name]:
            raise InputError(
                f"{name} was {state.fixed[name]!r} when this model learned its first task and is {value!r} now. It "
                "cannot change between tasks: set it back, or start a new model."
            )
