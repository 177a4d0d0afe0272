"""The researcher's surface: `Experiment` compares methods on a stream of tasks, and returns `Results`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from .common import machine
from .common.labels import Label
from .common.progress import Reporter, reporting
from .data.arrays import Channels
from .data.datasets.registry import DATASETS
from .data.given import dataset_of
from .data.scan import LabelBy, scan_folder
from .data.tasks import TaskStream
from .errors import InputError, did_you_mean
from .experiments import run as runs
from .experiments.engines import Engine, RayEngine
from .experiments.recipe import Recipe
from .experiments.recipes import get_recipe
from .experiments.recipes.folder import photo_recipe
from .experiments.settings import read_recipe
from .experiments.setup import Network
from .methods import Method, get_method
from .model import defaults
from .report.results import Results
from .training.config import Training

Methods = Method | str | Sequence[str] | Mapping[str, Method]

METHODS_BY_DEFAULT = ("E-Fix", "E-FT", "E-FT+SDC")
"""A network that stays after the first task, one that is trained on, and that one with its prototypes moved."""


class Experiment:
    """Methods compared on a stream of tasks: what `protodrift run` runs, as an object.

    Methods that begin alike share the beginning, a drift estimator or read-out costs no training, and what is on disk
    is not computed again: a run that was interrupted goes on, and runs into one directory add up.

    Args:
        data: (X, y) or (X, y, X_test, y_test); a `Dataset` or `TaskStream`; a PyTorch dataset of (image, label) pairs
            or a Hugging Face `Dataset`, or a pair (train, test) of them; a folder of class folders; or the name of a
            dataset (`protodrift data ls`). Without test images `test_fraction` of each class is held out.
        tasks: into how many tasks the classes are cut, or the tasks spelled out as lists of classes.
        methods: names, such as ["E-FT", "E-FT+SDC"]; or {name: Method(...)}; or one `Method`.
        seeds: training seeds.
        network: the name of a backbone, a module that maps a batch to (N, features), or a `Network`.
        training: how every method is trained.
        class_order: seed of the class order, or None: sorted.
        size: side of pictures from files; None: a folder's as `protodrift learn` chooses it, else their own.
        test_fraction: share of each class that is held out where no test images are given.
        validation: share of the training images that stands in for the test images, while constants are chosen.
        channels: where the channels of arrays are: "auto", "first" or "last".
        name: of the experiment; its run directory is `runs/<name>` by default.
        settings: any other field of `Recipe`, such as `warmup`, `policy` or `classifier_training`.

    >>> from protodrift.data import load_digits
    >>> experiment = Experiment(load_digits(), tasks=5, methods=["E-FT", "E-FT+SDC"], training=Training(epochs=2))
    >>> experiment
    Experiment('digits': 2 methods, seeds 0)
    """

    def __init__(
        self,
        data: Any,
        *,
        tasks: int | Sequence[Sequence[Label]] | None = None,
        methods: Methods | None = None,
        seeds: Iterable[int] | int = (0,),
        network: str | nn.Module | Network | None = None,
        training: Training | None = None,
        class_order: int | None = None,
        size: int | None = None,
        test_fraction: float | None = None,
        validation: float | None = None,
        channels: Channels = "auto",
        name: str = "",
        **settings: Any,
    ) -> None:
        recipe, self.data = _recipe_for(data, size, channels, name)
        if isinstance(tasks, int):
            settings.update(tasks=tasks, classes=None)
        elif tasks is not None:
            settings.update(tasks=None, classes=tuple(map(tuple, tasks)))
        if methods is not None:
            settings["rows"] = tuple(_rows(methods, recipe).items())
        if network is not None:
            settings["network"] = network if isinstance(network, Network) else replace(recipe.network, backbone=network)
            if not isinstance(network, Network):  # weights are those of another backbone
                settings["network"] = replace(settings["network"], weights=None)
        wanted = {"training": training, "class_order": class_order, "test_fraction": test_fraction}
        wanted |= {"validation": validation, "size": size}
        settings.update({field: value for field, value in wanted.items() if value is not None})
        for field in settings:
            if field not in Recipe.__dataclass_fields__:
                raise InputError(f"an experiment has no {field!r}. {did_you_mean(field, Recipe.__dataclass_fields__)}")
        self._set(replace(recipe, **settings), seeds)

    @classmethod
    def of_recipe(
        cls,
        recipe: Recipe | str,
        data: runs.Data = None,
        *,
        seeds: Iterable[int] | int = (0,),
        skip_bad_images: bool = False,
        label_by: LabelBy | None = None,
    ) -> Experiment:
        """Return the experiment of a recipe, or of its name (`protodrift recipes`).

        Args:
            recipe: what to run.
            data: a folder, for recipes that need one.
            seeds: training seeds.
            skip_bad_images: leave out images that cannot be decoded.
            label_by: which name is the class where a folder has folders in folders.
        """
        experiment = object.__new__(cls)
        experiment.data = data
        experiment._set(get_recipe(recipe) if isinstance(recipe, str) else recipe, seeds, skip_bad_images, label_by)
        return experiment

    def _set(
        self,
        recipe: Recipe,
        seeds: Iterable[int] | int,
        skip_bad_images: bool = False,
        label_by: LabelBy | None = None,
    ) -> None:
        self.recipe = recipe
        self.seeds = (seeds,) if isinstance(seeds, int) else tuple(dict.fromkeys(seeds))
        self._reading: dict[str, Any] = {"skip_bad_images": skip_bad_images, "label_by": label_by}
        if not self.seeds or any(type(seed) is not int or seed < 0 for seed in self.seeds):
            raise InputError(f"seeds={seeds!r} must be whole numbers, 0 or more, at least one.")

    @property
    def methods(self) -> dict[str, Method]:
        """The methods by name."""
        return self.recipe.methods

    def __repr__(self) -> str:
        return f"Experiment({self.recipe.name!r}: {len(self.methods)} methods, seeds {', '.join(map(str, self.seeds))})"

    def run(
        self,
        out: str | Path | None = None,
        *,
        jobs: int = 1,
        engine: Engine | Literal["local", "ray"] = "local",
        device: str = "auto",
        reporter: Reporter | None = None,
        command: str = "",
    ) -> Results:
        """Run it, or go on where it stopped.

        Args:
            out: the run directory; None: `runs/<name>`. One of another experiment is refused.
            jobs: how many processes compute stages at the same time.
            engine: "local": this machine; "ray"; or an engine of `protodrift.experiments.engines`.
            device: of the networks: "auto" (CUDA if there is one, else the CPU), "cpu", "cuda", "cuda:1", ...
            reporter: shows progress; None: a live view in a terminal, plain lines in a log.
            command: written beside the results.

        Returns:
            The results of all runs into this directory.
        """
        where = self.where(out)
        self.compute(where, jobs=jobs, engine=engine, device=device, reporter=reporter, command=command)
        return Results(where)

    def where(self, out: str | Path | None = None) -> Path:
        """Return the run directory: `out`, or `runs/<name>`."""
        return Path("runs", self.recipe.name) if out is None else Path(out)

    def compute(
        self,
        out: str | Path | None = None,
        *,
        jobs: int = 1,
        engine: Engine | Literal["local", "ray"] = "local",
        device: str = "auto",
        reporter: Reporter | None = None,
        command: str = "",
    ) -> dict[str, Any]:
        """Run it as `run` does, and return the document of results; an empty one on ranks that do not write."""
        if isinstance(engine, str) and engine not in ("local", "ray"):
            raise InputError(f"engine={engine!r} is unknown. {did_you_mean(engine, ('local', 'ray'))}")
        used = RayEngine(None, jobs if jobs > 1 else None) if engine == "ray" else engine
        with reporting() if reporter is None else contextlib.nullcontext(reporter) as shown:
            return runs.run(
                self.recipe,
                self.where(out),
                seeds=self.seeds,
                data=self.data,
                jobs=jobs if engine == "local" else 1,
                engine=None if isinstance(used, str) else used,
                device=machine.device(device),
                reporter=shown,
                command=command,
                **self._reading,
            )


def recipe_of(
    name: str, budget: str | None = None, data: str | Path | None = None, label_by: LabelBy | None = None
) -> Recipe:
    """Return a recipe by name, or from a .toml or .json file as `protodrift show` prints it.

    Args:
        name: of the recipe, or the path of its file.
        budget: one of those that the recipe has; None: its own.
        data: the folder, for the recipe "folder": network, size, rates and penalties follow from its photos.
        label_by: which name is the class where the folder has folders in folders.
    """
    if name.endswith((".toml", ".json")):
        if budget is not None:
            raise InputError(f"{name} says everything itself: drop --budget.")
        return read_recipe(name)
    if name == "folder" and budget is None and data is not None:
        return _folder_recipe(data, label_by)
    return get_recipe(name, budget)


def _folder_recipe(data: str | Path, label_by: LabelBy | None = None) -> Recipe:
    """Return the recipe "folder" with the network and the size that `protodrift learn` would choose."""
    counts = Counter(label for _, label in scan_folder(data, label_by=label_by).files)
    if not defaults.pretrained_installed():
        training = defaults.training_for(counts)
        return replace(get_recipe("folder"), size=defaults.PLAIN_SIZE, training=training)
    network = Network(defaults.BACKBONE, embedding_dim=None, weights="pip")
    return photo_recipe(network, defaults.PHOTO_SIZE, len(counts))


def _recipe_for(data: Any, size: int | None, channels: Channels, name: str) -> tuple[Recipe, runs.Data]:
    """Return a recipe for data of any kind, and the data as `runs.run` takes it."""
    if isinstance(data, TaskStream):
        recipe, given = _recipe_for(data.dataset, size, channels, name)
        return replace(recipe, tasks=None, classes=data.task_classes), given
    if isinstance(data, (str, Path)):
        return _recipe_of_files(data, size, name)
    dataset = dataset_of(data, size=size, channels=channels, name=name or "arrays")
    recipe = _plain(name or dataset.name, runs.GIVEN)
    if size is None and dataset.spec.is_image:
        recipe = replace(recipe, size=max(8, min(dataset.spec.shape[1:])))
    return recipe, dataset


def _recipe_of_files(data: str | Path, size: int | None, name: str) -> tuple[Recipe, runs.Data]:
    """Return the recipe of a folder, or of a dataset by name."""
    if Path(data).is_dir():
        recipe = _folder_recipe(data)
        return replace(recipe, name=name or Path(data).resolve().name), data
    named = str(data)
    if named != "digits" and named not in DATASETS:
        raise InputError(
            f"{named!r} is neither a folder nor the name of a dataset. {did_you_mean(named, ['digits', *DATASETS])}"
        )
    return _plain(name or named, named), None


def _plain(name: str, data: str) -> Recipe:
    rows = tuple((row, get_method(row)) for row in METHODS_BY_DEFAULT)
    return Recipe(name, f"methods compared on {name}", data, rows, tasks=5)


def _rows(methods: Methods, recipe: Recipe) -> dict[str, Method]:
    """Return methods by name: those of the recipe, else those of the table of methods."""
    if isinstance(methods, Method):
        return {"method": methods}
    if isinstance(methods, Mapping):
        return dict(methods)
    names = [methods] if isinstance(methods, str) else list(methods)
    return {name: recipe.methods.get(name) or get_method(name) for name in names}
