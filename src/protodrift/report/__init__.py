"""Tables, figures and one self-contained HTML page from results."""

from .figures import accuracy_curves, distance_curves, drift_panels
from .page import Section, render, results_table, side_by_side, style, write
from .text import results_text

__all__ = [
    "Section",
    "accuracy_curves",
    "distance_curves",
    "drift_panels",
    "render",
    "results_table",
    "results_text",
    "side_by_side",
    "style",
    "write",
]
