from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from protodrift import METHODS, SDC, Dataset, Method, Oracle, TaskStream, Training
from protodrift.data import load_digits
from protodrift.memory import Everything
from protodrift.report import accuracy_curves, distance_curves, drift_panels
from protodrift.report.figures import POINTS_PER_CLASS, line_styles
from protodrift.report.svg import DASHED, DOTTED, SOLID
from protodrift.stages import MethodResult, Network, Tree

Results = dict[str, MethodResult]


def count(root: ET.Element, name: str) -> int:
    return sum(name in e.get("class", "").split() for e in root.iter())


@pytest.mark.parametrize("metric", ["average_accuracy", "overall_accuracy", "average_forgetting"])
def test_curves_show_the_values_of_the_results(results: Results, metric: str) -> None:
    text = accuracy_curves(results, metric)  # type: ignore[arg-type]
    titles = {e.text for e in ET.fromstring(text).iter("title")}
    for name, result in results.items():
        for k, value in enumerate(getattr(result, metric), 1):
            assert (f"{name}, task {k}: {100 * value:.1f} %" in titles) == (value == value)
    assert "nan" not in text


def test_distances_start_with_the_second_task(results: Results) -> None:
    titles = {e.text for e in ET.fromstring(distance_curves(results)).iter("title")}
    assert f"E-FT, task 2: {results['E-FT'].old_prototype_distance[1]:.3f}" in titles
    assert not any(title and ", task 1:" in title for title in titles)


def test_one_task_has_no_forgetting_and_still_a_picture(single: Results) -> None:
    for text in (accuracy_curves(single, "average_forgetting"), distance_curves(single)):
        ET.fromstring(text)
        assert "no values yet" in text


def test_rows_of_one_training_share_a_colour() -> None:
    methods = {**METHODS, "E-FT+oracle": Method(drift=Oracle()), "E-FT+SDC2": Method(drift=SDC(sigma=2.0))}
    styles = line_styles(methods)
    for name in ("E-FT", "E-LwF", "E-EWC", "E-MAS"):
        assert styles[name].colour == styles[f"{name}+SDC"].colour
        assert (styles[name].dash, styles[f"{name}+SDC"].dash) == (DASHED, SOLID)
    assert len({style.colour for style in styles.values()}) == 7
    assert styles["E-FT+oracle"].dash == styles["E-Joint"].dash == DOTTED
    assert len({(style.colour, style.dash) for style in styles.values()}) == len(styles)


def test_wrong_input_of_curves(results: Results, single: Results) -> None:
    with pytest.raises(ValueError, match="Did you mean 'average_accuracy'"):
        accuracy_curves(results, "average_acuracy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no results"):
        accuracy_curves({})
    with pytest.raises(ValueError, match="same number of tasks"):
        distance_curves({"long": results["E-FT"], "short": single["E-FT"]})


def test_fig4_has_one_marker_of_each_kind_an_old_class(flat: Tree, flat_method: Method) -> None:
    root = ET.fromstring(drift_panels(flat, flat_method))
    panels = [e for e in root.iter("svg") if e.get("class") == "pd-panel"]
    assert len(panels) == 3
    old = 3
    for panel, expected in zip(panels, [(old, 0, 0, 0), (old, 0, 0, 0), (old, old, old, old)], strict=True):
        found = tuple(count(panel, name) for name in ("pd-circle", "pd-triangle", "pd-star", "pd-arrow"))
        assert found == expected
    assert [count(panel, "pd-cloud") for panel in panels] == [3, 2, 5]
    for cloud in (e for panel in panels for e in panel.iter("g") if "pd-cloud" in e.get("class", "")):
        assert 1 <= len(cloud.findall("circle")) <= POINTS_PER_CLASS
        assert cloud.find("title") is not None


def test_fig4_draws_a_class_in_one_colour_everywhere(flat: Tree, flat_method: Method) -> None:
    colours: dict[str, set[str]] = {}
    for group in ET.fromstring(drift_panels(flat, flat_method)).iter("g"):
        name = re.match(r"class (\w+)", group.findtext("title") or "")
        colour = re.search(r"pd-c\d", group.get("class", ""))
        if name and colour:
            colours.setdefault(name[1], set()).add(colour[0])
    assert sorted(colours) == ["0", "1", "2", "3", "4"]
    assert all(len(used) == 1 for used in colours.values())
    assert len(set.union(*colours.values())) == 5


def test_fig4_measures_what_it_shows(flat: Tree, flat_method: Method) -> None:
    true = flat.true_means(flat_method, 2)[:3]
    saved = flat.prototypes(flat_method, 1).means
    moved = flat.prototypes(flat_method, 2).means[:3]
    text = drift_panels(flat, flat_method)
    for means in (saved, moved):
        assert f"{float((means - true).norm(dim=1).mean()):.2f}" in text


def test_fig4_escapes_the_names_of_classes(flat_method: Method, evil: str) -> None:
    digits = load_digits()
    names = {0: evil, 1: "b & c", 2: "d", 3: 'e"'}
    train, test = (part.of_classes(names) for part in (digits.train, digits.test))  # type: ignore[union-attr]
    train_y, test_y = ([names[int(label)] for label in part.labels] for part in (train, test))
    data = Dataset(train.images, train_y, test.images, test_y)
    stream = TaskStream(data, classes=[[evil, "b & c"], ["d", 'e"']])
    tree = Tree(stream, network=Network(embedding_dim=2, normalise=False), training=Training(epochs=0))
    text = drift_panels(tree, flat_method)
    ET.fromstring(text)
    assert "<script" not in text
    assert "<b>" not in text


def test_fig4_refuses_what_it_cannot_draw(flat: Tree, flat_method: Method) -> None:
    wide = Tree(flat.stream, network=Network(embedding_dim=16), training=Training(epochs=0))
    with pytest.raises(ValueError, match="embedding_dim=16"):
        drift_panels(wide, flat_method)
    short = Tree(flat.stream[:1], network=flat.network, training=Training(epochs=0))
    with pytest.raises(ValueError, match="second task"):
        drift_panels(short, flat_method)
    for drift in (None, Oracle()):
        with pytest.raises(ValueError, match=r"drift=SDC\(sigma=...\)"):
            drift_panels(flat, replace(flat_method, drift=drift))
    with pytest.raises(ValueError, match="without memory"):
        drift_panels(flat, replace(flat_method, memory=Everything()))
