"""Pictures are decoded in processes of their own: bounded in pixels, time and memory, and fair between clients.

Some processes decode every picture, the others only such as take a moment: large pictures wait for each other, small
ones never for them. A picture that takes too long, or that ends its process, costs that process and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

import numpy as np

from ..common.machine import usable_cpus
from . import decoder
from .limits import Limits
from .turns import Turn, Turns

LIGHT = 16_000_000
"""Pixels up to which decoding takes a moment; photos of most phones have no more."""

_START = "import sys; sys.path[:] = sys.argv[3:]; from protodrift.serve.decoder import main; main()"


@dataclass(frozen=True)
class Refused:
    """Why an image has no answer.

    Attributes:
        status: of the response, if no other image of the request has an answer.
        why: a sentence without its subject, which is the name of the file.
        all: whether the whole request is refused with it.
    """

    status: int
    why: str
    all: bool = False


Decoded = np.ndarray | Refused
"""(size, size, 3) uint8, or why there is none."""


@dataclass
class _Request:
    turn: Turn
    size: int
    deadline: float
    pixels: int = 0


@dataclass(frozen=True)
class _Job:
    request: _Request
    data: bytes
    put_off: bool = False
    future: Future[Decoded] = field(default_factory=Future)


class Decoders:
    """The processes, and the queue before them.

    Args:
        limits: pixels of a picture and of a request, seconds for a picture.
        count: processes, at least two; half of them, and at least one, decode only small pictures.
    """

    def __init__(self, limits: Limits, count: int | None = None) -> None:
        self.limits = limits
        count = max(2, count or min(4, usable_cpus()))
        self.killed = 0
        self._numbers = itertools.count()
        self._light: Turns[_Job] = Turns()
        self._heavy: Turns[_Job] = Turns()
        self._changed, self._stopped = threading.Condition(), False
        self._processes = [_Process(heavy=i >= (count + 1) // 2, pixels=limits.pixels) for i in range(count)]
        self._threads = [
            threading.Thread(target=self._run, args=(one,), name="decoding", daemon=True) for one in self._processes
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """How many pictures wait."""
        with self._changed:
            return len(self._light) + len(self._heavy)

    @property
    def problem(self) -> str:
        """Why nothing is decoded; empty if it is."""
        return "" if any(thread.is_alive() for thread in self._threads) else "no picture can be decoded"

    def submit(self, files: Sequence[bytes], size: int, client: str, deadline: float) -> list[Future[Decoded]]:
        """Queue the files of a request; one future per file. A cancelled one is left out.

        Args:
            files: as they came.
            size: side of the decoded squares.
            client: whose they are.
            deadline: on the monotonic clock; nothing is decoded after it, for nobody waits any more.
        """
        request = _Request((client, next(self._numbers)), size, deadline)
        jobs = [_Job(request, data) for data in files]
        with self._changed:
            for job in jobs:
                self._light.put(request.turn, job)
            self._changed.notify_all()
        return [job.future for job in jobs]

    def close(self) -> None:
        """End the processes; what still waits is cancelled."""
        with self._changed:
            self._stopped = True
            for queue in (self._light, self._heavy):
                while (taken := queue.take()) is not None:
                    taken[1].future.cancel()
            self._changed.notify_all()
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join()

    def _run(self, process: _Process) -> None:
        while (taken := self._take(process.heavy)) is not None:
            queue, job, began = *taken, time.monotonic()
            if not job.future.cancelled():
                try:
                    self._decode(process, job)
                except Exception as error:  # such as no memory for a new process; the thread lives on
                    job.future.set_exception(error)
            with self._changed:
                queue.charge(job.request.turn, time.monotonic() - began)
            del taken, job  # pictures must not live on in this frame while the thread waits

    def _take(self, heavy: bool) -> tuple[Turns[_Job], _Job] | None:
        with self._changed:
            while not self._stopped:
                # What is large waits for its own processes, and they for nothing else while there is such a picture.
                for queue in (self._heavy, self._light) if heavy else (self._light,):
                    if (taken := queue.take()) is not None:
                        return queue, taken[1]
                self._changed.wait()
            return None

    def _decode(self, process: _Process, job: _Job) -> None:
        request, put_off = job.request, self.limits.pixels if process.heavy else LIGHT
        left = request.deadline - time.monotonic()
        result: Decoded
        if left <= 0:
            result = Refused(504, "could not be decoded in time.")
        elif request.pixels > self.limits.request_pixels:
            result = self._too_many
        else:
            bounds = (self.limits.pixels, put_off, self.limits.image_seconds)
            kind, pixels, content = process.ask(job.data, (request.size, *bounds), left)
            with self._changed:
                request.pixels += 0 if job.put_off else pixels  # those were counted before
                too_many = request.pixels > self.limits.request_pixels
                if kind == decoder.PUT_OFF and not too_many:
                    self._heavy.put(request.turn, dataclasses.replace(job, put_off=True))
                    self._changed.notify_all()
                    return
                self.killed += kind == _DIED
            if kind == decoder.TOO_LARGE:
                result = Refused(413, content.decode())
            elif too_many:
                result = self._too_many
            elif kind == decoder.DECODED:
                result = np.frombuffer(content, np.uint8).reshape(request.size, request.size, 3)
            else:
                result = Refused(422, content.decode())
        with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
            job.future.set_result(result)

    @property
    def _too_many(self) -> Refused:
        most = self.limits.request_pixels
        return Refused(413, f"and those before it have more than {most:,} pixels. Send several requests.", all=True)


_DIED = -1
_SIGKILL, _SIGPROF = 9, 27


class _Process:
    """One process, started again after it died."""

    def __init__(self, heavy: bool, pixels: int) -> None:
        self.heavy, self.pixels = heavy, pixels
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        niceness = 10 if self.heavy else 0
        return subprocess.Popen(
            [sys.executable, "-c", _START, str(niceness), str(self.pixels), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the server's, which finishes what is in flight
        )

    def kill(self) -> None:
        """End it; whoever waits for its reply gets that it died."""
        self._process.kill()

    def ask(self, data: bytes, how: tuple[int, int, int, float], left: float) -> tuple[int, int, bytes]:
        """Return its reply, or that it died: because of this file, or because it took too long.

        Args:
            data: the file.
            how: the rest of `decoder.REQUEST`.
            left: seconds until nobody waits any more.
        """
        if self._process.poll() is not None:
            self._process = self._started()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(left, process.kill)
        timer.start()
        try:
            process.stdin.write(decoder.REQUEST.pack(len(data), *how) + data)
            process.stdin.flush()
            head = process.stdout.read(decoder.REPLY.size)
            if len(head) == decoder.REPLY.size:
                kind, pixels, length = decoder.REPLY.unpack(head)
                content = process.stdout.read(length)
                if len(content) == length:
                    return kind, pixels, content
        except OSError:
            pass  # it died while we wrote
        finally:
            timer.cancel()
        process.kill()
        process.communicate()
        ended = {-_SIGPROF: f"takes longer than {how[-1]:g} s to decode", -_SIGKILL: "could not be decoded in time"}
        why = ended.get(process.returncode, "ended the process that decoded it")
        return _DIED, 0, f"{why}. Send it smaller, or as JPEG.".encode()
