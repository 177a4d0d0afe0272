"""A report of runs: a page, a table for another program, or a file per figure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError, did_you_mean
from . import formats
from .page import Figure, Section, figures_of, render, require_charts
from .runs import Run, facts, groups_of
from .summary import finding, not_learned

FORMATS = ("html", "csv", "json", "md", "latex")
"""What a report can be written as."""


def report(runs: Sequence[Run], format: str = "html") -> str:
    """Return a report of runs in one of the `FORMATS`.

    Raises:
        InputError: for a page where what draws charts is not installed; tables do without it.
    """
    if format not in FORMATS:
        raise InputError(f"unknown format {format!r}. {did_you_mean(format, FORMATS)}")
    if not runs:
        raise InputError("there are no results to report: name at least one run directory.")
    if format == "html":
        return _page(runs)
    tables = [group.summaries for group in groups_of(runs)]
    if format == "json":
        return formats.to_json(tables, facts(runs))
    return {"csv": formats.to_csv, "md": formats.to_markdown, "latex": formats.to_latex}[format](tables)


def _page(runs: Sequence[Run]) -> str:
    require_charts()
    from .sections import NOT_FLAT, sections_of

    groups = groups_of(runs)
    flat = any(picture.panels is not None for group in groups for picture in group.pictures())
    sections: list[Section] = []
    absent, found = [], []
    for group in groups:
        prefix = f"{group.title}: " if len(groups) > 1 else ""
        own, missing = sections_of(group)
        sections += [Section(prefix + one.title, one.body, one.note) for one in own]
        absent += [prefix + sentence for sentence in missing if not (flat and sentence == NOT_FLAT)]
        found += [prefix + line for line in (finding(group.summaries), not_learned(group.summaries)) if line]
    if absent:
        sections.append(Section("What is not shown", note="\n\n".join(absent)))
    about = dict.fromkeys(str(run.document.get("about", "")).strip() for run in runs)
    intro = "\n\n".join(f"{text[:1].upper()}{text[1:]}." for text in about if text)
    title = " · ".join(dict.fromkeys(group.title for group in groups))
    return render(title, intro, sections, facts(runs), found)


def write_figures(runs: Sequence[Run], folder: Path, format: str = "pdf") -> list[Path]:
    """Write every figure of the page of runs as a file (pdf, png or svg), for a paper; return their paths."""
    require_charts()
    from .charts import FILES, save
    from .sections import sections_of

    if format not in FILES:
        raise InputError(f"unknown format {format!r} of a figure. {did_you_mean(format, FILES)}")
    groups = groups_of(runs)
    paths: dict[Path, Figure] = {}
    for group in groups:
        prefix = f"{group.title}_" if len(groups) > 1 else ""
        for figure in figures_of(sections_of(group)[0]):
            stem = re.sub(r"[^\w.+-]+", "_", prefix + figure.name)
            while folder / f"{stem}.{format}" in paths:
                stem += "_"
            paths[folder / f"{stem}.{format}"] = figure
    for path, figure in paths.items():
        save(figure.chart, path)
    return list(paths)
