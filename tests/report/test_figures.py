from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from protodrift import METHODS, SDC, Dataset, Method, TaskStream, Training
from protodrift.data import load_digits
from protodrift.drift import Oracle
from protodrift.exemplars import Everything
from protodrift.experiments.samples import PER_CLASS, Picture, sample, take
from protodrift.experiments.setup import Network
from protodrift.experiments.tree import Tree
from protodrift.report import (
    Summary,
    accuracy_curves,
    class_distances,
    confusion_matrices,
    distance_curves,
    drift_field,
    drift_panels,
    final_bars,
    pairs,
    summaries,
    tsne_map,
)
from protodrift.report.figures import line_styles
from protodrift.report.svg import DASHED, DOTTED, SOLID

Results = dict[str, Summary]


def count(root: ET.Element, name: str) -> int:
    return sum(name in e.get("class", "").split() for e in root.iter())


def titles(text: str) -> set[str]:
    return {e.text or "" for e in ET.fromstring(f"<div>{text}</div>").iter("title")}


# -- curves -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["average_accuracy", "overall_accuracy", "average_forgetting"])
def test_curves_show_the_values_of_the_results(results: Results, metric: str) -> None:
    text = accuracy_curves(results, metric)  # type: ignore[arg-type]
    for name, result in results.items():
        for k, value in enumerate(getattr(result, metric).mean, 1):
            assert (f"{name}, task {k}: {round(100 * value, 1) + 0.0:.1f} %" in titles(text)) == (value == value)
    assert "nan" not in text
    assert "pd-error" not in text


def test_curves_of_several_seeds_have_error_bars(document: dict[str, Any]) -> None:
    table = summaries([document])
    text = accuracy_curves(table)
    curve = table["E-FT"].average_accuracy
    assert f"E-FT, task 3: {100 * curve.mean[2]:.1f} ± {100 * curve.std[2]:.1f} %" in titles(text)
    bars = sum(bool(np.sum(one.average_accuracy.std[k] > 0)) for one in table.values() for k in range(3))
    assert count(ET.fromstring(text), "pd-error") == bars > 0
    assert "standard deviation over seeds" in text


def test_distances_start_with_the_second_task(results: Results) -> None:
    found = titles(distance_curves(results))
    assert f"E-FT, task 2: {results['E-FT'].old_prototype_distance.mean[1]:.3f}" in found
    assert not any(", task 1:" in title for title in found)


def test_one_task_has_no_forgetting_and_still_a_picture(single: Results) -> None:
    for text in (accuracy_curves(single, "average_forgetting"), distance_curves(single)):
        ET.fromstring(text)
        assert "no values yet" in text


def test_rows_of_one_training_share_a_color(results: Results) -> None:
    methods = {**METHODS, "E-FT+oracle": Method(drift=Oracle()), "E-FT+SDC2": Method(drift=SDC(sigma=2.0))}
    methods = {name: method for name, method in methods.items() if not method.objective.classifies}
    styles = line_styles({name: replace(results["E-FT"], method=method) for name, method in methods.items()})
    for name in ("E-FT", "E-LwF", "E-EWC", "E-MAS"):
        assert styles[name].color == styles[f"{name}+SDC"].color
        assert (styles[name].dash, styles[f"{name}+SDC"].dash) == (DASHED, SOLID)
    assert styles["E-FT"].color != styles["E-EWC"].color
    assert styles["E-FT+oracle"].dash == styles["E-Joint"].dash == DOTTED
    assert len({(style.color, style.dash) for style in styles.values()}) == len(styles)


def test_where_nothing_is_compensated_lines_are_solid(results: Results) -> None:
    table = {name: results[name] for name in ("E-Fix", "E-FT", "E-Joint")}
    assert [style.dash for style in line_styles(table).values()] == [SOLID, SOLID, DOTTED]
    text = accuracy_curves(table)
    assert "compensated" not in text
    assert "Dotted: upper bound" in text


def test_wrong_input_of_curves(results: Results) -> None:
    with pytest.raises(ValueError, match="Did you mean 'average_accuracy'"):
        accuracy_curves(results, "average_acuracy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no results"):
        accuracy_curves({})


# -- distances, confusion, bars ---------------------------------------------------------------------------------------


