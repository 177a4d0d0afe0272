"""Values, parts and rows of a recipe changed by name (`--set`, `--sweep`), and recipes read from files."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..common.config import Config, build, decode, registered
from ..errors import InputError, did_you_mean
from ..methods import Method
from .recipe import Recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

AXES = ("objective", "penalty", "exemplars", "drift", "readout", "schedule")
"""What a method is made of; each can be set to a part, written as in Python: `drift=SDC(sigma=0.2)`."""


def with_settings(
    recipe: Recipe, settings: Mapping[str, str], unselected: Mapping[str, Method] | None = None
) -> Recipe:
    """Return the recipe with single values changed, as by `--set EWC.gamma=1e6 --set drift=LocalLinear`.

    A name is a field of the recipe or of anything in it. Where several kinds of things have a field of that name, say
    which: `EWC.gamma`, `training.epochs`, `drift.sigma`. The name of an axis sets a part of every row; rows that this
    changes are renamed, and rows that become equal are one.

    Args:
        recipe: what to change.
        settings: texts by name.
        unselected: methods that the recipe had before some were chosen; an error says that a setting is theirs.

    Raises:
        InputError: for an unknown or ambiguous name, with what was probably meant, or a value that does not fit.
    """
    for key, text in settings.items():
        if key in AXES or key.partition(".")[0] in AXES:
            recipe = _with_rows(recipe, {key: [text]}, unselected)
            continue
        owners = _owners(recipe, key)
        if not owners:
            raise _unknown(recipe, key, unselected)
        recipe = _changed(recipe, "recipe", owners[0], key.rsplit(".", 1)[-1], _value(text))
    return recipe


def swept(recipe: Recipe, sweeps: Mapping[str, str], unselected: Mapping[str, Method] | None = None) -> Recipe:
    """Return the recipe with a row for each value, as by `--sweep drift.sigma=0.1,0.2,0.3`.

    Rows that a name does not concern stay as they are. Several sweeps are combined, each value with each.

    Args:
        recipe: what to change.
        sweeps: values by name, with commas between; names as in `with_settings`, of what methods are made of.
        unselected: as for `with_settings`.
    """
    return _with_rows(recipe, {key: _split(text) for key, text in sweeps.items()}, unselected)


def _with_rows(recipe: Recipe, values: Mapping[str, list[str]], unselected: Mapping[str, Method] | None) -> Recipe:
    """Return the recipe with one row for each combination of values that changes a row."""
    rows = recipe.methods
    for key, texts in values.items():
        if not any(_has(method, key) for method in rows.values()):
            if key in {part for owner, name in _fields(recipe) for part in (name, f"{owner}.{name}")}:
                raise InputError(
                    f"{key!r} is no part of a method, so each of its values is a run of its own: give them one after "
                    "the other with --set, each with its own --out."
                )
            raise _unknown(recipe, key, unselected)
        made: dict[str, Method] = {}
        for (name, method), text in itertools.product(rows.items(), texts):
            changed = _with(method, key, text, name)
            same = not _has(method, key) or (len(texts) == 1 and (changed == method or "." in key))
            made[name if same else f"{name} {key.rpartition('.')[-1]}={text}"] = changed
        rows = {}
        for name, method in made.items():
            if method not in rows.values():
                rows[name] = method
    return replace(recipe, rows=tuple(rows.items()))


def _has(method: Method, key: str) -> bool:
    axis, _, field = key.partition(".")
    if axis in AXES:
        return not field or field in {name for _, name in _fields_of_axis(method, axis)}
    return bool(_all_owners(method, key))


def _with(method: Method, key: str, text: str, row: str) -> Method:
    """Return a method with one of its parts, or a value in one, changed; as it is where it has none of that name."""
    axis, _, field = key.partition(".")
    try:
        if axis in AXES and not field:
            return replace(method, **{axis: read_part(text)})
        if not _has(method, key):
            return method
        name = key.rsplit(".", 1)[-1]
        if axis in AXES:
            owners = sorted({owner for owner, other in _fields_of_axis(method, axis) if other == name})
            owner, old = _one(owners, name), getattr(method, axis)
            parts = [_changed(p, type(p).__name__, owner, name, _value(text)) for p in _several(old)]
            new: Any = tuple(parts) if isinstance(old, tuple) else parts[0]
            return replace(method, **{axis: new})
        changed: Method = _changed(method, "Method", _owners(method, key)[0], name, _value(text))
        return changed
    except InputError as error:
        raise InputError(f"{row}: {error}") from None


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _fields_of_axis(method: Method, axis: str) -> list[tuple[str, str]]:
    parts = [part for part in _several(getattr(method, axis)) if isinstance(part, Config)]
    return [found for part in parts for found in _fields(part, type(part).__name__)]


def read_part(text: str) -> Any:
    """Return a part that is written as in Python: a class, perhaps with its options; null; or several with commas.

    >>> read_part("SDC(sigma=0.2)")
    SDC(sigma=0.2)
    >>> read_part("(EWC(1e5), LwF)")[0].gamma
    100000.0

    Raises:
        InputError: for anything else, and for a class that is not known: `--import` the module that defines it.
    """
    try:
        return _made(ast.parse(text.strip(), mode="eval").body)
    except InputError:
        raise
    except (SyntaxError, ValueError):
        raise InputError(f"{text!r} is not a part, such as SDC, SDC(sigma=0.2), or null.") from None


def _made(node: ast.expr) -> Any:
    """Return what an expression of names of parts, calls of them and plain values stands for; nothing is executed."""
    if isinstance(node, ast.Name):
        if node.id in ("null", "none"):
            return None
        return (
            {"true": True, "false": False}[node.id] if node.id in ("true", "false") else build(registered(node.id), {})
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        kind = registered(node.func.id)
        names = [field.name for field in dataclasses.fields(kind)]
        if len(node.args) > len(names):
            raise InputError(f"{node.func.id} has {len(names)} options, got {len(node.args)}.")
        values = dict(zip(names, map(_made, node.args), strict=False))
        return build(kind, values | {str(word.arg): _made(word.value) for word in node.keywords})
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(map(_made, node.elts))
    return ast.literal_eval(node)


def _split(text: str) -> list[str]:
    """Return what stands between the commas that are in no bracket.

    >>> _split("SDC(0.1),(EWC, LwF),null")
    ['SDC(0.1)', '(EWC, LwF)', 'null']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


