"""A method is a point on five axes and a schedule; the named methods are one line each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from .common.config import Config, one_of, text
from .common.covariance import Covariance
from .drift import SDC, Drift, DualProjection
from .errors import InputError, did_you_mean
from .exemplars import Everything, Exemplars, Herding
from .objectives import CosineHeads, Objective, SigmoidHeads, Softmax, Triplet
from .penalties import EWC, MAS, REWC, SI, Attention, LessForget, LwF, MarginRanking, Penalty
from .readouts import (
    ExpertGate,
    FeCAM,
    LiftedRidge,
    MaxOverClasses,
    MaxOverHeads,
    NearestClassMean,
    NearestExemplarMean,
    Readout,
    RidgeClassifier,
    StreamingLDA,
)

BatchNorm = Literal["frozen", "train", "adapted", "pretrained"]


@dataclass(frozen=True)
class Schedule(Config):
    """Which tasks train the network, and what batch norm does.

    Args:
        train: "all" tasks; "first" only, then the network is fixed (E-Fix); "none" (E-Pre). A fixed network is read out
            from its pooled features.
        start: what a task's training starts from: the "previous" task's network, or the "initial" one (a new expert
            for each task).
        batch_norm: "frozen": running statistics stay as they were after the first task, affine weights still train
            (Sec. 5: CIFAR-100, ImageNet-Subset); "train": they keep moving (the fine-grained sets); "adapted": they
            keep moving, and penalties ask an old network whose statistics are those of the new task's images (Teacher
            Adaptation, Szatkowski et al., 2023: those of old images would not fit them); "pretrained": they stay as the
            weights brought them, in the first task too.
    """

    train: Literal["all", "first", "none"] = "all"
    start: Literal["previous", "initial"] = "previous"
    batch_norm: BatchNorm = "frozen"
    rules: ClassVar = {
        "train": one_of("all", "first", "none"),
        "start": one_of("previous", "initial"),
        "batch_norm": one_of("frozen", "train", "adapted", "pretrained"),
    }

    def is_first(self, task: int) -> bool:
        """Return whether nothing is old in task t, counted from 1: it starts from the initial network."""
        return task <= 1 or self.start == "initial"

    def trains(self, task: int) -> bool:
        """Return whether task t, counted from 1, trains the network."""
        return self.train == "all" or (self.train == "first" and task == 1)

    def holds_statistics(self, first: bool) -> bool:
        """Return whether batch norm's running statistics are held still in a first task, or in a later one."""
        return self.batch_norm == "pretrained" or (self.batch_norm == "frozen" and not first)


