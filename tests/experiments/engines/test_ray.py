"""What the engine 'ray' checks without a cluster; tests/slow/test_ray.py has real ones."""

import contextlib
import os
import socket
import sys
import threading
from dataclasses import replace

import pytest
import torch

from protodrift import cli
from protodrift.errors import InputError
from protodrift.experiments.engines import RayEngine
from protodrift.experiments.engines.ray import Ours, _versions, difference


def test_without_ray_the_extra_is_named_and_nothing_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)  # what an import of a module that is not there meets
    assert cli.main(["run", "digits", "--engine", "ray", "--out", str(tmp_path / "run")]) == 1
    assert "pip install 'protodrift[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["10.0.0.1", "ray://10.0.0.1:10001", "host:", ":6379", "host:99999", ""])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(InputError, match="is not host:port of a Ray cluster"):
        RayEngine(address)


def test_an_address_where_nobody_listens_is_refused_at_once(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets it, and connections are refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        args = ["run", "digits", "--engine", "ray", "--address", address, "--out", str(tmp_path / "run")]
        assert cli.main(args) == 1
    assert f"no Ray cluster answers at {address}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("answer", [b"220 mail ready\r\n", None])
def test_an_address_where_something_else_listens_is_refused(answer, monkeypatch):
    monkeypatch.setattr("protodrift.experiments.engines.ray._ANSWER", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(ConnectionResetError), server.accept()[0] as connection:
                if answer is not None:
                    connection.sendall(answer)
                while connection.recv(100):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(InputError, match=r"no Ray cluster answers at .*(something else|timed out)"):
            RayEngine(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def test_options_of_ray_need_the_engine(tmp_path, capsys):
    assert cli.main(["run", "digits", "--address", "127.0.0.1:6379", "--out", str(tmp_path / "run")]) == 1
    assert "for --engine ray" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_gpus_where_there_is_none_are_refused():
    with pytest.raises(InputError, match="this machine has none"):
        RayEngine(gpus_per_stage=1)


@pytest.fixture
def ours(tmp_path):
    marker = tmp_path / "stages" / ".new-seen-1"
    marker.mkdir(parents=True)
    return Ours(str(marker), torch.get_num_threads(), 0.0, _versions())


def test_a_node_like_ours_is_fit_and_leaves_nothing(ours):
    assert difference(ours) == ""
    assert os.listdir(ours.marker) == []


@pytest.mark.parametrize("name", ["protodrift", "torch"])
def test_another_version_is_named(ours, name):
    found = difference(replace(ours, versions={**ours.versions, name: "0.0.0"}))
    assert f"it has {name} " in found
    assert "this process 0.0.0" in found


def test_a_commit_counts_only_where_both_are_known(ours):
    assert "it has commit" in difference(replace(ours, versions={**ours.versions, "commit": "0" * 40}))
    assert difference(replace(ours, versions={**ours.versions, "commit": None})) == ""


def test_a_store_that_is_not_there_is_said(ours, tmp_path):
    os.rmdir(ours.marker)
    found = difference(ours)
    assert f"does not see the run directory {tmp_path}." in found
    assert "NFS" in found
