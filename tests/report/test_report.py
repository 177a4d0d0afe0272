from __future__ import annotations

import copy
import csv
import io
import json
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protodrift import METHODS
from protodrift.errors import InputError, RunError
from protodrift.experiments import samples as pictures
from protodrift.experiments.recipe import Recipe
from protodrift.experiments.run import read_results, results_document, run
from protodrift.experiments.setup import Network
from protodrift.report import FORMATS, Figure, Run, groups_of, read_runs, report, summaries, summary_text, write_figures
from protodrift.report.charts import javascript
from protodrift.report.formats import latex_escape
from protodrift.report.paper import paper_table, paper_tables
from protodrift.report.sections import accuracy_section, bar_names, distance_section
from protodrift.report.table import columns
from tests.report import reading

Document = dict[str, Any]
Write = Callable[..., Path]


# -- summaries --------------------------------------------------------------------------------------------------------


def test_mean_and_deviation_over_seeds(document: Document) -> None:
    made = summaries([document])["E-FT+SDC"]
    own = [entry for entry in document["results"] if entry["method"] == "E-FT+SDC"]
    assert made.seeds == (0, 1)
    values = np.array([entry["average_accuracy"] for entry in own])
    np.testing.assert_allclose(made["average_accuracy"].mean, values.mean(axis=0))
    np.testing.assert_allclose(made["average_accuracy"].std, values.std(axis=0, ddof=1))
    assert np.isnan(made["average_forgetting"].mean[0])
    assert np.array_equal(made.confusion, sum(np.array(entry["confusion"]) for entry in own))


def test_one_seed_has_no_deviation(one_seed: Document) -> None:
    assert np.isnan(summaries([one_seed])["E-FT"]["average_accuracy"].std).all()
    assert "±" not in summary_text(one_seed)


def test_seeds_without_a_value_do_not_count(document: Document) -> None:
    changed = copy.deepcopy(document)
    first = next(entry for entry in changed["results"] if entry["method"] == "E-FT")
    first["average_forgetting"][2] = None
    curve = summaries([changed])["E-FT"]["average_forgetting"]
    other = [e for e in document["results"] if e["method"] == "E-FT"][1]["average_forgetting"][2]
    assert curve.mean[2] == other
    assert np.isnan(curve.std[2])


def test_two_runs_with_the_same_methods_are_named_apart(one_seed: Document) -> None:
    fewer = {**one_seed, "results": [e for e in one_seed["results"] if e["method"] == "E-FT"]}
    made = summaries([one_seed, fewer], ["wide", "narrow"])
    assert {"E-FT (wide)", "E-FT (narrow)", "E-FT+SDC"} <= set(made)
    assert len(made) == len(one_seed["results"]) + 1
    assert made["E-FT (wide)"].training != made["E-FT (narrow)"].training


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["results"][0].pop("confusion"), "'confusion' is missing"),
        (lambda d: d["results"][0].update(average_accuracy=[0.5]), "damaged"),
        (lambda d: d.update(results=3), "damaged"),
        (lambda d: d.pop("tasks"), "'tasks' is missing"),
        (lambda d: d["results"][0].update(configuration={"type": "Nonsense"}), "Nonsense"),
        (lambda d: d["results"][0].update(configuration=None), "not a method"),
    ],
)
def test_damaged_results_are_said(one_seed: Document, change: Callable[[Document], object], message: str) -> None:
    changed = copy.deepcopy(one_seed)
    change(changed)
    with pytest.raises(RunError, match=message):
        summaries([changed], ["run 7"])


def test_nothing_and_streams_of_different_length_are_refused(one_seed: Document, single_document: Document) -> None:
    with pytest.raises(InputError, match="no results"):
        summaries([])
    with pytest.raises(InputError, match="no results"):
        summaries([{**one_seed, "results": []}])
    with pytest.raises(InputError, match="same number of tasks"):
        summaries([one_seed, single_document], ["a", "b"])
    with pytest.raises(InputError, match="at least one run"):
        report([])
    with pytest.raises(InputError, match="Did you mean 'html'"):
        report([Run("a", one_seed)], "htm")


# -- the paper's numbers ----------------------------------------------------------------------------------------------


def _of_table(document: Document, table: str, tasks: int) -> Document:
    """A made-up document of as many tasks as the paper's table has."""
    result = copy.deepcopy(document)
    result.update(table=table, tasks=[[k] for k in range(tasks)])
    for entry in result["results"]:
        for name in (
            "average_accuracy",
            "overall_accuracy",
            "average_forgetting",
            "new_task_accuracy",
            "old_prototype_distance",
        ):
            entry[name] = [0.5] * tasks
        for name in ("accuracy_matrix", "prototype_distance", "confusion"):
            entry[name] = [[1] * tasks for _ in range(tasks)]
        entry.update(classes=list(range(tasks)), test_counts=[1] * tasks)
    return result


