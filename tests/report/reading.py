"""What a chart shows, read from its Vega-Lite specification."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from protodrift.report.charts import Chart, specification

Spec = dict[str, Any]


def layers(chart: Chart) -> Iterator[Spec]:
    """Yield the layers of all panels."""
    spec = specification(chart)
    for panel in spec.get("concat", [spec]):
        for layer in panel["layer"]:
            name = (layer.get("data") or panel.get("data") or spec["data"])["name"]
            yield {**layer, "panel": panel.get("title"), "rows": spec["datasets"][name]}


def rows(chart: Chart, mark: str, having: str = "") -> list[Spec]:
    """Return the rows that are drawn by marks of a type, in layers that encode the channel `having`."""
    return [
        row
        for layer in layers(chart)
        if layer["mark"]["type"] == mark and (not having or having in layer["encoding"])
        for row in layer["rows"]
    ]
