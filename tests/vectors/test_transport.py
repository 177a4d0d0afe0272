"""Stored vectors moved into a new model's space: formats, streaming, recall, errors."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.neighbors import NearestNeighbors

from protodrift.drift import Procrustes, Ridge
from protodrift.errors import InputError
from protodrift.vectors import fit_mover, streaming, transport
from protodrift.vectors.recall import first_found, nearest, recall

faiss = pytest.importorskip("faiss")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def affine():
    """300 pairs of an affine map 6 -> 4, 100 stored vectors, and where they belong."""
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(6, 4)), rng.normal(size=4)
    old, store = rng.normal(size=(300, 6)).astype(np.float32), rng.normal(size=(100, 6)).astype(np.float32)
    return old, (old @ weight + bias).astype(np.float32), store, (store @ weight + bias).astype(np.float32)


@pytest.fixture
def small_chunks(monkeypatch):
    """Seven vectors of six float32 numbers a chunk."""
    monkeypatch.setattr(streaming, "_CHUNK_BYTES", 7 * 6 * 4)


EXACT = Ridge(0.0, intercept=True)


# Recall


@pytest.mark.parametrize(("metric", "sklearn"), [("l2", "euclidean"), ("cosine", "cosine")])
def test_neighbors_are_scikit_learns(metric, sklearn):
    rng = np.random.default_rng(1)
    queries, vectors = rng.normal(size=(1100, 5)) + 10, rng.normal(size=(50, 5)) + 10
    theirs = NearestNeighbors(n_neighbors=4, metric=sklearn).fit(vectors).kneighbors(queries, return_distance=False)
    ours = nearest(torch.from_numpy(queries), torch.from_numpy(vectors), 4, metric)
    assert (ours.numpy() == theirs).all()


def test_recall_is_the_naive_count():
    rng = np.random.default_rng(2)
    found, true = (np.stack([rng.permutation(20)[:5] for _ in range(30)]) for _ in range(2))
    naive = np.mean([len(set(f[:3]) & set(t[:3])) / 3 for f, t in zip(found, true, strict=True)])
    first = np.mean([t[0] in f[:3] for f, t in zip(found, true, strict=True)])
    assert recall(torch.from_numpy(found), torch.from_numpy(true), 3) == pytest.approx(naive)
    assert first_found(torch.from_numpy(found), torch.from_numpy(true), 3) == pytest.approx(first)


def test_a_query_does_not_find_itself():
    z = torch.arange(5.0)[:, None]
    assert nearest(z, z, 1, same=True).ravel().tolist()[0] == 1


# The map


def test_the_map_is_scikit_learns_ridge(affine):
    old, new, store, _ = affine
    new = new + np.random.default_rng(3).normal(size=new.shape).astype(np.float32)
    centered = old.astype(np.float64) - old.mean(axis=0, dtype=np.float64)
    theirs = SklearnRidge(alpha=0.3 * (centered**2).sum() / 6).fit(old.astype(np.float64), new).predict(store)
    ours, _ = fit_mover(old, new, drift=Ridge(0.3, intercept=True)).move(store)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_a_rotation_is_found_and_recall_is_whole():
    rng = np.random.default_rng(4)
    old = rng.normal(size=(400, 8)).astype(np.float32)
    turn = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    report = fit_mover(old, (old @ turn).astype(np.float32)).report
    assert isinstance(report.chosen, Ridge | Procrustes)
    assert report.moved.at[10] > 0.95 > 0.5 > report.unmoved.at[10]
    assert report.old.at[10] > 0.99  # a rotation keeps neighbors
    assert report.recovered(10) == pytest.approx(
        (report.moved.at[10] - report.unmoved.at[10]) / (1 - report.unmoved.at[10])
    )
    assert max(score for _, score in report.tried) == dict(report.tried)[report.chosen]


def test_unit_vectors_stay_unit_vectors(affine):
    old, new, store, _ = affine
    moved, _ = fit_mover(old, new / np.linalg.norm(new, axis=1, keepdims=True)).move(store)
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 1, atol=1e-5)
    assert np.linalg.norm(fit_mover(old, new).move(store)[0], axis=1).std() > 0.1


def test_the_uncertainty_knows_where_the_map_is_wrong():
    """The new model adds noise to half of the space: there the map cannot be right, and it says so."""
    rng = np.random.default_rng(5)
    old = rng.normal(size=(2000, 3)).astype(np.float32)
    new = old + rng.normal(size=old.shape) * np.where(old[:, :1] > 0, 1.0, 0.01)
    mover = fit_mover(old, new.astype(np.float32), held_out=0.5)
    store = rng.normal(size=(500, 3)).astype(np.float32)
    doubt = mover.move(store)[1]
    assert doubt[store[:, 0] > 0.5].min() > doubt[store[:, 0] < -0.5].max()
    assert mover.report.uncertainty_rank > 0.6
    assert mover.report.uncertainty_ratio == pytest.approx(1, abs=0.15)


def test_the_same_seed_gives_the_same_map(affine):
    old, new, store, _ = affine
    one, two = (fit_mover(old, new, seed=3).move(store) for _ in range(2))
    assert all((a == b).all() for a, b in zip(one, two, strict=True))


# The formats


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_npy(affine, tmp_path, dtype):
    old, new, store, right = affine
    np.save(tmp_path / "s.npy", store.astype(dtype))
    seen = []
    result = transport(
        old,
        new,
        tmp_path / "s.npy",
        tmp_path / "o.npy",
        drift=EXACT,
        reembed=9,
        on_progress=lambda *at: seen.append(at),
    )
    moved = np.load(tmp_path / "o.npy")
    assert moved.dtype == dtype
    np.testing.assert_allclose(moved, right, atol=2e-2 if dtype == np.float16 else 1e-4)
    doubt, rows = np.load(result.uncertainty), np.load(result.reembed)
    assert doubt.shape == (100,)
    assert rows.tolist() == np.lexsort((np.arange(100), -doubt))[:9].tolist()
    assert seen[0] == ("vectors", 7, 100)
    assert seen[-1] == ("vectors", 100, 100)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "o.npy",
        "o.npy.reembed.npy",
        "o.npy.uncertainty.npy",
        "s.npy",
    ]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("kind", ["fixed", "list", "large"])
def test_parquet_keeps_ids_and_columns(affine, tmp_path, kind):
    old, new, store, right = affine
    types = {"fixed": pa.list_(pa.float32(), 6), "list": pa.list_(pa.float32()), "large": pa.large_list(pa.float32())}
    columns = {
        "id": pa.array([f"item {i}" for i in range(100)]),
        "emb": pa.array(list(store), types[kind]),
        "price": pa.array([None if i % 3 == 0 else i for i in range(100)], pa.int32()),
    }
    pq.write_table(pa.table(columns), tmp_path / "s.parquet", row_group_size=33)
    transport(old, new, tmp_path / "s.parquet", tmp_path / "o.parquet", drift=EXACT)
    table = pq.read_table(tmp_path / "o.parquet")
    assert table.column_names == ["id", "emb", "price", "uncertainty"]
    assert table["id"].to_pylist() == columns["id"].to_pylist()
    assert table["price"].to_pylist() == columns["price"].to_pylist()
    np.testing.assert_allclose(np.array(table["emb"].to_pylist()), right, atol=1e-4)
    assert table.schema.field("emb").type.value_type == pa.float32()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o.parquet", "s.parquet"]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("metric", ["L2", "IP"])
@pytest.mark.parametrize("ids", [False, True])
def test_faiss(affine, tmp_path, metric, ids):
    old, new, store, right = affine
    index = getattr(faiss, f"IndexFlat{metric}")(6)
    if ids:
        index = faiss.IndexIDMap2(index)
        index.add_with_ids(store, np.arange(100) * 10 + 5)
    else:
        index.add(store)
    faiss.write_index(index, str(tmp_path / "s.faiss"))
    result = transport(old, new, tmp_path / "s.faiss", tmp_path / "o.faiss", drift=EXACT)
    assert result.report.metric == metric.lower()
    moved = faiss.read_index(str(tmp_path / "o.faiss"))
    assert (moved.d, moved.ntotal, moved.metric_type) == (4, 100, index.metric_type)
    for row in (0, 41, 99):
        np.testing.assert_allclose(moved.reconstruct(row * 10 + 5 if ids else row), right[row], atol=1e-4)


def test_an_index_of_cosines_ranks_by_them_also_where_the_pairs_are_not_of_length_1(affine, tmp_path):
    old, new, store, right = affine
    np.save(tmp_path / "s.npy", store)
    transport(old, new, tmp_path / "s.npy", tmp_path / "o.faiss", drift=EXACT, metric="cosine")
    index = faiss.read_index(str(tmp_path / "o.faiss"))
    shares, found = index.search(np.ascontiguousarray(new[:50] / np.linalg.norm(new[:50], axis=1, keepdims=True)), 10)
    theirs = NearestNeighbors(n_neighbors=10, metric="cosine").fit(right).kneighbors(new[:50])
    assert (found == theirs[1]).mean() > 0.99  # but for ties
    np.testing.assert_allclose(shares, 1 - theirs[0], atol=1e-4)


def test_one_format_into_another_says_what_is_lost(affine, tmp_path):
    old, new, store, right = affine
    table = pa.table({"id": list(range(100)), "emb": pa.array(list(store), pa.list_(pa.float32()))})
    pq.write_table(table, tmp_path / "s.parquet")
    result = transport(old, new, tmp_path / "s.parquet", tmp_path / "o.npy", drift=EXACT)
    assert result.dropped == "the other columns"
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), right, atol=1e-4)


# What goes wrong


def nothing_new(folder, before):
    return sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda old, new, store: (old[:-1], new, store), "299 old vectors but 300 new ones"),
        (lambda old, new, store: (old[:10], new[:10], store), "10 pairs are too few"),
        (
            lambda old, new, store: (with_nan(old, 7), new, store),
            "old pairs have NaN or infinite numbers in 1 rows.*row 7",
        ),
        (lambda old, new, store: (old, with_nan(new, 8), store), "new pairs have NaN or infinite .*row 8"),
        (lambda old, new, store: (old, new, store[:, :5]), "holds vectors of 5 numbers, but the old pairs have 6"),
        (lambda old, new, store: (old, new, with_nan(store, 42)), "row 42 has NaN or infinite numbers"),
        (lambda old, new, store: (old, new, store[:0]), "holds no vectors"),
        (lambda old, new, store: (old, new, store[0]), "must hold one .N, D. array"),
        (lambda old, new, store: (old, new, store.astype(int)), "int64 numbers: vectors must be float16"),
        (lambda old, new, store: (old.astype(int), new, store), "old pairs must be .N, D. floats"),
    ],
)
@pytest.mark.usefixtures("small_chunks")
def test_bad_input_is_explained_and_leaves_nothing(affine, tmp_path, change, said):
    old, new, store = change(*affine[:3])
    np.save(tmp_path / "s.npy", store)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=said):
        transport(old, new, tmp_path / "s.npy", tmp_path / "o.npy", reembed=0)
    assert nothing_new(tmp_path, before)


def with_nan(array, row):
    array = array.copy()
    array[row, 1] = np.nan
    return array


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("end", ["npy", "parquet", "faiss"])
def test_an_interrupt_leaves_the_old_output_whole(affine, tmp_path, end):
    old, new, store, _ = affine
    np.save(tmp_path / "s.npy", store)
    out = tmp_path / f"o.{end}"
    out.write_bytes(b"what was there")
    before = sorted(tmp_path.iterdir())

    def interrupt(what, done, total):
        if done > 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transport(old, new, tmp_path / "s.npy", out, force=True, on_progress=interrupt)
    assert nothing_new(tmp_path, before)
    assert out.read_bytes() == b"what was there"


def test_nothing_is_overwritten_unless_forced(affine, tmp_path):
    old, new, store, _ = affine
    np.save(tmp_path / "s.npy", store)
    (tmp_path / "o.npy.uncertainty.npy").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"uncertainty.npy is already there.*--force"):
        transport(old, new, tmp_path / "s.npy", tmp_path / "o.npy")
    transport(old, new, tmp_path / "s.npy", tmp_path / "o.npy", force=True)
    assert np.load(tmp_path / "o.npy.uncertainty.npy").shape == (100,)
    with pytest.raises(InputError, match="is the store itself"):
        transport(old, new, tmp_path / "s.npy", tmp_path / "s.npy", force=True)


@pytest.mark.parametrize("end", ["npy", "parquet"])
def test_no_row_numbers_of_an_earlier_store_stay_beside_a_new_one(affine, tmp_path, end):
    old, new, store, _ = affine
    np.save(tmp_path / "s.npy", store)
    out = tmp_path / f"o.{end}"
    transport(old, new, tmp_path / "s.npy", out, reembed=50)
    beside = {tmp_path / f"o.{end}.{name}.npy" for name in ("uncertainty", "reembed")}
    (tmp_path / f"o.{end}.uncertainty.npy").touch()  # of a run with another format, perhaps
    out.unlink()
    with pytest.raises(InputError, match=r"o.*\.npy is already there.*--force"):
        transport(old, new, tmp_path / "s.npy", out, uncertainty=False)
    assert all(file.exists() for file in beside)
    transport(old, new, tmp_path / "s.npy", out, uncertainty=False, force=True)
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "s.npy", out])


def test_stale_row_numbers_are_gone_before_the_new_store_is_there(affine, tmp_path, monkeypatch):
    old, new, store, _ = affine
    np.save(tmp_path / "s.npy", store)
    out, stale = tmp_path / "o.npy", tmp_path / "o.npy.reembed.npy"
    out.write_bytes(b"what was there")
    stale.write_bytes(b"its rows")

    def interrupt(sink):
        raise KeyboardInterrupt

    monkeypatch.setattr(streaming.NpySink, "commit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        transport(old, new, tmp_path / "s.npy", out, uncertainty=False, force=True)
    assert out.read_bytes() == b"what was there"
    assert not stale.exists()


def test_a_store_is_not_taken_for_a_sidecar(affine, tmp_path):
    old, new, store, _ = affine
    np.save(tmp_path / "o.npy.reembed.npy", store)
    with pytest.raises(InputError, match="is the store itself"):
        transport(old, new, tmp_path / "o.npy.reembed.npy", tmp_path / "o.npy", force=True)
    assert len(np.load(tmp_path / "o.npy.reembed.npy")) == 100


@pytest.mark.parametrize(
    ("columns", "column", "said"),
    [
        ({"a": [[1.0]], "b": [[1.0]]}, None, "2 columns of vectors .* a, b. Say which"),
        ({"a": [1.0]}, None, "0 columns of vectors"),
        ({"a": [[1.0] * 6], "n": [1]}, "n", "column 'n' holds int64"),
        ({"emb": [[1.0] * 6]}, "enb", "Did you mean 'emb'"),
        ({"a": [[1.0] * 6, None]}, "a", "no vector in row 1"),
        ({"a": [None, [1.0] * 6]}, "a", "column 'a' has no vector in row 0. Drop such rows"),
        ({"a": [[], [1.0] * 6]}, "a", "column 'a' has no vector in row 0. Drop such rows"),
        ({"a": [[1.0] * 6, [1.0]]}, "a", "6 in row 0, 1 in row 1"),
    ],
)
def test_parquet_files_that_cannot_be_moved(affine, tmp_path, columns, column, said):
    pq.write_table(pa.table(columns), tmp_path / "s.parquet")
    with pytest.raises(InputError, match=said):
        transport(*affine[:2], tmp_path / "s.parquet", tmp_path / "o.parquet", column=column)
    assert [p.name for p in tmp_path.iterdir()] == ["s.parquet"]


def test_an_index_that_is_not_flat_is_refused(affine, tmp_path):
    old, new, store, _ = affine
    index = faiss.index_factory(6, "HNSW4")
    index.add(store)
    faiss.write_index(index, str(tmp_path / "s.faiss"))
    with pytest.raises(InputError, match="IndexHNSWFlat: only flat"):
        transport(old, new, tmp_path / "s.faiss", tmp_path / "o.faiss")


@pytest.mark.parametrize("name", ["s.npy", "s.parquet", "s.faiss"])
def test_a_damaged_store_is_said_to_be_one(affine, tmp_path, name):
    (tmp_path / name).write_bytes(b"no such format")
    with pytest.raises(InputError, match="cannot be read as a"):
        transport(*affine[:2], tmp_path / name, tmp_path / "o.npy")


def test_pickles_are_not_loaded(affine, tmp_path):
    np.save(tmp_path / "s.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="cannot be read"):
        transport(*affine[:2], tmp_path / "s.npy", tmp_path / "o.npy")


def test_the_report_is_plain_json(affine):
    assert json.dumps(fit_mover(*affine[:2]).report.chosen.to_json())
