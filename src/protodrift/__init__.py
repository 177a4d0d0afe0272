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
    "Angular": "objectives",
    "Attention": "penalties",
    "Contrastive": "objectives",
    "CosineHeads": "objectives",
    "CropFlip": "data",
    "Dataset": "data",
    "EWC": "penalties",
    "Everything": "exemplars",
    "ExpertGate": "readouts",
    "Herding": "exemplars",
    "IncrementalClassifier": "learner",
    "LessForget": "penalties",
    "LwF": "penalties",
    "MAS": "penalties",
    "METHODS": "methods",
    "MarginRanking": "penalties",
    "MaxOverClasses": "readouts",
    "MaxOverHeads": "readouts",
    "Method": "methods",
    "MetricLoss": "objectives",
    "MultiSimilarity": "objectives",
    "NearestClassMean": "readouts",
    "NearestExemplarMean": "readouts",
    "Oracle": "drift",
    "Prototypes": "prototypes",
    "REWC": "penalties",
    "RandomCropFlip": "data",
    "ResizedCropFlip": "data",
    "SDC": "drift",
    "SI": "penalties",
    "Schedule": "methods",
    "SigmoidHeads": "objectives",
    "Softmax": "objectives",
    "StreamingLDA": "readouts",
    "Task": "data.tasks",
    "TaskStream": "data.tasks",
    "Training": "training.trainer",
    "Triplet": "objectives",
    "semantic_drift": "drift",
    "transport": "vectors",
}

__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:
    from .data import CropFlip as CropFlip
    from .data import Dataset as Dataset
    from .data import RandomCropFlip as RandomCropFlip
    from .data import ResizedCropFlip as ResizedCropFlip
    from .data.tasks import Task as Task
    from .data.tasks import TaskStream as TaskStream
    from .drift import SDC as SDC
    from .drift import Oracle as Oracle
    from .drift import semantic_drift as semantic_drift
    from .exemplars import Everything as Everything
    from .exemplars import Herding as Herding
    from .learner import IncrementalClassifier as IncrementalClassifier
    from .methods import METHODS as METHODS
    from .methods import Method as Method
    from .methods import Schedule as Schedule
    from .objectives import Angular as Angular
    from .objectives import Contrastive as Contrastive
    from .objectives import CosineHeads as CosineHeads
    from .objectives import MetricLoss as MetricLoss
    from .objectives import MultiSimilarity as MultiSimilarity
    from .objectives import SigmoidHeads as SigmoidHeads
    from .objectives import Softmax as Softmax
    from .objectives import Triplet as Triplet
    from .penalties import EWC as EWC
    from .penalties import MAS as MAS
    from .penalties import REWC as REWC
    from .penalties import SI as SI
    from .penalties import Attention as Attention
    from .penalties import LessForget as LessForget
    from .penalties import LwF as LwF
    from .penalties import MarginRanking as MarginRanking
    from .prototypes.store import Prototypes as Prototypes
    from .readouts import ExpertGate as ExpertGate
    from .readouts import MaxOverClasses as MaxOverClasses
    from .readouts import MaxOverHeads as MaxOverHeads
    from .readouts import NearestClassMean as NearestClassMean
    from .readouts import NearestExemplarMean as NearestExemplarMean
    from .readouts import StreamingLDA as StreamingLDA
    from .training.config import Training as Training
    from .vectors import transport as transport


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
