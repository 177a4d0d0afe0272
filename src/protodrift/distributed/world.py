"""Who takes part in a training, what they send each other, and how an error on one rank ends all of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch

from .. import errors
from ..errors import InputError, ProtodriftError, RunError

T = TypeVar("T")
Tensors = dict[str, torch.Tensor]

STEP_TIMEOUT = timedelta(seconds=45)
"""How long a rank waits for the others inside a step, where all have the same to do. A rank that died is noticed at
once, by its closed connections; this is for one that hangs."""

JOINING = timedelta(minutes=10)
"""How long ranks wait for each other to start."""

PATIENCE = timedelta(hours=24)
"""How long ranks wait while one reads a dataset, embeds its share or writes. A rank that died is noticed at once."""


class World:
    """The ranks of one training; this process is one of them.

    Attributes:
        rank: this process's number, 0..size-1.
        size: W, how many there are.
        sent: bytes that this rank has given to collective operations, by what they were.
        calls: how many operations that were.
    """

    def __init__(self, rank: int = 0, size: int = 1, groups: Sequence[Any] = (None, None)) -> None:
        self.rank = rank
        self.size = size
        self.sent: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._hurried, self._patient = groups

    def __repr__(self) -> str:
        return f"World(rank={self.rank}, size={self.size})"

    @property
    def alone(self) -> bool:
        """Whether this process is the only one."""
        return self.size == 1

    @property
    def is_first(self) -> bool:
        """Whether this rank reads and writes the disk, and prints."""
        return self.rank == 0

    # -- what is sent ----------------------------------------------------------------------------------------------

    def own(self, count: int, rank: int | None = None) -> slice:
        """Return which of `count` rows are this rank's, or another one's: shares follow each other and differ by at
        most one.

        >>> [World(rank, 3).own(8) for rank in range(3)]
        [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
        """
        rank = self.rank if rank is None else rank
        return slice(rank * count // self.size, (rank + 1) * count // self.size)

    def sum(self, tensors: Sequence[torch.Tensor], what: str, *, hurry: bool = False) -> None:
        """Replace tensors of one type by their sums over all ranks, in place and in one message."""
        if self.alone or not tensors:
            return
        import torch.distributed as dist

        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._count(what, flat)
        dist.all_reduce(flat, group=self._hurried if hurry else self._patient)
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view(tensor.shape))

    def gather(self, own: torch.Tensor, count: int, what: str, *, hurry: bool = False) -> torch.Tensor:
        """Return the rows of all ranks in order, (n, ...) -> (count, ...); `own` are `world.own(count)`."""
        if self.alone:
            return own
        import torch.distributed as dist

        mine = _padded(own, -(-count // self.size))  # to the largest share
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        self._count(what, mine)
        dist.all_gather(parts, mine, group=self._hurried if hurry else self._patient)
        shares = [self.own(count, rank) for rank in range(self.size)]
        return torch.cat([part[: share.stop - share.start] for part, share in zip(parts, shares, strict=True)])

    def blocks_on_first(self, own: torch.Tensor, rows: int, what: str) -> list[torch.Tensor]:
        """Return on the first rank what each rank gave, (rows, ...) padded with zeros; nothing on the others.

        Args:
            own: (n, ...), n <= rows; n may differ between ranks.
            rows: the same on all ranks.
            what: for the count of bytes.
        """
        if self.alone:
            return [own]
        import torch.distributed as dist

        mine = _padded(own, rows)
        self._count(what, mine)
        blocks = [torch.empty_like(mine) for _ in range(self.size)] if self.is_first else []
        dist.gather(mine, blocks or None, dst=0, group=self._patient)
        return blocks

    def on_first(self, call: Callable[[], T]) -> T:
        """Run `call` on the first rank only, and return what it gave on every rank.

        An error there is raised on every rank: nobody waits for one that gave up.

        Args:
            call: gives something JSON-able, or `(data, {file: {name: tensor}})` with data JSON-able.
        """
        if self.alone:
            return call()
        answer: Any = None
        header: dict[str, Any] = {}
        if self.is_first:
            try:
                answer = call()
                header = _described(answer)
            except ProtodriftError as error:
                header = {"error": type(error).__name__, "message": str(error)}
            except BaseException:  # a mistake of ours: this rank prints its traceback
                self._announce({"error": None})
                raise
        header = json.loads(self._announce(header))
        if "error" in header:
            if header["error"] is None:
                raise _Ended
            kind: type[ProtodriftError] = getattr(errors, header["error"], RunError)
            raise kind(header["message"])
        if "tensors" not in header:
            return answer if self.is_first else header["data"]  # type: ignore[no-any-return]
        files = answer[1] if self.is_first else _blank(header["tensors"])
        for tensors in files.values():
            for name, value in tensors.items():
                tensors[name] = value if self.is_first else value.clone()
                self._broadcast(tensors[name])
        return answer if self.is_first else (header["data"], files)  # type: ignore[return-value]

    def _announce(self, header: dict[str, Any]) -> str:
        data = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
        length = torch.tensor([len(data)])
        self._broadcast(length)
        data = data if self.is_first else torch.empty(int(length), dtype=torch.uint8)
        self._broadcast(data)
        return bytes(data.numpy()).decode()

    def _broadcast(self, tensor: torch.Tensor) -> None:
        """Overwrite a tensor by the first rank's."""
        import torch.distributed as dist

        if not tensor.numel():
            return
        plain = tensor.detach().contiguous()
        self._count("state", plain)
        dist.broadcast(plain, src=0, group=self._patient)
        if not self.is_first:
            tensor.copy_(plain)

    def first_before_others(self, call: Callable[[], T]) -> T:
        """Run `call` on the first rank, then on the others: it may fill a cache that they find."""
        if self.alone:
            return call()
        done: list[T] = []
        if self.is_first:
            self.on_first(lambda: done.append(call()))
            return done[0]
        self.on_first(lambda: None)
        return call()

    def agree(self, what: str, text: str) -> None:
        """Refuse to go on unless all ranks give the same text.

        Raises:
            RunError: naming `what` and the ranks that differ from the first.
        """
        if self.alone:
            return
        digest = torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)[None].clone()
        all_digests = self.gather(digest, self.size, "state")
        others = [rank for rank in range(self.size) if not torch.equal(all_digests[rank], all_digests[0])]
        if others:
            raise RunError(
                f"{what} of {_ranks(others)} differ from those of rank 0. All ranks must be given the same data, "
                "settings, and versions of torch and protodrift."
            )

    def wait(self) -> None:
        """Wait until all ranks are here."""
        self.on_first(lambda: None)
        self.sum([torch.zeros(1)], "state")

    def _count(self, what: str, tensor: torch.Tensor) -> None:
        self.sent[what] += tensor.numel() * tensor.element_size()
        self.calls[what] += 1


