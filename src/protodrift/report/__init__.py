"""Tables, figures and one self-contained HTML page from results.

Everything here is made from results documents (what `results.json` holds) through `summaries`, and from the pictures of
a run where embeddings are drawn.
"""

from .build import FORMATS, Group, Run, groups_of, read_runs, report
from .figures import (
    accuracy_curves,
    class_distances,
    confusion_matrices,
    distance_curves,
    final_bars,
)
from .figures_drift import drift_field, drift_panels, tsne_map
from .formats import to_csv, to_json, to_latex, to_markdown
from .page import Section, render, results_table, side_by_side, style, write
from .summary import Spread, Summary, pairs, summaries
from .text import results_text, summary_text

__all__ = [
    "FORMATS",
    "Group",
    "Run",
    "Section",
    "Spread",
    "Summary",
    "accuracy_curves",
    "class_distances",
    "confusion_matrices",
    "distance_curves",
    "drift_field",
    "drift_panels",
    "final_bars",
    "groups_of",
    "pairs",
    "read_runs",
    "render",
    "report",
    "results_table",
    "results_text",
    "side_by_side",
    "style",
    "summaries",
    "summary_text",
    "to_csv",
    "to_json",
    "to_latex",
    "to_markdown",
    "tsne_map",
    "write",
]
