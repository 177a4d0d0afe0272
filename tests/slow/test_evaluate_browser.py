"""The page of `evaluate --html` in a real browser: photos load, the table sorts, the field filters."""

from __future__ import annotations

import pytest
from playwright.sync_api import sync_playwright

from protodrift.cli import main
from tests.cli.photo_models import frozen_model, photos
from tests.slow.test_report_browser import BROWSER, FLAGS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    root = tmp_path_factory.mktemp("evaluate")
    model = frozen_model(root / "birds", photos(root / "first", "red", "green", "blue"))
    test = photos(root / "test", "red", "green", "gray", "dark", seed=9, count=3)
    (test / "red" / "9-0.png").replace(test / "green" / "really-red.png")
    assert main(["evaluate", str(model), str(test), "--html", str(root / "report.html"), "--quiet"]) == 0
    return root / "report.html"


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (380, "dark")])
def test_the_page_shows_sorts_and_filters(page_file, width, scheme):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        asked, complaints = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(page_file.as_uri())
        pictures = page.locator(".photos img")
        assert pictures.count() >= 7  # six strangers, and the photo in the wrong folder
        assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing runs out of the page

        rows = page.locator(".sortable tbody th")
        for head, wanted in (("Class", ["dark", "gray", "green", "red"]), ("Class", ["red", "green", "gray", "dark"])):
            page.locator(".sortable button", has_text=head).first.focus()
            page.keyboard.press("Enter")
            assert rows.all_inner_texts() == wanted
        page.locator(".sortable button", has_text="Photos").click()
        counts = [int(text) for text in page.locator(".sortable tbody td:nth-child(3)").all_inner_texts()]
        assert counts == sorted(counts) == [2, 3, 3, 4]
        assert page.locator(".sortable [aria-sort]").all_inner_texts() == ["Photos"]

        page.fill("#filter", "really-red")
        assert page.locator(".photos li:visible").count() == 1
        assert page.locator("#filtered").inner_text() == f"1 of {pictures.count()} photos"
        page.fill("#filter", "")
        assert page.locator(".photos li:visible").count() == pictures.count()
        assert complaints == []
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        browser.close()