def test_the_numbers_of_the_paper_stand_beside_ours(one_seed: Document) -> None:
    text = summary_text(_of_table(one_seed, "table1/cub200", 6))
    head, _, *rows = text.splitlines()
    assert head.split()[1:5] == ["A_1", "paper_1", "A_2", "paper_2"]
    row = next(row for row in rows if row.startswith("E-FT+SDC")).split()
    assert row[1:5] == ["50.0", "84.1", "50.0", "75.5"]
    joint = next(row for row in rows if row.startswith("(E-Joint)")).split()
    assert joint[2] == "–"
    assert "what the paper prints" in text


def test_a_table_that_prints_only_the_last_task(one_seed: Document) -> None:
    made = _of_table(one_seed, "table5_eleven_tasks/cifar100", 11)
    head = summary_text(made).splitlines()[0]
    assert re.findall(r"paper_\d+", head) == ["paper_11"]
    rows = list(csv.DictReader(io.StringIO(report([Run("a", made)], "csv"))))
    assert next(row for row in rows if row["method"] == "E-FT+SDC")["paper_overall_11"] == "44.8"
    assert head.split().index("paper_11") == head.split().index("overall") + 1  # like beside like


@pytest.mark.parametrize(("table", "tasks"), [("", 6), ("table9/moon", 6), ("table1/cub200", 5)])
def test_no_number_of_the_paper_where_there_is_none(one_seed: Document, table: str, tasks: int) -> None:
    assert "paper" not in summary_text(_of_table(one_seed, table, tasks))


def test_every_table_of_the_paper_is_there() -> None:
    assert len(paper_tables()) == 8
    for name in paper_tables():
        table = paper_table(name)
        assert table is not None
        assert all(row.shape == (table.tasks,) and 0 < row[-1] < 1 for row in table.rows.values())


def test_a_recipe_says_which_table_it_is() -> None:
    recipe = Recipe("r", "about", "digits", (), table="table1/cub200")
    assert results_document(recipe, [], "", [], "")["table"] == "table1/cub200"


# -- formats ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(document: Document, single_document: Document) -> list[Run]:
    return [Run("three", document), Run("one", single_document)]


def test_csv_holds_the_numbers_of_the_document(runs: list[Run], document: Document) -> None:
    rows = list(csv.DictReader(io.StringIO(report(runs, "csv"))))
    assert [(row["run"], row["method"]) for row in rows][-2:] == [("one", "E-FT"), ("one", "E-FT+SDC")]
    row = next(row for row in rows if (row["run"], row["method"]) == ("three", "E-FT"))
    values = [e["average_accuracy"][2] for e in document["results"] if e["method"] == "E-FT"]
    assert float(row["A_3"]) == pytest.approx(100 * np.mean(values), abs=1e-5)
    learned = [e["new_task_accuracy"][2] for e in document["results"] if e["method"] == "E-FT"]
    assert float(row["new_3"]) == pytest.approx(100 * np.mean(learned), abs=1e-5)
    assert float(row["A_3_std"]) == pytest.approx(100 * np.std(values, ddof=1), abs=1e-5)
    assert row["seeds"] == "2"
    assert (rows[-1]["A_3"], rows[-1]["A_1_std"], rows[-1]["average_forgetting"]) == ("", "", "")


def test_json_holds_every_metric(runs: list[Run], document: Document) -> None:
    made = json.loads(report(runs, "json"))
    method = next(m for m in made["methods"] if m["name"] == "E-FT+oracle")
    values = [e["overall_accuracy"] for e in document["results"] if e["method"] == "E-FT+oracle"]
    assert method["overall_accuracy"]["mean"] == pytest.approx(np.mean(values, axis=0).tolist())
    assert method["average_forgetting"]["mean"][0] is None
    assert method["accuracy_matrix"]["mean"][0][1] is None
    assert made["facts"]["three: seeds"] == "0, 1"


def test_markdown_is_a_table(runs: list[Run]) -> None:
    first, second = report(runs, "md").strip().split("\n\n")
    lines = [line.strip("|").split("|") for line in first.splitlines()]
    assert len({len(line) for line in lines}) == 1
    assert lines[0][0].strip() == "method"
    assert all(set(cell.strip()) <= {"-", ":"} for cell in lines[1])
    assert "*E-Joint*" in first
    assert "±" in first
    assert "±" not in second