@dataclass(frozen=True)
class Method(Config):
    """One row of a table: a choice on each of the five axes, and a schedule.

    Args:
        objective: what a batch is trained for.
        penalty: what holds the old knowledge, from the second task on; any number of penalties.
        exemplars: which old images are kept; None keeps none.
        drift: how stored prototypes are moved; None leaves them.
        readout: how an image gets its class.
        schedule: which tasks train the network, and the batch-norm policy.
        backbone: another backbone than the experiment's, such as "patches-1600"; "": the experiment's. Its features are
            the embedding, and it starts without weights of others and without a warm-up.
        beside: a method whose network does not move after the first task. Its features stand beside this one's, and
            the read-out sees both: drift is estimated for, and moves, only what can drift.

    >>> Method(penalty=EWC(gamma=1e7), drift=SDC(sigma=0.3)) == METHODS["E-EWC+SDC"]
    True
    """

    objective: Objective = Triplet()
    penalty: tuple[Penalty, ...] | Penalty | None = ()
    exemplars: Exemplars | None = None
    drift: Drift | None = None
    readout: Readout = NearestClassMean()
    schedule: Schedule = Schedule()
    backbone: str = ""
    beside: Method | None = None
    rules: ClassVar = {"backbone": text}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kind, may_be_none in (
            ("objective", Objective, False),
            ("exemplars", Exemplars, True),
            ("drift", Drift, True),
            ("readout", Readout, False),
            ("schedule", Schedule, False),
        ):
            value = getattr(self, name)
            if not (isinstance(value, kind) or (may_be_none and value is None)):
                hint = f", for example {name}={value.__name__}()" if isinstance(value, type) else ""
                raise InputError(f"{name} must be of kind {kind.__name__}{hint}; got {value!r}.")
        given = self.penalty
        penalties = () if given is None else given if isinstance(given, (tuple, list)) else (given,)
        for penalty in penalties:
            if not isinstance(penalty, Penalty):
                raise InputError(
                    f"penalty must be a Penalty object such as EWC(gamma=1e7), or several; got {penalty!r}."
                )
        object.__setattr__(self, "penalty", tuple(penalties))
        turning = [penalty for penalty in penalties if penalty.turns_weights]
        others = [penalty for penalty in penalties if penalty.names_weights and penalty not in turning[:1]]
        if turning and others:
            raise InputError(
                f"{type(turning[0]).__name__} trains rotated weights, and {type(others[0]).__name__} speaks of the "
                "plain ones under the same names. Use one of them."
            )
        self._check_beside()
        following = [penalty for penalty in penalties if penalty.follows_path]
        if following and self.objective.replaces_head:
            raise InputError(
                f"{type(following[0]).__name__} follows every weight of the first task, and "
                f"{type(self.objective).__name__} trains another head there than it leaves. Use Softmax()."
            )
        if self.exemplars is not None and not self.objective.spans_tasks:
            raise InputError(
                f"{self.objective} trains each task's head alone, and exemplars are images of old tasks. Use "
                "Softmax(over='all') with exemplars."
            )
        if self.readout.needs_heads and not self.objective.classifies:
            raise InputError(
                f"{type(self.readout).__name__} reads classification heads, and {type(self.objective).__name__} trains "
                "none. Use an objective that classifies, such as Softmax(), or the read-out NearestClassMean()."
            )

    def _check_beside(self) -> None:
        beside = self.beside
        if beside is None:
            return
        if not isinstance(beside, Method):
            raise InputError(f"beside must be a Method whose network stays as it is; got {beside!r}.")
        moves = beside.schedule.train == "all" or beside.schedule.start == "initial"
        if moves or beside.beside is not None or beside.exemplars is not None:
            raise InputError(
                "beside must be a Method with schedule=Schedule(train='none') or 'first', without exemplars and "
                f"without another method beside it; got {beside!r}."
            )
        if self.readout.needs_every_network or not self.readout.uses_prototypes or self.exemplars is not None:
            raise InputError(
                "features beside the network's own are for read-outs of prototypes, without exemplars: "
                f"{type(self.readout).__name__} with exemplars={self.exemplars!r} does not look at them."
            )
        if self.drift is not None and self.drift.needs_networks:
            raise InputError(
                f"{type(self.drift).__name__} moves images through the network itself, and has no map for features "
                "beside it. Use an estimator that looks at embeddings, such as SDC()."
            )

    @property
    def penalties(self) -> tuple[Penalty, ...]:
        """The penalties as a tuple, however they were given."""
        assert isinstance(self.penalty, tuple)
        return self.penalty

    @property
    def reads_pooled(self) -> bool:
        """Whether z are the backbone's pooled features when prototypes are computed and images are answered.

        A network that stays as it is has no use for a linear embedding head: before any training it is random, and it
        hides the features' scale from the read-out. Metric objectives are trained through it all the same.
        """
        return self.objective.classifies or self.schedule.train != "all"

    @property
    def covariance(self) -> Covariance | None:
        """What is kept of every class beside its mean: what the read-out asks for, or else the drift."""
        return self.readout.keeps or (None if self.drift is None else self.drift.keeps)


KD = LwF(gamma=10.0, over="all")  # the distillation of later methods
DPCR_HEAD = RidgeClassifier(200.0, covariance=Covariance(), relative=False)  # CIFAR-100 and CUB

