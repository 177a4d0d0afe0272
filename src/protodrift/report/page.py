"""One self-contained HTML page: no script, nothing loaded from anywhere; it can be mailed, kept and opened offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ..common.files import replace_file
from .summary import Summaries, Summary, has_seeds
from .svg import escape
from .table import Column, columns


@dataclass(frozen=True)
class Section:
    """One part of a page.

    Attributes:
        title: plain text.
        html: markup, put in as it is: what `figures` and `results_table` return.
        note: plain text under the title, or "".
    """

    title: str
    html: str
    note: str = ""


def style() -> str:
    """Return the style sheet that all pages of protodrift share."""
    return resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")


def results_table(summaries: Summaries) -> str:
    """Return an HTML table: R rows of methods by A_1..A_T, overall, F_T (percent) and distance of old prototypes.

    The best row of each column is bold; upper bounds (oracle, joint), which see old images, do not compete. Where there
    are several seeds: mean ± standard deviation. Where the recipe is a table of the paper, its numbers stand beside.
    """
    table = columns(summaries)
    head = "".join(_heading(column) for column in table)
    body = "".join(_row(i, name, one, table) for i, (name, one) in enumerate(summaries.items()))
    note = "Bold: best of a column. F and distance: lower is better."
    note += " Mean ± standard deviation over seeds." if has_seeds(summaries) else ""
    note += " In the columns “paper”: what the paper prints." if not all(column.ours for column in table) else ""
    if any(one.is_upper_bound for one in summaries.values()):
        note += " In italics: upper bounds, which see old images and do not compete."
    # tabindex lets a keyboard scroll the container.
    return (
        '<div class="table-scroll" tabindex="0" role="region" aria-label="Results">'
        f'<table class="results"><thead><tr><th scope="col">Method</th>{head}</tr></thead><tbody>{body}</tbody></table>'
        f'</div><p class="note">{note}</p>'
    )


def _heading(column: Column) -> str:
    index = f"<sub>{escape(column.index)}</sub>" if column.index else ""
    symbol = f"<i>{escape(column.symbol)}</i>" if column.index and column.ours else escape(column.symbol)
    css = "" if column.ours else ' class="paper"'
    return f'<th scope="col"{css} title="{escape(column.meaning)}">{symbol}{index}</th>'


def _row(row: int, name: str, one: Summary, table: Sequence[Column]) -> str:
    cells = "".join(_cell(column, row) for column in table)
    css = ' class="bound"' if one.is_upper_bound else ""
    # The title shows the whole of a name that a narrow column cuts.
    return f'<tr{css}><th scope="row" title="{escape(name)}">{escape(name)}</th>{cells}</tr>'


def _cell(column: Column, row: int) -> str:
    value, plus_minus, deviation = column.texts[row].partition(" ± ")
    text = f"{value}<small>{plus_minus}{deviation}</small>" if plus_minus else value
    css = "" if column.ours else ' class="paper"'
    return f"<td{css}><b>{text}</b></td>" if row in column.best else f"<td{css}>{text}</td>"


def side_by_side(*figures: str) -> str:
    """Return figures next to each other; below each other in a narrow window."""
    return f'<div class="side-by-side">{"".join(figures)}</div>'


def render(title: str, intro: str, sections: Sequence[Section], facts: Mapping[str, str]) -> str:
    """Return a whole HTML document.

    Args:
        title: plain text.
        intro: plain text; an empty line begins a new paragraph.
        sections: what the page shows, in order.
        facts: how it was made (command, seed, threads, versions, ...): a table at the foot of the page.
    """
    paragraphs = "".join(f"<p>{escape(part.strip())}</p>" for part in intro.split("\n\n") if part.strip())
    body = "".join(_section(section, i) for i, section in enumerate(sections, 1))
    # The empty icon keeps a browser from asking a server for /favicon.ico.
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style()}</style>\n</head>\n<body>\n"
        f'<header><h1>{escape(title)}</h1><div class="lede">{paragraphs}</div></header>\n'
        f"{_contents(sections)}<main>\n{body}</main>\n{_footer(facts)}</body>\n</html>\n"
    )


def _contents(sections: Sequence[Section]) -> str:
    """Return links to the sections of a page that has many."""
    if len(sections) < 6:
        return ""
    links = "".join(f'<li><a href="#s{i}">{escape(section.title)}</a></li>' for i, section in enumerate(sections, 1))
    return f'<nav aria-label="Contents"><ol>{links}</ol></nav>\n'


def _section(section: Section, number: int) -> str:
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    return f'<section id="s{number}"><h2>{escape(section.title)}</h2>{note}\n{section.html}\n</section>\n'


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
