"""No test touches the user's own data or cache, or waits for a network."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_directories(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-home"))
    monkeypatch.delenv("PROTODRIFT_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
