"""The served page in a real browser: upload a picture, read the answer, step through the tasks; mouse and keyboard."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect, sync_playwright

pytestmark = pytest.mark.slow

BROWSER = "/usr/bin/chromium"  # tests/browser_setup.py installs it
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]


@pytest.fixture(scope="module")
def model(tmp_path_factory, make_classifier, colors):
    path = tmp_path_factory.mktemp("page") / "patterns"
    clf = make_classifier(held_out=0.2, temperature="auto")
    for task in ((0, 1), (2, 3), (4, 5)):
        clf.partial_fit(*colors(*task)).save(path)
    Image.fromarray(colors(4)[0][0]).save(path.with_name("four.png"))
    return path


@pytest.fixture(scope="module")
def address(model):
    """A real `protodrift serve` process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "protodrift", "serve", str(model), "--port", "0"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield re.search(r"http://\S+", process.stdout.readline())[0]
    process.terminate()
    assert process.wait(60) == 0


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, address):
    complaints, strangers = [], []

    def open_page(width=1200, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: strangers.append(request.url) if address not in request.url else None)
        page.goto(address)
        expect(page.locator("#main")).to_be_visible(timeout=30_000)
        return page

    yield open_page
    # The browser itself notes every refusal; ours are shown on the page.
    assert [text for text in complaints if "status of 422" not in text] == []
    assert [url for url in strangers if not url.startswith(("blob:", "data:"))] == []


def test_a_picture_gets_its_answer(opened, model):
    page = opened()
    page.set_input_files("#pick", [str(model.with_name("four.png"))])
    expect(page.locator(".answer .bars li")).to_have_count(3, timeout=30_000)
    assert page.locator(".answer h3").inner_text() in {"unknown", *map(str, range(6))}
    page.set_input_files("#pick", [{"name": "x.png", "mimeType": "image/png", "buffer": b"no picture"}])
    expect(page.locator(".answer.wrong")).to_contain_text("x.png", timeout=30_000)


def test_stepping_shows_the_tasks(opened):
    page = opened()
    expect(page.locator("#step-name")).to_have_text("after task 3: 6 classes")
    last = page.locator("#map").screenshot()
    page.click("#back")
    expect(page.locator("#step-name")).to_have_text("after task 2: 4 classes")
    assert page.locator("#map").screenshot() != last
    page.click("#back")
    expect(page.locator("#step-name")).to_have_text("after task 1: 2 classes")
    expect(page.locator("#back")).to_be_disabled()
    expect(page.locator("#tasks tr[aria-current=step] th")).to_have_text("Task 1")


def test_the_keyboard_is_enough(opened):
    page = opened()
    page.focus("#search")
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    expect(page.locator("#details h3")).to_have_text("1")
    expect(page.locator("#details")).to_contain_text("may be off by")
    page.focus("#map")
    seen = set()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
        seen.add(page.locator("#details h3").inner_text())
    assert len(seen) >= 2
    page.keyboard.press("PageUp")
    expect(page.locator("#step-name")).to_have_text("after task 2: 4 classes")


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (400, "light"), (1200, "dark"), (400, "dark")])
def test_narrow_and_dark(opened, width, scheme):
    page = opened(width, scheme)
    inside, window = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert inside <= window
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 150) == (scheme == "dark")


def test_a_thousand_classes(browser, address):
    rng = np.random.RandomState(0)
    places = rng.randn(2, 2, 1000).round(4)
    steps = [
        {
            "task": t + 1,
            "x": [x if t or i < 500 else None for i, x in enumerate(places[t, 0].tolist())],
            "y": [y if t or i < 500 else None for i, y in enumerate(places[t, 1].tolist())],
            "moved": [0.1] * 1000,
            "uncertainty": [0.2] * 1000,
        }
        for t in range(2)
    ]
    answer = {
        "version": 3,
        "classes": [f"class {i:04d}" for i in range(1000)],
        "learned_in": [1] * 500 + [2] * 500,
        "images": [9] * 1000,
        "variance_shown": 0.5,
        "steps": steps,
        "total_moved": [0.1] * 1000,
    }
    page = browser.new_page(reduced_motion="reduce")
    page.route("**/map", lambda route: route.fulfill(json=answer))
    page.goto(address)
    expect(page.locator("#step-name")).to_have_text("after task 2: 1,000 classes", timeout=30_000)
    page.fill("#search", "0417")
    page.keyboard.press("Enter")
    expect(page.locator("#details h3")).to_have_text("class 0417")
    page.click("#back")
    expect(page.locator("#step-name")).to_have_text("after task 1: 500 classes")
