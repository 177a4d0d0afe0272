"""The page that learns, in a real browser with a fake camera: teach, correct, undo; two people at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect, sync_playwright

from protodrift import IncrementalClassifier

pytestmark = pytest.mark.slow

BROWSER = "/usr/bin/chromium"  # tests/browser_setup.py installs it
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
    "--use-fake-device-for-media-stream",  # a moving test picture
    "--use-fake-ui-for-media-stream",  # the permission is given
]
LONG = 120_000


def drawn(folder, label: int, count: int, rng) -> list[str]:
    """Photos of a pattern of its own: stripes of two colors, with noise."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = np.random.RandomState(100 + label)
    first, second = kind.randint(0, 256, (2, 3))
    y, x = np.mgrid[:128, :128]
    angle, period = kind.uniform(0, np.pi), kind.uniform(10, 40)
    files = []
    for i in range(count):
        wave = np.sin((np.cos(angle) * x + np.sin(angle) * y + rng.uniform(0, 40)) * 2 * np.pi / period) > 0
        pixels = np.where(wave[..., None], first, second) + rng.randint(-25, 25, (128, 128, 3))
        files.append(str(folder / f"{label}-{i}.png"))
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(files[-1])
    return files


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A model of two patterns whose pretrained network is left as it is, served so that it can be taught."""
    root, rng = tmp_path_factory.mktemp("teach"), np.random.RandomState(0)
    for label in (0, 1):
        drawn(root / "first" / f"pattern {label}", label, 8, rng)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "protodrift"]
    made = subprocess.run(
        [*command, "learn", str(root / "model"), str(root / "first"), "--size", "96", "--quiet"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    process = subprocess.Popen(
        [*command, "serve", str(root / "model"), "--port", "0", "--teach"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    address = re.search(r"http://\S+", process.stdout.readline())[0]
    more = {label: drawn(root / "more", label, 5, rng) for label in range(2, 8)}
    old = drawn(root / "old", 0, 3, rng) + drawn(root / "old", 1, 3, rng)
    yield root, address, more, old
    process.terminate()
    assert process.wait(120) == 0


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield browser
        browser.close()


def opened(browser, address, complaints):
    page = browser.new_context(reduced_motion="reduce").new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    expect(page.locator("#main")).to_be_visible(timeout=LONG)
    return page


def drop(page, selector, files):
    """Drop files as a mouse would."""
    data = [(os.path.basename(name), list(open(name, "rb").read())) for name in files]  # noqa: SIM115
    transfer = page.evaluate_handle(
        """(files) => { const transfer = new DataTransfer();
        for (const [name, bytes] of files)
            transfer.items.add(new File([new Uint8Array(bytes)], name, {type: "image/png"}));
        return transfer; }""",
        data,
    )
    page.dispatch_event(selector, "drop", {"dataTransfer": transfer})


def teach_dropped(page, files, name):
    drop(page, "#teach-drop", files)
    expect(page.locator("#tray li")).to_have_count(len(files))
    page.fill("#class-name", name)
    page.keyboard.press("Enter")
    expect(page.locator("#teach-said")).to_contain_text(f"knows {name} now", timeout=LONG)


def answers(page, files):
    """Ask about files; the classes that the page shows, in their order."""
    before = page.locator(".answer").count()
    page.set_input_files("#pick", files)
    expect(page.locator(".answer h3")).to_have_count(before + len(files), timeout=LONG)
    return page.locator(".answer h3").all_inner_texts()[: len(files)]


def crossings(page) -> list[int]:
    """Names on the map, pairs of them that overlap, and dots that a name covers."""
    return page.evaluate(
        """() => { const meet = (a, b) => a[0] < b[2] && a[2] > b[0] && a[1] < b[3] && a[3] > b[1];
        const names = drawing.labels, dots = map.classes.map((_, row) => drawing.place(row, drawing.step))
            .filter((at) => at).map(([x, y]) => [x - 4, y - 4, x + 4, y + 4]);
        const pairs = names.flatMap((one, i) => names.slice(0, i).filter((other) => meet(one, other)));
        return [names.length, pairs.length, names.flatMap((one) => dots.filter((dot) => meet(one, dot))).length]; }"""
    )


def same_classes(now: list[str], before: list[str]) -> bool:
    """Return whether no photo changed its class; how far one may be from it is measured anew with every class."""
    return all("unknown" in pair or pair[0] == pair[1] for pair in zip(now, before, strict=True))


def test_teach_correct_undo_and_nothing_is_forgotten(browser, world):
    root, address, more, old = world
    complaints: list[str] = []
    page = opened(browser, address, complaints)
    assert "token" not in page.url  # it does not stay in the address
    before = answers(page, old)
    assert sorted(page.evaluate("drawing.asked.map((one) => one.name)")) == sorted(map(os.path.basename, old))
    first = IncrementalClassifier.load(root / "model").state_.prototypes
    for label in (2, 3, 4):
        teach_dropped(page, more[label][:4], f"pattern {label}")
    # What was asked before is answered by the new version, and is on its map.
    page.wait_for_function("(count) => drawing.asked.length === count", arg=len(old), timeout=LONG)
    assert same_classes(page.locator(".answer h3").all_inner_texts(), before)
    now = IncrementalClassifier.load(root / "model").state_.prototypes
    assert all(now.means[now.row(label)].equal(first.means[first.row(label)]) for label in first.labels)
    page.fill("#class-name", "Pattern_3")
    drop(page, "#teach-drop", more[3][4:])
    expect(page.locator("#teach-hint")).to_contain_text("It knows pattern 3. Choose that name if you mean it")
    page.fill("#class-name", "pattern 3")
    expect(page.locator("#teach-hint")).to_contain_text("these photos are added")
    page.locator("#tray button").click()
    page.click("#camera-open")
    expect(page.locator("#camera")).to_be_visible(timeout=LONG)
    page.wait_for_function("document.querySelector('video').videoWidth > 0")
    for count in (1, 2, 3):
        page.click("#shoot")
        expect(page.locator("#tray li")).to_have_count(count)
    page.fill("#class-name", "camera's picture")
    page.click("#teach-button")
    expect(page.locator("#teach-said")).to_contain_text("knows camera's picture now", timeout=LONG)
    page.click("#shoot-ask")
    # Three frames say little about how far a fourth may be: the picture may be unknown, but this class is the nearest.
    expect(page.locator(".answer h3").first).to_have_text(re.compile("camera's picture|unknown"), timeout=LONG)
    expect(page.locator(".answer").first).to_contain_text("camera's picture", timeout=LONG)
    page.click("#camera-close")
    known = set(IncrementalClassifier.load(root / "model").classes_)
    assert known == {*(f"pattern {label}" for label in range(5)), "camera's picture"}
    names, pairs, covered = crossings(page)
    assert (pairs, covered) == (0, 0)
    assert names >= 5
    for label in (2, 3, 4):
        assert answers(page, more[label][4:]) in ([f"pattern {label}"], ["unknown"])
    assert same_classes(answers(page, old), before)  # frozen: older answers are what they were

    # A stranger is unknown or something else: correct it, then undo.
    first = answers(page, more[5][:1])
    assert first != ["pattern 5"]
    card = page.locator(".answer").first
    if first == ["unknown"]:
        expect(card.locator(".why")).to_contain_text("times as far from")
    card.locator(".correct input").fill("pattern 5")
    card.locator(".correct button").click()
    expect(card.locator("h3")).to_have_text("pattern 5", timeout=LONG)
    page.locator("#jobs button").first.click()
    expect(page.locator("#teach-said")).to_contain_text("Undone", timeout=LONG)
    assert answers(page, more[5][:1]) == first
    assert same_classes(answers(page, old), before)
    assert "pattern 5" not in IncrementalClassifier.load(root / "model").classes_
    assert page.locator("#map-note").inner_text().find("drift") < 0  # nothing drifts: nothing is said about it
    expect(page.locator("th.drift").first).to_be_hidden()
    assert complaints == []
    page.context.close()


def test_two_people_at_once_lose_nothing(browser, world):
    root, address, more, _ = world
    complaints: list[str] = []
    people = [opened(browser, address, complaints) for _ in range(2)]
    for page, label in zip(people, (6, 7), strict=True):
        drop(page, "#teach-drop", more[label])
        page.fill("#class-name", f"pattern {label}")
    for page in people:
        page.click("#teach-button")
    for page, label in zip(people, (6, 7), strict=True):
        expect(page.locator("#teach-said")).to_contain_text(f"knows pattern {label} now", timeout=LONG)
    assert {"pattern 6", "pattern 7"} <= set(IncrementalClassifier.load(root / "model").classes_)
    for page in people:  # each sees what the other has taught
        expect(page.locator("#jobs")).to_contain_text("pattern 6", timeout=LONG)
        expect(page.locator("#jobs")).to_contain_text("pattern 7", timeout=LONG)
        page.context.close()
    assert complaints == []


def test_without_the_token_the_page_says_what_to_do(browser, world):
    _, address, more, _ = world
    complaints: list[str] = []
    page = opened(browser, address.partition("#")[0], complaints)
    expect(page.locator("#teach-said")).to_contain_text("Here you can ask. To teach, open the link")  # before any work
    drop(page, "#teach-drop", more[2][:1])
    page.fill("#class-name", "x")
    page.click("#teach-button")
    expect(page.locator("#teach-said")).to_contain_text("open the link that the server printed", timeout=LONG)
    expect(page.locator("#tray li")).to_have_count(1)  # nothing is lost
    assert all("401" in text for text in complaints)
    page.context.close()


@pytest.mark.parametrize("width", [1200, 380])
def test_keyboard_screen_reader_and_phone(browser, world, width):
    _, address, more, _ = world
    page = browser.new_context(viewport={"width": width, "height": 800}, reduced_motion="reduce").new_page()
    page.goto(address)
    expect(page.locator("#main")).to_be_visible(timeout=LONG)
    page.set_input_files("#teach-pick", more[2][:3])
    inside, window = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert inside <= window
    for name in ("They show", "Take 2-0.png out"):
        assert page.get_by_label(name).count() == 1
    page.get_by_label("Take 2-0.png out").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#tray li")).to_have_count(2)
    expect(page.locator("#teach-button")).to_have_text("Teach 2 photos")
    expect(page.locator("#teach-button")).to_be_disabled()  # without a name
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, input, video, canvas")].filter((one) => !one.closest("[hidden]")
        && !one.textContent.trim() && !one.getAttribute("aria-label") && !one.labels?.length)
        .map((one) => one.outerHTML)"""
    )
    assert unnamed == []
    page.context.close()
