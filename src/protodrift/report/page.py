"""One self-contained HTML page: nothing is loaded from anywhere; it can be mailed, kept and opened offline."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, resources
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.files import replace_file
from .summary import Summaries, Summary, has_seeds
from .table import Column, columns

if TYPE_CHECKING:
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
        body: figures, and markup that is put in as it is, such as what `results_table` returns.
        note: plain text under the title, or "".
    """

    title: str
    body: Sequence[str | Figure]
    note: str = ""


def escape(text: object) -> str:
    """Return `text` safe inside HTML, in elements and in quoted attributes.

    >>> escape('<b>&"')
    '&lt;b&gt;&amp;&quot;'
    """
    # What HTML cannot hold at all, however it is escaped: control characters and halves of surrogate pairs.
    clean = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", str(text))
    return html.escape(clean, quote=True)


def require_charts() -> None:
    """Raise an `InputError` that says what to install, unless charts can be drawn."""
    import_module(".charts", __package__)


def style() -> str:
    """Return the style sheet that all pages of protodrift share."""
    return _asset("style.css")


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


# -- the table --------------------------------------------------------------------------------------------------------


def results_table(summaries: Summaries) -> str:
    """Return an HTML table: R methods by A_1..A_T, overall, F_T (percent) and distance of old prototypes.

    Below A_k stands the accuracy on the task just learned. The best row of each column is bold; upper bounds (oracle,
    joint), which see old images, do not compete. Where there are several seeds: mean ± standard deviation. Where the
    recipe is a table of the paper, its numbers stand beside.
    """
    table = list(_with_details(columns(summaries)))
    head = "".join(_heading(column) for column, _ in table)
    body = "".join(_row(i, name, one, table) for i, (name, one) in enumerate(summaries.items()))
    note = (
        "Bold: best of a column. Small, below A: accuracy on the task just learned; new: its mean over all tasks. "
        "F and distance: lower is better."
    )
    note += " Mean ± standard deviation over seeds." if has_seeds(summaries) else ""
    note += " In the columns “paper”: what the paper prints." if not all(column.ours for column, _ in table) else ""
    if any(one.is_upper_bound for one in summaries.values()):
        note += " In italics: upper bounds, which see old images and do not compete."
    # tabindex lets a keyboard scroll the container.
    return (
        '<div class="table-scroll" tabindex="0" role="region" aria-label="Results">'
        f'<table class="results"><thead><tr><th scope="col">Method</th>{head}</tr></thead><tbody>{body}</tbody></table>'
        f'</div><p class="note">{note}</p>'
    )


def _with_details(table: Sequence[Column]) -> Iterator[tuple[Column, Column | None]]:
    """Yield the columns, each with the detail that follows it."""
    for column, following in zip(table, [*table[1:], None], strict=True):
        if not column.detail:
            yield column, following if following is not None and following.detail else None


def _heading(column: Column) -> str:
    index = f"<sub>{escape(column.index)}</sub>" if column.index else ""
    symbol = f"<i>{escape(column.symbol)}</i>" if column.index and column.ours else escape(column.symbol)
    css = "" if column.ours else ' class="paper"'
    return f'<th scope="col"{css} title="{escape(column.meaning)}">{symbol}{index}</th>'


def _row(row: int, name: str, one: Summary, table: Sequence[tuple[Column, Column | None]]) -> str:
    cells = "".join(_cell(column, detail, row) for column, detail in table)
    css = ' class="bound"' if one.is_upper_bound else ""
    # The title shows the whole of a name that a narrow column cuts.
    return f'<tr{css}><th scope="row" title="{escape(name)}">{escape(name)}</th>{cells}</tr>'


def _cell(column: Column, detail: Column | None, row: int) -> str:
    text = _with_deviation(column.texts[row])
    text = f"<b>{text}</b>" if row in column.best else text
    if detail is not None:
        text += f'<span class="detail" title="{escape(detail.meaning)}">{_with_deviation(detail.texts[row])}</span>'
    css = "" if column.ours else ' class="paper"'
    return f"<td{css}>{text}</td>"


def _with_deviation(text: str) -> str:
    value, plus_minus, deviation = text.partition(" ± ")
    return f"{value}<small>{plus_minus}{deviation}</small>" if plus_minus else value


# -- the page ---------------------------------------------------------------------------------------------------------


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
        InputError: if there are figures, and what draws them is not installed.
    """
    found = "".join(f'<p class="finding">{_unbroken(line)}</p>' for line in findings)
    paragraphs = "".join(f"<p>{escape(part.strip())}</p>" for part in intro.split("\n\n") if part.strip())
    body = "".join(_section(section, i) for i, section in enumerate(sections, 1))
    libraries, script = _scripts() if any(figures_of(sections)) else ("", "")
    # The empty icon keeps a browser from asking a server for /favicon.ico.
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style()}</style>\n{libraries}</head>\n<body>\n"
        f'<header><h1>{escape(title)}</h1>{found}<div class="lede">{paragraphs}</div></header>\n'
        f"{_contents(sections)}<main>\n{body}</main>\n{_footer(facts)}{script}</body>\n</html>\n"
    )


def _unbroken(text: str) -> str:
    """Return escaped text that breaks at spaces only: E-FT+SDC stays on one line."""
    return re.sub(r"\S*-\S*", r'<span class="word">\g<0></span>', escape(text))


def figures_of(sections: Sequence[Section]) -> Iterator[Figure]:
    """Yield the figures of sections, in order."""
    for section in sections:
        yield from (part for part in section.body if isinstance(part, Figure))


def _scripts() -> tuple[str, str]:
    from .charts import javascript

    return f"<script>{javascript()}</script>\n", f"<script>\n{_asset('page.js')}</script>\n"


def _contents(sections: Sequence[Section]) -> str:
    """Return links to the sections of a page that has many."""
    if len(sections) < 6:
        return ""
    links = "".join(f'<li><a href="#s{i}">{escape(section.title)}</a></li>' for i, section in enumerate(sections, 1))
    return f'<nav aria-label="Contents"><ol>{links}</ol></nav>\n'


def _section(section: Section, number: int) -> str:
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    body = "\n".join(_figure(part) if isinstance(part, Figure) else part for part in section.body)
    return f'<section id="s{number}"><h2>{escape(section.title)}</h2>{note}\n{body}\n</section>\n'


def _figure(figure: Figure) -> str:
    from .charts import specification

    # Inside a script nothing is markup but its end: with these three escaped, no text can be one.
    text = json.dumps(specification(figure.chart), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    title = f"<h3>{escape(figure.title)}</h3>" if figure.title else ""
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>" if figure.caption else ""
    return (
        f'{title}<figure><div class="chart"><noscript>This figure needs JavaScript.</noscript></div>{caption}\n'
        f'<script type="application/json">{text}</script></figure>'
    )


def _footer(facts: Mapping[str, str]) -> str:
    if not facts:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in facts.items()
    )
    return f'<footer><h2>How this was made</h2><table class="facts"><tbody>{rows}</tbody></table></footer>\n'


def write(path: str | Path, html: str) -> None:
    """Write a page atomically: after a crash the file holds the old page or the new one, whole."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, html.encode())
