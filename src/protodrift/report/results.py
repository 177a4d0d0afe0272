"""The results of a run as a Python object: frames, tables, pages, figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import InputError, did_you_mean
from .build import report
from .page import figures_of, require_charts, write
from .runs import Run, groups_of, read_runs
from .summary import Document, Summary, summaries
from .table import results_text

if TYPE_CHECKING:
    import pandas

Shape = Literal["long", "wide", "tasks", "epochs"]

METRICS = (
    "average_accuracy",
    "overall_accuracy",
    "average_forgetting",
    "new_task_accuracy",
    "task_aware_accuracy",
    "backward_transfer",
    "forward_transfer",
    "old_prototype_distance",
)
"""What a result has after each task."""


class Results:
    """What a run found: every method and seed that its directory has.

    Args:
        path: the run directory.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @cached_property
    def _runs(self) -> list[Run]:
        return read_runs([self.path])

    @property
    def document(self) -> Document:
        """What `results.json` holds."""
        return self._runs[0].document

    def __repr__(self) -> str:
        entries = self.document["results"]
        methods, seeds = {entry["method"] for entry in entries}, {entry["seed"] for entry in entries}
        return f"Results({str(self.path)!r}: {len(methods)} methods, {len(seeds)} seeds)"

    def __getitem__(self, method: str) -> Summary:
        """Return the `Summary` of a method over its seeds."""
        found = summaries([self.document])
        if method not in found:
            raise InputError(f"there is no method {method!r} in {self.path}. {did_you_mean(method, found)}")
        return found[method]

    def to_frame(self, shape: Shape = "long") -> pandas.DataFrame:
        """Return the results as a pandas frame; accuracies are fractions, what is not defined is NaN.

        Args:
            shape: "long": one row per method, seed, task and metric; "wide": one row per method and seed, with columns
                such as `average_accuracy_3`; "tasks": a[k, j], one row per method, seed, k and j; "epochs": the losses
                of every training, one row per method, seed, task and epoch.
        """
        if shape not in get_args(Shape):
            raise InputError(f"shape={shape!r} is unknown. {did_you_mean(shape, get_args(Shape))}")
        try:
            import pandas
        except ImportError:
            raise InputError("frames need pandas: pip install 'protodrift[report]'.") from None
        rows = {"long": _long, "wide": _wide, "tasks": _tasks, "epochs": _epochs}[shape]
        return pandas.DataFrame([row for entry in self.document["results"] for row in rows(entry)])

    def table(self) -> str:
        """Return the table that `protodrift run` prints."""
        return results_text(summaries([self.document]))

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page of `protodrift report`, or a table if the path ends in .csv, .json, .md or .tex.

        Args:
            path: where to; None: report.html in the run directory.
        """
        out = self.path / "report.html" if path is None else Path(path)
        endings = {"csv": "csv", "json": "json", "md": "md", "tex": "latex"}
        write(out, report(self._runs, endings.get(out.suffix.lstrip(".").lower(), "html")))
        return out

    def figures(self) -> list[str]:
        """Return the names of the figures that can be drawn."""
        return list(self._charts())

    def figure(self, name: str, path: str | Path) -> Path:
        """Draw one figure into a file for a paper; its ending says the format: pdf, png or svg."""
        charts = self._charts()
        if name not in charts:
            raise InputError(f"there is no figure {name!r} of {self.path}. {did_you_mean(name, charts)}")
        from .charts import FILES, save

        out = Path(path)
        if out.suffix.lstrip(".") not in FILES:
            raise InputError(f"a figure is written as one of {', '.join(FILES)}; got {out.name!r}.")
        out.parent.mkdir(parents=True, exist_ok=True)
        save(charts[name], out)
        return out

    def _charts(self) -> dict[str, Any]:
        require_charts()
        from .sections import sections_of

        return {
            figure.name: figure.chart for group in groups_of(self._runs) for figure in figures_of(sections_of(group)[0])
        }


def _long(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for metric in METRICS:
        for task, value in enumerate(entry.get(metric) or (), 1):
            yield {**_who(entry), "task": task, "metric": metric, "value": _number(value)}


def _wide(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    curves = {f"{metric}_{task}": value for metric in METRICS for task, value in enumerate(entry.get(metric) or (), 1)}
    last = {"mean_incremental_accuracy", "seconds", "bytes_stored"}
    numbers = {**curves, **{name: entry[name] for name in sorted(last)}}
    yield {**_who(entry), **{name: _number(value) for name, value in numbers.items()}}


def _tasks(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for after, row in enumerate(entry["accuracy_matrix"], 1):
        for task, value in enumerate(row[:after], 1):
            yield {**_who(entry), "after_task": after, "task": task, "accuracy": _number(value)}


def _epochs(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for task, epochs in enumerate(entry.get("history") or (), 1):
        for epoch, losses in enumerate(epochs, 1):
            yield {**_who(entry), "task": task, "epoch": epoch, **losses}


def _who(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"method": entry["method"], "seed": entry["seed"]}


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
