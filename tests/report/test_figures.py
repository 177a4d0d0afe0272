from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import vl_convert
from PIL import Image

from protodrift import METHODS, SDC, Method, Training
from protodrift.drift import Oracle
from protodrift.errors import InputError
from protodrift.exemplars import Everything
from protodrift.experiments.samples import PER_CLASS, Picture, sample, take
from protodrift.experiments.setup import Network
from protodrift.experiments.tree import Tree
from protodrift.report import Summary, pairs, style, summaries
from protodrift.report.charts import FILES, Chart, _version, save, specification
from protodrift.report.drift_figures import drift_field, drift_panels, drift_text, field_text, tsne_map
from protodrift.report.figures import (
    class_distances,
    confusion,
    curves,
    final_bars,
    looks,
)
from tests.report.reading import layers, rows

Results = dict[str, Summary]

SOLID, DASHED, DOTTED = (1, 0), (7, 4), (1.5, 3.5)


@pytest.fixture(scope="module")
def picture(flat: Tree, flat_method: Method) -> Picture:
    return take(flat, "E-FT+SDC", flat_method)


@pytest.fixture(scope="module")
def all_charts(document: dict[str, Any], picture: Picture) -> dict[str, Chart]:
    table = summaries([document])
    matrix = table["E-FT"].confusion
    assert matrix is not None
    return {
        "curves": curves(table),
        "distance": curves(table, "old_prototype_distance"),
        "bars": final_bars(table, ["E-Fix", "E-FT", "E-FT+SDC"]),
        "classes": class_distances(*pairs(table)[0]),
        "confusion": confusion({"E-FT": matrix}, table["E-FT"].classes, [3, 2, 2]),
        "panels": drift_panels(picture),
        "field": drift_field(picture),
        "t-SNE": tsne_map(picture),
    }


# -- every chart ------------------------------------------------------------------------------------------------------


def test_every_chart_is_valid_and_is_drawn(all_charts: dict[str, Chart]) -> None:
    for name, chart in all_charts.items():
        chart.to_dict()  # validates; production does not, for speed
        drawn = vl_convert.vegalite_to_svg(specification(chart), vl_version=_version())
        assert len(re.findall(r"<path", drawn)) > 10, name
        assert "NaN" not in drawn, name
        assert "undefined" not in drawn, name


def test_every_color_is_a_variable_of_the_style_sheet(all_charts: dict[str, Chart]) -> None:
    known = set(re.findall(r"(--\w+):", style()))
    for name, chart in all_charts.items():
        text = str(specification(chart))
        assert {"--c0", "--muted"} & set(re.findall(r"var\((--\w+)\)", text)), name
        assert set(re.findall(r"var\((--\w+)\)", text)) <= known
        assert not re.findall(r"'#[0-9a-f]{3,8}'", text), "a color that dark paper does not change"


def test_a_legend_singles_out_in_every_chart_that_has_one(all_charts: dict[str, Chart]) -> None:
    fields = {"curves": "method", "bars": "method", "classes": "learned in task", "panels": "class", "t-SNE": "class"}
    for name, field in fields.items():
        (pick,) = (p for p in specification(all_charts[name])["params"] if p["name"] == "pick")
        assert (pick["bind"], pick["select"]["fields"]) == ("legend", [field])
        assert any(pick["name"] in str(layer["encoding"].get("opacity")) for layer in layers(all_charts[name]))


@pytest.mark.parametrize(("form", "start"), [("pdf", b"%PDF"), ("png", b"\x89PNG"), ("svg", b"<svg")])
def test_a_chart_becomes_a_file_in_the_colors_of_the_light_page(
    results: Results, tmp_path: Path, form: str, start: bytes
) -> None:
    path = tmp_path / "new" / f"accuracy.{form}"
    save(curves(results), path)
    assert path.read_bytes().startswith(start)
    first = re.search(r"--c0: (#\w{6})", style())
    assert first is not None
    if form == "svg":
        assert first[1] in path.read_text()
        assert "var(" not in path.read_text()
    if form == "png":
        image = Image.open(path).convert("RGB")
        assert image.width > 2000  # 680 units at 300 dots per inch
        found = {color for _, color in image.getcolors(1 << 24)}
        assert {(255, 255, 255), tuple(bytes.fromhex(first[1][1:]))} <= found