METHODS: dict[str, Method] = {
    # Frozen: the network as it is before the first task (pretrained, or random weights), or after it.
    "E-Pre": Method(schedule=Schedule(train="none")),
    "E-Fix": Method(schedule=Schedule(train="first")),
    "SLDA": Method(readout=StreamingLDA(), schedule=Schedule(train="none")),
    # Not even pretrained: whitened patches of the first task's images.
    "Patches+SLDA": Method(readout=StreamingLDA(), schedule=Schedule(train="none"), backbone="patches-1600"),
    # Frozen, with read-outs of later years; each says what it does as released, and what not.
    "FeCAM": Method(Softmax(), readout=FeCAM(), schedule=Schedule(train="first")),
    "ACIL": Method(Softmax(), readout=LiftedRidge(8192, ridge=0.1, relative=False), schedule=Schedule(train="first")),
    "RanPAC": Method(readout=LiftedRidge(5000), schedule=Schedule(train="none")),  # 10,000; no adapters
    # Embedding networks (Secs. 3.3 and 4), with the constants of Sec. 5.
    "E-FT": Method(),
    "E-FT+SDC": Method(drift=SDC()),
    "E-LwF": Method(penalty=LwF()),
    "E-LwF+SDC": Method(penalty=LwF(), drift=SDC()),
    "E-EWC": Method(penalty=EWC()),
    "E-EWC+SDC": Method(penalty=EWC(), drift=SDC()),
    "E-MAS": Method(penalty=MAS()),
    "E-MAS+SDC": Method(penalty=MAS(), drift=SDC()),
    "E-SI": Method(penalty=SI(gamma=1e3)),
    "E-SI+SDC": Method(penalty=SI(gamma=1e3), drift=SDC()),
    "E-Joint": Method(exemplars=Everything()),
    # Softmax heads (Sec. 3.2), one per task. The paper chooses their gammas on validation data and does not print them:
    # these were chosen on digits, and a recipe for other data says its own.
    "FT": Method(Softmax(), readout=MaxOverHeads()),
    "FT*": Method(Softmax(), readout=NearestClassMean()),
    "LwF": Method(Softmax(), LwF(), readout=MaxOverHeads()),
    # What the methods since the paper train (ADC, LDC, DPCR, and SDC in their tables): the current task's logits alone
    # in the cross-entropy, all old ones in one distillation, batch norm live; read out by class means.
    "LwF+NCM": Method(Softmax(), LwF(gamma=10.0, over="all"), schedule=Schedule(batch_norm="train")),
    "EWC": Method(Softmax(), EWC(gamma=1e5), readout=MaxOverHeads()),
    "MAS": Method(Softmax(), MAS(gamma=0.1), readout=MaxOverHeads()),
    "SI": Method(Softmax(), SI(), readout=MaxOverHeads()),
    "R-EWC": Method(Softmax(), REWC(gamma=1e5), readout=MaxOverHeads()),
    "LwM": Method(Softmax(), (LwF(), Attention()), readout=MaxOverHeads()),
    "Expert Gate": Method(Softmax(), readout=ExpertGate(), schedule=Schedule(start="initial")),
    "Joint": Method(Softmax(over="all"), exemplars=Everything(), readout=MaxOverClasses()),
    # As released its projections keep every direction, and drift is plain least squares; by the paper's words they are
    # what a class's own images span. A ridge head with unit-norm columns, rebuilt from moved means and covariances.
    "DPCR": Method(Softmax(), KD, drift=DualProjection(1e-9, None), readout=DPCR_HEAD),
    "DPCR (paper)": Method(Softmax(), KD, drift=DualProjection(1e-9, 1e-10), readout=DPCR_HEAD),
    # With exemplars.
    "iCaRL-CNN": Method(SigmoidHeads(), LwF(), Herding(), readout=MaxOverClasses()),
    "iCaRL-NME": Method(SigmoidHeads(), LwF(), Herding(), readout=NearestExemplarMean()),
    "Rebalance": Method(CosineHeads(), (LessForget(), MarginRanking()), Herding(), readout=MaxOverClasses()),
}
"""The methods by name; one line each."""