def test_latex_has_as_many_cells_in_every_row(runs: list[Run]) -> None:
    text = report(runs[:1], "latex")
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert r"$\pm$" in text
    assert "±" not in text
    assert "–" not in text


def test_hostile_names_are_escaped_in_every_format(one_seed: Document, evil: str) -> None:
    name = f'{evil} | a_b % $x$ \\input{{/etc/passwd}} ^~#\n, "q"'
    changed = copy.deepcopy(one_seed)
    for entry in changed["results"]:
        if entry["method"] == "E-FT":
            entry["method"] = name
    changed.update(recipe=name, command=name, about=name)
    runs = [Run(name, changed)]
    page = report(runs)
    body_of(page)
    assert page.count("<script") == page.count("</script>")
    assert "alert(1)</script>" not in page
    rows = list(csv.DictReader(io.StringIO(report(runs, "csv"))))
    assert rows[1]["method"] == name
    assert json.loads(report(runs, "json"))["methods"][1]["method"] == name
    markdown = report(runs, "md")
    assert "<script" not in markdown
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in markdown.splitlines()}) == 1
    latex = report(runs, "latex")
    assert r"\input" not in latex
    assert len({len(re.findall(r"(?<!\\)&", line)) for line in latex.splitlines() if line.endswith(r"\\")}) == 1
    for text in (page, markdown, latex):
        text.encode()


def test_latex_escapes_what_latex_reads() -> None:
    assert latex_escape("\\{}&%$#_~^") == (r"\textbackslash{}\{\}\&\%\$\#\_\textasciitilde{}\textasciicircum{}")


# -- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(run_directory: Path, document: Document) -> str:
    (tiny,) = read_runs([run_directory])
    return report([Run("three", document, missing="three has no pictures."), tiny])


def body_of(page: str) -> ET.Element:
    body = page[page.rindex("<body>") : page.rindex("</html>")]
    return ET.fromstring(re.sub(r"<script[^>]*>.*?</script>", "", body, flags=re.DOTALL))


def test_the_page_of_runs_is_whole_and_refers_to_nothing_outside(page: str) -> None:
    ours = page.replace(javascript(), "")
    for pattern in ("http", "src=", "@import", r"url\(", r"\son\w+=", r"href=\"(?!data:,|#s\d)"):
        assert not re.search(pattern, ours, re.IGNORECASE), pattern
    root = body_of(page)
    identifiers = [e.get("id") for e in root.iter("section")]
    assert [e.get("href") for e in root.iter("a")] == [f"#{name}" for name in identifiers]
    assert "nan" not in " ".join(root.itertext()).lower().split()
    findings = [e.findtext(".") or "".join(e.itertext()) for e in root.findall("./header/p")]
    assert [text.split(":")[0] for text in findings] == ["made up", "tiny"]


def test_every_class_in_the_page_has_a_rule(page: str) -> None:
    css = page[page.index("<style>") : page.index("</style>")]
    used = {name for e in body_of(page).iter() for name in e.get("class", "").split()}
    assert {name for name in used if not re.search(rf"\.{name}\b", css)} == set()


def test_the_page_shows_every_figure_and_says_what_is_missing(page: str) -> None:
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    for figure in ("1", "2", "3", "4", "5", "7", "8", "9", "10", "11"):
        assert re.search(rf"Figs?\. [^.)]*\b{figure}\b", page), figure
    assert "tiny: All classes at the end, by t-SNE" in headings
    assert "made up: All classes at the end, by t-SNE" not in headings
    assert "three has no pictures." in page
    for fact in ("protodrift run tiny", "3, 4", "torch", "threads"):
        assert fact in page


def test_runs_on_the_same_tasks_share_a_table(one_seed: Document, single_document: Document) -> None:
    groups = groups_of([Run("a", one_seed), Run("b", single_document), Run("c", one_seed)])
    assert [[run.label for run in group.runs] for group in groups] == [["a", "c"], ["b"]]


def test_methods_are_of_the_kind_that_they_learn_with(document: Document) -> None:
    one = summaries([document])["E-FT"]
    kinds = {name: replace(one, method=METHODS[name]).kind for name in ("E-FT", "E-Joint", "FT", "Joint", "iCaRL-NME")}
    assert list(kinds.values()) == [*["Embedding networks"] * 2, *["Classifying heads"] * 2, "With exemplars"]