ALONE = World()
"""The world of a process that was started by itself."""

_current = ALONE


def current() -> World:
    """Return the world this process takes part in."""
    return _current


def _padded(own: torch.Tensor, rows: int) -> torch.Tensor:
    """Return `own` with zeros after it, (rows, ...): collective operations take equal shapes."""
    mine = own.new_zeros(rows, *own.shape[1:])
    mine[: len(own)] = own.detach()
    return mine


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _described(answer: Any) -> dict[str, Any]:
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
        return {"data": answer}
    described = {
        file: {name: [str(value.dtype).removeprefix("torch."), list(value.shape)] for name, value in tensors.items()}
        for file, tensors in answer[1].items()
    }
    return {"data": answer[0], "tensors": described}


def _blank(described: dict[str, dict[str, tuple[str, list[int]]]]) -> dict[str, Tensors]:
    return {
        file: {name: torch.empty(shape, dtype=getattr(torch, kind)) for name, (kind, shape) in tensors.items()}
        for file, tensors in described.items()
    }


# -- joining, and how it ends ------------------------------------------------------------------------------------------


class _Ended(BaseException):
    """torchrun asks this rank to end, because another one did."""


@contextlib.contextmanager
def joined() -> Iterator[World]:
    """Take part in the training that torchrun started; without torchrun, the world of one.

    Inside the block `current()` is this world; only the first rank prints, logs and warns. An error on any rank ends
    all of them: it is raised by the rank that met it first, and the others leave with exit status 1.

    Raises:
        RunError: on the ranks that are left, if another one died.
    """
    global _current
    from . import launched

    if not launched() or _current is not ALONE:
        yield _current
        return
    import torch.distributed as dist

    world, store = _join()
    before = signal.signal(signal.SIGTERM, _asked_to_end)  # torchrun sends it to all when one rank ends
    _current = world
    try:
        with _only_first_prints(world):
            yield world
            world.wait()  # nobody leaves early: that would look like a death to the others
    except (Exception, KeyboardInterrupt, _Ended) as error:
        _raise_once(world, store, error)
    else:
        dist.destroy_process_group()
        signal.signal(signal.SIGTERM, before)
    finally:
        _current = ALONE


