"""What a manifest looks like, field by field, in one table: `docs/model_format.md` in code.

A field that is missing, one more, or a value of another kind is refused before anything is made from a manifest. Rules
are those of `common.config`, which core code has; a validation library would be one more dependency for this one table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..common.config import Rule, number, one_of, optional, text, whole
from ..common.labels import wrong_with_label
from ..errors import ModelFileError


def record(fields: Mapping[str, Rule]) -> Rule:
    """Accept an object with exactly these fields."""

    def rule(value: Any) -> str | None:
        if not isinstance(value, dict):
            return "must be an object"
        for name in fields:
            if name not in value:
                return f"lacks {name!r}"
        for name in value:
            if name not in fields:
                return f"holds what no model has, the field {name!r}"
        wrong = ((name, inner(value[name])) for name, inner in fields.items())
        return next((f"{name}: {why}" for name, why in wrong if why), None)

    return rule


def each(inner: Rule, most: int | None = None) -> Rule:
    """Accept a list of at most `most` values that `inner` accepts."""

    def rule(value: Any) -> str | None:
        if not isinstance(value, list) or (most is not None and len(value) > most):
            return "must be a list" if most is None else f"must be a list of at most {most}"
        wrong = ((place, inner(one)) for place, one in enumerate(value))
        return next((f"[{place}] {why}" for place, why in wrong if why), None)

    return rule


def row(*rules: Rule) -> Rule:
    """Accept a list of as many values, each by its own rule."""

    def rule(value: Any) -> str | None:
        if not isinstance(value, list) or len(value) != len(rules):
            return f"must be a list of {len(rules)}"
        return next((why for inner, one in zip(rules, value, strict=True) if (why := inner(one))), None)

    return rule


def named(inner: Rule) -> Rule:
    """Accept an object of any names whose values `inner` accepts."""

    def rule(value: Any) -> str | None:
        if not isinstance(value, dict):
            return "must be an object"
        return next((f"{name!r} {why}" for name, one in value.items() if (why := inner(one))), None)

    return rule


def word(value: Any) -> str | None:
    """Accept a short word, such as a version."""
    return None if isinstance(value, str) and re.fullmatch(r"[\w.+!-]{1,64}", value) else "must be a short word"


def anything(value: Any) -> str | None:
    """Accept what the part that is made from it checks itself."""
    return None


_DIGEST: Rule = lambda value: (  # noqa: E731
    None if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) else "must be a sha256"
)
_LABELS = each(wrong_with_label)
_HISTORY = each(named(number()))

TASK = record(
    {
        "classes": _LABELS,
        "images": each(whole(0)),
        "history": _HISTORY,
        "note": text,
        "drift": each(row(wrong_with_label, number(0), optional(number(0)))),
        "refreshed": each(row(wrong_with_label, whole(0))),
        "held_out": optional(row(whole(1), number(0, 1))),
        "source": text,
    }
)

FIXED = ("backbone", "embedding_dim", "normalize", "crop", "standardize", "objective")
"""What the first task fixes: later tasks must train the same network for the same thing."""

MANIFEST = record(
    {
        "made_with": record({"protodrift": word, "torch": word, "python": word}),
        "input": record(
            {
                "shape": each(whole(1, 2**24), 3),
                "scale": one_of("uint8", "unit", "byte", "free"),
                "low": number(),
                "high": number(),
            }
        ),
        "fixed": record(dict.fromkeys(FIXED, anything)),
        "labels": _LABELS,
        "tasks": each(TASK),
        "last_task": record({"history": _HISTORY, "note": text}),
        "penalties": each(anything),
        "penalty_states": whole(0, 64),
        "drift_labels": _LABELS,
        "exemplar_labels": optional(_LABELS),
        "parameters": named(anything),
        "parent": optional(record({"version": whole(1), "manifest_sha256": _DIGEST})),
    }
)


def check_manifest(manifest: Mapping[str, Any]) -> None:
    """Refuse a manifest that is not what `MANIFEST` says.

    Raises:
        ModelFileError: naming the field and what is wrong with it.
    """
    if wrong := MANIFEST(manifest):
        raise ModelFileError(f"the model is damaged: its manifest {wrong}.")
