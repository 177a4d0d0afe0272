"""docs/onnx.md's page in a real browser: onnxruntime-web answers as the library does, and asks nobody but localhost."""

from __future__ import annotations

import base64
import functools
import http.server
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import sync_playwright

from protodrift import IncrementalClassifier
from protodrift.model.export import export_onnx
from tests.browser_setup import BROWSER, RUNTIME_FILES, RUNTIME_FOLDER
from tests.cli.photo_models import frozen_model, photos
from tests.slow.test_report_browser import FLAGS

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder that the page describes, its address, and photos of known and unknown classes."""
    root = tmp_path_factory.mktemp("site")
    model = frozen_model(root / "birds", photos(root / "learned", "red", "green", "blue", "gray"))
    export_onnx(IncrementalClassifier.load(model), root / "birds.onnx")
    (root / "index.html").write_text(PAGE.read_text().split("```html\n")[1].split("```")[0])
    for name in RUNTIME_FILES:
        shutil.copy(RUNTIME_FOLDER / name, root / name)
    photos(root / "new", "red", "green", "dark", seed=5, count=2)
    rng = np.random.RandomState(0)
    smooth = Image.fromarray(rng.randint(0, 256, (5, 5, 3)).astype(np.uint8))
    smooth.resize((640, 480), Image.Resampling.BICUBIC).save(root / "new" / "large.png")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield root, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_the_page_answers_as_the_library_does(site):
    root, address = site
    files = sorted((root / "new").rglob("*.png"))
    expected = IncrementalClassifier.load(root / "birds").recognize(files)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        page = browser.new_page()
        asked, complaints = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{address}/index.html")
        for row, file in enumerate(files):
            script = "async (data) => recognize(await (await fetch(`data:image/png;base64,${data}`)).blob())"
            found = page.evaluate(script, base64.b64encode(file.read_bytes()).decode())
            assert found["label"] == expected.labels[row], file
            assert found["unknown"] == bool(expected.unknown[row]), file
            assert np.abs(np.array(found["probabilities"]) - expected.probabilities[row]).max() < 1e-4, file

        page.set_input_files("#photo", files[0])
        page.wait_for_function("!/Looking|Choose/.test(document.getElementById('answer').textContent)")
        said = page.inner_text("#answer")
        assert expected.labels[0] in said
        assert ("None of the classes" in said) == bool(expected.unknown[0])
        (root / "broken.jpg").write_bytes(b"no image")
        page.set_input_files("#photo", root / "broken.jpg")
        page.wait_for_function("/cannot be read/.test(document.getElementById('answer').textContent)")
        browser.close()
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    assert complaints == []
    assert {bool(one) for one in expected.unknown} == {True, False}  # both were compared
