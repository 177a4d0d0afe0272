"""Names from somebody else in what commands print: no control character reaches a terminal."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from protodrift.cli.answer_formats import CsvWriter, JsonLinesWriter, JsonWriter
from protodrift.cli.evaluate import _write_csv
from protodrift.common.files import printable
from protodrift.data.arrays import read_labels
from protodrift.data.folder import find_photos
from protodrift.data.scan import scan_folder
from protodrift.errors import InputError
from protodrift.model.evaluate import Answer

HOSTILE = "a\x1b]0;pwned\x07\r\x9b2J\x7f\u202egpj.\udcff"
ANSWER = {
    "file": HOSTILE,
    "class": HOSTILE,
    "unknown": False,
    "novelty": 0.1,
    "top": [{"class": HOSTILE, "confidence": 0.9, "distance": 1.0}],
}


def is_plain(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text.encode(errors="backslashreplace").decode())


@pytest.mark.parametrize("writer", [lambda out: CsvWriter(out, 1), JsonLinesWriter, JsonWriter])
def test_answers_are_printed_without_control_characters_and_json_is_exact(writer):
    out = io.StringIO()
    made = writer(out)
    made.write([ANSWER, {"file": HOSTILE, "error": f"{HOSTILE} cannot be read"}])
    made.close()
    assert is_plain(out.getvalue())
    if writer is not JsonWriter and not isinstance(made, CsvWriter):
        first = json.loads(out.getvalue().splitlines()[0].encode(errors="backslashreplace"))
        assert first["file"] == HOSTILE


def test_errors_are_printed_without_control_characters(fails):
    said = fails("predict", "mo\x1b[31mdel", "x.jpg")
    assert said.startswith("there is no model at mo\\x1b[31mdel")
    assert printable("one\ntwo\x1b") == "one\ntwo\\x1b"


@pytest.mark.parametrize(
    ("label", "why"),
    [("", "is empty"), (" ", "is empty"), ("a\0b", "holds a zero character"), ("\udcff", "valid Unicode")],
)
def test_names_that_no_class_can_have_are_refused(label, why):
    with pytest.raises(InputError, match=f"the label .* {why}"):
        read_labels(["owl", label], 2)
    with pytest.raises(InputError, match=f"the label .* {why}"):
        read_labels(np.array([label, "owl"], dtype=object), 2)


def test_folders_and_lists_with_such_names_are_refused(tmp_path):
    (tmp_path / "photos" / "owl").mkdir(parents=True)
    os.mkdir(os.fsencode(tmp_path / "photos") + b"/emu\xff")
    with pytest.raises(InputError, match=r"photos/emu\\udcff would be a class .* is not valid Unicode\. Rename it"):
        scan_folder(tmp_path / "photos")
    (tmp_path / "x.csv").write_bytes(b"a.png,o\0wl\n")
    with pytest.raises(InputError, match="line 1"):
        find_photos(tmp_path / "x.csv")


def test_the_table_of_an_evaluation_is_printed_without_control_characters(tmp_path):
    answer = Answer("owl", True, (("owl", 0.9),), False, 0.1)
    result = SimpleNamespace(answers=(replace(answer, truth=HOSTILE, top=((HOSTILE, 0.9), ("owl", 0.1))),))
    _write_csv(tmp_path / "answers.csv", result, [Path(HOSTILE)])
    assert is_plain((tmp_path / "answers.csv").read_text())
    assert "\\x1b]0;pwned" in (tmp_path / "answers.csv").read_text()
