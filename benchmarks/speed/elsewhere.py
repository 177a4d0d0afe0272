"""A side in a process of its own, with PyTorch's own settings: what a plain script would get.

Thread policy and memory allocator are set for the whole process, so a plain loop beside ours would share our settings.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch

from .harness import Side

_OURS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
"""Variables that this package may set for its own process."""


class Elsewhere:
    """Runs `make(*args)`, a side, in another process whenever it is called; a context that ends the process.

    Args:
        make: a function that can be imported by its name.
        args: its arguments, which can be pickled; they go from this process to one that it starts.
    """

    def __init__(self, make: Callable[..., Side], *args: Any) -> None:
        self._make, self._args = make, args

    def __enter__(self) -> Elsewhere:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, torch.get_num_threads(), self._make, self._args), daemon=True
        )
        held = {name: os.environ.pop(name) for name in _OURS if name in os.environ}
        try:
            self._process.start()
        finally:
            os.environ.update(held)
        theirs.close()
        return self

    def __call__(self) -> float:
        """Run it once there; return its seconds."""
        self._pipe.send(True)
        answer: float | str = self._pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()


def _serve(pipe: Connection, threads: int, make: Callable[..., Side], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(threads)
    side: Side | None = None
    while True:
        try:
            pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):  # the other end is done
            return
        try:
            side = side or make(*args)
            pipe.send(side())
        except KeyboardInterrupt:
            return
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