def test_a_thin_line_an_old_class_and_the_mean_in_bold(results: Results) -> None:
    ((plain, moved),) = pairs(results)
    assert (plain.name, moved.name) == ("E-FT", "E-FT+SDC")
    text = class_distances(plain, moved)
    root = ET.fromstring(text)
    assert count(root, "pd-class") == 2 * 5  # the classes of the last task have not drifted
    assert count(root, "pd-mean") == 2
    for one in (plain, moved):
        assert f"mean, task 3: {one.old_prototype_distance.mean[-1]:.3f}" in titles(text)
    assert f"class 0: {moved.prototype_distance.mean[-1, 0]:.3f} at the end" in titles(text)


def test_confusion_cells_tell_their_numbers(results: Results) -> None:
    one = results["E-FT"]
    text = confusion_matrices(one)
    found = titles(text)
    for i, truth in enumerate(one.classes):
        for j, guess in enumerate(one.classes):
            what = f"{truth} recognized" if i == j else f"{truth} taken for {guess}"
            there = f"{what}: {one.confusion[i, j]} of {one.confusion[i].sum()}" in found
            assert there == (one.confusion[i, j] > 0)


def test_confusion_works_with_two_hundred_classes(results: Results) -> None:
    rng = np.random.RandomState(0)
    wide = np.zeros((200, 200), dtype=np.int64)
    np.add.at(wide, (rng.randint(0, 200, 6000), rng.randint(0, 200, 6000)), 1)
    tasks = tuple(tuple(f"class {50 * t + i}" for i in range(50)) for t in range(4))
    text = confusion_matrices(replace(results["E-FT"], confusion=wide, tasks=tasks))
    assert count(ET.fromstring(text), "pd-border") == 3
    assert len(text) < 1_500_000


def test_bars_show_the_last_row_of_the_accuracy_matrix(document: dict[str, Any]) -> None:
    table = summaries([document])
    text = final_bars(table, ["E-Fix", "E-FT", "E-FT+SDC"])
    for name in ("E-Fix", "E-FT", "E-FT+SDC"):
        last, std = 100 * table[name].accuracy_matrix.mean[-1], 100 * table[name].accuracy_matrix.std[-1]
        for k in range(3):
            assert f"{name}, task {k + 1}: {last[k]:.1f} ± {std[k]:.1f} %" in titles(text)
    with pytest.raises(ValueError, match="Did you mean 'E-FT'"):
        final_bars(table, ["EFT"])


# -- pictures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def picture(flat: Tree, flat_method: Method) -> Picture:
    return take(flat, "E-FT+SDC", flat_method)


def test_fig4_has_one_marker_of_each_kind_an_old_class(picture: Picture) -> None:
    root = ET.fromstring(drift_panels(picture))
    panels = [e for e in root.iter("svg") if e.get("class") == "pd-panel"]
    assert len(panels) == 3
    old = 3
    for panel, expected in zip(panels, [(old, 0, 0, 0), (old, 0, 0, 0), (old, old, old, old)], strict=True):
        found = tuple(count(panel, name) for name in ("pd-circle", "pd-triangle", "pd-star", "pd-arrow"))
        assert found == expected
    assert [count(panel, "pd-cloud") for panel in panels] == [3, 2, 5]
    for cloud in (e for panel in panels for e in panel.iter("g") if "pd-cloud" in e.get("class", "")):
        assert 1 <= len(cloud.findall("circle")) <= PER_CLASS
        assert cloud.find("title") is not None


def test_fig4_draws_a_class_in_one_color_everywhere(picture: Picture) -> None:
    colors: dict[str, set[str]] = {}
    for group in ET.fromstring(drift_panels(picture)).iter("g"):
        name = re.match(r"class (\w+)", group.findtext("title") or "")
        color = re.search(r"pd-c\d", group.get("class", ""))
        if name and color:
            colors.setdefault(name[1], set()).add(color[0])
    assert sorted(colors) == ["0", "1", "2", "3", "4"]
    assert all(len(used) == 1 for used in colors.values())
    assert len(set.union(*colors.values())) == 5


def test_fig4_measures_what_it_shows(picture: Picture, flat: Tree, flat_method: Method) -> None:
    true = flat.true_means(flat_method, 2)[:3]
    saved = flat.prototypes(flat_method, 1).means
    moved = flat.prototypes(flat_method, 2).means[:3]
    text = drift_panels(picture)
    for means in (saved, moved):
        assert f"{float((means - true).norm(dim=1).mean()):.2f}" in text


