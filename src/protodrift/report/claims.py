"""What the paper claims, as data, and how each claim is judged on measured results.

A claim says that rows are above others by so many points. The paper's number is a difference of its tables where these
print it, else the one of its text. `judge_all` compares: see `TOLERANCE` for the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.tables import markdown_table, markdown_text, text_table
from ..errors import InputError, RunError, did_you_mean
from .paper import paper_table
from .summary import Document, summaries, unlearned

NONE, EQUAL, LEVEL, FACTOR = 0.5, 1.0, 2.0, 2.0

TOLERANCE = f"""\
- Differences are in points, those of distances in units of the embedding; mean ± standard deviation over seeds, paired
  by seed.
- pass: the paper's sign in every seed, and a size within a factor of {FACTOR:.0f} of its ("yes": it prints no number).
  sign only: another size.
- Where the paper has less than {NONE} points, ours must have less than {EQUAL:.0f}. An accuracy passes if it is at most
  {LEVEL:.0f} points below the paper's.
- not shown: a row that is compared answers tasks 2 to T, just learned, worse than every network that stands still, or
  is not trained fairly yet."""

Seeds = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class Claim:
    """The best of some rows is above the best of others.

    Attributes:
        place: where the paper says so, such as "Table 1".
        recipe: what measures it.
        text: the claim.
        upper: rows of the recipe, or "RECIPE:ROW" of another one; the best counts.
        lower: what they are above; empty: the claim is a level.
        paper: points; NaN where the paper prints no number.
        metric: one of `METRICS`.
        after: the task after which, as an index.
        unfair: why our rows cannot be compared yet, whatever they reach; "": they can.
    """

    place: str
    recipe: str
    text: str
    upper: tuple[str, ...]
    lower: tuple[str, ...] = ()
    paper: float = math.nan
    metric: str = "average_accuracy"
    after: int = -1
    unfair: str = ""

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """(recipe, row) of everything that it compares."""
        return tuple(self._parted(row) for row in self.upper + self.lower)

    def _parted(self, row: str) -> tuple[str, str]:
        recipe, colon, name = row.partition(":")
        return (recipe, name) if colon else (self.recipe, row)

    def difference(self, entries: Mapping[tuple[str, str], Mapping[str, Any]]) -> float:
        """Return what was measured, from one entry of results per row; the smallest where there are several."""
        upper, lower = (
            [METRICS[self.metric](entries[self._parted(row)], self.after) for row in rows]
            for rows in (self.upper, self.lower)
        )
        below = np.max(lower, axis=0) if lower else 0.0
        return float(np.min(np.max(upper, axis=0) - below))


def _accuracy(name: str) -> Callable[[Mapping[str, Any], int], np.ndarray]:
    return lambda entry, after: 100 * np.array(entry[name][after], dtype=float)


def _later_tasks(entry: Mapping[str, Any], after: int) -> np.ndarray:
    return 100 * np.array(entry["accuracy_matrix"][after][1:], dtype=float)


def _called_later(entry: Mapping[str, Any], after: int) -> np.ndarray:
    """Share of the test images of tasks 1 to T - 1 that are called a class of a later task, in percent."""
    counts = np.array(entry["confusion"], dtype=float)
    per_class, sizes = counts.sum(axis=1), entry["test_counts"]
    ends = np.searchsorted(np.cumsum(per_class), np.cumsum(sizes)) + 1  # the classes that each task ends with
    task = np.searchsorted(ends, np.arange(len(counts)), side="right")
    old = task < len(sizes) - 1
    return np.array(100 * counts[task[:, None] < task[None, :]].sum() / per_class[old].sum())


METRICS: dict[str, Callable[[Mapping[str, Any], int], np.ndarray]] = {
    "average_accuracy": _accuracy("average_accuracy"),
    "overall_accuracy": _accuracy("overall_accuracy"),
    "average_forgetting": _accuracy("average_forgetting"),
    "distance": lambda entry, after: np.array(entry["old_prototype_distance"][after], dtype=float),
    "later_tasks": _later_tasks,
    "called_later": _called_later,
}
"""Of one result, after a task: in percent, but for the distance of old prototypes to the true means."""


# -- the claims -------------------------------------------------------------------------------------------------------

PAIRS = ("E-FT", "E-LwF", "E-EWC", "E-MAS")
MOVED = tuple(f"{name}+SDC" for name in PAIRS)
RATES = "FT and FT* have ten times E-FT's rate"
SHORTENED = "our row has two epochs per task, class-balanced batches, frozen batch norm"

NEEDS = {
    "cars196-six": "needs Cars-196",
    "imagenet-subset-eleven": "needs ImageNet-Subset",
    "cub200-no-birds": "weights that nobody publishes: `protodrift run cub200-no-birds --set network.weights=FILE`",
    "cub200-vgg-four": "needs ImageNet weights of VGG16",
}
"""What a recipe needs that not everybody can have."""


def _printed(table: str, row: str, after: int = -1) -> float:
    """Return what the paper prints, in percent."""
    found = paper_table(table)
    assert found is not None
    return 100 * float(found.rows[row][after])


def _gap(table: str, upper: Iterable[str], lower: Iterable[str]) -> float:
    best, other = (max(_printed(table, row) for row in rows) for rows in (upper, lower))
    return round(best - other, 1)


def _within(place: str, recipe: str, table: str, data: str, metric: str = "average_accuracy") -> Iterator[Claim]:
    """What SDC gains in a table."""
    for name, moved in zip(PAIRS, MOVED, strict=True):
        text = f"{data}: SDC gains on {name}"
        yield Claim(place, recipe, text, (moved,), (name,), _gap(table, [moved], [name]), metric)


def _held(place: str, recipe: str, table: str, data: str, metric: str = "average_accuracy") -> Iterator[Claim]:
    """What penalties gain in a table."""
    for name in PAIRS[1:]:
        text = f"{data}: {name} above E-FT"
        yield Claim(place, recipe, text, (name,), ("E-FT",), _gap(table, [name], ["E-FT"]), metric)


def _table1() -> Iterator[Claim]:
    for data, name in (("CUB-200", "cub200"), ("Flowers", "flowers102")):
        recipe, table, still = f"{name}-six", f"table1/{name}", ("E-Pre", "E-Fix")
        yield from _within("Table 1", recipe, table, data)
        yield from _held("Table 1", recipe, table, data)
        text = f"{data}: the best SDC row above E-Pre and E-Fix"
        yield Claim("Table 1", recipe, text, MOVED, still, _gap(table, MOVED, still))
    heads = ("LwF", "EWC", "MAS")
    paper = _gap("table1/cub200", ["E-FT"], heads)
    yield Claim("Table 1", "cub200-six", "CUB-200: E-FT above LwF, EWC and MAS", ("E-FT",), heads, paper)


def _table2() -> Iterator[Claim]:
    for name in PAIRS:
        text = f"CUB-200: {name} without birds in the pretraining, against with them"
        paper = round(_printed("table2_no_birds/cub200", name) - _printed("table1/cub200", name), 1)
        yield Claim("Table 2", "cub200-no-birds", text, (name,), (f"cub200-six:{name}",), paper)


def _table3() -> Iterator[Claim]:
    for loss in ("multi-similarity", "angular"):
        recipe, table = f"cub200-{loss}", f"table3_losses/{loss.replace('-', '_')}"
        yield from _within("Table 3", recipe, table, f"CUB-200, {loss}")
        for after, when in ((0, "in task 1"), (-1, "after task 6"))[: 1 if loss == "angular" else 2]:
            paper = round(_printed(table, "E-FT", after) - _printed("table1/cub200", "E-FT", after), 1)
            text = f"CUB-200: {loss} against triplets, E-FT {when}"
            yield Claim("Table 3", recipe, text, ("E-FT",), ("cub200-six:E-FT",), paper, after=after)


def _table5() -> Iterator[Claim]:
    for data, name in (("CIFAR-100", "cifar100"), ("ImageNet-Subset", "imagenet-subset")):
        recipe, table = f"{name}-eleven", f"table5_eleven_tasks/{name.replace('-', '_')}"
        known = paper_table(table)
        assert known is not None
        metric = f"{known.beside}_accuracy"
        for row in known.rows:
            yield Claim("Table 5", recipe, f"{data}: {row}", (row,), (), _printed(table, row), metric)
        yield from _within("Table 5", recipe, table, data, metric)
        yield from _held("Table 5", recipe, table, data, metric)
        text = f"{data}: the best row without exemplars against E-Fix"
        yield Claim("Table 5", recipe, text, PAIRS + MOVED, ("E-Fix",), _gap(table, PAIRS + MOVED, ["E-Fix"]), metric)


def _figures() -> Iterator[Claim]:
    overall = "overall_accuracy"
    cifar, imagenet, cub = "cifar100-eleven", "imagenet-subset-eleven", "cub200-six"
    for recipe, data, paper, metric in (
        (cub, "CUB-200", 23.9, "average_accuracy"),
        (cifar, "CIFAR-100", 32.6, overall),
        (imagenet, "ImageNet-Subset", 42.9, overall),
    ):
        for row in ("FT", "FT*"):  # the paper does not say which
            yield Claim("Fig. 2", recipe, f"{data}: E-FT above {row}", ("E-FT",), (row,), paper, metric, unfair=RATES)
    for place, recipe, data, names in (
        ("Fig. 4", "mnist-2d", "MNIST", PAIRS[:1]),
        ("Fig. 5", cub, "CUB-200", PAIRS),
        ("Fig. 8", "mnist-2d", "MNIST", PAIRS[1:]),
    ):
        for row in names:
            text = f"{data}: SDC brings old prototypes nearer to the true means, {row}"
            yield Claim(place, recipe, text, (row,), (f"{row}+SDC",), metric="distance")
    for recipe, data, above, more in (
        ("cub100-ten", "CUB-100", 21.2, 6.4),
        ("caltech101-ten", "Caltech-101", 29.0, 1.4),
    ):
        yield Claim("Fig. 6", recipe, f"{data}: E-MAS above LwM", ("E-MAS",), ("LwM",), above)
        yield Claim("Fig. 6", recipe, f"{data}: SDC gains on E-MAS", ("E-MAS+SDC",), ("E-MAS",), more)
    ours = "E-EWC+SDC"
    for recipe, data, gaps, forgets in (
        (cifar, "CIFAR-100", {"EWC": 27.6, "iCaRL-CNN": 7.1, "iCaRL-NME": 1.1}, 13.9),
        (imagenet, "ImageNet-Subset", {"LwF": 35.0, "iCaRL-CNN": 15.5, "iCaRL-NME": 2.5}, 3.5),
    ):
        for row, paper in gaps.items():
            why = SHORTENED if "iCaRL" in row else ""
            yield Claim("Fig. 7", recipe, f"{data}: {ours} above {row}", (ours,), (row,), paper, overall, unfair=why)
        text = f"{data}: {ours} forgets less than Rebalance"
        yield Claim("Fig. 7", recipe, text, ("Rebalance",), (ours,), forgets, "average_forgetting", unfair=SHORTENED)
    others = tuple(f"{cifar}:{row}" for row in (*PAIRS, *MOVED, "E-Fix", "iCaRL-CNN", "iCaRL-NME", "Rebalance"))
    yield Claim("Fig. 7", "cifar100-joint", "CIFAR-100: joint training above all", ("FT",), others, metric=overall)
    for recipe, data in ((cub, "CUB-200"), ("flowers102-six", "Flowers")):
        text = f"{data}: fewer old images are called a class of a later task with SDC, E-FT"
        yield Claim("Fig. 9", recipe, text, ("E-FT",), ("E-FT+SDC",), metric="called_later")
    vgg = "cub200-vgg-four"
    for row, paper in (("EWC", 30.1), ("R-EWC", 22.1)):
        yield Claim("Fig. 10", vgg, f"CUB-200, VGG16: E-EWC above {row}", ("E-EWC",), (row,), paper)
    yield Claim("Fig. 10", vgg, "CUB-200, VGG16: SDC gains on E-EWC", (ours,), ("E-EWC",), 1.6)
    for recipe, data in ((cifar, "CIFAR-100"), (imagenet, "ImageNet-Subset")):
        text = f"{data}: E-EWC above E-Fix on every task from 2 to 11 (the smallest difference)"
        yield Claim("Fig. 11", recipe, text, ("E-EWC",), ("E-Fix",), metric="later_tasks")


def all_claims() -> tuple[Claim, ...]:
    """Return every claim, tables before figures."""
    cars = _within("Table 4", "cars196-six", "table4_cars/cars196", "Cars-196")
    return (*_table1(), *_table2(), *_table3(), *cars, *_table5(), *_figures())


def key_of(place: str) -> str:
    """Return how a place is typed.

    >>> key_of("Table 1"), key_of("Fig. 10")
    ('TABLE1', 'FIG10')
    """
    return place.replace(" ", "").replace(".", "").upper()


def claims_of(name: str) -> tuple[Claim, ...]:
    """Return the claims of a table or figure such as "TABLE1" or "fig7"; of "all" of them.

    Raises:
        InputError: for an unknown name, with the nearest one.
    """
    claims = all_claims()
    if name.lower() == "all":
        return claims
    found = tuple(claim for claim in claims if key_of(claim.place) == key_of(name))
    if not found:
        known = dict.fromkeys(key_of(claim.place) for claim in claims)
        raise InputError(f"no claims are known of {name!r}. {did_you_mean(name, [*known, 'all'])}")
    return found


def rows_needed(claims: Iterable[Claim]) -> dict[str, tuple[str, ...]]:
    """Return recipe -> the rows that the claims compare."""
    needed: dict[str, dict[str, None]] = {}
    for claim in claims:
        for recipe, row in claim.rows:
            needed.setdefault(recipe, {})[row] = None
    return {recipe: tuple(rows) for recipe, rows in needed.items()}


# -- judging ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """A claim and what was measured of it.

    Attributes:
        claim: the claim.
        values: what was measured with each seed that all its rows have; empty: it was not run.
        verdict: "pass", "sign only", "fail", "not shown: ...", "not run: ...".
    """

    claim: Claim
    values: tuple[float, ...]
    verdict: str

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The claim, the paper's number, ours, and the verdict."""
        claim, places = self.claim, 3 if self.claim.metric == "distance" else 1
        sign = "+" if claim.lower else ""
        paper = "yes" if math.isnan(claim.paper) else f"{claim.paper:{sign}.1f}"
        ours = "–"
        if self.values:
            spread = f" ± {np.std(self.values, ddof=1):.{places}f}" if len(self.values) > 1 else ""
            seeds = "seed" if len(self.values) == 1 else "seeds"
            mean = round(float(np.mean(self.values)), places) + 0.0  # no minus before a zero
            ours = f"{mean:{sign}.{places}f}{spread} ({len(self.values)} {seeds})"
        return f"{claim.place}, {claim.text}", paper, ours, self.verdict


