"""Starts ranks as torchrun does, without torchrun: one process each, on loopback, with the variables that it sets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

PROGRAM = Path(__file__).with_name("program.py")


def start(size: int, arguments: list[str], **more: str) -> list[subprocess.Popen[str]]:
    """Start `size` processes of the program; a world of one is a plain process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    plain = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    plain |= {"OMP_NUM_THREADS": "1", **more}
    ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    return [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            env=plain | ({**ranks, "RANK": str(r), "LOCAL_RANK": str(r)} if size > 1 else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(size)
    ]


def run(size: int, out: Path, *scenarios: str, **more: str) -> Mapping[str, torch.Tensor]:
    """Run scenarios on `size` ranks, and return what each rank found: "<rank>/<scenario>/<name>" -> tensor."""
    processes = start(size, [str(out), *scenarios], **more)
    ended = [process.communicate(timeout=600)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * size, "\n".join(ended)
    found = {}
    for rank in range(size):
        loaded = torch.load(out / f"{size}-{rank}.pt", weights_only=True)
        found.update({f"{rank}/{name}": value for name, value in loaded.items()})
    return found
