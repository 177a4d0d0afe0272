"""Both sides of every benchmark compute the same thing. No time is looked at."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.speed import embedding, growth, pipeline, predict, sdc, training, tree, triplet
from protodrift.data.views import CropFlip
from protodrift.networks import embed
from protodrift.objectives.metric import MINING


def test_training_loops_have_the_same_losses():
    """Without augmentation, which draws its views differently; batches and triplets are the same."""
    work = training.Work("convnet", 16, 32, 2, augment=False)
    ours, plain, best = (
        side(work, epochs=3)[0] for side in (training.our_losses, training.plain_losses, training.best_losses)
    )
    assert ours == pytest.approx(plain, abs=1e-4)
    assert ours == pytest.approx(best, abs=1e-4)
    assert ours[0] - ours[-1] > 1e-3  # three copies of an untrained network would agree too


def test_training_loops_see_as_many_images():
    work = training.Work("convnet", 16, 32, 3)
    batches = work.batches(torch.tensor(work.examples.labels), 1)
    assert [len(batch) for batch in batches] == [32, 32, 32]
    assert sorted(torch.cat(batches).tolist()) == list(range(len(work.examples)))


@pytest.mark.parametrize("seed", [0, 1])
def test_views_of_the_plain_and_the_pillow_loop_are_crops_that_ours_makes_too(seed):
    """A view by hand is one of all that `CropFlip` can make of the image."""
    image = torch.randint(0, 256, (3, 8, 8), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    pad = training.PAD
    padded = torch.nn.functional.pad(image, (pad,) * 4)
    crops = [padded[:, t : t + 8, lf : lf + 8] for t in range(2 * pad + 1) for lf in range(2 * pad + 1)]
    possible = {tuple(view.flatten().tolist()) for crop in crops for view in (crop, crop.flip(2))}
    assert len(possible) == 2 * (2 * pad + 1) ** 2
    many = image.expand(50, -1, -1, -1)
    for views in (
        CropFlip(pad, mode="zeros")(many, torch.Generator().manual_seed(seed)),
        pipeline.one_by_one(many, torch.arange(50)),
        _plain_views(many),
    ):
        made = {tuple(view.flatten().tolist()) for view in views}
        assert made <= possible
        assert len(made) > 20


def _plain_views(images):
    network = predict.classifier(2, "convnet").state_.trained.network
    network.standardize.mean.zero_()
    network.standardize.std.fill_(1)
    torch.manual_seed(0)
    data = training.PlainImages(images, torch.zeros(len(images), dtype=torch.long), network, augment=True)
    return torch.stack([data[i][0] for i in range(len(data))]).to(torch.uint8)


@pytest.mark.parametrize("backbone", ["resnet32", "resnet18", "efficientnet-lite0"])
def test_the_embedding_pass_equals_the_plain_loop(backbone):
    network, images = embedding.Work(backbone, 32, 128).made()
    ours, plain = embed(network, images), embedding.plain_embedded(embedding.plain(network), images)
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-5)
    assert float(plain.std(dim=0).max()) > 1e-3


def test_sdc_equals_the_broadcast_form_and_the_loop():
    case = sdc.problem(7, 300, 16)
    ours = sdc.semantic_drift(*case, sdc.SIGMA)
    for other in (sdc.broadcast, sdc.looped):
        torch.testing.assert_close(ours, other(*case, sdc.SIGMA), rtol=1e-5, atol=1e-6)
        exact = [part.double() for part in case]
        found = sdc.semantic_drift(*exact, sdc.SIGMA)
        torch.testing.assert_close(found, other(*exact, sdc.SIGMA), rtol=1e-10, atol=1e-12)
    assert float(ours.abs().max()) > 1e-3


@pytest.mark.parametrize("mining", [mining for mining in MINING if mining != "random"])
@pytest.mark.parametrize("batch", [32, 128])
def test_triplet_losses_and_gradients_are_the_librarys(mining, batch):
    values = []
    for loss in (triplet.ours(mining), triplet.library(mining)):
        z, rows = triplet.embeddings(batch)
        z.requires_grad_(True)
        value = loss(z, rows)
        value.backward()
        values.append((value.detach(), z.grad))
    (ours, our_gradient), (theirs, gradient) = values
    assert float(theirs) > 0
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)
    torch.testing.assert_close(our_gradient, gradient, rtol=0, atol=1e-8)


def test_random_triplets_are_as_many_as_the_librarys():
    from protodrift.objectives.metric import valid_triplets

    _, rows = triplet.embeddings(32)
    theirs = triplet.loss_and_miner_utils.get_random_triplet_indices(rows, t_per_anchor=7)
    ours = valid_triplets(rows, torch.Generator().manual_seed(0))
    assert len(ours[0]) == len(theirs[0]) == 32 * 7


def test_decoding_gives_the_pixels_of_the_plain_loop(tmp_path):
    pipeline.write_photos(tmp_path, 10)
    files = sorted(tmp_path.rglob("*.jpg"))
    plain = pipeline.plain_photos(files)
    ours = pipeline.read_photos(pipeline.find_photos(tmp_path), pipeline.SIZE)
    assert list(ours.paths) == files
    assert torch.equal(ours.examples.images, plain)
    assert ours.repeats == ()
    pipeline.decode_files([(files, tmp_path / "a.npy")], size=pipeline.SIZE, fit="center", skip_bad=False, workers=0)
    assert np.array_equal(np.load(tmp_path / "a.npy"), plain.numpy())


def test_a_tree_gives_what_its_rows_give_alone():
    recipe, stream = tree.small(each=8, classes=8)
    recipe = recipe.only(["E-Fix", "E-LwF", "E-EWC+SDC"])
    together, alone = tree.together(recipe, stream), tree.alone(recipe, stream)
    assert list(together) == list(alone) == ["E-Fix", "E-LwF", "E-EWC+SDC"]
    for name, one in together.items():
        np.testing.assert_array_equal(one.accuracy_matrix, alone[name].accuracy_matrix)
        for ours, theirs in zip(one.prototypes, alone[name].prototypes, strict=True):
            assert torch.equal(ours.means, theirs.means)


def test_the_tree_has_the_nine_rows_and_eleven_tasks_of_the_recipe():
    recipe, stream = tree.small(each=2)
    assert len(recipe.methods) == 9
    assert [len(task.classes) for task in stream] == [50, *[5] * 10]
    assert recipe.tree(stream).trainings(recipe.methods) == 1 + 4 * 10


@pytest.mark.parametrize("count", [1, 40])
def test_predictions_are_those_of_the_bare_network(count):
    clf = predict.classifier(20, "convnet")
    X = predict.pictures(20, 2, 32, seed=3).images[:count].numpy()
    ours = clf.predict(X)
    assert ours.tolist() == predict.bare(clf, X).tolist() == predict.same_pass(clf, X).tolist()
    assert count == 1 or len(set(ours.tolist())) > 5


def test_one_more_task_keeps_all_classes_and_moves_the_old_ones():
    clf, task = growth.beginner(epochs=1), growth.new_task()
    state = growth.knowing(clf.state_, 200)
    after = growth.one_more(clf, state, task)
    assert after.prototypes.labels == (*range(200), *(1_000_000 + i for i in range(growth.NEW)))
    assert len(after.drift.labels) == 200
    assert min(after.drift.distances.values()) > 0
    assert after.trained.classes == after.prototypes.labels
