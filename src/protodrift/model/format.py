"""Between a learned state and the files of a model version. `docs/model_format.md` describes every field.

Whatever is read is checked: each part by itself, whether the parts belong together, and that there is nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..common import seeding
from ..common.config import decode, encode
from ..common.labels import Label
from ..common.machine import versions
from ..common.tensorfiles import Tensors
from ..data.arrays import InputSpec
from ..data.examples import Examples
from ..errors import InputError, ModelFileError
from ..networks.build import build_embedder, embedding_options
from ..networks.embedder import Embedder
from ..prototypes import DriftReport
from ..prototypes.store import Prototypes
from ..training.calibration import LEVELS, Calibration
from ..training.state import ClassDrift, LearnedTask, LearnerState
from ..training.trainer import Trained
from .versions import Saved

if TYPE_CHECKING:
    from ..learner import IncrementalClassifier

Files = dict[str, Tensors]

_GIVEN = "given by the user"


# -- writing ----------------------------------------------------------------------------------------------------------


def encode_param(value: Any) -> Any:
    """Return a parameter as JSON; of an object of the user's only the name can be kept."""
    if isinstance(value, (Path, torch.device)):
        return str(value)
    try:
        return encode(value)
    except InputError:  # a module or a loss of the user's
        return {"type": _GIVEN, "name": type(value).__name__}


