"""Mutations of a model directory with all checksums recomputed, as a careful attacker would write them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 10**6, 10**15, 2**63, -(2**63), 10**400, 0.0, -0.5, 1e308, 1e-320, "", "x",
    "\0", "\ud800", "a" * 10_000, "__class__", "../../etc/passwd", [], [[]], [None], {}, {"type": "SDC"},
    {"type": "EWC", "gamma": "x"}, {"type": "given by the user", "name": "Net"}, {"type": "Popen"}, [[[[[]]]]],
    ["owl", "owl"], float("nan"), float("inf"),
)  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, one in inner for path in ((*at, key), *places(one, (*at, key)))]


def _parent(manifest: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        manifest = manifest[key]
    return manifest


def _somewhere(rng: random.Random, manifest: dict[str, Any]) -> tuple[Any, Any]:
    path = rng.choice([one for one in places(manifest) if one[0] != "files"])
    return _parent(manifest, path), path[-1]


def exchange(rng: random.Random, manifest: dict[str, Any]) -> None:
    where, key = _somewhere(rng, manifest)
    where[key] = rng.choice(VALUES)


def remove(rng: random.Random, manifest: dict[str, Any]) -> None:
    where, key = _somewhere(rng, manifest)
    del where[key]


def double(rng: random.Random, manifest: dict[str, Any]) -> None:
    where, key = _somewhere(rng, manifest)
    if isinstance(where, list):
        where.insert(key, where[key])
    else:
        where[f"{key}2"] = where[key]


def swap(rng: random.Random, manifest: dict[str, Any]) -> None:
    (one, i), (other, j) = _somewhere(rng, manifest), _somewhere(rng, manifest)
    one[i], other[j] = json.loads(json.dumps(other[j])), json.loads(json.dumps(one[i]))


def scale(rng: random.Random, manifest: dict[str, Any]) -> None:
    numbers = [p for p in places(manifest) if p[0] != "files" and type(_parent(manifest, p)[p[-1]]) in (int, float)]
    path = rng.choice(numbers)
    _parent(manifest, path)[path[-1]] *= rng.choice((-1, 0, 3, 1000, 10**7, 0.5))


def _other_shape(rng: random.Random, value: torch.Tensor) -> torch.Tensor:
    shape = rng.choice([(), (0,), (1,), (3, 2), (*value.shape, 1), tuple(value.shape)[1:], tuple(value.shape)[::-1]])
    return torch.ones(shape, dtype=value.dtype)


def _other_value(rng: random.Random, value: torch.Tensor) -> torch.Tensor:
    value = value.clone()
    if value.numel():
        strange = rng.choice((0, -1, 1, float("nan"), float("inf"), -float("inf"), 1e30, -(2**40)))
        whole = not value.is_floating_point()
        value.view(-1)[rng.randrange(value.numel())] = (
            int(strange) if whole and abs(strange) < 2**60 else 0 if whole else strange
        )
    return value


TENSORS: tuple[Callable[[random.Random, torch.Tensor], torch.Tensor], ...] = (
    _other_shape,
    _other_value,
    lambda rng, value: value.to(rng.choice((torch.float64, torch.float16, torch.int64, torch.bool, torch.uint8))),
    lambda rng, value: value[:-1].contiguous() if value.ndim else value,
    lambda rng, value: value * rng.choice((0, -1, 1000)),
    lambda rng, value: torch.cat([value, value]) if value.ndim else value,
)


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.safetensors") if file.is_file())


def change_tensor(rng: random.Random, folder: Path) -> None:
    file = rng.choice(_files(folder))
    tensors = load_file(file)
    kind = rng.randrange(9)
    if not tensors or kind == 0:
        tensors[rng.choice(("x", "means", "evil", "head.weight"))] = torch.zeros(rng.choice(((), (4,), (2, 2))))
    elif kind == 1:
        tensors.pop(rng.choice(sorted(tensors)))
    else:
        name = rng.choice(sorted(tensors))
        tensors[name] = rng.choice(TENSORS)(rng, tensors[name])
    save_file(tensors, file, metadata={"note": "smuggled"} if kind == 2 else None)


def change_bytes(rng: random.Random, folder: Path) -> None:
    """Change bytes of a tensor file, mostly of its header: lengths, names, types, shapes, places of the data."""
    file = rng.choice(_files(folder))
    data = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(min(len(data), rng.choice((8, 120, len(data)))))] = rng.randrange(256)
    file.write_bytes(data[: rng.choice((len(data), len(data), len(data) // 2))] + rng.choice((b"", b"", b"more")))


def change_files(rng: random.Random, folder: Path) -> None:
    """Exchange, remove or add a file, or put something there that is none."""
    one, other = rng.sample(_files(folder), 2)
    kind = rng.randrange(6)
    if kind == 0:
        shutil.copy(one, other)
    elif kind == 1:
        one.unlink()
    elif kind == 2:
        (folder / rng.choice(("evil.safetensors", "evil.py", "sub"))).write_bytes(b"x")
    else:
        one.unlink()
        if kind == 3:
            os.mkfifo(one)
        else:
            one.symlink_to("/dev/zero" if kind == 4 else folder.parent)


JSON = (exchange, exchange, exchange, remove, double, swap, scale)


def mutate(path: Path, seed: int) -> str:
    """Change a model directory of one version and make all its checksums right again; return what was done."""
    rng = random.Random(seed)
    folder = path / "versions" / "1"
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        change: Any = rng.choice((*JSON, change_tensor, change_tensor, change_tensor, change_bytes, change_files))
        try:
            change(rng, manifest if change in JSON else folder)
        except (OSError, ValueError, KeyError, IndexError, OverflowError, TypeError, RuntimeError):
            continue  # what an earlier change left cannot be changed in this manner
        except Exception as error:
            if type(error).__name__ != "SafetensorError":
                raise
        done.append(change.__name__)
    for name, facts in manifest.get("files", {}).items():
        if (folder / name).is_file():
            content = (folder / name).read_bytes()
            facts.update(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    data = json.dumps(manifest, indent=1).encode()
    file.write_bytes(data)
    current = json.loads((path / "CURRENT").read_text())
    current["manifest_sha256"] = hashlib.sha256(data).hexdigest()
    (path / "CURRENT").write_text(json.dumps(current))
    return "+".join(done)
