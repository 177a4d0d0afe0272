from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protodrift.report import svg

NAN = math.nan


def classes(root: ET.Element, name: str) -> list[ET.Element]:
    return [e for e in root.iter() if name in e.get("class", "").split()]


def titles(root: ET.Element) -> list[str]:
    return [e.text or "" for e in root.iter("title")]


@given(st.floats(-1e4, 1e4), st.floats(1e-3, 1e6) | st.just(0.0), st.integers(2, 9))
def test_ticks_cover_the_range_and_are_equally_spaced(low: float, length: float, count: int) -> None:
    high = low + length
    ticks = svg.nice_ticks(low, high, count)
    slack = 1e-6 * (ticks[-1] - ticks[0])
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 2 * count + 2
    steps = [b - a for a, b in pairwise(ticks)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-3)
    assert len(set(svg.tick_text(ticks))) == len(ticks)


@pytest.mark.parametrize("ends", [(NAN, 1.0), (0.0, math.inf)])
def test_ticks_refuse_ends_that_are_not_finite(ends: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        svg.nice_ticks(*ends)


def test_a_line_chart_is_xml_and_names_every_point() -> None:
    root = ET.fromstring(svg.line_chart({"a": [1, 2, 3], "b": [2, 1, 0]}, [1, 2, 3], "y", x_label="task", unit=" %"))
    assert len(classes(root, "pd-line")) == 2 + 2  # the lines and their legend
    assert {"a", "b", "a, task 1: 1.0 %", "b, task 3: 0.0 %"} <= set(titles(root))
    assert len(titles(root)) == 2 + 6
    drawing = root.find(".//svg")
    assert drawing is not None
    assert drawing.get("role") == "img"
    assert drawing.get("aria-label")
    assert drawing.get("viewBox")


def test_a_gap_breaks_the_line() -> None:
    text = svg.line_chart({"a": [NAN, 1.0, 2.0, NAN, 3.0, 4.0]}, range(6), "y")
    root = ET.fromstring(text)
    assert len(classes(root, "pd-hit")) == 2
    assert "nan" not in text


@pytest.mark.parametrize("values", [[NAN], [NAN, NAN], [5.0], [0.0, 0.0], [math.inf, 1.0]])
def test_charts_with_hardly_any_values(values: list[float]) -> None:
    text = svg.line_chart({"a": values}, range(len(values)), "y")
    ET.fromstring(text)
    assert "nan" not in text
    assert "inf" not in text


def test_fifteen_series_all_look_different_and_stand_in_the_legend() -> None:
    names = [f"method {i}" for i in range(15)]
    styles = svg.default_styles(names)
    assert len({(style.color, style.dash) for style in styles.values()}) == 15
    root = ET.fromstring(svg.line_chart({name: [i, i] for i, name in enumerate(names)}, [1, 2], "y"))
    assert [item.findtext("span") for item in root.iter("li")] == names


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="'a' has 2 values for 3 positions"):
        svg.line_chart({"a": [1, 2]}, [1, 2, 3], "y")


@given(st.text())
def test_any_text_is_escaped_and_comes_back(text: str) -> None:
    root = ET.fromstring(f'<a b="{svg.escape(text)}">{svg.escape(text)}</a>')
    assert not list(root)
    kept = "".join(c for c in root.text or "" if c not in "\ufffd\r\n")
    assert kept == "".join(c for c in text if svg.escape(c) != "\ufffd" and c not in "\ufffd\r\n")


def test_hostile_labels_stay_text() -> None:
    evil = "<b>&\"'</b><script>"
    text = svg.line_chart({evil: [1, 2]}, [evil, evil], evil, x_label=evil, unit=evil, description=evil)
    ET.fromstring(text)
    assert "<b>" not in text
    assert "<script" not in text


def test_a_panel_maps_all_it_draws_alike_with_equal_aspect() -> None:
    bounds = svg.Bounds(0, 10, 0, 20)
    corners = [(0.0, 0.0), (10.0, 0.0), (0.0, 20.0)]
    text = svg.scatter_panel(
        [svg.Cloud(corners, 0, "points")],
        [svg.Mark(at, "circle", 1, "marker") for at in corners],
        [],
        bounds=bounds,
        description="corners",
    )
    root = ET.fromstring(text)
    places = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter("circle")]
    assert places[:3] == places[3:]
    (x0, y0), (x1, _), (_, y2) = places[:3]
    assert (y0 - y2) / 20 == pytest.approx((x1 - x0) / 10, abs=0.02)


def test_an_arrow_of_no_length_is_drawn_without_a_head() -> None:
    arrows = [svg.Arrow((1, 1), (1, 1), 0, "still"), svg.Arrow((0, 0), (2, 2), 0, "moved")]
    root = ET.fromstring(svg.scatter_panel([], [], arrows, bounds=svg.Bounds(0, 2, 0, 2), description="arrows"))
    assert len(classes(root, "pd-arrow")) == 2
    assert len(classes(root, "pd-head")) == 1


def test_bounds_need_a_finite_point() -> None:
    assert svg.Bounds.around([(1.0, 1.0), (NAN, 0.0)]).left < 1
    with pytest.raises(ValueError, match="no finite point"):
        svg.Bounds.around([(NAN, 0.0)])


@pytest.mark.parametrize("ends", [(0.0, 1e-245), (0.0, 3e-9), (-4e12, 9e12)])
def test_ticks_of_extreme_axes_read_differently(ends: tuple[float, float]) -> None:
    texts = svg.tick_text(svg.nice_ticks(*ends))
    assert len(set(texts)) == len(texts)
    assert max(map(len, texts)) <= 8
