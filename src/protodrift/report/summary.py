"""Results documents of any runs and seeds, as one summary per method: what every table and figure is made from."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..common.config import decode
from ..common.labels import Label
from ..errors import InputError, RunError, UnknownPartError
from ..methods import Method
from .paper import paper_table

Document = Mapping[str, Any]
"""What `results.json` holds: see `runs.results_document`."""

_CURVES = ("average_accuracy", "overall_accuracy", "average_forgetting", "new_task_accuracy", "old_prototype_distance")
_SHAPES = {
    "accuracy_matrix": "TT",
    "prototype_distance": "TK",
    "confusion": "KK",
    **dict.fromkeys(_CURVES, "T"),
    **dict.fromkeys(("mean_incremental_accuracy", "seconds", "bytes_stored"), ""),
}


class Spread(NamedTuple):
    """Mean and standard deviation over seeds, element by element; what is not defined for a seed does not count.

    Attributes:
        mean: NaN where no seed has a value.
        std: with n - 1; NaN where fewer than two seeds have a value.

    >>> Spread.of([[1.0, np.nan], [3.0, np.nan]])
    Spread(mean=array([ 2., nan]), std=array([1.41421356,        nan]))
    """

    mean: np.ndarray
    std: np.ndarray

    @staticmethod
    def of(values: Sequence[Any] | np.ndarray) -> Spread:
        """Return the spread of S values of one shape; None counts as not defined."""
        stacked = np.array(values, dtype=float)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of an empty mean: that is what NaN says
            return Spread(np.nanmean(stacked, axis=0), np.nanstd(stacked, axis=0, ddof=1))


@dataclass(frozen=True)
class Summary:
    """What one method reached in one run, over its seeds; `summary["average_accuracy"]` is one of its metrics.

    Attributes:
        name: how it is called in this report; apart from other runs' if they have the same method.
        method_name: how its own run calls it.
        run: the label of its run.
        method: its configuration.
        seeds: S seeds.
        tasks: the classes of each of the T tasks.
        metrics: (T, T) accuracy_matrix; (T,) average_accuracy, overall_accuracy, average_forgetting,
            new_task_accuracy, old_prototype_distance; (T, K) prototype_distance; () mean_incremental_accuracy,
            mean_new_task_accuracy, seconds, bytes_stored. Accuracies are fractions.
        confusion: (K, K) counts after the last task, summed over the seeds; None: too many classes for a matrix.
        paper: (T,) what the paper prints after each task, NaN where it prints nothing.
        paper_beside: what that stands beside, "average" or "overall" accuracy.
    """

    name: str
    method_name: str
    run: str
    method: Method
    seeds: tuple[int, ...]
    tasks: tuple[tuple[Label, ...], ...]
    metrics: Mapping[str, Spread]
    confusion: np.ndarray | None
    paper: np.ndarray
    paper_beside: str = "average"

    def __getitem__(self, metric: str) -> Spread:
        return self.metrics[metric]

    @property
    def classes(self) -> tuple[Label, ...]:
        """All K labels in task order."""
        return tuple(label for task in self.tasks for label in task)

    @property
    def training(self) -> tuple[str, Method]:
        """What rows that were read out of one training have in common."""
        return self.run, replace(self.method, drift=None)

    @property
    def stays(self) -> bool:
        """Whether its network stays as it is after the first task, or was never trained."""
        return self.method.schedule.train != "all"

    @property
    def kind(self) -> str:
        """What it learns with; methods of one kind are drawn together."""
        if self.method.exemplars is not None and not self.is_joint:
            return "With exemplars"
        return "Classifying heads" if self.method.objective.classifies else "Embedding networks"

    @property
    def is_joint(self) -> bool:
        """Whether it trains on all images of all tasks."""
        return self.method.exemplars is not None and self.method.exemplars.joint

    @property
    def is_upper_bound(self) -> bool:
        """Whether it looks at old images that a learner of this kind does not have: an oracle, or joint training."""
        return self.is_joint or (self.method.drift is not None and self.method.drift.evaluation_only)

    @property
    def is_compensated(self) -> bool:
        """Whether its prototypes are moved by what a learner of this kind has."""
        return self.method.drift is not None and not self.is_upper_bound


Summaries = Mapping[str, Summary]


def summaries(documents: Iterable[Document], labels: Sequence[str] | None = None) -> dict[str, Summary]:
    """Return one summary per method and run.

    Args:
        documents: results documents of streams of the same tasks.
        labels: what to call the runs; None: by their recipes. Methods that several runs have are told apart by them.

    Raises:
        InputError: if there is no result, or streams have different lengths.
        RunError: if a document is damaged.
    """
    documents = list(documents)
    labels = [str(d.get("recipe", "run")) for d in documents] if labels is None else labels
    made = [one for document, label in zip(documents, labels, strict=True) for one in _of_document(document, label)]
    if not made:
        raise InputError("there are no results to report: run at least one method.")
    lengths = {one.run: len(one.tasks) for one in made}
    if len(set(lengths.values())) > 1:
        raise InputError(f"results of one table must have the same number of tasks, got {lengths}.")
    shared = Counter(one.method_name for one in made)
    result: dict[str, Summary] = {}
    for one in made:
        name = one.name if shared[one.method_name] == 1 else f"{one.name} ({one.run})"
        while name in result:  # two runs of one label
            name += "'"
        result[name] = replace(one, name=name)
    return result


def _of_document(document: Document, label: str) -> list[Summary]:
    try:
        tasks = tuple(tuple(task) for task in document["tasks"])
        entries: dict[str, list[Mapping[str, Any]]] = {}
        for entry in document["results"]:
            entries.setdefault(str(entry["method"]), []).append(entry)
        table = str(document.get("table", ""))
        return [_summary(name, own, label, tasks, table) for name, own in entries.items()]
    except UnknownPartError as error:
        raise RunError(f"{label} was made with a part that is not protodrift's own: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
        raise RunError(f"the results of {label} are damaged: {what}. Run the recipe again.") from None


def _summary(
    name: str, entries: Sequence[Mapping[str, Any]], run: str, tasks: tuple[tuple[Label, ...], ...], table: str
) -> Summary:
    method = decode(entries[0]["configuration"])
    if not isinstance(method, Method):
        raise ValueError(f"the configuration of {name!r} is not a method")
    sizes = {"T": len(tasks), "K": sum(map(len, tasks))}
    arrays: dict[str, np.ndarray] = {}
    for field, letters in _SHAPES.items():
        if field == "confusion" and all(entry["confusion"] is None for entry in entries):
            continue
        arrays[field] = np.array([entry[field] for entry in entries], dtype=float)
        shape = (len(entries), *(sizes[letter] for letter in letters))
        if arrays[field].shape != shape:
            raise ValueError(f"{field} of {name!r} has shape {arrays[field].shape[1:]}, not {shape[1:]}")
    arrays["mean_new_task_accuracy"] = arrays["new_task_accuracy"].mean(axis=1)
    counts = arrays.pop("confusion", None)
    confusion = None if counts is None else counts.sum(axis=0).astype(np.int64)
    metrics = {field: Spread.of(values) for field, values in arrays.items()}
    paper, beside = np.full(len(tasks), np.nan), "average"
    printed = paper_table(table)
    if printed is not None and printed.tasks == len(tasks) and name in printed.rows:
        paper, beside = printed.rows[name], printed.beside
    seeds = tuple(int(entry["seed"]) for entry in entries)
    return Summary(name, name, run, method, seeds, tasks, metrics, confusion, paper, beside)


def pairs(summaries: Summaries) -> list[tuple[Summary, Summary]]:
    """Return (without, with) drift compensation of every training that has both; fine-tuning first."""
    plain = {one.training: one for one in summaries.values() if one.method.drift is None}
    found = [(plain[one.training], one) for one in summaries.values() if one.is_compensated and one.training in plain]
    return sorted(found, key=lambda pair: len(pair[0].method.penalties) > 0)


def number_of_tasks(summaries: Summaries) -> int:
    """Return T."""
    if not summaries:
        raise InputError("there are no results to report: run at least one method.")
    return len(next(iter(summaries.values())).tasks)


def has_seeds(summaries: Summaries) -> bool:
    """Return whether any method has more than one seed."""
    return any(len(one.seeds) > 1 for one in summaries.values())


def finding(summaries: Summaries) -> str:
    """Return the result in one line: what drift compensation does to A_T, and which method is best."""
    tasks = number_of_tasks(summaries)
    accuracy = {name: round(100 * float(one["average_accuracy"].mean[-1]), 1) for name, one in summaries.items()}
    fair = [name for name, one in summaries.items() if one.method.exemplars is None and not one.is_upper_bound]
    best = max(fair or summaries, key=lambda name: accuracy[name])
    leader = f"Best {'without old images' if fair else 'of all'}: {best}, {accuracy[best]:.1f}\u00a0%."
    both = [(plain.name, moved.name) for plain, moved in pairs(summaries)] if tasks > 1 else []
    if not both:
        return f"Average accuracy after {tasks} task{'s' if tasks > 1 else ''}. {leader}"
    gains = [accuracy[moved] - accuracy[plain] for plain, moved in both]
    plain, moved = both[int(np.argmax(gains))]
    up, down = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    return (
        f"After {tasks} tasks drift compensation helps {up} of {len(both)} methods and harms {down or 'none'}, "
        f"{'most' if up else 'at best'} {moved}: {accuracy[plain]:.1f} → {accuracy[moved]:.1f}\u00a0%. {leader}"
    )


def unlearned(summaries: Summaries) -> tuple[dict[str, float], str]:
    """Return the rows that hardly learned their tasks, each with its accuracy in percent, and what measures them.

    Such a row trains its network in every task, and answers tasks 2 to T just after each was learned worse than all
    networks of the table that stand still (E-Pre, E-Fix). Rows that were read out of one training are judged by the
    best of them, and are all named. A table without such a network gives no measure: none, "".
    """
    if number_of_tasks(summaries) < 2:
        return {}, ""
    new = {name: _just_learned(one) for name, one in summaries.items()}
    still = [name for name, one in summaries.items() if one.stays]
    if not still:
        return {}, ""
    bar = min(still, key=lambda name: new[name])
    best: dict[tuple[str, Method], float] = {}
    for name, one in summaries.items():
        best[one.training] = max(new[name], best.get(one.training, 0.0))
    low = {name: new[name] for name, one in summaries.items() if not one.stays and best[one.training] < new[bar]}
    return low, bar


def _just_learned(one: Summary) -> float:
    """Return the accuracy on tasks 2 to T, each just after it was learned, in percent."""
    return 100 * float(one["new_task_accuracy"].mean[1:].mean())


def not_learned(summaries: Summaries) -> str:
    """Return a warning about rows that hardly learned their tasks (`unlearned`), or "": see there.

    Of rows that were read out of one training the best is told.
    """
    low, bar = unlearned(summaries)
    if not low:
        return ""
    trained: dict[tuple[str, Method], list[str]] = {}
    for name in low:
        trained.setdefault(summaries[name].training, []).append(name)
    best = [max(names, key=lambda name: low[name]) for names in trained.values()]
    told = ", ".join(f"{name} {low[name]:.1f}" for name in best)
    tasks = number_of_tasks(summaries)
    return (
        f"Warning: not learned. On tasks 2 to {tasks}, each just after it was learned, {told}\u00a0%: "
        f"worse than a network that stands still ({bar}, {_just_learned(summaries[bar]):.1f}\u00a0%). The rate is too "
        "small or the penalty too strong: that other rows are above these says nothing about methods."
    )
