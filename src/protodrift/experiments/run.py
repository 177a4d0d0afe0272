"""Runs a recipe into a directory: stages, results, and what made them.

RUN/run.json        the resolved recipe, versions, commit
RUN/results.json    a table as data: every method and seed
RUN/pictures/       a sample of embeddings, for figures
RUN/stages/         finished stages; RUN/epochs/ the training under way
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..common import machine
from ..common.files import locked, make_directory, replace_file
from ..common.progress import Reporter, silent
from ..data import Dataset, load_digits, load_folder
from ..data.scan import LabelBy
from ..distributed.world import current
from ..errors import InputError, ModelFileError, RunError
from ..networks.build import backbone_name
from ..networks.weights import describe_weights
from . import samples
from .engines import Engine, LocalEngine, compute_stages
from .engines.ranks import compute_together
from .identity import fingerprint, written
from .recipe import Recipe
from .results import MethodResult
from .store import Store
from .tree import Tree

FORMAT_VERSION = 1


GIVEN = "given"
"""The `data` of a recipe whose data is handed over in Python: arrays, a torch or Hugging Face dataset."""

Data = Dataset | str | Path | None
"""The data of a run: itself; the folder for "folder"; where a named set lies, or None: where it is looked for."""


def load_data(recipe: Recipe, data: Data, skip_bad_images: bool = False, label_by: LabelBy | None = None) -> Dataset:
    """Return the dataset of a recipe: of its size, with `validation` some training images in place of the test images.

    Args:
        recipe: says which data, and at what size.
        data: see `Data`.
        skip_bad_images: leave out images that cannot be decoded, instead of refusing the set.
        label_by: which name is the class where the folder has folders in folders, as for `data.scan_folder`.
    """
    dataset = _load(recipe, data, skip_bad_images, label_by)
    if recipe.validation is not None:
        dataset = dataset.split(recipe.validation)
    elif recipe.held_out is not None:
        dataset = dataset.holding_out(recipe.held_out)
    return dataset.first_of_each(recipe.train_images, recipe.test_images)


def _load(recipe: Recipe, data: Data, skip_bad_images: bool, label_by: LabelBy | None) -> Dataset:
    if label_by is not None and recipe.data != "folder":
        raise InputError(f"--classes (label_by) is for folders of yours; recipe {recipe.name!r} knows its classes.")
    if isinstance(data, Dataset):
        return data if data.test is not None else data.split(recipe.test_fraction)
    if recipe.data == GIVEN:
        raise InputError(f"recipe {recipe.name!r} was run on data that a program gave. Run it from Python: Experiment.")
    if recipe.data == "digits":
        if data is not None:
            raise InputError(f"recipe {recipe.name!r} has its own data: drop --data, or run the recipe 'folder'.")
        return load_digits()
    if recipe.data != "folder":
        from ..data.datasets import load_dataset

        return load_dataset(
            recipe.data,
            data,
            size=recipe.stored_size,
            fit=recipe.fit,
            seed=recipe.data_seed,
            skip_bad_images=skip_bad_images,
        )
    if data is None:
        raise InputError(f"recipe {recipe.name!r} runs on a folder of yours: say which with --data DIR.")
    dataset = load_folder(data, recipe.stored_size, fit=recipe.fit, skip_bad_images=skip_bad_images, label_by=label_by)
    if len(dataset.classes) < 2:
        raise InputError(
            f"{data} has one class, {dataset.classes[0]!r}: an experiment needs two or more class folders."
        )
    return dataset.split(recipe.test_fraction)


def run(
    recipe: Recipe,
    out: str | Path,
    *,
    seeds: Iterable[int] = (0,),
    data: Data = None,
    skip_bad_images: bool = False,
    label_by: LabelBy | None = None,
    jobs: int = 1,
    engine: Engine | None = None,
    device: str = "cpu",
    reporter: Reporter = silent,
    command: str = "",
) -> dict[str, Any]:
    """Run a recipe, or go on where an interrupted run stopped, and return the results document.

    Methods and seeds that the directory has results of already stay in the document.

    Args:
        recipe: what to run.
        out: the run directory. One that was made by another recipe or configuration is refused.
        seeds: training seeds.
        data: see `Data`.
        skip_bad_images: leave out images that cannot be decoded.
        label_by: which name is the class where the folder has folders in folders.
        jobs: how many processes compute stages at the same time, each with this process's number of threads.
        engine: where stages are computed; None: `jobs` processes of this machine.
        device: of the networks, where the engine does not say it; its results are stages of their own.
        reporter: shows progress.
        command: written beside the results.
    """
    out, seeds, world = Path(out), tuple(seeds), current()
    if not world.alone and (jobs > 1 or engine is not None):
        raise InputError(
            "torchrun shares one training among its ranks, and engines (--jobs, --engine) share out whole stages. Use "
            "one of them: torchrun for a network that takes long to train, engines for many trainings."
        )
    if engine is None and jobs > 1:
        engine = LocalEngine(jobs, device)
    read = partial(load_data, recipe, _absolute(data), skip_bad_images, label_by)
    dataset = world.first_before_others(read)
    stream = recipe.stream(dataset)
    document: dict[str, Any] = {}
    try:
        with contextlib.ExitStack() as held:
            store = None
            if world.is_first:
                _check_target(out)
                held.enter_context(contextlib.nullcontext() if engine is None else engine.opened())
                held.enter_context(_claimed(out))
                rows = _check_same_run(out, recipe, dataset)
                store = Store(out)
            ranks = world.on_first(lambda: _ranks_begun_with(out, world.size))
            if world.is_first:
                _write_json(out / "run.json", _run_document(recipe, dataset, stream.split, ranks, rows))
            device = device if engine is None else engine.device
            make_tree = partial(
                recipe.tree, stream, store=store, reporter=reporter, device=device, world=world, ranks=ranks
            )
            results: list[MethodResult] = []
            before = _earlier_results(out) if world.is_first else []
            for seed in seeds:
                tree = world.first_before_others(partial(make_tree, seed=seed))
                if not world.alone:
                    compute_together(tree, recipe.methods, reporter)
                if not world.is_first:
                    continue
                if engine is not None:
                    make = partial(_worker_tree, recipe, read, _absolute(out), seed, device)
                    compute_stages(make, tree, recipe.methods, engine=engine, reporter=reporter)
                results += tree.run(recipe.methods).values()
                document = results_document(
                    recipe, stream.task_classes, stream.split, results, command, ranks=world.size
                )
                document = _with_earlier(document, before, reporter)
                _write_json(out / "results.json", document)
                if seed == min(entry["seed"] for entry in document["results"]):
                    samples.keep(out, tree, recipe.methods)
    except ModelFileError as error:
        raise RunError(str(error)) from None
    except OSError as error:
        raise RunError(f"cannot use the run directory {out}: {error.strerror or error}.") from error
    return document


def _ranks_begun_with(out: Path, now: int) -> int:
    """Return the number of ranks in the keys of this run's stages: what it began with, or `now` for a new run."""
    try:
        return int(json.loads((out / "run.json").read_bytes()).get("ranks", 1))
    except (OSError, ValueError, TypeError, AttributeError):
        return now  # there is none yet, or a damaged one, which is written anew