def test_files_of_other_kinds_are_refused(results: Results, tmp_path: Path) -> None:
    assert FILES == ("pdf", "png", "svg")
    with pytest.raises(InputError, match=r"'jpg'.*'pdf'"):
        save(curves(results), tmp_path / "a.jpg")
    assert list(tmp_path.iterdir()) == []


# -- curves -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["average_accuracy", "overall_accuracy", "average_forgetting", "new_task_accuracy"])
def test_curves_show_the_values_of_the_results(results: Results, metric: str) -> None:
    drawn = {(row["method"], row["task"]): row for row in rows(curves(results, metric), "line")}
    assert len(drawn) == 3 * len(results)
    for name, result in results.items():
        for k, value in enumerate(result[metric].mean, 1):
            shown = drawn[name, k]["value"]
            assert shown is None if np.isnan(value) else shown == pytest.approx(100 * value, abs=1e-3)
            assert drawn[name, k]["low"] is None  # one seed


def test_tooltips_say_the_numbers(document: dict[str, Any]) -> None:
    table = summaries([document])
    one = table["E-FT"]
    chart = curves(table)
    row = next(row for row in rows(chart, "point", "tooltip") if (row["method"], row["task"]) == ("E-FT", 3))

    def text(spread: Any) -> str:
        return f"{100 * spread.mean[2]:.1f} ± {100 * spread.std[2]:.1f} %"

    assert row["A"] == text(one["average_accuracy"])
    assert row["task just learned"] == text(one["new_task_accuracy"])
    assert row["F"] == text(one["average_forgetting"])
    (told,) = (layer["encoding"]["tooltip"] for layer in layers(chart) if "tooltip" in layer["encoding"])
    assert [entry["field"] for entry in told][:4] == ["method", "task", "A", "task just learned"]


def test_several_seeds_have_error_bars_that_stay_in_what_can_be(document: dict[str, Any], results: Results) -> None:
    table = summaries([document])
    curve = table["E-FT"]["average_accuracy"]
    row = next(row for row in rows(curves(table), "rule") if (row["method"], row["task"]) == ("E-FT", 3))
    assert row["low"] == pytest.approx(100 * (curve.mean[2] - curve.std[2]), abs=1e-3)
    assert row["high"] == pytest.approx(min(100.0, 100 * (curve.mean[2] + curve.std[2])), abs=1e-3)
    assert max(row["high"] for row in rows(curves(table), "rule")) <= 100
    assert rows(curves(results), "rule") == []


def test_the_mean_that_crowded_curves_are_compared_with(results: Results) -> None:
    drawn = rows(curves(results), "line")
    means = [100 * np.mean([one["average_accuracy"].mean[k] for one in results.values()]) for k in range(3)]
    assert [row["mean"] for row in drawn if row["method"] == "E-FT"] == pytest.approx(means, abs=1e-3)


def test_rows_of_one_training_share_color_and_shape(results: Results) -> None:
    methods = {**METHODS, "E-FT+oracle": Method(drift=Oracle()), "E-FT+SDC2": Method(drift=SDC(sigma=2.0))}
    methods = {name: method for name, method in methods.items() if not method.objective.classifies}
    styles = looks({name: replace(results["E-FT"], method=method) for name, method in methods.items()})
    for name in ("E-FT", "E-LwF", "E-EWC", "E-MAS"):
        plain, moved = styles[name], styles[f"{name}+SDC"]
        assert (plain.color, plain.shape) == (moved.color, moved.shape)
        assert (plain.dash, moved.dash) == (DASHED, SOLID)
        assert (plain.fill, moved.fill) == ("var(--paper)", moved.color)  # hollow and full markers
    assert styles["E-FT"].color != styles["E-EWC"].color
    assert styles["E-FT+oracle"].dash == styles["E-Joint"].dash == DOTTED
    assert styles["E-Pre"].color == styles["E-Fix"].color == "var(--c8)"  # gray: they stay as they are
    seen = {(style.color, style.shape, tuple(style.dash)) for style in styles.values()}
    assert len(seen) == len(styles)


