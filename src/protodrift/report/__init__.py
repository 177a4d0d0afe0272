"""Tables, figures and one self-contained HTML page from results.

Everything here is made from results documents (what `results.json` holds) through `summaries`, and from the pictures of
a run where embeddings are drawn. Tables need nothing but this package. The figures are altair charts: `figures`,
`drift_figures` and `charts` need the extra, `pip install 'protodrift[report]'`.
"""

from .build import FORMATS, report, write_figures
from .page import Figure, Section, render, require_charts, results_table, style, write
from .results import Results
from .runs import Group, Run, groups_of, read_runs
from .summary import Spread, Summary, finding, not_learned, pairs, summaries
from .table import results_text, summary_text

__all__ = [
    "FORMATS",
    "Figure",
    "Group",
    "Results",
    "Run",
    "Section",
    "Spread",
    "Summary",
    "finding",
    "groups_of",
    "not_learned",
    "pairs",
    "read_runs",
    "render",
    "report",
    "require_charts",
    "results_table",
    "results_text",
    "style",
    "summaries",
    "summary_text",
    "write",
    "write_figures",
]
