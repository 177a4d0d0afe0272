from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protodrift import Method
from protodrift.experiments.samples import take
from protodrift.experiments.tree import Tree
from protodrift.report import (
    Figure,
    Section,
    Summary,
    finding,
    not_learned,
    render,
    results_table,
    results_text,
    style,
    summaries,
    write,
)
from protodrift.report.charts import javascript
from protodrift.report.drift_figures import drift_field, drift_panels, tsne_map
from protodrift.report.figures import curves

Results = dict[str, Summary]


def cells(table: str) -> dict[str, list[str]]:
    """The cells of each row, without the details below them."""
    found = {}
    for row in ET.fromstring(f"<div>{table}</div>").findall(".//tbody/tr"):
        for cell in row.findall("td"):
            for detail in cell.findall("span"):
                cell.remove(detail)
        found[row.findtext("th") or ""] = ["".join(cell.itertext()) for cell in row.findall("td")]
    return found


def body_of(page: str) -> ET.Element:
    """The body, parsed strictly: a name that were taken for markup would be an error. Scripts are left out."""
    body = page[page.rindex("<body>") : page.rindex("</html>")]
    return ET.fromstring(re.sub(r"<script[^>]*>.*?</script>", "", body, flags=re.DOTALL))


def bold(table: str, column: int) -> set[str]:
    rows = ET.fromstring(f"<div>{table}</div>").findall(".//tbody/tr")
    return {row.findtext("th") or "" for row in rows if row.findall("td")[column].find("b") is not None}


def test_the_table_holds_the_results(one_seed: dict[str, Any]) -> None:
    table = cells(results_table(summaries([one_seed])))
    assert list(table) == [entry["method"] for entry in one_seed["results"]]
    for entry in one_seed["results"]:
        percent = [
            *entry["average_accuracy"],
            entry["mean_incremental_accuracy"],
            sum(entry["new_task_accuracy"]) / 3,
            entry["overall_accuracy"][-1],
            entry["average_forgetting"][-1],
        ]
        expected = [f"{round(100 * value, 1) + 0.0:.1f}" for value in percent]
        assert table[entry["method"]] == [*expected, f"{entry['old_prototype_distance'][-1]:.3f}"]


def test_below_the_average_stands_the_accuracy_on_the_task_just_learned(one_seed: dict[str, Any]) -> None:
    root = ET.fromstring(f"<div>{results_table(summaries([one_seed]))}</div>")
    for row, entry in zip(root.findall(".//tbody/tr"), one_seed["results"], strict=True):
        below = [cell.findtext("span") for cell in row.findall("td")]
        learned = [f"{100 * value:.1f}" for value in entry["new_task_accuracy"]]
        assert below == [None, *learned[1:], None, None, None, None, None]  # after the first task it is A_1 itself


def test_the_best_row_is_bold_and_bounds_do_not_compete(results: Results) -> None:
    table = results_table(results)
    fair = [name for name in results if name not in ("E-Joint", "E-FT+oracle")]
    column = {name: float(values[2]) for name, values in cells(table).items() if name in fair}
    assert bold(table, 2) == {name for name, value in column.items() if value == max(column.values())}
    forgetting = {name: float(values[6]) for name, values in cells(table).items() if name in fair}
    assert bold(table, 6) == {name for name, value in forgetting.items() if value == min(forgetting.values())}
    assert bold(table, 0) == set()  # the first task is one training: nobody is best
    assert bold(table, 7) <= {"E-FT", "E-FT+SDC"}  # E-Fix does not drift, so its distance of 0 wins nothing


def test_one_task_has_dashes_for_what_is_not_defined(single: Results) -> None:
    for row in cells(results_table(single)).values():
        assert row[-2:] == ["–", "–"]
    assert "nan" not in results_table(single) + results_text(single)