def test_where_nothing_is_compensated_lines_are_solid(results: Results) -> None:
    styles = looks({name: results[name] for name in ("E-Fix", "E-FT", "E-Joint")})
    assert [style.dash for style in styles.values()] == [SOLID, SOLID, DOTTED]


def test_twenty_trainings_look_different(results: Results) -> None:
    table = {f"m{i}": replace(results["E-FT"], method=Method(), run=f"run {i}") for i in range(20)}
    assert len({(look.color, look.shape) for look in looks(table).values()}) == 20


def test_wrong_input_of_curves(results: Results) -> None:
    with pytest.raises(ValueError, match="Did you mean 'average_accuracy'"):
        curves(results, "average_acuracy")
    with pytest.raises(ValueError, match="no results"):
        curves({})


# -- distances, confusion, bars ---------------------------------------------------------------------------------------


def test_a_thin_line_per_old_class_and_the_mean_in_bold(results: Results) -> None:
    ((plain, moved),) = pairs(results)
    assert (plain.name, moved.name) == ("E-FT", "E-FT+SDC")
    drawn = list(layers(class_distances(plain, moved)))
    assert [layer["panel"].split(":")[0] for layer in drawn] == ["E-FT", "E-FT", "E-FT+SDC", "E-FT+SDC"]
    for one, thin, bold in ((plain, *drawn[:2]), (moved, *drawn[2:])):
        assert {row["class"] for row in thin["rows"]} == {"0", "1", "2", "3", "4"}  # those of the last have not drifted
        shown = {(row["class"], row["task"]): row["value"] for row in thin["rows"]}
        assert shown["0", 3] == pytest.approx(one["prototype_distance"].mean[2, 0], abs=1e-3)
        assert ("3", 1) not in shown
        means = one["old_prototype_distance"].mean[1:].tolist()
        assert [row["value"] for row in bold["rows"]] == pytest.approx(means, abs=1e-3)
    ends = {tuple(layer["encoding"]["y"]["scale"]["domain"]) for layer in drawn}
    assert len(ends) == 1  # panels on one axis


def test_confusion_cells_tell_their_numbers(results: Results) -> None:
    one = results["E-FT"]
    assert one.confusion is not None
    found = {
        (row["true class"], row["taken for"]): row
        for row in rows(confusion({one.name: one.confusion}, one.classes, [3, 2, 2]), "rect")
    }
    for i, truth in enumerate(one.classes):
        for j, guess in enumerate(one.classes):
            assert ((str(truth), str(guess)) in found) == (one.confusion[i, j] > 0)
            if one.confusion[i, j]:
                row = found[str(truth), str(guess)]
                assert row["images"] == f"{one.confusion[i, j]} of {one.confusion[i].sum()}"
                assert (row["x"], row["y"]) == (j, i)


def test_confusion_works_with_two_hundred_classes() -> None:
    rng = np.random.RandomState(0)
    wide = np.zeros((200, 200), dtype=np.int64)
    np.add.at(wide, (rng.randint(0, 200, 6000), rng.randint(0, 200, 6000)), 1)
    chart = confusion({"": wide}, [f"class {i}" for i in range(200)], [50] * 4)
    assert [row["at"] for row in rows(chart, "rule", "x")] == [0, 50, 100, 150, 200]
    assert len(str(specification(chart))) < 1_500_000


