"""`protodrift evaluate`: the page of mistakes, the answer for each photo, folders of strangers only."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil

import pytest
from PIL import Image

from protodrift.cli import main
from tests.cli.photo_models import frozen_model, photos


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model of four colors, and test photos: two in a wrong folder, and a class that the model does not know."""
    root = tmp_path_factory.mktemp("evaluate")
    frozen_model(
        root / "birds", photos(root / "first", "red", "green"), photos(root / "second", "blue", "white", seed=1)
    )
    photos(root / "test", "red", "green", "blue", "<b>gray & co<i>", seed=9, count=3)
    for i in range(2):  # really red
        shutil.copy(root / "first" / "red" / f"0-{i}.png", root / "test" / "green" / f"wrong-{i}.png")
    (root / "test" / "red" / "broken.png").write_bytes(b"x")
    photos(root / "strangers", "gray", seed=3)
    return root


@pytest.fixture
def run(made, monkeypatch, capsys):
    monkeypatch.chdir(made)

    def call(*args):
        status = main([str(arg) for arg in args])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out, said.err

    return call


def test_the_page_shows_every_mistake_with_its_photo(run, made):
    status, out, err = run("evaluate", "birds", "test", "--html", "out/report.html", "--csv", "answers.csv", "--quiet")
    assert status == 0
    assert "wrote out/report.html and answers.csv" in out
    assert "passed over 1 x cannot be read as an image" in err
    rows = list(csv.DictReader((made / "answers.csv").open()))
    assert len(rows) == 14
    mistaken = [row for row in rows if row["verdict"] != "right"]
    assert {row["file"] for row in mistaken} >= {"test/green/wrong-0.png", "test/green/wrong-1.png"}
    page = (made / "out" / "report.html").read_text()
    cards = page.split("<li data-classes=")[1:]
    assert len(cards) == len(mistaken)  # every one, also strangers
    assert {
        re.search('alt="([^"]*)"', card)[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        for card in cards
    } == {row["file"] for row in mistaken}
    card = next(card for card in cards if "wrong-0.png" in card)
    assert "<b>green</b>" in card
    assert "taken for <b>red</b>" in card or "called unknown" in card
    assert re.search(r"(then|nearest):\s", card)
    data = base64.b64decode(re.search('data:image/jpeg;base64,([^"]*)', card)[1])
    with Image.open(io.BytesIO(data)) as picture:
        red, green, blue = picture.convert("RGB").resize((1, 1)).getpixel((0, 0))
        assert red > 150 > green + blue  # the photo itself
    # A name that is markup stays text; nothing is loaded from anywhere.
    assert "<b>gray" not in page
    assert "&lt;b&gt;gray &amp; co&lt;i&gt;" in page
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)


def test_the_page_has_a_table_that_sorts_and_a_confusion_with_names(run, made):
    assert run("evaluate", "birds", "test", "--html", "report.html", "--quiet")[0] == 0
    page = (made / "report.html").read_text()
    table = page.split('<table class="results sortable">')[1].split("</table>")[0]
    names = re.findall(r'<th scope="row" title="([^"]*)"', table)
    assert sorted(names) == ["&lt;b&gt;gray &amp; co&lt;i&gt;", "blue", "green", "red"]
    assert table.count("<button type=") == 7
    assert "never learned" in table
    matrix = page.split('<table class="matrix">')[1].split("</table>")[0]
    assert "unknown" in re.findall(r'<span title="([^"]*)"', matrix)
    assert '<th scope="row" title="green">' in matrix


def test_csv_says_the_answer_for_each_photo(run, made):
    assert run("evaluate", "birds", "test", "--csv", "answers.csv", "--quiet")[0] == 0
    rows = list(csv.DictReader((made / "answers.csv").open()))
    for row in rows:
        assert row["class"] == ("unknown" if row["unknown"] == "1" else row["best"])
        assert 0 < float(row["confidence"]) <= 1
        assert row["class4"]
        known = row["true_class"] in ("red", "green", "blue")
        assert (row["verdict"] in ("right", "wrong", "called unknown")) == known
    result = json.loads(run("evaluate", "birds", "test", "--json", "--quiet")[1])
    right = sum(row["best"] == row["true_class"] for row in rows)
    assert result["all"]["accuracy"] == pytest.approx(right / result["all"]["images"])


def test_a_folder_of_strangers_only_is_measured(run, made):
    status, out, _ = run("evaluate", "birds", "strangers", "--html", "strangers.html", "--quiet")
    assert status == 0
    assert "only strangers are measured" in out
    assert "never learned: 6 photos" in out
    assert "accuracy" not in out
    result = json.loads(run("evaluate", "birds", "strangers", "--json", "--quiet")[1])
    assert (result["all"], result["never_learned"], result["per_class"]) == (None, 6, [])
    assert 0 <= result["found_unknown"] <= 1
    assert (made / "strangers.html").read_text().count("<li data-classes=") == 6


def test_without_a_page_the_mistakes_are_counted_and_the_page_is_offered(run):
    out = run("evaluate", "birds", "test", "--quiet")[1]
    assert re.search(r"--html report.html shows the photos of all \d+ mistakes", out)
