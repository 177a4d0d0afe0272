"""Embeddings in shards on disk: what is written is read, one pass equals the whole, damage is found."""

import json

import numpy as np
import pytest
import torch

from benchmarks import shards
from benchmarks.shards import Shards, ShardWriter, embed_to_shards, sweep, update_from_shards
from protodrift.data import load_digits
from protodrift.data.arrays import InputSpec
from protodrift.drift import SDC, Ridge, semantic_drift
from protodrift.errors import InputError, ModelFileError
from protodrift.networks import build_embedder, embed
from protodrift.prototypes.store import Prototypes, class_means

LABELS = ("auk", "emu", "jay", "owl", "tit")


def unit(count, generator):
    return torch.nn.functional.normalize(torch.randn(count, 16, generator=generator), dim=1)


@pytest.fixture
def task():
    """Old prototypes, and pairs of 1003 images of five classes."""
    g = torch.Generator().manual_seed(0)
    z_old = unit(1003, g)
    z_new = torch.nn.functional.normalize(z_old + 0.1 * unit(1003, g), dim=1)
    rows = torch.arange(1003) % 5
    old = Prototypes(("ibis", "kea"), unit(2, g), torch.tensor([7, 9]), torch.tensor([1, 1]))
    return old, rows, z_old, z_new


def written(path, task, per_shard=100, **options):
    _, rows, z_old, z_new = task
    with ShardWriter(path, 16, classes=LABELS, rows_per_shard=per_shard, **options) as writer:
        for start in range(0, len(rows), 77):  # in pieces that are not shards
            at = slice(start, start + 77)
            writer.write(rows[at], z_old=z_old[at], z_new=z_new[at])
    return Shards(path)


def test_what_is_written_is_read_in_order_whatever_the_pieces(task, tmp_path):
    _, rows, z_old, z_new = task
    found = written(tmp_path / "s", task)
    assert (found.count, len(found), found.width, found.classes) == (1003, 11, 16, LABELS)
    for size in (None, 1, 33, 5000):
        pieces = list(found.pieces(rows=size))
        assert torch.equal(torch.cat([p.rows for p in pieces]), rows)
        assert torch.equal(torch.cat([p["z_old"] for p in pieces]), z_old)
        assert torch.equal(torch.cat([p["z_new"] for p in pieces]), z_new)
    assert max(len(p) for p in found.pieces(rows=33)) == 33


def test_one_pass_gives_the_prototypes_and_the_drift_of_the_whole(task, tmp_path, monkeypatch):
    old, rows, z_old, z_new = task
    monkeypatch.setattr(shards, "PROTOTYPE_BLOCK", 1)  # each old prototype in a block of its own
    new, report = update_from_shards(old, written(tmp_path / "s", task), SDC(0.3), task=2)
    assert new.labels == ("ibis", "kea", *LABELS)
    assert (new.counts.tolist(), new.tasks.tolist()) == ([7, 9, 201, 201, 201, 200, 200], [1, 1, 2, 2, 2, 2, 2])
    whole = semantic_drift(old.means.double(), z_old.double(), z_new.double(), 0.3)
    torch.testing.assert_close(new.means[:2], old.means + whole.float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(new.means[2:], class_means(z_new, rows, 5), rtol=0, atol=1e-6)
    fitted = SDC(0.3).fit(z_old, z_new)
    torch.testing.assert_close(
        report.diagnostics["effective_samples"], fitted.diagnostics(old.means)["effective_samples"], rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 20])
def test_parts_of_shards_merge_to_the_whole_also_where_a_part_is_empty(task, tmp_path, parts):
    old, rows, z_old, z_new = task
    found = written(tmp_path / "s", task)  # 11 shards: nine of twenty parts have none
    whole = sweep(found, old.means, 0.1)
    merged = sweep(found.part(0, parts), old.means, 0.1)
    for index in range(1, parts):
        merged = merged.merge(sweep(found.part(index, parts), old.means, 0.1))
    assert torch.equal(merged.classes.counts, whole.classes.counts)
    torch.testing.assert_close(merged.classes.means(), class_means(z_new, rows, 5), rtol=0, atol=1e-6)
    torch.testing.assert_close(merged.moved().moved, SDC(0.1).fit(z_old, z_new).transport(old.means), rtol=0, atol=1e-6)


def test_half_precision_is_read_as_float32(task, tmp_path):
    _, _, _, z_new = task
    found = written(tmp_path / "s", task, dtype="float16")
    pieces = torch.cat([p["z_new"] for p in found.pieces("z_new")])
    assert pieces.dtype == torch.float32
    assert torch.equal(pieces, z_new.half().float())