@pytest.mark.parametrize("seeds", [1, 2])
def test_text_and_html_show_the_same_numbers(document: dict[str, Any], one_seed: dict[str, Any], seeds: int) -> None:
    made = summaries([one_seed if seeds == 1 else document])
    lines = results_text(made).splitlines()
    table = cells(results_table(made))
    for name, line in zip(table, lines[2 : 2 + len(table)], strict=True):
        shown = re.split(r"\s{2,}", line)
        assert shown[0].strip("()") == name
        assert [text.rstrip("* ") for text in shown[1:]] == table[name]
    assert re.split(r"\s{2,}", lines[0]) == [
        *["method", "A_1", "A_2", "A_3", "mean A", "new", "overall", "F_3", "distance"]
    ]


def test_text_columns_are_aligned(results: Results) -> None:
    head, rule, *rows = results_text(results).splitlines()[: 2 + len(results)]
    assert set(rule) == {"-"}
    for heading in ("A_2", "overall", "distance"):
        end = head.index(heading) + len(heading)
        assert all(row[end - 1].isdigit() or row[end - 1] == "–" for row in rows)
        assert all(row[end : end + 1] in ("", " ", "*") for row in rows)


def test_text_keeps_control_characters_from_the_terminal(results: Results) -> None:
    text = results_text({"\x1b[31mred\n": results["E-FT"]})
    assert "\x1b" not in text
    assert text.count("\n") == 4


@pytest.fixture(scope="module")
def page(results: Results, flat: Tree, flat_method: Method) -> str:
    sections = [
        Section("Results", [results_table(results)], "A note."),
        Section("Curves", [Figure("curves", curves(results), "A caption.", "A heading")]),
        Section("Drift", [Figure("drift", drift_panels(take(flat, "E-FT+SDC", flat_method)))]),
    ]
    facts = {"seed": "0", "command": "protodrift demo"}
    return render("A title", "First.\n\nSecond.", sections, facts, ["What was found."])


def test_the_page_refers_to_nothing_outside(page: str) -> None:
    ours = page.replace(javascript(), "")
    assert len(page) - len(ours) > 500_000  # Vega is inside
    for pattern in ("http", "src=", "@import", r"url\(", r"\son\w+=", r"href=\"(?!data:,)", r"\bfetch\b"):
        assert not re.search(pattern, ours, re.IGNORECASE), pattern


def test_the_page_is_a_whole_document(page: str) -> None:
    assert page.startswith("<!doctype html>")
    for part in ('name="viewport"', 'content="light dark"', "prefers-color-scheme: dark", "<p>Second.</p>", "<footer>"):
        assert part in page
    root = body_of(page)
    assert ["".join(line.itertext()).strip() for line in root.findall("./header/p")] == ["What was found."]
    assert [h.text for h in root.iter("h2")] == ["Results", "Curves", "Drift", "How this was made"]
    assert [f.findtext("figcaption") for f in root.iter("figure")] == ["A caption.", None]
    facts = {row.findtext("th"): row.findtext("td") for row in root.findall("./footer/table/tbody/tr")}
    assert facts == {"seed": "0", "command": "protodrift demo"}


def test_a_page_without_figures_has_no_script(results: Results) -> None:
    page = render("A title", "", [Section("Results", [results_table(results)])], {})
    assert "<script" not in page
    assert len(page) < 50_000


def specifications(page: str) -> list[Any]:
    found = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    return [json.loads(text) for text in found]


def test_hostile_texts_stay_text(results: Results, flat: Tree, flat_method: Method, evil: str) -> None:
    hostile = {evil: results["E-FT"], "E-FT+SDC": results["E-FT+SDC"]}
    shot = take(flat, evil, flat_method)
    shot = replace(shot, tasks=((evil, "b & c", "d"), ('e"', "</script>")))
    figures = [
        Figure(evil, chart) for chart in (curves(hostile), drift_panels(shot), drift_field(shot), tsne_map(shot))
    ]
    sections = [Section(evil, [results_table(hostile), *figures], evil), *[Section(evil, [])] * 6]
    page = render(evil, evil, sections, {evil: evil}, [evil])
    body_of(page)
    assert page.count("<script") == page.count("</script>") == 2 + len(figures)  # ours: the text begins none
    assert "<b>&" not in page
    page.encode()
    spec = specifications(page)[1]
    assert evil in {row["class"] for row in next(iter(spec["datasets"].values()))}  # and the chart still tells it