def test_fig4_escapes_the_names_of_classes(flat_method: Method, evil: str) -> None:
    digits = load_digits()
    names = {0: evil, 1: "b & c", 2: "d", 3: 'e"'}
    train, test = (part.of_classes(names) for part in (digits.train, digits.test))  # type: ignore[union-attr]
    train_y, test_y = ([names[int(label)] for label in part.labels] for part in (train, test))
    data = Dataset(train.images, train_y, test.images, test_y)
    stream = TaskStream(data, classes=[[evil, "b & c"], ["d", 'e"']])
    tree = Tree(stream, network=Network(embedding_dim=2, normalize=False), training=Training(epochs=0))
    shot = take(tree, evil, flat_method)
    for text in (drift_panels(shot), drift_field(shot), tsne_map(shot)):
        ET.fromstring(text)
        assert "<script" not in text
        assert "<b>" not in text


def test_pictures_refuse_what_they_cannot_draw(flat: Tree, flat_method: Method) -> None:
    wide = Tree(flat.stream, network=Network(embedding_dim=16), training=Training(epochs=0))
    with pytest.raises(ValueError, match="16 dimensions"):
        drift_panels(take(wide, "x", flat_method))
    short = Tree(flat.stream[:1], network=flat.network, training=Training(epochs=0))
    with pytest.raises(ValueError, match="second task"):
        take(short, "x", flat_method)
    for drift in (None, Oracle()):
        with pytest.raises(ValueError, match=r"drift=SDC\(sigma=...\)"):
            take(flat, "x", replace(flat_method, drift=drift))
    with pytest.raises(ValueError, match="without memory"):
        drift_panels(take(flat, "x", replace(flat_method, exemplars=Everything())))


def test_the_field_draws_the_drift_of_images_as_it_is_in_two_dimensions(picture: Picture) -> None:
    text = drift_field(picture)
    root = ET.fromstring(text)
    assert count(root, "pd-thin") - 1 == len(picture.z_old)  # one is the sample in the legend
    assert tuple(count(root, f"pd-{name}") for name in ("circle", "triangle", "star", "arrow")) == (3, 3, 3, 3)
    assert "dimensions" not in text


def test_the_field_of_a_large_embedding_says_that_it_is_a_projection() -> None:
    torch.manual_seed(0)
    z = torch.randn(40, 9) * torch.tensor([5.0, 3.0, *[0.1] * 7])
    means = torch.randn(2, 9)
    rows = torch.arange(40) % 2 + 2
    shot = Picture(
        "m", 0, (("a", "b"), ("c", "d")), z, z + 1, rows, z, rows, means, means + 1, means + 1, means.clone()
    )
    text = drift_field(shot)
    assert "9 dimensions" in text
    assert re.search(r"hold (99|100) %", text)
    assert "3.000 → 0.000" in text  # the length of (1, ..., 1) in the whole space


def test_tsne_shows_images_and_prototypes_and_is_the_same_every_time(picture: Picture) -> None:
    text = tsne_map(picture)
    root = ET.fromstring(text)
    assert "t-SNE of a sample" in text
    assert sum(len(e.findall("circle")) for e in root.iter("g") if "pd-cloud" in e.get("class", "")) == len(
        picture.z_test
    )
    assert tuple(count(root, f"pd-{name}") for name in ("circle", "triangle", "star", "diamond")) == (3, 3, 3, 2)
    assert tsne_map(picture) == text


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.filterwarnings("ignore::RuntimeWarning:sklearn")
def test_an_embedding_that_collapsed_is_still_drawn(dim: int) -> None:
    z, means, rows = torch.ones(12, dim), torch.ones(2, dim), torch.arange(12) % 2 + 2
    shot = Picture("m", 0, (("a", "b"), ("c", "d")), z, z, rows, z, rows, means, means, means, means)
    for text in (drift_field(shot), tsne_map(shot)):
        ET.fromstring(text)
        assert "nan" not in text


def test_a_sample_is_even_and_bounded() -> None:
    rows = torch.arange(30).repeat_interleave(100)
    chosen = sample(rows, per_class=60, in_all=600)
    assert rows[chosen].bincount().tolist() == [20] * 30
    assert len(sample(torch.arange(1000), in_all=600)) == 600
    assert len(sample(rows[:0])) == 0
