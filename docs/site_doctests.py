"""What griffe does not do by itself: the doctests of a docstring, shown as code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

DOCTEST = re.compile(r"(?:^>>> [^\n]*\n?)(?:^[^\n]+\n?)*", re.MULTILINE)


def fenced(docstring: str) -> str:
    """Return a docstring with its doctests as fenced code, each up to the next empty line.

    >>> fenced("Return x.\\n\\n>>> x\\n[1, 2]\\n\\nMore.")
    'Return x.\\n\\n```pycon\\n>>> x\\n[1, 2]\\n```\\n\\nMore.'
    """
    return DOCTEST.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", docstring)


class Doctests(Extension):
    """Fence the doctests of every object."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Change the text before it is parsed into sections."""
        if obj.docstring and not obj.is_alias:
            obj.docstring.value = fenced(obj.docstring.value)