def test_the_finding_says_what_compensation_does_and_who_is_best(results: Results) -> None:
    plain, moved = (100 * results[name]["average_accuracy"].mean[-1] for name in ("E-FT", "E-FT+SDC"))
    text = finding(results)
    assert f"E-FT+SDC: {plain:.1f} → {moved:.1f}\u00a0%" in text
    assert ("helps 1 of 1 methods and harms none" in text) == (round(moved, 1) > round(plain, 1))
    fair = {name: 100 * results[name]["average_accuracy"].mean[-1] for name in ("E-Fix", "E-FT", "E-FT+SDC")}
    best = max(fair, key=lambda name: fair[name])
    assert text.endswith(f"Best without old images: {best}, {fair[best]:.1f}\u00a0%.")


def test_a_finding_tells_harm_too(results: Results) -> None:
    plain, moved = results["E-FT"], results["E-FT+SDC"]
    lower = plain["average_accuracy"]._replace(mean=plain["average_accuracy"].mean - 0.1)
    worse = replace(moved, metrics={**moved.metrics, "average_accuracy": lower})
    text = finding({"E-FT": plain, "E-FT+SDC": worse})
    assert "helps 0 of 1 methods and harms 1, at best E-FT+SDC" in text
    assert "Best of all: E-Joint" in finding({"E-Joint": results["E-Joint"]})


def test_a_row_that_did_not_learn_its_tasks_is_named_with_what_it_has(results: Results) -> None:
    def knowing(name: str, share: float) -> Summary:
        one = results[name]
        new = one["new_task_accuracy"]
        return replace(one, metrics={**one.metrics, "new_task_accuracy": new._replace(mean=0 * new.mean + share)})

    table = {"E-Fix": knowing("E-Fix", 0.4), "E-FT": knowing("E-FT", 0.3), "E-FT+SDC": knowing("E-FT+SDC", 0.2)}
    text = not_learned(table)
    assert text.startswith("Warning: not learned. On tasks 2 to 3")
    assert "E-FT 30.0\u00a0%: worse than" in text  # one training is told of once, by its best row
    assert "(E-Fix, 40.0\u00a0%)" in text
    assert text in results_text(table)
    learned = {**table, "E-FT": knowing("E-FT", 0.41)}
    assert not_learned(learned) == ""
    assert "Warning" not in results_text(learned)
    del table["E-Fix"]  # nothing to measure by
    assert not_learned(table) == ""


def test_the_first_task_is_no_excuse(results: Results) -> None:
    """A row that knew the first task perfectly, and then stopped learning, is named all the same."""
    one = results["E-FT"]
    new = one["new_task_accuracy"]
    stuck = new._replace(mean=np.array([1.0, *[0.1] * (len(new.mean) - 1)]))
    table = {"E-Fix": results["E-Fix"], "E-FT": replace(one, metrics={**one.metrics, "new_task_accuracy": stuck})}
    assert results["E-Fix"]["new_task_accuracy"].mean[1:].mean() > 0.1
    assert "E-FT 10.0" in not_learned(table)


def test_writing_replaces_the_page_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.html"
    write(target, "old")
    write(str(target), "μ")
    assert target.read_text(encoding="utf-8") == "μ"
    assert list(target.parent.iterdir()) == [target]


def _luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_palette_has_the_contrast_that_the_style_sheet_claims(theme: str) -> None:
    light, dark = style().split("prefers-color-scheme: dark", 1)
    found = dict(re.findall(r"--(\w+):\s*(#[0-9a-f]{6})", light if theme == "light" else dark))
    for name in [f"c{i}" for i in range(10)]:
        assert _contrast(found[name], found["paper"]) >= 3, name  # WCAG 1.4.11, graphics
    for name in ("ink", "muted", "accent"):
        assert _contrast(found[name], found["paper"]) >= 4.5, name  # WCAG 1.4.3, text
        assert _contrast(found[name], found["raised"]) >= 4.5, name