# -- single values ----------------------------------------------------------------------------------------------------


def _owners(config: Config, key: str) -> list[str]:
    """Return the one kind of thing that has a field of this name, or none."""
    owners = _all_owners(config, key)
    return [_one(owners, key)] if owners else []


def _all_owners(config: Config, key: str) -> list[str]:
    here = "Method" if isinstance(config, Method) else "recipe"
    return sorted({owner for owner, name in _fields(config, here) if key in (name, f"{owner}.{name}")})


def _one(owners: list[str], key: str) -> str:
    if len(owners) > 1:
        raise InputError(f"setting {key!r} is not clear: say which of {', '.join(f'{o}.{key}' for o in owners)}.")
    return owners[0]


def _unknown(recipe: Recipe, key: str, unselected: Mapping[str, Method] | None) -> InputError:
    of_others = [name for name, method in (unselected or {}).items() if _has(method, key)]
    if of_others:
        some = ", ".join(of_others[:4]) + (", ..." if len(of_others) > 4 else "")
        return InputError(
            f"setting {key!r} is one of {some}, and --methods leaves them out: drop it, or add one of them."
        )
    known = {part for owner, name in _fields(recipe) for part in (name, f"{owner}.{name}")} | set(AXES)
    return InputError(f"recipe {recipe.name!r} has no setting {key!r}. {did_you_mean(key, known)}")