def test_each_kind_has_a_chart_of_its_own_and_what_is_nothing_is_not_drawn(document: Document) -> None:
    table = summaries([document])
    more = {name: replace(table["E-FT"], name=name, method=METHODS[name]) for name in ("FT", "iCaRL-NME")}
    drawn = accuracy_section({**table, **more}).body
    assert [(part.name, part.title) for part in drawn if isinstance(part, Figure)] == [
        ("accuracy_networks", "Embedding networks"),
        ("accuracy_heads", "Classifying heads"),
        ("accuracy_exemplars", "With exemplars"),
    ]
    first = distance_section(table)[0].body[0]
    assert isinstance(first, Figure)
    assert {row["method"] for row in reading.rows(first.chart, "line")} == {
        "E-FT",
        "E-FT+SDC",
    }  # E-Fix, oracle: all are 0


def test_distances_compete_only_where_they_can_be_compared(document: Document) -> None:
    table = summaries([document])
    far = table["E-FT"]
    nothing = {**far.metrics, "old_prototype_distance": far["old_prototype_distance"]._replace(mean=np.zeros(3))}
    near = {
        name: replace(far, name=name, method=METHODS[name], metrics=nothing)
        for name in ("E-Fix", "FT*", "iCaRL-NME", "E-Joint")
    }
    (column,) = (c for c in columns({**near, "E-FT": far, "E-FT+SDC": table["E-FT+SDC"]}) if c.heading == "distance")
    assert column.best <= {4, 5}


def test_one_task_makes_a_page(single_document: Document) -> None:
    assert "no drift to draw" in report([Run("one", single_document)])


def test_bars_compare_the_fixed_network_with_the_best_pair(document: Document) -> None:
    table = summaries([document])
    assert bar_names(table) == ["E-Fix", "E-FT", "E-FT+SDC"]
    assert bar_names({name: table[name] for name in ("E-FT", "E-Joint")}) == ["E-FT"]
    assert bar_names({"E-Joint": table["E-Joint"]}) == ["E-Joint"]


# -- figures as files -------------------------------------------------------------------------------------------------


def test_every_figure_of_the_page_becomes_a_file(run_directory: Path, document: Document, tmp_path: Path) -> None:
    (tiny,) = read_runs([run_directory])
    written = write_figures([tiny], tmp_path / "one", "svg")
    assert [path.name for path in written] == [
        "accuracy.svg",
        "final.svg",
        "prototypes.svg",
        "confusion.svg",
        "drift_field.svg",
        "drift_2d_E-FT+SDC.svg",
        "drift_2d_E-LwF+SDC.svg",
        "tsne.svg",
    ]
    assert sorted(written) == sorted((tmp_path / "one").iterdir())
    assert report([tiny]).count('type="application/json"') == len(written)
    both = write_figures([Run("a", document), Run("b", {**document, "data": "other"})], tmp_path / "two", "svg")
    assert len(set(both)) == len(both) == len(list((tmp_path / "two").iterdir()))  # of one recipe, and no file is lost


