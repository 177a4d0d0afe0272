"""Two models, each taught half of the classes of a folder, merged, against one model taught all of them.

python -m benchmarks.merge CUB_200_2011/images 101_ObjectCategories --size 96 --photos 10

Five classes are taught in both places, each with half of their photos. Every tenth class is held out: a stranger. Shown
are the largest differences between merged and whole model, in either order, and how right confidence and "unknown" are,
which each place measured among its own classes only.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from protodrift.common import machine
from protodrift.common.labels import Label
from protodrift.common.tables import markdown_table
from protodrift.data.folder import Found, find_photos, read_photos
from protodrift.learner import IncrementalClassifier
from protodrift.model.evaluate import evaluate
from protodrift.model.learn import learn_task, locked_model, plan_task
from protodrift.model.merge import merge

IN_BOTH = 5
STRANGERS = 10  # every so manieth class
EQUAL = 1e-6


def parts_of(found: Found, photos: int, test: int) -> tuple[list[Found], Found]:
    """Return the photos of place one, of place two, of both together, and test photos with those of strangers."""
    classes: dict[str, list[Path]] = {}
    for path, label in found.files:
        classes.setdefault(label, []).append(path)
    known = [label for number, label in enumerate(sorted(classes)) if number % STRANGERS]
    places: list[list[tuple[Path, str]]] = [[], []]
    tests: list[tuple[Path, str]] = []
    for number, label in enumerate(known):
        own = classes[label][:photos]
        tests += [(path, label) for path in classes[label][photos : photos + test]]
        if number < IN_BOTH:
            half = len(own) // 2
            places[0] += [(path, label) for path in own[:half]]
            places[1] += [(path, label) for path in own[half:]]
        else:
            places[number % 2] += [(path, label) for path in own]
    for label in set(classes) - set(known):
        tests += [(path, label) for path in classes[label][:test]]
    named = [Found(f"place{i}", tuple(files), ()) for i, files in enumerate(places, 1)]
    whole = Found("all", tuple(sorted(places[0] + places[1])), ())
    return [*named, whole], Found("test", tuple(sorted(tests)), ())


def taught(path: Path, found: Found, size: int) -> None:
    """Teach a new model as `protodrift learn` does."""
    with locked_model(path) as model:
        learn_task(plan_task(model, found, options={"size": size}))


def difference(one: IncrementalClassifier, other: IncrementalClassifier, images: torch.Tensor) -> dict[str, float]:
    """Return the largest differences; those of scores and of what the read-out keeps over the largest value."""
    mine, theirs = one.state_.prototypes, other.state_.prototypes
    if set(mine.labels) != set(theirs.labels):
        raise SystemExit("the merged model has other classes")
    rows = [mine.row(label) for label in theirs.labels]
    scores, wanted = one.decision_function(images)[:, rows], other.decision_function(images)
    kept = max(
        float((one.state_.readout_state[name] - value).abs().max() / value.abs().max())
        for name, value in other.state_.readout_state.items()
    )
    return {
        "prototypes": float((mine.means[rows] - theirs.means).abs().max()),
        "counts": float((mine.counts[rows] - theirs.counts).abs().max()),
        "read-out": kept,
        "scores": float(np.abs(scores - wanted).max() / np.abs(wanted).max()),
        "answers": float((one.predict(images) != other.predict(images)).mean()),
    }


def measured(name: str, folder: Path, args: argparse.Namespace) -> dict[str, object]:
    """Return everything about one folder."""
    (one, two, whole), test = parts_of(find_photos(folder), args.photos, args.test)
    photos = read_photos(test, args.size)
    labels: list[Label] = list(photos.examples.labels)
    with tempfile.TemporaryDirectory() as place:
        path = {key: Path(place) / key for key in ("one", "two", "whole", "merged", "turned")}
        for key, found in (("one", one), ("two", two), ("whole", whole)):
            taught(path[key], found, args.size)
        merge([path["one"], path["two"]], path["merged"])
        merge([path["two"], path["one"]], path["turned"])
        models = {key: IncrementalClassifier.load(path[key]) for key in ("whole", "merged", "turned")}
    result: dict[str, object] = {
        "folder": name,
        "classes": len(models["whole"].classes_),
        "photos": int(models["whole"].state_.prototypes.counts.sum()),
        "merged": difference(models["merged"], models["whole"], photos.examples.images),
        "turned": difference(models["turned"], models["whole"], photos.examples.images),
    }
    for key in ("whole", "merged"):
        found = evaluate(models[key], photos.examples.images, labels)
        result[f"{key} answers"] = {**vars(found.all), "found_unknown": found.found_unknown}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="folders of class folders")
    parser.add_argument("--photos", type=int, default=10, help="per class, to learn")
    parser.add_argument("--test", type=int, default=5, help="per class, to compare answers")
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    machine.tune()
    found = [measured(folder.name, folder, args) for folder in args.folders]
    rows, apart = [], 0.0
    for one in found:
        for order in ("merged", "turned"):
            values = one[order]
            assert isinstance(values, dict)
            apart = max(apart, *values.values())
            name = f"{one['folder']}, {one['classes']} classes, {'A B' if order == 'merged' else 'B A'}"
            rows.append([name, *(f"{value:.1e}" if value else "0" for value in values.values())])
    print(markdown_table(rows, ["merged against whole", "prototypes", "counts", "read-out", "scores", "answers"]))
    head = ["accuracy", "calibration_error", "false_unknown", "auroc", "found_unknown"]
    sure = []
    for one in found:
        for key in ("whole", "merged"):
            values = one[f"{key} answers"]
            assert isinstance(values, dict)
            sure.append([f"{one['folder']}, {key}", *(f"{100 * values[name]:.1f}" for name in head)])
    print("\n" + markdown_table(sure, ["%", *(name.replace("_", " ") for name in head)]))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    if apart > EQUAL:
        raise SystemExit(f"they differ by {apart:.1e}")


if __name__ == "__main__":
    main()