_FIXED = ("name", "about", "rows", "data", "table", "budget", "notes")


def _fields(config: Config, owner: str = "recipe") -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(config):
        if owner == "recipe" and field.name in _FIXED:
            continue
        value = getattr(config, field.name)
        if isinstance(value, Config):
            yield from _fields(value, _owner(owner, field.name, value))
        elif isinstance(value, tuple) and value and all(isinstance(item, Config) for item in value):
            for item in value:
                yield from _fields(item, type(item).__name__)
        elif owner != "Method":  # an axis is not a plain value: other methods are other rows
            yield owner, field.name
    if isinstance(config, Recipe):
        for _, method in config.rows:
            yield from _fields(method, "Method")


def _owner(outer: str, field: str, value: Config) -> str:
    """Name the owner of nested settings: `training`, `warmup.training` in the recipe; `EWC`, `SDC` in its methods."""
    if outer[0].isupper():
        return type(value).__name__
    return field if outer == "recipe" else f"{outer}.{field}"


def _changed(config: Any, here: str, owner: str, name: str, value: Any) -> Any:
    """Return a copy of a tree of configs in which every `owner` has `name` set to `value`."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        old = getattr(config, field.name)
        if here == owner and field.name == name:
            changes[name] = value
        elif isinstance(old, Config):
            changes[field.name] = _changed(old, _owner(here, field.name, old), owner, name, value)
        elif field.name == "rows":
            changes["rows"] = tuple((row, _changed(method, "Method", owner, name, value)) for row, method in old)
        elif isinstance(old, tuple) and old and all(isinstance(item, Config) for item in old):
            changes[field.name] = tuple(_changed(item, type(item).__name__, owner, name, value) for item in old)
    return replace(config, **changes)


def _value(text: str) -> Any:
    """Read a value as JSON if it is JSON (0.2, 1e7, true, null), else as the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


# -- files ------------------------------------------------------------------------------------------------------------


def read_recipe(path: str | Path) -> Recipe:
    """Return the recipe in a .toml or .json file, as `protodrift show` prints it.

    Only registered configurations are made, through their checks; no code is executed. In TOML, which has no null, the
    text "null" stands for it.

    Raises:
        InputError: saying what is wrong with the file.
    """
    path = Path(path)
    try:
        text = path.read_text()
        document = json.loads(text) if path.suffix == ".json" else _with_nulls(tomllib.loads(text))
        if not isinstance(document, dict) or not isinstance(document.get("rows"), dict):
            raise InputError("it has no rows: {NAME: method}")
        rows = tuple((name, decode({"type": "Method", **row})) for name, row in document["rows"].items())
        others = {name: value for name, value in document.items() if name != "rows"}
        recipe = decode({**others, "type": "Recipe", "rows": []})
        assert isinstance(recipe, Recipe)
        return replace(recipe, rows=rows)
    except (OSError, ValueError, TypeError) as error:  # an InputError is a ValueError
        raise InputError(f"{path} is not a recipe as `protodrift show NAME --toml` prints it: {error}") from error


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_nulls(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_nulls(inner) for inner in value]
    return None if value == "null" else value


def toml_text(document: Mapping[str, Any], table: tuple[str, ...] = ()) -> str:
    """Return a JSON-able document as TOML, null as "null".

    >>> print(toml_text({"tasks": 5, "size": None, "network": {"crop": 32}}), end="")
    tasks = 5
    size = "null"
    <BLANKLINE>
    [network]
    crop = 32
    """
    lines = [f"{_key(name)} = {_inline(value)}\n" for name, value in document.items() if not isinstance(value, Mapping)]
    for name, value in document.items():
        if isinstance(value, Mapping):
            inside = (*table, _key(name))
            lines += [f"\n[{'.'.join(inside)}]\n", toml_text(value, inside)]
    return "".join(lines)


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_inline(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return '"null"' if value is None else json.dumps(value)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else json.dumps(name)