def by_recipe(documents: Iterable[Document]) -> dict[str, Document]:
    """Return results documents by their recipe.

    Raises:
        RunError: if two are of one recipe: which of them is meant cannot be known.
    """
    found: dict[str, Document] = {}
    for document in documents:
        name = str(document.get("recipe", ""))
        if name in found:
            raise RunError(f"two of the runs are of the recipe {name!r}. Name one of them.")
        found[name] = document
    return found


def judge_all(claims: Iterable[Claim], documents: Mapping[str, Document]) -> list[Judged]:
    """Judge claims on results.

    Args:
        claims: see `claims_of`.
        documents: recipe -> its results; what is missing is said to be not run.
    """
    measured: dict[tuple[str, str], Seeds] = {}
    low: dict[tuple[str, str], float] = {}
    for recipe, document in documents.items():
        for name, percent in unlearned(summaries([document]))[0].items():
            low[recipe, name] = percent
        for entry in document["results"]:
            measured.setdefault((recipe, entry["method"]), {})[entry["seed"]] = entry  # type: ignore[index]
    return [_judged(claim, measured, low) for claim in claims]


def _judged(claim: Claim, measured: Mapping[tuple[str, str], Seeds], low: Mapping[tuple[str, str], float]) -> Judged:
    missing = [recipe for recipe, row in claim.rows if (recipe, row) not in measured]
    seeds = sorted(set.intersection(*(set(measured.get(row, {})) for row in claim.rows)))
    if not seeds:
        why = NEEDS.get(missing[0], "") if missing else "its rows have no seed in common"
        return Judged(claim, (), f"not run: `protodrift reproduce {key_of(claim.place)}`{', ' + why if why else ''}")
    values = tuple(claim.difference({row: measured[row][seed] for row in claim.rows}) for seed in seeds)
    untrained = [
        f"{row} has {low[recipe, row]:.1f} % on tasks just learned"
        for recipe, row in claim.rows
        if (recipe, row) in low
    ]
    reason = "; ".join(untrained) or claim.unfair
    return Judged(claim, values, f"not shown: {reason}" if reason else verdict(claim, values))


