"""One self-contained HTML page: nothing is loaded from anywhere; it can be mailed, kept and opened offline."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.files import replace_file
from .summary import Summaries, has_seeds
from .table import columns

if TYPE_CHECKING:
    from jinja2 import Template

    from .charts import Chart


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: of its file, without an ending.
        chart: what `figures` and `drift_figures` return.
        caption: plain text.
        title: plain text above it, or "".
    """

    name: str
    chart: Chart
    caption: str = ""
    title: str = ""


@dataclass(frozen=True)
class Section:
    """One part of a page.

    Attributes:
        title: plain text.
        body: figures, and markup that is put in as it is: what `results_table` returns.
        note: plain text under the title, or ""; an empty line begins a new paragraph.
    """

    title: str
    body: Sequence[str | Figure] = ()
    note: str = ""


def asset(name: str) -> str:
    """Return a file that lies beside this module."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def style() -> str:
    """Return the style sheet that all pages of protodrift share."""
    return asset("style.css")


def require_charts() -> None:
    """Raise an `InputError` that says what to install, unless charts and pages can be made."""
    import_module(".charts", __package__)


def template(name: str) -> Template:
    """Return one of the templates that lie beside this module; what is put into it is escaped."""
    require_charts()  # Jinja comes with altair
    import jinja2
    from markupsafe import Markup

    def clean(value: Any) -> Any:
        """Replace what HTML cannot hold, however it is escaped: control characters and halves of surrogate pairs."""
        bad = "[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]"
        return re.sub(bad, "\ufffd", value) if isinstance(value, str) and not isinstance(value, Markup) else value

    made = jinja2.Environment(loader=jinja2.FunctionLoader(asset), autoescape=True, finalize=clean)
    made.trim_blocks = made.lstrip_blocks = made.keep_trailing_newline = True
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return made.get_template(name)


def results_table(summaries: Summaries) -> str:
    """Return an HTML table: R methods by A_1..A_T, overall, F_T (percent) and distance of old prototypes.

    Below A_k stands the accuracy on the task just learned. The best row of each column is bold; upper bounds (oracle,
    joint), which see old images, do not compete. Where there are several seeds: mean ± standard deviation. Where the
    recipe is a table of the paper, its numbers stand beside.
    """
    bounds = any(one.is_upper_bound for one in summaries.values())
    told = {"columns": columns(summaries), "seeds": has_seeds(summaries), "bounds": bounds}
    return template("table.html").render(summaries=summaries, **told)


def render(
    title: str, intro: str, sections: Sequence[Section], facts: Mapping[str, str], findings: Sequence[str] = ()
) -> str:
    """Return a whole HTML document.

    Args:
        title: plain text.
        intro: plain text; an empty line begins a new paragraph.
        sections: what the page shows, in order.
        facts: how it was made (command, seed, threads, versions, ...): a table at the foot of the page.
        findings: the results, each in one line, for the top of the page.

    Raises:
        InputError: if what makes pages is not installed.
    """
    page = template("page.html")
    from .charts import javascript, specification

    return page.render(
        title=title,
        intro=intro,
        sections=sections,
        facts=facts,
        findings=findings,
        style=style(),
        javascript=javascript() if any(figures_of(sections)) else "",
        script=asset("page.js"),
        specification=specification,
        paragraphs=lambda text: [part.strip() for part in text.split("\n\n") if part.strip()],
    )


def figures_of(sections: Sequence[Section]) -> Iterator[Figure]:
    """Yield the figures of sections, in order."""
    for section in sections:
        yield from (part for part in section.body if isinstance(part, Figure))


def write(path: str | Path, html: str) -> None:
    """Write a page atomically: after a crash the file holds the old page or the new one, whole."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, html.encode())
