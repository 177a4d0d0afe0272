"""Tasks of a Ray cluster: one started here for this run, or one that is there already.

A stage is a Ray task with as many CPUs as the run has threads. Workers get a job and its setting from Ray, and
everything else from the store, which all nodes must see under one path. Before the first stage every node is asked
whether it does, and whether its protodrift, torch and threads are ours: a stage's key would differ otherwise.

Ray's own retries are off. It would try a stage that runs out of memory for ever, without a word; the dispatch loop
counts and says it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import uuid
import warnings
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...common import machine
from ...errors import InputError, RunError
from ..store import Store
from .dispatch import Outcome
from .worker import Job, Report, Setting, compute, receiving, sending

_OBJECTS = 80 * 2**20  # bytes of Ray's object store; stages do not go through it, so Ray's minimum will do
_LOOK = 5.0  # seconds after which the loop looks again for nodes that came or went
_PATIENCE = 300.0  # seconds in which every node must have answered; a busy one imports torch slowly
_STOPPING = 10.0  # seconds for cancelled stages to end
_ANSWER = 15.0  # seconds for an address to answer
# How HTTP/2, which Ray speaks, begins: a fixed text and a SETTINGS frame (type 4), answered by another.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_NOBODY = (
    "no Ray cluster answers at {} ({}). Start one with `ray start --head`, or drop --address to use this machine only."
)


@dataclass(frozen=True)
class RayEngine:
    """A Ray cluster.

    Args:
        address: `host:port` of a cluster's head, or "auto": the one on this machine. None: a cluster of this run's own,
            on this machine, that listens on loopback only, asks for a token made for it, and ends with the run.
        jobs: at most so many stages at a time; None: as many as fit.
        gpus_per_stage: GPUs of every stage, which then computes on CUDA; 0.5: two stages share one.
        retries: how often a stage is tried again whose worker process or node is gone.
    """

    address: str | None = None
    jobs: int | None = None
    gpus_per_stage: float = 0.0
    retries: int = 3

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise InputError("the engine 'ray' needs Ray, which is not installed: pip install 'protodrift[ray]'.")
        if self.gpus_per_stage < 0 or (self.gpus_per_stage > 1 and self.gpus_per_stage % 1):
            raise InputError(f"GPUs per stage are 0.5, 1, 2 and the like; got {self.gpus_per_stage:g}.")
        if self.gpus_per_stage and not torch.cuda.is_available():
            raise InputError("--gpus-per-stage computes on CUDA, and this machine has none. Start on one that has.")
        if self.address is not None:
            _check_address(self.address)

    @property
    def device(self) -> str:
        """The device of the networks; a part of every stage's key."""
        return "cuda" if self.gpus_per_stage else "cpu"

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Start or join the cluster; end or leave it. A Ray that this process had started is used and left alone."""
        # Ray prints its remarks on standard output, where the run's table goes.
        with contextlib.redirect_stdout(sys.stderr):
            if "ray" in sys.modules and sys.modules["ray"].is_initialized():
                yield
            elif self.address is not None:
                with _joined(self.address):
                    yield
            else:
                with _own_cluster(self.jobs):
                    yield

    @contextlib.contextmanager
    def workers(self, setting: Setting, store: Store | None, stages: int, report: Report) -> Iterator[_Tasks]:
        """Check every node, then take stages; what still runs at the end is cancelled."""
        import ray
        from ray.util.queue import Queue

        if store is None:
            raise InputError("the engine 'ray' needs a store: its workers share nothing else.")
        # Seen by a worker: the same directory. A name of its own, which the next run tidies up like any draft.
        marker = Path(os.path.abspath(store.stages)) / f".new-seen-{uuid.uuid4().hex}"
        marker.mkdir()
        ours = Ours(str(marker), setting.threads, self.gpus_per_stage, _versions())
        events = Queue(actor_options={"num_cpus": 0})
        tasks = _Tasks(self, setting, ours, events)
        try:
            with receiving(events, report):
                try:
                    tasks.check_nodes()
                    yield tasks
                finally:
                    tasks.cancel()
        finally:
            with contextlib.suppress(ray.exceptions.RayError):
                events.shutdown(force=True)
            shutil.rmtree(marker, ignore_errors=True)


@dataclass(frozen=True)
class Ours:
    """What a worker must have in common with the process that asks it.

    Attributes:
        marker: a directory in the store that a worker must see and can write to.
        threads: of every computation.
        gpus: of every stage.
        versions: name -> version.
    """

    marker: str
    threads: int
    gpus: float
    versions: Mapping[str, str | None]


def difference(ours: Ours) -> str:
    """Compare this process with the one that asks; return what is wrong and what to do, or ""."""
    for name, theirs in _versions().items():
        wanted = ours.versions.get(name)
        if theirs != wanted and not (name == "commit" and None in (theirs, wanted)):
            return f"it has {name} {theirs}, this process {wanted}. Install the same versions on all nodes."
    torch.set_num_threads(ours.threads)
    if torch.get_num_threads() != ours.threads:
        return f"torch took {torch.get_num_threads()} threads there and not {ours.threads}. Choose another --threads."
    if ours.gpus and not torch.cuda.is_available():
        return "torch sees no CUDA device there. Install a torch with CUDA on all nodes, or drop --gpus-per-stage."
    run = Path(ours.marker).parent.parent
    if not os.path.isdir(ours.marker):
        return (
            f"it does not see the run directory {run}. Choose an --out that is the same directory on all nodes, such "
            "as an NFS path, or mount it there."
        )
    mine = Path(ours.marker) / uuid.uuid4().hex
    try:
        mine.mkdir()
        mine.rmdir()
    except OSError as error:
        return f"it cannot write to the run directory {run}: {error.strerror}. Give its user the right to."
    return ""


class _Tasks:
    """The cluster, as the dispatch loop sees it."""

    def __init__(self, engine: RayEngine, setting: Setting, ours: Ours, events: Any) -> None:
        import ray

        self._engine = engine
        self._ours = ours
        self._events = events
        self._setting = ray.put(setting)
        self._running: set[Any] = set()
        self.retries = engine.retries
        resources = {"num_cpus": setting.threads, "num_gpus": engine.gpus_per_stage}
        self._stage = ray.remote(_stage).options(max_retries=0, **resources)

    def capacity(self) -> int:
        """As many as the nodes that are there now have CPUs and GPUs for, and not more than asked for."""
        fit = sum(self._fits(node["Resources"]) for node in _nodes())
        return fit if self._engine.jobs is None else min(fit, self._engine.jobs)

    def submit(self, job: Job) -> Hashable:
        """Give it to Ray."""
        reference: Hashable = self._stage.remote(self._setting, self._ours, job, self._events)
        self._running.add(reference)
        return reference

    def wait(self, running: Collection[Hashable]) -> list[tuple[Hashable, Outcome]]:
        """Wait until one has ended, or for a while."""
        import ray

        finished, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK)
        self._running.difference_update(finished)
        return [(reference, _outcome(reference)) for reference in finished]

    def cancel(self) -> None:
        """End what still runs, at once: a stage is written whole or not at all."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            for reference in self._running:
                ray.cancel(reference, force=True)
            if self._running:  # the run's lock is ours until they have ended
                ray.wait(list(self._running), num_returns=len(self._running), timeout=_STOPPING)

    def check_nodes(self) -> None:
        """Ask every node that can take a stage whether it is fit for this run."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = [node for node in _nodes() if self._fits(node["Resources"])]
        if not nodes:
            most = max((node["Resources"].get("CPU", 0) for node in _nodes()), default=0)
            wanted = f"{self._ours.threads} CPUs" + (f" and {self._ours.gpus:g} GPUs" if self._ours.gpus else "")
            raise RunError(
                f"no node of the Ray cluster has {wanted} (the largest has {most:g} CPUs): a stage would wait for "
                "ever. Choose fewer --threads, or add a node."
            )
        look = ray.remote(difference)
        asked = {}
        for node in nodes:
            here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            options = look.options(num_cpus=0, max_retries=1, scheduling_strategy=here)
            asked[options.remote(self._ours)] = node["NodeManagerAddress"]
        answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=_PATIENCE)
        for reference in answered:
            try:
                problem = ray.get(reference)
            except ray.exceptions.RayError as error:
                problem = f"it cannot run protodrift: {_last_line(error)}. Install the same protodrift on all nodes."
            if problem:
                raise RunError(f"Ray node {asked[reference]} is not fit for this run: {problem}")
        if silent:
            names = ", ".join(asked[reference] for reference in silent)
            raise RunError(f"Ray node {names} did not answer in {_PATIENCE:.0f} s. Look at `ray status`.")

    def _fits(self, resources: Mapping[str, float]) -> int:
        fit = int(resources.get("CPU", 0) // self._ours.threads)
        return min(fit, int(resources.get("GPU", 0) / self._ours.gpus)) if self._ours.gpus else fit


def _stage(setting: Setting, ours: Ours, job: Job, events: Any) -> tuple[str, list[Warning]]:
    """Compute one stage in a Ray worker; return what went wrong, and what was warned of."""
    if problem := difference(ours):  # a node may have come after the others were asked
        import ray

        return f"Ray node {ray.util.get_node_ip_address()} is not fit for this run: {problem}", []

    def put(event: Any) -> None:
        with contextlib.suppress(Exception):  # progress is no reason to fail
            events.put(event, block=False)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        problem = compute(setting, job, sending(put))
    return problem, [Warning(f"{w.category.__name__}: {w.message}") for w in caught]


def _outcome(reference: Any) -> Outcome:
    import ray
    from ray import exceptions

    try:
        problem, warned = ray.get(reference)
    except (exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.ObjectLostError) as error:
        return Outcome(lost=_first_sentence(error))
    except exceptions.OutOfMemoryError:
        return Outcome(lost="Ray ended it because the node's memory was nearly full")
    except exceptions.RayError as error:
        return Outcome(f"Ray could not run a stage: {_last_line(error)}.")
    for warning in warned:
        warnings.warn(warning, stacklevel=2)
    return Outcome(problem)


def _nodes() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _versions() -> dict[str, str | None]:
    return {"protodrift": __version__, "commit": machine.commit(), "torch": torch.__version__}


# -- clusters --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _own_cluster(jobs: int | None) -> Iterator[None]:
    """A cluster of this machine, for this run: on loopback, with a token of its own, in a private directory."""
    threads = torch.get_num_threads()
    cpus = (jobs or max(1, machine.usable_cpus() // threads)) * threads
    ours = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray takes 127.0.0.1 for "this machine's address", and then listens on all of them, unless this is off.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Ray makes workers as nice as 15: on a busy machine they would get next to nothing.
        "RAY_worker_niceness": "0",
    }
    if "RAY_AUTH_MODE" not in os.environ:
        ours.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=_token())
    # Ray makes sockets below it, whose paths may have 107 characters.
    base = tempfile.gettempdir()
    private = tempfile.mkdtemp(prefix="protodrift-ray-", dir=base if len(base) < 20 else "/tmp")
    try:
        with _environment(ours):
            import ray

            try:
                ray.init(
                    "local",
                    num_cpus=cpus,
                    include_dashboard=False,
                    object_store_memory=_OBJECTS,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=private,
                    **_quiet(),
                )
            except Exception as error:  # Ray raises whatever its parts do
                raise RunError(f"Ray could not be started: {_last_line(error)}.") from error
            try:
                if not ray.util.get_node_ip_address().startswith("127."):
                    raise RunError(
                        "Ray would listen beyond this machine, because this process had imported it before. Import "
                        "it later, or start it yourself with ray.init."
                    )
                yield
            finally:
                ray.shutdown()
    finally:
        shutil.rmtree(private, ignore_errors=True)


@contextlib.contextmanager
def _joined(address: str) -> Iterator[None]:
    import ray

    try:
        alike = {
            name: os.environ[name] for name in machine.WAITING if name in os.environ
        }  # threads wait as they do here
        ray.init(address, runtime_env={"env_vars": alike}, **_quiet())
    except Exception as error:  # Ray raises whatever its parts do
        raise RunError(
            f"cannot join the Ray cluster at {address}: {_last_line(error)}. Look at `ray status --address {address}`; "
            "this machine must be a node of it, with the same Ray and Python."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse an address that Ray would try for minutes, or that is not one."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if "//" in address or not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(
            f"--address {address!r} is not host:port of a Ray cluster, as in 10.0.0.1:6379 (`ray start --head` says "
            "it), nor 'auto' for the cluster of this machine."
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER) as there:
            there.sendall(_HELLO)
            answer = there.recv(9)
    except OSError as error:
        raise InputError(_NOBODY.format(address, error.strerror or error)) from None
    if "RAY_USE_TLS" not in os.environ and answer[3:4] != b"\x04":
        raise InputError(_NOBODY.format(address, "what listens there is something else"))


def _quiet() -> dict[str, Any]:
    return {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}


_own_token = ""


def _token() -> str:
    """Return this process's token; Ray reads it once, so one must do for all clusters that the process starts."""
    global _own_token
    _own_token = _own_token or secrets.token_hex(32)
    return _own_token


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _last_line(error: BaseException) -> str:
    """A remote error is a traceback whose last line says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")


def _first_sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text.split(". ")[0].rstrip(".")