def test_a_network_embeds_straight_into_shards(tmp_path):
    data = load_digits().train
    spec = InputSpec(tuple(data.images.shape[1:]), "uint8", 0.0, 255.0)
    before, after = (build_embedder("auto", spec, embedding_dim=16, seed=seed).eval() for seed in (0, 1))
    examples = data.at(torch.arange(300))
    found = embed_to_shards(tmp_path / "s", examples, tuple(range(10)), after, before, at_once=64)
    (piece,) = found.pieces()
    assert torch.equal(piece.rows, examples.targets_of(tuple(range(10))))
    torch.testing.assert_close(piece["z_old"], embed(before, examples.images), rtol=0, atol=1e-6)
    torch.testing.assert_close(piece["z_new"], embed(after, examples.images), rtol=0, atol=1e-6)


def test_an_interrupted_writer_leaves_nothing_and_a_killed_ones_draft_is_removed(task, tmp_path):
    target = tmp_path / "s"

    def interrupted():
        with ShardWriter(target, 16, classes=LABELS, rows_per_shard=1) as writer:
            writer.write(task[1][:5], z_old=task[2][:5], z_new=task[3][:5])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".new-s").mkdir()
    (tmp_path / ".new-s" / "000099.rows.npy").write_bytes(b"left by a kill")
    assert written(target, task).count == 1003
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    assert not (target / "000099.rows.npy").exists()


@pytest.mark.parametrize("damage", ["byte", "short", "missing", "manifest", "shape"])
def test_damage_is_found_before_it_is_used(task, tmp_path, damage):
    found = written(tmp_path / "s", task)
    file, manifest = tmp_path / "s" / "000003.z_new.npy", tmp_path / "s" / "manifest.json"
    data = bytearray(file.read_bytes())
    if damage == "byte":
        data[-1] ^= 1
        file.write_bytes(data)
    elif damage == "short":
        file.write_bytes(data[:-4])
    elif damage == "missing":
        file.unlink()
    elif damage == "shape":  # whole and self-consistent, but not what the manifest says of the shard
        np.save(file, np.zeros((50, 32), np.float32))
        found.check = False
    else:
        manifest.write_text(manifest.read_text().replace("1003", "1004"))
    with pytest.raises(ModelFileError, match=r"damaged|missing|changed|not \(100, 16\)"):
        list((Shards(tmp_path / "s") if damage == "manifest" else found).pieces())


def test_what_cannot_be_used_is_refused(task, tmp_path):
    old, rows, z_old, z_new = task
    found = written(tmp_path / "s", task)
    with pytest.raises(InputError, match="already there"):
        ShardWriter(tmp_path / "s", 16)
    with pytest.raises(InputError, match="float8"):
        ShardWriter(tmp_path / "t", 16, dtype="float8")
    with ShardWriter(tmp_path / "t", 16, classes=LABELS) as writer:
        for wrong, why in (
            ({"z_new": z_new}, "takes z_old, z_new"),
            ({"z_old": z_old, "z_new": z_new[:, :3]}, r"must be \(1003, 16\)"),
            ({"z_old": z_old, "z_new": z_new * torch.nan}, "NaN"),
        ):
            with pytest.raises(InputError, match=why):
                writer.write(rows, **wrong)
        with pytest.raises(InputError, match=r"0\.\.4"):
            writer.write(rows + 1, z_old=z_old, z_new=z_new)
        writer.write(rows[:1], z_old=z_old[:1], z_new=z_new[:1])
    with pytest.raises(InputError, match="'emu' and has no image"):
        update_from_shards(None, Shards(tmp_path / "t"), None, task=1)
    with pytest.raises(InputError, match="one pass"):
        update_from_shards(old, found, Ridge(), task=2)
    with pytest.raises(InputError, match="no 'z_odd'"):
        list(found.pieces("z_odd"))
    with pytest.raises(InputError, match="part 3 of 3"):
        found.part(3, 3)
    with pytest.raises(ModelFileError, match="holds no shards"):
        Shards(tmp_path)
    manifest = tmp_path / "s" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format_version": 2}))
    with pytest.raises(ModelFileError, match="version 2"):
        Shards(tmp_path / "s")


def test_classes_may_be_of_numpy_and_what_float16_cannot_hold_is_refused_at_once(tmp_path):
    z = torch.randn(4, 3)
    with ShardWriter(tmp_path / "s", 3, names=["z"], classes=np.array([3, 5])) as writer:
        writer.write(torch.tensor([0, 1, 0, 1]), z=z)
    assert Shards(tmp_path / "s").classes == (3, 5)
    with (
        pytest.raises(InputError, match="z has numbers above 65504, which float16 cannot hold"),
        ShardWriter(tmp_path / "half", 3, names=["z"], dtype="float16") as writer,
    ):
        writer.write(torch.zeros(4, dtype=torch.long), z=z * 1e5)