@contextlib.contextmanager
def _claimed(out: Path) -> Iterator[None]:
    """Make the run directory, and hold its lock."""
    make_directory(out)
    with locked(out):
        yield


def _absolute(path: Data) -> Any:
    """Return a path for a process with another working directory; links are kept, as every machine may have its own."""
    return os.path.abspath(path) if isinstance(path, (str, Path)) else path


def _earlier_results(out: Path) -> list[dict[str, Any]]:
    """Return the results that a run directory has already; none where they cannot be read, and are written anew."""
    try:
        document = read_results(out)
        return [entry for entry in document["results"] if {"method", "seed", "settings"} <= set(entry)]
    except (RunError, KeyError, TypeError):
        return []


def _with_earlier(document: dict[str, Any], before: list[dict[str, Any]], reporter: Reporter) -> dict[str, Any]:
    """Return a results document with earlier results of other methods and seeds, in the order of seeds and rows."""
    now = {(entry["method"], entry["seed"]): entry for entry in document["results"]}
    data = document["results"][0]["settings"]["data"]
    kept = [entry for entry in before if (entry["method"], entry["seed"]) not in now]
    same = [entry for entry in kept if entry["settings"].get("data") == data]
    if len(same) < len(kept):
        reporter.note(f"{len(kept) - len(same)} earlier results are of other images, and are left out")
    order = {name: at for at, name in enumerate(dict.fromkeys(entry["method"] for entry in [*before, *now.values()]))}
    entries = sorted([*same, *now.values()], key=lambda entry: (entry["seed"], order[entry["method"]]))
    trainings = {key for entry in entries for key in entry["trainings"]}
    return {**document, "trainings": len(trainings), "results": entries}


def _worker_tree(
    recipe: Recipe, read: Callable[[], Dataset], out: str, seed: int, device: str, reporter: Reporter
) -> Tree:
    """Return the tree of a run, in a worker process."""
    stream = recipe.stream(read())
    store, ranks = Store(out, shared=True), _ranks_begun_with(Path(out), 1)
    return recipe.tree(stream, seed=seed, store=store, reporter=reporter, device=device, ranks=ranks)