def verdict(claim: Claim, values: tuple[float, ...]) -> str:
    """Return "pass", "sign only" or "fail" for what was measured with each seed, by the rule of `TOLERANCE`."""
    ours, paper = float(np.mean(values)), claim.paper
    if not all(map(math.isfinite, values)):
        return "fail"
    if not claim.lower:
        return "pass" if ours >= paper - LEVEL else "fail"
    if math.isnan(paper):
        return "pass" if min(values) > 0 else "fail"
    if abs(paper) < NONE:
        return "pass" if abs(ours) < EQUAL else "fail"
    if any(value * paper <= 0 for value in values):
        return "fail"
    return "pass" if 1 / FACTOR <= ours / paper <= FACTOR else "sign only"


HEAD = ("claim", "paper", "ours (seeds, ±)", "verdict")


def claims_text(judged: Iterable[Judged]) -> str:
    """Return the table for a terminal, how many passed, and the rule."""
    judged = list(judged)
    counts = [
        sum(one.verdict.startswith(word) for one in judged) for word in ("pass", "sign", "fail", "not shown", "not run")
    ]
    said = "{} pass, {} sign only, {} fail, {} not shown, {} not run".format(*counts)
    table = text_table([one.cells for one in judged], HEAD, right=(1, 2), rule=True)
    return f"{table}\n\n{said}\n{TOLERANCE}"


def claims_markdown(judged: Iterable[Judged]) -> str:
    """Return the table as Markdown."""
    cells = [(*map(markdown_text, one.cells[:3]), markdown_text(one.verdict).replace("\\`", "`")) for one in judged]
    return markdown_table(cells, HEAD, right=(1, 2))