def manifest_of(state: LearnerState, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON part of a version."""
    return {
        "made_with": versions(),
        "input": state.spec.to_json(),
        "fixed": {name: encode_param(value) for name, value in state.fixed.items()},
        "labels": list(state.prototypes.labels),
        "tasks": [_task_json(task) for task in state.tasks],
        "last_task": {"history": list(state.trained.history), "note": state.trained.note},
        "penalties": encode(state.penalties),
        "penalty_states": len(state.trained.penalty_state),
        "drift_labels": list(state.drift.labels),
        "exemplar_labels": None if state.trained.exemplars is None else list(state.trained.exemplars.labels),
        "parameters": {name: encode_param(value) for name, value in parameters.items()},
    }


def _task_json(task: LearnedTask) -> dict[str, Any]:
    return {
        "classes": list(task.classes),
        "images": list(task.images),
        "history": list(task.history),
        "note": task.note,
        "drift": [[one.label, one.moved, one.uncertainty] for one in task.drift],
        "refreshed": [list(one) for one in task.refreshed],
        "held_out": None if task.held_out is None else list(task.held_out),
        "source": task.source,
    }


def tensors_of(state: LearnerState) -> Files:
    """Return the tensor files of a version, by name without ending."""
    drift = {"before": state.drift.before, "after": state.drift.after}
    drift.update({f"diagnostics.{name}": value for name, value in state.drift.diagnostics.items()})
    prototypes = state.prototypes
    result = {
        "network": dict(state.trained.network.state_dict()),
        "prototypes": {"means": prototypes.means, "counts": prototypes.counts, "tasks": prototypes.tasks},
        "drift": drift,
        "statistics": prototypes.statistics,
        "readout_state": state.readout_state,
        "calibration": state.calibration.named(),
    }
    for i, kept in enumerate(state.trained.penalty_state):
        result[f"penalty_state{i}"] = kept
    if state.trained.exemplars is not None:
        result["exemplars"] = {"images": state.trained.exemplars.images}
    return result


# -- reading ----------------------------------------------------------------------------------------------------------


def decode_params(saved: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a saved classifier; those `given` replace them."""
    result = {}
    for name, value in saved.items():
        if name in given:
            continue
        if _is_given(value):
            raise InputError(
                f"its {name} is one of yours ({value.get('name')}), which cannot be stored. Pass it again: "
                f"load(path, {name}=...)."
            )
        result[name] = decode(value)
    return {**result, **given}


def _is_given(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == _GIVEN


def restored(clf: IncrementalClassifier, saved: Saved) -> LearnerState:
    """Return the learned state of a version for a classifier with its parameters."""
    manifest, tensors = saved.manifest, saved.tensors
    spec = InputSpec.from_json(manifest["input"])
    # An object of the user's was passed again just now; everything else is what the first task had.
    fixed = {
        name: getattr(clf, name) if _is_given(value) else decode(value) for name, value in manifest["fixed"].items()
    }
    labels = tuple(manifest["labels"])
    network = _network(clf, spec, fixed, manifest["tasks"], tensors["network"])
    means, counts, tasks = (tensors["prototypes"][name] for name in ("means", "counts", "tasks"))
    learned = tuple(_task(task) for task in manifest["tasks"])
    _check_consistent(labels, learned, means, counts, tasks, network)
    diagnostics = {
        name.removeprefix("diagnostics."): value
        for name, value in tensors["drift"].items()
        if name.startswith("diagnostics.")
    }
    drift = DriftReport(
        tuple(manifest["drift_labels"]), tensors["drift"]["before"], tensors["drift"]["after"], diagnostics
    )
    exemplars = None
    if manifest["exemplar_labels"] is not None:
        exemplars = Examples(tensors["exemplars"]["images"], tuple(manifest["exemplar_labels"]))
    kept = tuple(tensors[f"penalty_state{i}"] for i in range(manifest["penalty_states"]))
    last = manifest["last_task"]
    trained = Trained(network, labels, kept, exemplars, tuple(last["history"]), last["note"])
    _check_belonging(spec, trained, drift, labels)
    calibration = _calibration(tensors["calibration"], len(labels))
    prototypes = Prototypes(labels, means, counts, tasks, tensors["statistics"])
    _check_statistics(prototypes)
    penalties = decode(manifest["penalties"])
    saved_readout = manifest["parameters"]["readout"]  # one may have been given for now, which learned none of this
    space = (clf.readout if _is_given(saved_readout) else decode(saved_readout)).space_name
    state = LearnerState(
        spec, fixed, penalties, trained, prototypes, learned, drift, tensors["readout_state"], calibration, space
    )
    _check_nothing_else(state, manifest, tensors)
    return state


def _network(
    clf: IncrementalClassifier, spec: InputSpec, fixed: dict[str, Any], tasks: list[Any], tensors: Tensors
) -> Embedder:
    objective = fixed["objective"]
    options = embedding_options(objective, fixed["embedding_dim"], fixed["normalize"])
    network = build_embedder(fixed["backbone"], spec, **options, crop=fixed["crop"], seed=0)
    with seeding.global_seed(0):  # the heads' first weights are drawn, only to be replaced
        for task in tasks:
            objective.grow(network, len(task["classes"]))
    network.load_state_dict(tensors, strict=True)
    return network.to(clf.device).eval()


def _task(task: dict[str, Any]) -> LearnedTask:
    drift = tuple(ClassDrift(label, float(moved), None if u is None else float(u)) for label, moved, u in task["drift"])
    refreshed = tuple((label, int(images)) for label, images in task["refreshed"])
    held_out = None if task["held_out"] is None else (int(task["held_out"][0]), float(task["held_out"][1]))
    return LearnedTask(
        tuple(task["classes"]),
        tuple(task["images"]),
        tuple(task["history"]),
        task["note"],
        drift,
        refreshed,
        held_out,
        str(task["source"]),
    )


def _calibration(tensors: Tensors, classes: int) -> Calibration:
    result = Calibration(*(tensors[name] for name in Calibration.__dataclass_fields__))
    right = (
        result.quantiles.shape == result.relative.shape == (classes, len(LEVELS))
        and result.temperatures.shape == result.images.shape == result.honest.shape == (classes,)
        and result.quantiles.is_floating_point()
        and result.relative.is_floating_point()
        and bool((result.quantiles >= 0).all())  # false for NaN; inf is "not known"
        and bool((result.relative >= 0).all())
        and bool((result.temperatures > 0).all())
        and bool(torch.isfinite(result.temperatures).all())
        and result.honest.dtype == torch.bool
    )
    if not right:
        raise ModelFileError("the model is damaged: its calibration does not fit its classes.")
    return result


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
    for kept in trained.penalty_state:
        for name, value in kept.items():
            if value.shape != own.get(name, value.shape) or not bool(torch.isfinite(value).all()):
                raise ModelFileError(f"the model is damaged: what a penalty keeps for {name} does not fit its network.")
    size = (len(drift.labels), trained.network.embedding_dim)
    if drift.before.shape != size or drift.after.shape != size or not set(drift.labels) <= set(labels):
        raise ModelFileError("the model is damaged: its drift does not fit its classes.")
    if any(value.shape[:1] != (len(drift.labels),) for value in drift.diagnostics.values()):
        raise ModelFileError("the model is damaged: the diagnostics of its drift do not fit its classes.")
    exemplars = trained.exemplars
    if exemplars is not None and (
        tuple(exemplars.images.shape[1:]) != spec.shape or not set(exemplars.labels) <= set(labels)
    ):
        raise ModelFileError("the model is damaged: the images it keeps are not those of its classes.")


def _check_statistics(prototypes: Prototypes) -> None:
    """Refuse covariances that do not fit the prototypes."""
    (count, size), kept = prototypes.means.shape, prototypes.statistics
    rank = kept["factors"].shape[1] if "factors" in kept and kept["factors"].ndim == 3 else 0
    forms = [
        {"full": (count, size, size)},
        {"diagonal": (count, size)},
        {"shared": (size, size)},
        {"factors": (count, rank, size), "rest": (count,)},
    ]
    shapes = {name: tuple(value.shape) for name, value in kept.items()}
    if (shapes and shapes not in forms) or not all(bool(torch.isfinite(value).all()) for value in kept.values()):
        raise ModelFileError("the model is damaged: the covariances it keeps do not fit its classes.")


_FIELDS = frozenset(
    ("made_with", "input", "fixed", "labels", "tasks", "last_task", "penalties", "penalty_states", "drift_labels")
) | {"exemplar_labels", "parameters", "parent"}


def _check_nothing_else(state: LearnerState, manifest: dict[str, Any], tensors: Files) -> None:
    """Refuse fields and tensors that no part of the model is made of: nothing can be carried along in them."""
    declared = tensors_of(state)
    extra = [f"the file {name}" for name in sorted(tensors.keys() - declared.keys())]
    for name in declared:
        extra += [f"the tensor {name}/{key}" for key in sorted(tensors[name].keys() - declared[name].keys())]
    extra += [f"the field {name!r}" for name in sorted(manifest.keys() - _FIELDS)]
    if extra:
        raise ModelFileError(f"the model is damaged: it holds what no model has, {', '.join(extra[:3])}.")