PAPERS = {
    "E-": "Yu et al., Semantic Drift Compensation for Class-Incremental Learning, CVPR 2020",
    "E-SI": "Zenke et al., Continual Learning Through Synaptic Intelligence, ICML 2017, on an embedding",
    "SLDA": "Hayes and Kanan, Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis, CVPRW 2020",
    "FeCAM": "Goswami et al., FeCAM: Exploiting the Heterogeneity of Class Distributions, NeurIPS 2023",
    "ACIL": "Zhuang et al., ACIL: Analytic Class-Incremental Learning with Absolute Memorization, NeurIPS 2022",
    "RanPAC": "McDonnell et al., RanPAC: Random Projections and Pre-trained Models, NeurIPS 2023",
    "DPCR": "He et al., Semantic Shift Estimation via Dual-Projection and Classifier Reconstruction, ICML 2025",
    "Patches": "Coates, Ng and Lee, Single-Layer Networks in Unsupervised Feature Learning, AISTATS 2011",
    "FT": "Yu et al., CVPR 2020, Sec. 3.2",
    "Joint": "Yu et al., CVPR 2020, Sec. 3.2",
    "LwF": "Li and Hoiem, Learning without Forgetting, ECCV 2016",
    "EWC": "Kirkpatrick et al., Overcoming Catastrophic Forgetting in Neural Networks, PNAS 2017",
    "MAS": "Aljundi et al., Memory Aware Synapses, ECCV 2018",
    "SI": "Zenke et al., Continual Learning Through Synaptic Intelligence, ICML 2017",
    "R-EWC": "Liu et al., Rotate your Networks: Better Weight Consolidation and Less Forgetting, ICPR 2018",
    "LwM": "Dhar et al., Learning without Memorizing, CVPR 2019",
    "Expert Gate": "Aljundi et al., Expert Gate: Lifelong Learning with a Network of Experts, CVPR 2017",
    "iCaRL": "Rebuffi et al., iCaRL: Incremental Classifier and Representation Learning, CVPR 2017",
    "Rebalance": "Hou et al., Learning a Unified Classifier Incrementally via Rebalancing, CVPR 2019",
}
"""Where methods come from, by the beginning of their name."""


def get_method(name: str) -> Method:
    """Return a named method.

    Raises:
        InputError: for an unknown name, with the nearest one.
    """
    if name not in METHODS:
        raise InputError(f"unknown method {name!r}. {did_you_mean(name, METHODS)}")
    return METHODS[name]


def with_drift(method: Method, drift: Drift | None) -> Method:
    """Return the same training with another drift estimator."""
    return replace(method, drift=drift)


def described(name: str) -> dict[str, str]:
    """Return a named method in words: its choice on each axis, its schedule, what it stores, its paper."""
    method = get_method(name)
    parts = [method.readout, *method.penalties, *([method.exemplars] if method.exemplars else [])]
    stored = [part.stores for part in parts if part.stores]
    paper = max((prefix for prefix in PAPERS if name.startswith(prefix)), key=len)
    return {
        "objective": str(method.objective),
        "penalty": " + ".join(map(str, method.penalties)) or "none",
        "exemplars": str(method.exemplars or "none"),
        "drift": str(method.drift or "none"),
        "readout": str(method.readout),
        "schedule": str(method.schedule),
        "stores": ", ".join(["the network", *stored]),
        "paper": PAPERS[paper],
    }


def training_name(method: Method, task: int) -> str:
    """Return a short name of a training: `Triplet+EWC, task 2`; task 0 is the warm-up."""
    if task == 0:
        return "warm-up"
    parts = [type(part).__name__ for part in (method.objective, *method.penalties)]
    parts += [type(method.exemplars).__name__] if method.exemplars is not None else []
    return f"{'+'.join(parts)}, task {task}"