def test_bars_show_the_last_row_of_the_accuracy_matrix(document: dict[str, Any]) -> None:
    table = summaries([document])
    shown = {(row["method"], row["task"]): row for row in rows(final_bars(table, ["E-Fix", "E-FT"]), "bar")}
    for name in ("E-Fix", "E-FT"):
        last, std = 100 * table[name]["accuracy_matrix"].mean[-1], 100 * table[name]["accuracy_matrix"].std[-1]
        for k in range(3):
            assert shown[name, k + 1]["value"] == pytest.approx(last[k], abs=1e-3)
            assert shown[name, k + 1]["accuracy"] == f"{last[k]:.1f} ± {std[k]:.1f} %"
    with pytest.raises(ValueError, match="Did you mean 'E-FT'"):
        final_bars(table, ["EFT"])


# -- pictures ---------------------------------------------------------------------------------------------------------


def markers(panel: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for layer in panel:
        for row in layer["rows"] if "shape" in layer["encoding"] else ():
            found[row["what"]] = found.get(row["what"], 0) + 1
    return found


def by_panel(chart: Chart) -> list[list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for layer in layers(chart):
        found.setdefault(layer["panel"], []).append(layer)
    return list(found.values())


def test_fig4_has_one_marker_of_each_kind_per_old_class(picture: Picture) -> None:
    first, current, both = by_panel(drift_panels(picture))
    assert markers(first) == markers(current) == {"saved prototype": 3}
    assert markers(both) == {"saved prototype": 3, "moved by SDC": 3, "true mean": 3}
    for panel, classes in ((first, "012"), (current, "34"), (both, "01234")):
        images = panel[0]["rows"]
        assert {row["class"] for row in images} == set(classes)
        assert all(1 <= sum(row["class"] == name for row in images) <= PER_CLASS for name in classes)
    arrows = [row for layer in both if layer["mark"]["type"] == "rule" for row in layer["rows"]]
    assert len(arrows) == 3


def test_panels_have_the_same_square_axes_and_colors(picture: Picture) -> None:
    seen = list(layers(drift_panels(picture)))
    axes = {
        tuple(map(tuple, (e["x"]["scale"]["domain"], e["y"]["scale"]["domain"]))) for e in (s["encoding"] for s in seen)
    }
    ((x, y),) = axes
    assert x[1] - x[0] == pytest.approx(y[1] - y[0])  # a distance is a distance in every direction
    scales = [s["encoding"]["color"]["scale"] for s in seen if "scale" in s["encoding"].get("color", {})]
    assert all(scale == scales[0] for scale in scales)
    assert scales[0]["domain"] == ["0", "1", "2", "3", "4"]
    assert len(set(scales[0]["range"])) == 5


def test_fig4_measures_what_it_shows(picture: Picture, flat: Tree, flat_method: Method) -> None:
    true = flat.true_means(flat_method, 2)[:3]
    saved = flat.prototypes(flat_method, 1).means
    moved = flat.prototypes(flat_method, 2).means[:3]
    for means in (saved, moved):
        assert f"{float((means - true).norm(dim=1).mean()):.2f}" in drift_text(picture)


def _made_up(z_old: torch.Tensor, z_new: torch.Tensor, means: torch.Tensor, moved: torch.Tensor) -> Picture:
    targets = torch.arange(len(z_old)) % 2 + 2
    return Picture(
        "m", 0, (("a", "b"), ("c", "d")), z_old, z_new, targets, z_new, targets, means, moved, moved, means.clone()
    )


def test_arrows_point_from_old_to_new() -> None:
    start = torch.zeros(4, 2)
    end = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [0.0, 0.0]])
    shot = _made_up(start, end, torch.zeros(2, 2), torch.tensor([[float("nan"), 0.0], [1.0, 1.0]]))
    chart = drift_field(shot)
    shafts = rows(chart, "rule")
    assert [(row["x"], row["y"], row["x2"], row["y2"]) for row in shafts[:3]] == [(0, 0, *e) for e in end[:3].tolist()]
    heads = {(row["x"], row["y"]): row["angle"] for row in rows(chart, "point", "angle")}
    assert heads == {(0, 1): 0, (1, 0): 90, (0, -1): 180, (1, 1): 45}  # what did not move has no head