def results_document(
    recipe: Recipe,
    tasks: Iterable[Iterable[str | int]],
    split: str,
    results: Iterable[MethodResult],
    command: str,
    *,
    ranks: int = 1,
) -> dict[str, Any]:
    """Return what `results.json` holds: the run's facts, and a list with one entry per method and seed."""
    entries = [result.to_json() for result in results]
    return {
        "format": "protodrift-results",
        "format_version": FORMAT_VERSION,
        "recipe": recipe.name,
        "about": recipe.about,
        "table": recipe.table,
        "data": recipe.data,
        "split": split,
        "tasks": [list(task) for task in tasks],
        "trainings": len({key for entry in entries for key in entry["trainings"]}),
        "command": command,
        "environment": environment(ranks),
        "results": entries,
    }


def environment(ranks: int = 1) -> dict[str, Any]:
    """Return what a result depends on beside its configuration."""
    return {**machine.environment(), "commit": machine.commit(), **({"ranks": ranks} if ranks > 1 else {})}


def read_results(run_directory: str | Path) -> dict[str, Any]:
    """Read and check the `results.json` of a run directory (or the file itself)."""
    path = Path(run_directory)
    path = path / "results.json" if path.is_dir() else path
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{path} is not there: {run_directory} holds no finished run.") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read as results ({error}).") from None
    if not isinstance(document, dict) or document.get("format") != "protodrift-results":
        raise RunError(f"{path} does not hold protodrift results.")
    if document.get("format_version") != FORMAT_VERSION:
        raise RunError(
            f"{path} has format version {document.get('format_version')!r}, this protodrift reads {FORMAT_VERSION}. "
            "Use the protodrift that made it, or run the recipe again."
        )
    return document


def _check_target(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file. Choose another --out.")
    if out.is_dir() and not (out / "run.json").exists():
        others = sorted(p.name for p in out.iterdir() if p.name not in ("stages", "epochs", ".lock", ".run.json.new"))
        if others:
            raise RunError(
                f"{out} exists and is not a run directory (it holds {', '.join(others[:3])}). Choose another --out."
            )


def _identity(recipe: Recipe, dataset: Dataset) -> dict[str, Any]:
    """What must not change within a run directory; methods and seeds may be added."""
    document = {
        key: value for key, value in recipe.resolved().items() if key not in ("rows", "about", "table", "notes")
    }
    if recipe.data == GIVEN:  # nothing else tells it from other arrays
        parts = [dataset.train, *(() if dataset.test is None else (dataset.test,))]
        document["digest"] = [fingerprint(part) for part in parts]
    document["dataset"] = [dataset.name, len(dataset.train), len(dataset.test or ()), [str(c) for c in dataset.classes]]
    return json.loads(json.dumps(document))  # type: ignore[no-any-return]


def _check_same_run(out: Path, recipe: Recipe, dataset: Dataset) -> dict[str, Any]:
    """Refuse a directory of another run; return the rows that it has already."""
    path = out / "run.json"
    if not path.exists():
        return {}
    try:
        before = json.loads(path.read_bytes())
        version, identity, rows = before["format_version"], before["identity"], before["rows"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # a damaged run.json is written anew; stages are checked by themselves
    if version != FORMAT_VERSION:
        raise RunError(f"{out} was made by another version of protodrift (format {version!r}). Choose another --out.")
    now = _identity(recipe, dataset)
    for key in sorted(set(now) | set(identity)):
        if now.get(key) != identity.get(key):
            raise RunError(
                f"{out} holds a run with {key} = {_short(identity.get(key))}, this one has {_short(now.get(key))}. "
                "Choose another --out."
            )
    for name, method in recipe.rows:
        if name in rows and rows[name] != json.loads(json.dumps(written(method))):
            raise RunError(f"{out} holds a run whose method {name!r} is set differently. Choose another --out.")
    return dict(rows)


def _run_document(
    recipe: Recipe, dataset: Dataset, split: str, ranks: int, before: Mapping[str, Any]
) -> dict[str, Any]:
    rows = {**before, **{name: written(method) for name, method in recipe.rows}}
    return {
        "format": "protodrift-run",
        "format_version": FORMAT_VERSION,
        "identity": _identity(recipe, dataset),
        "split": split,
        "rows": rows,
        "weights": _weights(recipe, dataset),
        "environment": environment(),
        **({"ranks": ranks} if ranks > 1 else {}),
    }


def _weights(recipe: Recipe, dataset: Dataset) -> dict[str, str] | None:
    """Return source, hash and license of the weights that a run starts from; where they lie is this machine's."""
    network = recipe.network
    facts = describe_weights(backbone_name(network.backbone, dataset.spec, network.crop), network.weights)
    return facts and {key: value for key, value in facts.items() if key != "path"}


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    replace_file(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
