"""Files that are whole or not there, locks, and errors that tell damage from a disk that fails."""

from __future__ import annotations

import errno
import os

import pytest

from protodrift.common import files
from protodrift.errors import ModelFileError, UnreadableError


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "CURRENT"
    files.replace_file(path, b"old")
    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, lambda *args: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
            with pytest.raises(OSError, match="full"):
                files.replace_file(path, b"new")
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["CURRENT"]
    files.replace_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_the_checksum_of_what_is_written_is_that_of_the_file(tmp_path):
    digest, size = files.write_synced(tmp_path / "a", [b"one", b"", b"two" * 10**6])
    assert (digest, size) == (files.file_sha256(tmp_path / "a"), 3 + 3 * 10**6)
    files.check_sha256(tmp_path / "a", digest, digest)
    with pytest.raises(ModelFileError, match="does not match its checksum"):
        files.check_sha256(tmp_path / "a", digest, None)


def test_a_second_holder_of_a_lock_is_refused_at_once(tmp_path):
    with files.locked(tmp_path), pytest.raises(ModelFileError, match="another process is writing"):  # noqa: SIM117
        with files.locked(tmp_path):
            pass
    with files.locked(tmp_path):
        pass


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "not valid JSON"), (b"[1]", "not a JSON object"), (b"[" * 10**5, "not valid JSON"), (b"\xff", "not valid")],
)
def test_json_that_is_damaged_is_named(tmp_path, content, message):
    (tmp_path / "m.json").write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        files.read_json(tmp_path / "m.json")


def test_a_missing_file_is_damage_and_a_failing_disk_is_not(tmp_path, monkeypatch):
    with pytest.raises(ModelFileError, match="is missing") as raised:
        files.read_bytes(tmp_path / "gone")
    assert not isinstance(raised.value, UnreadableError)
    with pytest.raises(UnreadableError, match="Input/output error"), files.reading(tmp_path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