def test_pictures_refuse_what_they_cannot_draw(flat: Tree, flat_method: Method) -> None:
    wide = Tree(flat.stream, network=Network(embedding_dim=16), training=Training(epochs=0))
    with pytest.raises(ValueError, match="16 dimensions"):
        drift_panels(take(wide, "x", flat_method))
    short = Tree(flat.stream[:1], network=flat.network, training=Training(epochs=0))
    with pytest.raises(ValueError, match="second task"):
        take(short, "x", flat_method)
    for drift in (None, Oracle()):
        with pytest.raises(ValueError, match="can be drawn"):
            take(flat, "x", replace(flat_method, drift=drift))
    with pytest.raises(ValueError, match="without exemplars"):
        drift_panels(take(flat, "x", replace(flat_method, exemplars=Everything())))
    nowhere = torch.full((2, 2), torch.nan)
    with pytest.raises(ValueError, match="no finite point"):
        drift_field(_made_up(nowhere, nowhere, nowhere, nowhere))


def test_the_field_draws_the_drift_of_images_as_it_is_in_two_dimensions(picture: Picture) -> None:
    (panel,) = by_panel(drift_field(picture))
    thin, _, dotted, *_ = panel
    ends = [(row["x"], row["y"], row["x2"], row["y2"]) for row in thin["rows"]]
    expected = torch.cat([picture.z_old, picture.z_new], dim=1)
    assert ends == [pytest.approx(row, abs=1e-3) for row in expected.tolist()]
    assert len(dotted["rows"]) == 3
    assert markers(panel) == {"saved prototype": 3, "moved by SDC": 3, "true mean": 3}
    assert "dimensions" not in field_text(picture)


def test_the_field_of_a_large_embedding_says_that_it_is_a_projection() -> None:
    torch.manual_seed(0)
    z = torch.randn(40, 9) * torch.tensor([5.0, 3.0, *[0.1] * 7])
    means = torch.randn(2, 9)
    shot = _made_up(z, z + 1, means, means + 1)
    assert "9 dimensions" in field_text(shot)
    assert re.search(r"hold (99|100) %", field_text(shot))
    assert specification(drift_field(shot))["concat"][0]["title"] == "m: 3.000 → 0.000"  # of the whole space


def test_tsne_shows_images_and_prototypes_and_is_the_same_every_time(picture: Picture) -> None:
    chart = tsne_map(picture)
    (panel,) = by_panel(chart)
    assert len(panel[0]["rows"]) == len(picture.z_test)
    assert markers(panel) == {"saved prototype": 3, "moved by SDC": 3, "true mean": 3, "new prototype": 2}
    assert specification(tsne_map(picture)) == specification(chart)


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.filterwarnings("ignore::RuntimeWarning:sklearn")
def test_an_embedding_that_collapsed_is_still_drawn(dim: int) -> None:
    z, means = torch.ones(12, dim), torch.ones(2, dim)
    shot = _made_up(z, z, means, means)
    for chart in (drift_field(shot), tsne_map(shot)):
        (panel,) = by_panel(chart)
        domain = panel[0]["encoding"]["x"]["scale"]["domain"]
        assert domain[1] > domain[0]
        assert "nan" not in str(specification(chart))


def test_a_sample_is_even_and_bounded() -> None:
    targets = torch.arange(30).repeat_interleave(100)
    chosen = sample(targets, per_class=60, in_all=600)
    assert targets[chosen].bincount().tolist() == [20] * 30
    assert len(sample(torch.arange(1000), in_all=600)) == 600
    assert len(sample(targets[:0])) == 0
