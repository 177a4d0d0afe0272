"""Class-incremental learning without keeping old images.

    from protodrift import IncrementalClassifier, EWC, SDC
    clf = IncrementalClassifier(penalty=EWC(gamma=1e7), drift=SDC(sigma=0.3))
    clf.partial_fit(X_birds, y_birds)      # task 1
    clf.partial_fit(X_more, y_more)        # task 2: the first images are gone
    clf.predict(X)

Names are imported when first used, so that `protodrift --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Dataset": "data",
    "EWC": "penalties",
    "Everything": "exemplars",
    "Experiment": "experiment",
    "Herding": "exemplars",
    "IncrementalClassifier": "learner",
    "LwF": "penalties",
    "MAS": "penalties",
    "METHODS": "methods",
    "Method": "methods",
    "MultiSimilarity": "objectives",
    "NearestClassMean": "readouts",
    "ProtodriftError": "errors",
    "SDC": "drift",
    "SI": "penalties",
    "Schedule": "methods",
    "Softmax": "objectives",
    "StreamingLDA": "readouts",
    "TaskStream": "data.tasks",
    "Training": "training.config",
    "Triplet": "objectives",
    "semantic_drift": "drift",
}
"""The folder of every public name; whatever else there is, is imported from its folder."""

__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:
    from .data import Dataset as Dataset
    from .data.tasks import TaskStream as TaskStream
    from .drift import SDC as SDC
    from .drift import semantic_drift as semantic_drift
    from .errors import ProtodriftError as ProtodriftError
    from .exemplars import Everything as Everything
    from .exemplars import Herding as Herding
    from .experiment import Experiment as Experiment
    from .learner import IncrementalClassifier as IncrementalClassifier
    from .methods import METHODS as METHODS
    from .methods import Method as Method
    from .methods import Schedule as Schedule
    from .objectives import MultiSimilarity as MultiSimilarity
    from .objectives import Softmax as Softmax
    from .objectives import Triplet as Triplet
    from .penalties import EWC as EWC
    from .penalties import MAS as MAS
    from .penalties import SI as SI
    from .penalties import LwF as LwF
    from .readouts import NearestClassMean as NearestClassMean
    from .readouts import StreamingLDA as StreamingLDA
    from .training.config import Training as Training


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
