"""The demo's report in a real browser: it opens offline, everything is visible, wide and narrow, light and dark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

pytestmark = pytest.mark.slow

BROWSER = "/usr/bin/chromium"  # tests/browser_setup.py installs it
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """The folder that a real `protodrift demo` wrote."""
    out = tmp_path_factory.mktemp("demo") / "out"
    done = subprocess.run(
        [sys.executable, "-m", "protodrift", "demo", "--out", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield browser
        browser.close()


class Opened:
    """A page, what it asked for, and what it complained about."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(path.as_uri(), wait_until="networkidle")
        page.wait_for_selector("html[data-drawn]", state="attached")


@pytest.fixture
def opened(browser, demo):
    """Open the report in a window: `opened(width=420, scheme="dark")`."""
    contexts = []

    def open_page(width: int = 1200, scheme: str = "light") -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        return Opened(context.new_page(), demo / "report.html")

    yield open_page
    for context in contexts:
        context.close()


def test_it_opens_offline_and_complains_about_nothing(opened, demo):
    found = opened()
    assert found.requests == [(demo / "report.html").as_uri()]  # itself, and nothing from any network
    assert found.complaints == []
    assert found.page.title() == "Learning ten digits, two at a time"
    assert found.page.locator("html").get_attribute("lang") == "en"


def test_every_method_has_its_row(opened, demo):
    methods = [entry["method"] for entry in json.loads((demo / "results.json").read_bytes())["results"]]
    rows = opened().page.locator("table.results tbody tr")
    assert rows.count() == len(methods) == 15
    for i, name in enumerate(methods):
        assert rows.nth(i).is_visible()
        assert name.split("+")[0] in rows.nth(i).inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 420])
def test_figures_are_visible_and_the_page_does_not_overflow(opened, width, scheme):
    page = opened(width, scheme).page
    figures = page.locator("figure")
    assert figures.count() == 5  # accuracy, distance, class by class, two pictures of drift
    for i in range(figures.count()):
        drawing = figures.nth(i).locator("svg")
        box = drawing.bounding_box()
        assert drawing.is_visible()
        assert box is not None
        assert box["width"] > width * 0.5
        assert box["height"] > 150
        assert drawing.evaluate("svg => svg.querySelectorAll('path, line, text').length") > 20
        # Nothing that is drawn is cut off at the rim: labels of axes and legends end inside the drawing.
        outside = drawing.evaluate(
            """svg => {
                const own = svg.getBoundingClientRect();
                return [...svg.querySelectorAll('text')].filter((text) => {
                    const box = text.getBoundingClientRect();
                    const inside = box.left > own.left - 1 && box.right < own.right + 1 && box.bottom < own.bottom + 1;
                    return box.width && !inside;
                }).map((text) => text.textContent);
            }"""
        )
        assert outside == []
    sizes = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert sizes[0] <= sizes[1], f"the page is {sizes[0]} px wide in a window of {sizes[1]}"


def test_charts_are_drawn_anew_for_another_width(opened):
    page = opened(1200).page
    legend_below = """() => {
        const top = (name) => document.querySelector(`figure svg ${name} text`)?.getBoundingClientRect().top;
        return top(".role-legend-label") > top(".role-axis-title");
    }"""
    assert not page.evaluate(legend_below)
    page.set_viewport_size({"width": 500, "height": 900})
    page.wait_for_function(legend_below)  # where there is no room beside the chart
    assert page.locator("figure").first.locator(".role-legend-label text").count() == 15
    page.set_viewport_size({"width": 1200, "height": 900})
    page.wait_for_function(f"!({legend_below})()")


OPACITIES = """() => Object.fromEntries([...document.querySelector('figure').querySelectorAll('.mark-line path')].map(
    (path) => [path.__data__.datum.method, Number(getComputedStyle(path).opacity)]))"""


@pytest.mark.parametrize("hand", ["mouse", "keyboard"])
def test_a_click_on_a_legend_entry_singles_a_method_out(opened, hand):
    page = opened().page
    entry = page.locator("figure").first.locator(".role-legend-label text", has_text="E-FT+SDC")

    def press():
        if hand == "mouse":
            entry.click()
        else:
            entry.focus()
            page.keyboard.press("Enter")
        page.wait_for_timeout(200)

    assert set(page.evaluate(OPACITIES).values()) == {1}
    press()
    seen = page.evaluate(OPACITIES)
    assert len(seen) == 15
    assert seen.pop("E-FT+SDC") == 1
    assert max(seen.values()) < 0.2
    press()
    assert set(page.evaluate(OPACITIES).values()) == {1}


def test_the_pointer_on_a_marker_tells_its_numbers(opened, demo):
    page = opened().page
    entries = {entry["method"]: entry for entry in json.loads((demo / "results.json").read_bytes())["results"]}
    # The last line that is drawn lies on top of the others.
    marker = page.locator("figure").first.locator(".mark-symbol.role-mark").last.locator("path").nth(-1)
    marker.scroll_into_view_if_needed()
    box = marker.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#vg-tooltip-element.visible")
    told = dict(line.split("\t") for line in page.locator("#vg-tooltip-element").inner_text().splitlines())
    entry, task = entries[told["method"]], int(told["after task"]) - 1
    assert told["A"] == f"{100 * entry['average_accuracy'][task]:.1f} %"
    assert told["task just learned"] == f"{100 * entry['new_task_accuracy'][task]:.1f} %"


def test_crowded_curves_can_be_shown_as_differences_to_their_mean(opened):
    page = opened().page
    figure = page.locator("figure").first

    def ends():
        return figure.locator(".role-axis-label").last.locator("text").all_text_contents()

    before = ends()
    figure.locator("input[type=checkbox]").check()
    page.wait_for_timeout(300)
    assert any(text.startswith("−") for text in ends())
    figure.locator("input[type=checkbox]").uncheck()
    page.wait_for_timeout(300)
    assert ends() == before


def test_text_is_readable_in_the_dark(opened):
    """The dark scheme really changes the page, and text keeps a contrast of 4.5 to 1 (WCAG AA) in both."""
    grounds = {}
    for scheme in ("light", "dark"):
        page = opened(scheme=scheme).page
        ground, ink = page.evaluate(
            """() => {
                const style = getComputedStyle(document.body);
                const ground = getComputedStyle(document.documentElement).backgroundColor;
                const own = style.backgroundColor;
                return [own === 'rgba(0, 0, 0, 0)' ? ground : own, style.color];
            }"""
        )
        grounds[scheme] = luminance(ground)
        pair = sorted((luminance(ground), luminance(ink)))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (scheme, ground, ink)
    assert grounds["light"] > 0.8
    assert grounds["dark"] < 0.1


def luminance(color: str) -> float:
    """Relative luminance of `rgb(r, g, b)`, as WCAG defines it."""
    parts = [float(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_keyboard_reaches_everything_that_can_be_used(opened):
    """Wide tables scroll inside a box of their own: Tab reaches it, and the arrow keys move it."""
    page = opened(width=420).page
    wanted = page.locator("a[href], button, input, select, summary, [tabindex='0']").count()
    assert wanted >= 1
    reached = set()
    for _ in range(wanted):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
        assert page.evaluate("document.activeElement !== document.body")
    assert len(reached) == wanted
    box = page.locator("[tabindex='0']").first
    if box.evaluate("box => box.scrollWidth > box.clientWidth"):
        box.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("box => box.scrollLeft > 0", arg=box.element_handle())
