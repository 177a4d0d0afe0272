"""Speed, measured side by side: `protodrift bench`, one file a case.

Every case runs ours and an alternative in turn, in one run, several times, and says the median of the ratios with its
spread: on a shared machine a time means little, a ratio of neighbors means something. What a case compares computes
the same thing; `tests/bench` checks that, and no test checks a time.
"""

from .cases import CASES, choose
from .harness import Result, Setup, machine
from .tables import HEAD, as_json, as_markdown, cells

__all__ = ["CASES", "HEAD", "Result", "Setup", "as_json", "as_markdown", "cells", "choose", "machine"]