def _join() -> tuple[World, Any]:
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except ValueError:
        raise InputError(
            f"RANK={os.environ['RANK']!r} and WORLD_SIZE={os.environ['WORLD_SIZE']!r} must be numbers. Start with "
            "torchrun, which sets them."
        ) from None
    one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    if one_machine and os.path.isdir("/sys/class/net/lo"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nothing listens beyond this machine
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    try:
        store, _, _ = next(iter(rendezvous("env://", rank, size, timeout=JOINING)))
        # A store of torchrun's outlives the ranks: those that it starts again must not find what dead ones left there.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"protodrift/{attempt}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=JOINING)
        groups = tuple(dist.new_group(timeout=timeout, backend=backend) for timeout in (STEP_TIMEOUT, PATIENCE))
    except (RuntimeError, ValueError) as error:
        raise RunError(
            f"rank {rank} of {size} could not reach the others ({_first_line(error)}). Start all ranks with torchrun, "
            "and check MASTER_ADDR and MASTER_PORT between machines."
        ) from error
    return World(rank, size, groups), store


def _asked_to_end(number: int, frame: object) -> NoReturn:
    raise _Ended


@contextlib.contextmanager
def _only_first_prints(world: World) -> Iterator[None]:
    if world.is_first:
        yield
        return
    logging.getLogger("protodrift").setLevel(logging.ERROR)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _raise_once(world: World, store: Any, error: BaseException) -> NoReturn:
    """Raise the error on one rank; on all others leave silently. The store is torchrun's, which outlives the ranks."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it when a rank ends, and this one is ending
    lost = isinstance(error, _Ended) or _is_lost_connection(error)
    if lost:
        # The other rank may have raised its error already; if not, it died. Whoever is left says so now.
        with contextlib.suppress(Exception):
            store.set(f"here/{world.rank}", b"1")
            time.sleep(1.0)
    if _raised_already(store):
        _leave()
    if lost:
        raise RunError(_who_ended(world, store)) from None
    if isinstance(error, ProtodriftError) and not world.is_first:
        raise type(error)(f"{error} (rank {world.rank} of {world.size})") from error
    raise error


def _raised_already(store: Any) -> bool:
    try:
        return bool(store.add("raised", 1) > 1)
    except Exception:  # the store is gone with its host: raise it rather twice than never
        return False


def _is_lost_connection(error: BaseException) -> bool:
    import torch.distributed as dist

    if isinstance(error, dist.DistError):
        return True
    words = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out", "gloo/transport")
    return type(error) is RuntimeError and any(word in str(error) for word in words)


def _who_ended(world: World, store: Any) -> str:
    gone: list[int] = []
    with contextlib.suppress(Exception):
        gone = [r for r in range(world.size) if not store.check([f"here/{r}"])]
    kept = "Finished stages and epochs are kept: run the same command again, with as many ranks or another number."
    if not gone:
        return f"all ranks were asked to end. {kept}"
    return (
        f"{_ranks(gone)} of {world.size} ended in the middle, or does not answer any more: killed, out of memory, or "
        f"its machine is gone. The others stop too. {kept}"
    )


def _leave() -> NoReturn:
    sys.stdout.flush()
    raise SystemExit(1)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
