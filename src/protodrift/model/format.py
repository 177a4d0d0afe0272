"""Between a learned state and the files of a model version. `docs/model_format.md` describes every field.

Whatever is read is checked: each part by itself, whether the parts belong together, and that there is nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..common import seeding
from ..common.config import decode, encode
from ..common.labels import Label
from ..common.machine import versions
from ..common.tensorfiles import Tensors, folded, unfolded
from ..data.arrays import InputSpec
from ..data.examples import Examples
from ..errors import InputError, ModelFileError
from ..networks.build import build_embedder, embedding_options
from ..networks.embedder import Embedder
from ..prototypes import DriftReport
from ..prototypes.store import Prototypes
from ..readouts import Readout
from ..training.calibration import LEVELS, Calibration
from ..training.recognition import view_of
from ..training.state import ClassDrift, LearnedTask, LearnerState
from ..training.trainer import Trained
from .schema import check_manifest
from .versions import Saved

if TYPE_CHECKING:
    from ..learner import IncrementalClassifier

Files = dict[str, Tensors]

_GIVEN = "given by the user"
_DIAGNOSTICS = "diagnostics."


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
    return {**vars(task), "drift": [[one.label, one.moved, one.uncertainty] for one in task.drift]}


def tensors_of(state: LearnerState) -> Files:
    """Return the tensor files of a version, by name without ending."""
    drift = {"before": state.drift.before, "after": state.drift.after}
    drift.update({f"{_DIAGNOSTICS}{name}": value for name, value in state.drift.diagnostics.items()})
    prototypes = state.prototypes
    result = {
        "network": dict(state.trained.network.state_dict()),
        "prototypes": {"means": prototypes.means, "counts": prototypes.counts, "tasks": prototypes.tasks},
        "drift": drift,
        "statistics": prototypes.statistics,
        "readout_state": folded(state.readout_state),
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
    """Return the learned state of a version for a classifier with its parameters.

    Raises:
        ModelFileError: if parts that are each whole do not belong together, or there is more than a model is made of.
        KeyError, TypeError, ValueError, ...: if a part is missing or wrong; `learner` explains them.
    """
    manifest, tensors = saved.manifest, saved.tensors
    check_manifest(manifest)
    spec, labels = InputSpec.from_json(manifest["input"]), tuple(manifest["labels"])
    # An object of the user's was passed again just now; everything else is what the first task had.
    fixed = {
        name: getattr(clf, name) if _is_given(value) else decode(value) for name, value in manifest["fixed"].items()
    }
    network = _network(clf, spec, fixed, manifest["tasks"], tensors["network"])
    own = tensors["prototypes"]
    prototypes = Prototypes(labels, own["means"], own["counts"], own["tasks"], tensors["statistics"])
    learned = tuple(_task(task) for task in manifest["tasks"])
    _check_prototypes(prototypes, learned, network)
    exemplars = None
    if manifest["exemplar_labels"] is not None:
        exemplars = Examples(tensors["exemplars"]["images"], tuple(manifest["exemplar_labels"]))
    penalty_state = tuple(tensors[f"penalty_state{i}"] for i in range(manifest["penalty_states"]))
    last = manifest["last_task"]
    trained = Trained(network, labels, penalty_state, exemplars, tuple(last["history"]), last["note"])
    _check_trained(trained, spec)
    drift = _drift(tuple(manifest["drift_labels"]), tensors["drift"])
    _check_drift(drift, prototypes)
    calibration = Calibration(*(tensors["calibration"][name] for name in Calibration.__dataclass_fields__))
    _check_calibration(calibration, len(labels))
    saved_readout = manifest["parameters"]["readout"]  # one may have been given for now, which learned none of this
    space = (clf.readout if _is_given(saved_readout) else decode(saved_readout)).space_name
    penalties, readout_state = decode(manifest["penalties"]), unfolded(tensors["readout_state"])
    state = LearnerState(spec, fixed, penalties, trained, prototypes, learned, drift, readout_state, calibration, space)
    if readout_state and not _is_given(saved_readout):
        _check_readout(decode(saved_readout), state)
    _check_nothing_else(state, tensors)
    return state


def _network(
    clf: IncrementalClassifier, spec: InputSpec, fixed: dict[str, Any], tasks: list[Any], tensors: Tensors
) -> Embedder:
    def build() -> Embedder:
        objective = fixed["objective"]
        options = embedding_options(objective, fixed["embedding_dim"], fixed["normalize"])
        network = build_embedder(fixed["backbone"], spec, **options, crop=fixed["crop"], seed=0)
        if "head.weight" not in tensors:
            network = network.pooled()
        with seeding.global_seed(0):  # the heads' first weights are drawn, only to be replaced
            for task in tasks:
                objective.grow(network, len(task["classes"]))
        return network

    if isinstance(fixed["backbone"], str):
        # First without memory: a manifest can ask for a network of any size, its file has a size that was checked.
        with torch.device("meta"):
            shape = build()
        shape.load_state_dict({name: value.to("meta") for name, value in tensors.items()}, strict=True)
        kinds = {name: value.dtype for name, value in shape.state_dict().items()}
        wrong = [name for name, value in tensors.items() if value.dtype != kinds[name]]
        _require(not wrong, f"the tensor network/{(wrong or [''])[0]} is of another type")
    network = build()
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


def _drift(labels: tuple[Label, ...], tensors: Tensors) -> DriftReport:
    diagnostics = {
        name.removeprefix(_DIAGNOSTICS): value for name, value in tensors.items() if name.startswith(_DIAGNOSTICS)
    }
    return DriftReport(labels, tensors["before"], tensors["after"], diagnostics)


# -- checking ---------------------------------------------------------------------------------------------------------


def _require(fits: bool, wrong: str) -> None:
    if not fits:
        raise ModelFileError(f"the model is damaged: {wrong}.")


def _finite(values: Iterable[torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in values if value.is_floating_point())


def _check_prototypes(prototypes: Prototypes, learned: tuple[LearnedTask, ...], network: Embedder) -> None:
    labels, means, statistics = prototypes.labels, prototypes.means, prototypes.statistics
    count, size = len(labels), network.embedding_dim
    in_tasks = tuple(label for task in learned for label in task.classes)
    _require(labels == in_tasks and len(set(labels)) == count, "its labels are not those of its tasks")
    kinds = {type(label) for label in labels}
    _require(kinds in ({str}, {int}), "its labels are neither all str nor all int")
    _require(
        means.shape == (count, size) and means.is_floating_point(),
        f"prototypes of shape {tuple(means.shape)} for {count} classes and embeddings of size {size}",
    )
    for values, least, most in ((prototypes.counts, 1, None), (prototypes.tasks, 0, len(learned))):
        fits = values.shape == (count,) and values.dtype == torch.int64 and bool((values >= least).all())
        fits = fits and (most is None or bool((values <= most).all()))
        _require(fits, "counts and tasks do not fit its classes")
    _require(all(len(task.images) == len(task.classes) for task in learned), "its tasks do not count their images")
    _require(_finite([means, *network.state_dict().values()]), "a weight or prototype is not finite")
    shapes = {name: tuple(value.shape) for name, value in statistics.items()}
    rank = shapes["factors"][1] if len(shapes.get("factors", ())) == 3 else 0
    forms: list[dict[str, tuple[int, ...]]] = [
        {},
        {"full": (count, size, size)},
        {"diagonal": (count, size)},
        {"shared": (size, size)},
        {"factors": (count, rank, size), "rest": (count,)},
    ]
    fits = shapes in forms and _finite(statistics.values())
    _require(fits, "the covariances it keeps do not fit its classes")


def _check_trained(trained: Trained, spec: InputSpec) -> None:
    """Refuse what only a later task would stumble over: importances and exemplars of another model."""
    shapes = {name: weight.shape for name, weight in trained.network.named_parameters()}
    for state in trained.penalty_state:
        for name, value in state.items():
            fits = value.shape == shapes.get(name, value.shape) and bool(torch.isfinite(value).all())
            _require(fits, f"what a penalty keeps for {name} does not fit its network")
    exemplars = trained.exemplars
    if exemplars is not None:
        fits = tuple(exemplars.images.shape[1:]) == spec.shape and set(exemplars.labels) <= set(trained.classes)
        fits = fits and exemplars.images.dtype in (torch.uint8, torch.float32) and _finite([exemplars.images])
        _require(fits, "the images it keeps are not those of its classes")


def _check_drift(drift: DriftReport, prototypes: Prototypes) -> None:
    size = (len(drift.labels), prototypes.means.shape[1])
    fits = drift.before.shape == drift.after.shape == size and set(drift.labels) <= set(prototypes.labels)
    fits = fits and drift.before.is_floating_point() and drift.after.is_floating_point()
    _require(fits and _finite([drift.before, drift.after]), "its drift does not fit its classes")
    fits = all(value.shape[:1] == size[:1] for value in drift.diagnostics.values())
    _require(fits, "the diagnostics of its drift do not fit its classes")


def _check_calibration(calibration: Calibration, count: int) -> None:
    quantiles, temperatures, each = calibration.quantiles, calibration.temperatures, calibration.named()
    fits = (
        quantiles.shape == (count, len(LEVELS))
        and all(value.shape == (count,) for name, value in each.items() if name != "quantiles")
        and all(each[name].is_floating_point() for name in ("quantiles", "temperatures", "spread", "evidence"))
        # False for NaN; inf is "not known".
        and all(bool((each[name] >= 0).all()) for name in ("quantiles", "spread", "evidence", "images"))
        and bool(torch.isfinite(calibration.evidence).all())
        and bool((temperatures > 0).all())
        and bool(torch.isfinite(temperatures).all())
        and calibration.honest.dtype == torch.bool
    )
    _require(fits, "its calibration does not fit its classes")


def _check_readout(readout: Readout, state: LearnerState) -> None:
    """Refuse what a read-out learned if it cannot answer with it."""
    fits = _finite(state.readout_state.values())
    try:
        view = view_of(state, state.prototypes.means[:1].to(torch.float32))
        scores = readout.scores(view)
        readout.coordinates(view)
        fits = fits and scores.shape == (1, len(state.prototypes)) and not bool(torch.isnan(scores).any())
    except InputError:  # a read-out that was exchanged after learning: it says so when it is asked
        pass
    except Exception:  # whatever tensors of a wrong shape make a read-out say
        fits = False
    _require(fits, "what its read-out learned does not fit its classes")


def _check_nothing_else(state: LearnerState, tensors: Files) -> None:
    """Refuse files and tensors that no part of the model is made of: nothing can be hidden in them."""
    declared = tensors_of(state)
    extra = [f"the file {name}" for name in sorted(tensors.keys() - declared.keys())]
    for name in declared:
        extra += [f"the tensor {name}/{key}" for key in sorted(tensors[name].keys() - declared[name].keys())]
    _require(not extra, f"it holds what no model has, {', '.join(extra[:3])}")
