"""What Prometheus reads at `/metrics`. Needs the extra `metrics`; off unless asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Now = Mapping[str, tuple[str, Callable[[], float]]]
"""Name of a number, what it is, and how to read it; a name that ends in _total never goes down."""


class Metrics:
    """Counts requests.

    Args:
        paths: that are counted by name; all others are "other", for anybody may invent some.
        now: what is read when somebody asks.
    """

    def __init__(self, paths: frozenset[str], now: Now) -> None:
        self.paths, self.registry = paths, CollectorRegistry()
        self.requests = Counter(
            "protodrift_requests_total", "requests that were answered", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "protodrift_request_seconds",
            "from the headers of a request to the end of its answer",
            ["path"],
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.registry,
        )
        self.registry.register(_Read(now))

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count a request; status 0: nobody waited for the answer."""
        path = path if path in self.paths else "other"
        self.requests.labels(path, str(status) if status else "aborted").inc()
        self.seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Return what Prometheus reads."""
        return generate_latest(self.registry)


class _Read(Collector):
    def __init__(self, now: Now) -> None:
        self.now = now

    def collect(self) -> Iterator[Metric]:
        for name, (what, read) in self.now.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(f"protodrift_{name}", what, value=read())
