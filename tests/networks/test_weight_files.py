"""Weight files with torchvision's names: loaded, or refused with what does not fit. Nothing in them is executed."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

from protodrift import IncrementalClassifier
from protodrift.data import InputSpec
from protodrift.errors import InputError
from protodrift.networks import build_embedder, load_backbone_weights
from protodrift.networks.backbones.resnet import resnet18

COLOR = InputSpec((3, 32, 32), "uint8", 0, 255)


def torchvision_resnet18() -> dict[str, tuple[int, ...]]:
    """The names and shapes of torchvision's resnet18 state dict, by rule."""

    def norm(name, width):
        values = {f"{name}.{part}": (width,) for part in ("weight", "bias", "running_mean", "running_var")}
        return {**values, f"{name}.num_batches_tracked": ()}

    names = {"conv1.weight": (64, 3, 7, 7), **norm("bn1", 64)}
    inputs = 64
    for stage, width in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            at = f"layer{stage}.{block}"
            names |= {f"{at}.conv1.weight": (width, inputs, 3, 3), **norm(f"{at}.bn1", width)}
            names |= {f"{at}.conv2.weight": (width, width, 3, 3), **norm(f"{at}.bn2", width)}
            if stage > 1 and block == 0:
                names |= {f"{at}.downsample.0.weight": (width, inputs, 1, 1), **norm(f"{at}.downsample.1", width)}
            inputs = width
    return names | {"fc.weight": (1000, 512), "fc.bias": (1000,)}


@pytest.fixture(scope="module")
def imagenet():
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(shape, generator=generator) if shape else torch.tensor(7)
        for name, shape in torchvision_resnet18().items()
    }


def test_the_names_are_torchvisions():
    own = {name: tuple(value.shape) for name, value in resnet18(3)[0].state_dict().items()}
    expected = {name: shape for name, shape in torchvision_resnet18().items() if not name.startswith("fc.")}
    assert own == expected
    assert len(expected) == 120
    assert expected["layer2.0.downsample.0.weight"] == (128, 64, 1, 1)


@pytest.mark.parametrize("ending", ["pth", "pt", "safetensors"])
def test_a_weight_file_is_loaded_without_its_classifier(tmp_path, imagenet, ending):
    path = tmp_path / f"resnet18.{ending}"
    (save_file if ending == "safetensors" else torch.save)(imagenet, path)
    network = build_embedder("resnet18", COLOR, weights=path)
    loaded = network.backbone.state_dict()
    assert all(torch.equal(loaded[name], imagenet[name]) for name in loaded)


def test_old_files_without_batch_counters_load(tmp_path, imagenet):
    torch.save({k: v for k, v in imagenet.items() if not k.endswith("num_batches_tracked")}, tmp_path / "old.pth")
    build_embedder("resnet18", COLOR, weights=tmp_path / "old.pth")


def test_a_classifier_starts_from_its_weights(tmp_path, vectors, make_classifier):
    donor = build_embedder("mlp", InputSpec((6,), "free", 0, 1), seed=9)
    torch.save(donor.backbone.state_dict(), tmp_path / "mlp.pth")
    clf = make_classifier(weights=tmp_path / "mlp.pth", schedule=IncrementalClassifier.from_method("E-Pre").schedule)
    clf.fit(*vectors("a", "b"))
    assert torch.equal(clf.state_.trained.network.backbone[0].weight, donor.backbone[0].weight)
    clf.save(tmp_path / "model")
    (tmp_path / "mlp.pth").unlink()  # a saved model does not need the file again
    assert IncrementalClassifier.load(tmp_path / "model").score(*vectors("a", "b")) == clf.score(*vectors("a", "b"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("layer1.0.conv1.weight"), r"missing \['layer1.0.conv1.weight'\].*\(1, 0, 0 in all\)"),
        (lambda s: s.update(extra=torch.zeros(1)), r"unexpected \['extra'\].*\(0, 1, 0 in all\)"),
        (
            lambda s: s.update({"conv1.weight": torch.zeros(64, 3, 3, 3)}),
            r"other shape \['conv1.weight'\].*another network",
        ),
        (lambda s: s["bn1.bias"].__setitem__(0, float("nan")), "bn1.bias has NaN or infinite weights"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path, imagenet, change, message):
    state = {name: value.clone() for name, value in imagenet.items()}
    change(state)
    torch.save(state, tmp_path / "x.pth")
    module, _ = resnet18(3)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(InputError, match=message):
        load_backbone_weights(module, tmp_path / "x.pth")
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    "content", [[torch.zeros(1)], {"state_dict": {"conv1.weight": torch.zeros(1)}}, {1: torch.zeros(1)}, torch.zeros(3)]
)
def test_a_file_with_something_else_is_no_state_dict(tmp_path, content):
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(InputError, match="does not hold a state dict"):
        load_backbone_weights(resnet18(3)[0], tmp_path / "x.pth")


@pytest.mark.parametrize("name", ["gone.pth", "gone.safetensors"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(InputError, match=f"no weight file .*{name}"):
        load_backbone_weights(resnet18(3)[0], tmp_path / name)


@pytest.mark.parametrize("name", ["x.pth", "x.safetensors"])
@pytest.mark.parametrize("content", [b"", b"garbage" * 99])
def test_a_damaged_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} cannot be read as a weight file"):
        load_backbone_weights(resnet18(3)[0], tmp_path / name)


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["x.pth", "x.safetensors"])
@pytest.mark.parametrize("dump", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path, name, dump):
    dump({"conv1.weight": Trap(tmp_path / "executed")}, tmp_path / name)
    with pytest.raises(InputError, match="cannot be read as a weight file"):
        load_backbone_weights(resnet18(3)[0], tmp_path / name)
    assert not (tmp_path / "executed").exists()
    pickle.loads(pickle.dumps(Trap(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()  # the trap itself works


def test_a_module_of_the_users_with_a_layer_named_fc_loads_it(tmp_path):
    class Mine(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.fc(x)

    torch.save({"fc.weight": torch.ones(3, 4), "fc.bias": torch.ones(3)}, tmp_path / "x.pth")
    network = build_embedder(Mine(), InputSpec((4,), "free", 0, 1), weights=tmp_path / "x.pth")
    assert torch.equal(network.backbone.fc.weight, torch.ones(3, 4))
