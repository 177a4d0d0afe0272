"""Photos into folders by class: nothing is ever written over."""

from __future__ import annotations

import os

import pytest

from protodrift.data.sorting import Sorter
from protodrift.errors import InputError


def photo(path, content=b"one"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def below(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_photos_of_the_same_name_do_not_meet(tmp_path):
    sorter = Sorter(tmp_path / "sorted", ["owl", "emu"])
    one, other = photo(tmp_path / "a" / "1.jpg"), photo(tmp_path / "b" / "1.jpg", b"other")
    for source in (one, other, one, other):  # again: they are there already
        sorter.put(source, "owl")
    sorter.put(one, None)
    assert below(tmp_path / "sorted") == {"owl/1.jpg": b"one", "owl/1 (2).jpg": b"other", "unknown/1.jpg": b"one"}
    assert one.exists()


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_moved_photos_are_gone_from_where_they_were(tmp_path, monkeypatch, links):
    if not links:

        def refuse(*args):
            raise PermissionError("this disk has no hard links")

        monkeypatch.setattr(os, "link", refuse)
    sorter = Sorter(tmp_path / "sorted", ["owl"], move=True)
    photo(tmp_path / "sorted" / "owl" / "1.jpg", b"there before")
    source = photo(tmp_path / "1.jpg")
    assert sorter.put(source, "owl").name == "1 (2).jpg"
    assert not source.exists()
    assert sorter.put(photo(tmp_path / "1.jpg"), "owl").name == "1 (2).jpg"  # the same photo once more
    assert not source.exists()
    assert below(tmp_path / "sorted") == {"owl/1.jpg": b"there before", "owl/1 (2).jpg": b"one"}


def test_a_photo_that_lies_there_already_is_not_lost_when_moved(tmp_path):
    source = photo(tmp_path / "sorted" / "owl" / "1.jpg")
    assert Sorter(tmp_path / "sorted", ["owl"], move=True).put(source, "owl") == source
    assert source.read_bytes() == b"one"


def test_whatever_a_class_is_called_its_folder_is_below_the_root(tmp_path):
    sorter = Sorter(tmp_path / "sorted", ["unknown", "a/b", "../../out", "/etc", "c\\d", "\n"])
    for label in ("unknown", "a/b", "../../out", "/etc", "c\\d", "\n"):
        sorter.put(photo(tmp_path / "1.jpg"), label)
    sorter.put(tmp_path / "1.jpg", None)
    names = {"unknown", "a/b", "__/__/out", "_/etc", "c_d", "_", "_unknown"}
    assert set(below(tmp_path / "sorted")) == {f"{name}/1.jpg" for name in names}


def test_a_failed_copy_leaves_nothing_and_the_photo(tmp_path, monkeypatch):
    import shutil

    def fails(source, draft):
        draft.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", fails)
    source = photo(tmp_path / "1.jpg")
    with pytest.raises(OSError, match="No space"):
        Sorter(tmp_path / "sorted", ["owl"], move=True).put(source, "owl")
    assert below(tmp_path / "sorted") == {}
    assert source.exists()


def test_a_root_among_the_photos_is_refused(tmp_path):
    photo(tmp_path / "new" / "1.jpg")
    with pytest.raises(InputError, match="would be found there again"):
        Sorter(tmp_path / "new" / "sorted", ["owl"]).check([tmp_path / "new"])
    with pytest.raises(InputError, match="is a file"):
        Sorter(tmp_path / "new" / "1.jpg", ["owl"]).check([tmp_path / "other"])
    Sorter(tmp_path / "sorted", ["owl"]).check([tmp_path / "new", tmp_path / "new" / "1.jpg"])