def test_figures_of_other_formats_are_refused_before_anything_is_drawn(document: Document, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'jpg' of a figure"):
        write_figures([Run("a", document)], tmp_path / "out", "jpg")
    assert not (tmp_path / "out").exists()


def test_tables_need_no_charts_and_the_page_says_what_to_install(
    document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("charts", "figures", "drift_figures", "sections"):
        monkeypatch.delitem(sys.modules, f"protodrift.report.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "altair", None)
    runs = [Run("a", document)]
    for form in ("csv", "json", "md", "latex"):
        assert "E-FT+SDC" in report(runs, form)
    assert "E-FT+SDC" in summary_text(document)
    with pytest.raises(InputError, match=r"pip install 'protodrift\[report\]' \(altair is missing\)"):
        report(runs)


# -- run directories --------------------------------------------------------------------------------------------------


def test_pictures_come_back_as_they_were_taken(run_directory: Path) -> None:
    found = pictures.read(run_directory)
    assert list(found) == ["E-FT+SDC", "E-LwF+SDC"]
    picture = found["E-FT+SDC"]
    assert (picture.seed, picture.tasks) == (3, ((0, 1), (2, 3)))
    assert picture.z_old.shape == picture.z_new.shape == (120, 2)
    assert picture.panels is not None
    distance = (picture.moved - picture.true).norm(dim=1).mean()
    entry = next(e for e in read_results(run_directory)["results"] if (e["method"], e["seed"]) == ("E-FT+SDC", 3))
    assert float(distance) == pytest.approx(entry["old_prototype_distance"][-1], rel=1e-5)


def _again(run_directory: Path, out: Path) -> None:
    document = read_results(run_directory)
    methods = summaries([document])
    recipe = Recipe(
        "tiny",
        "two tasks of two digits",
        "digits",
        tuple((name, one.method) for name, one in methods.items()),
        classes=((0, 1), (2, 3)),
        network=Network(embedding_dim=2, normalize=False),
        training=_training(run_directory),
    )
    run(recipe, out, seeds=(3, 4), command="protodrift run tiny")


def _training(run_directory: Path) -> Any:
    from protodrift.common.config import decode

    return decode(json.loads((run_directory / "run.json").read_text())["identity"]["training"])


def test_a_finished_run_takes_no_picture_twice_and_a_damaged_one_anew(run_directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(run_directory, out)
    before = (out / "pictures" / "manifest.json").stat().st_ino
    _again(run_directory, out)
    assert (out / "pictures" / "manifest.json").stat().st_ino == before
    target = out / "pictures" / "0.safetensors"
    whole = target.read_bytes()
    target.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for left in (".pictures-new", ".new-.pictures-new", ".pictures-gone"):  # by a process that was killed
        (out / left).mkdir()
        (out / left / "part").touch()
    _again(run_directory, out)
    assert target.read_bytes() == whole
    assert not [p.name for p in out.iterdir() if "pictures-" in p.name]


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "manifest", "not json", "version"])
def test_damaged_pictures_are_said_and_the_rest_is_shown(run_directory: Path, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "copy"
    shutil.copytree(run_directory, out)
    tensors, manifest = out / "pictures" / "0.safetensors", out / "pictures" / "manifest.json"
    content = tensors.read_bytes()
    if damage == "flip":
        tensors.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "truncate":
        tensors.write_bytes(content[: len(content) // 2])
    elif damage == "delete":
        tensors.unlink()
    elif damage == "manifest":
        manifest.write_text(manifest.read_text().replace('"seed": 3', '"seed": 4'))
    elif damage == "not json":
        manifest.write_text("{")
    else:
        manifest.write_text(manifest.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(RunError, match="pictures"):
        pictures.read(out)
    (made,) = read_runs([out])
    text = report([made])
    assert "What is not shown" in text
    assert "pictures is damaged" in text
    assert "Distance of prototypes" in text


def test_a_run_without_pictures_says_so(run_directory: Path, tmp_path: Path) -> None:
    shutil.copy(run_directory / "results.json", tmp_path)
    text = report(read_runs([tmp_path]))
    assert "no folder of pictures" in text
    assert "What is not shown" in text


def test_pictures_of_methods_that_the_results_do_not_hold_are_left_out(run_directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(run_directory, out)
    document = json.loads((out / "results.json").read_text())
    document["results"] = [e for e in document["results"] if e["method"] != "E-LwF+SDC"]
    (out / "results.json").write_text(json.dumps(document))
    (made,) = read_runs([out])
    assert list(made.pictures) == ["E-FT+SDC"]


def test_directories_that_are_no_runs(tmp_path: Path, one_seed: Document, write_run: Write) -> None:
    with pytest.raises(RunError, match="no finished run"):
        read_runs([tmp_path])
    with pytest.raises(RunError, match="is not there"):
        read_runs([tmp_path / "nowhere"])
    newer = write_run("newer", one_seed, format_version=2)
    with pytest.raises(RunError, match="format version 2"):
        read_runs([newer])
    (newer / "results.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        read_runs([newer])
    (newer / "results.json").write_text("[]")
    with pytest.raises(RunError, match="does not hold protodrift results"):
        read_runs([newer])


def test_runs_are_called_by_their_folders_and_apart(write_run: Write, one_seed: Document) -> None:
    a, b, c = (write_run(name, one_seed) for name in ("x/run", "y/run", "z/other"))
    made = read_runs([a, b, c, a / "../run"])
    assert [run.label for run in made] == ["x/run", "y/run", "z/other"]
    (group,) = groups_of(made)
    assert len(group.summaries) == 3 * len(one_seed["results"])
    assert "E-FT (z/other)" in group.summaries
    for form in FORMATS:
        assert report(made, form)


def test_too_many_classes_for_a_matrix_leave_the_figure_out(one_seed: Document, write_run: Write) -> None:
    entries = [{**entry, "confusion": None} for entry in one_seed["results"]]
    (found,) = read_runs([write_run("many", one_seed, results=entries)])
    assert summaries([found.document])["E-FT"].confusion is None
    page = report([found])
    assert "Confusion before and after SDC" not in page
    assert "too many classes for a matrix" in page
    assert json.loads(report([found], "json"))["methods"][0]["confusion"] is None
