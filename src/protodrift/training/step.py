"""What objectives and penalties see of one training step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from ..networks.embedder import cache_sized, laid_out

if TYPE_CHECKING:
    from ..distributed.batches import Share
    from ..networks.embedder import Embedder
    from ..objectives import Held, Objective


class Step:
    """One batch on its way through the network. Everything is computed when first asked for, and once.

    Args:
        network: the network in training, F^t.
        images: (N, ...) the batch, as the network takes it (after augmentation).
        targets: (N,) class of each image: its position among all classes seen so far, in task order.
        objective: what the network is trained for.
        drawn: what the objective drew by chance for this batch.
        network_old: the frozen network of the task before, F^{t-1}; None in the first task.
        share: where the batch lies on several ranks. `images` are then this rank's own; `targets`, `z` and `logits`
            are of the whole batch, and so are maps and features where a penalty says `needs_maps`.
        autocast: the type in which both backbones compute, such as torch.bfloat16; None: that of their weights. What
            comes out of them, and all that is made of it (head, normalization, logits), has the type of the weights.
        known_z_old: gives z^{t-1} of this batch where it is known already (`KnownAnswers`); None: it is computed.
    """

    def __init__(
        self,
        network: Embedder,
        images: torch.Tensor,
        targets: torch.Tensor,
        *,
        objective: Objective,
        drawn: Any = None,
        network_old: Embedder | None = None,
        autocast: torch.dtype | None = None,
        share: Share | None = None,
        known_z_old: Callable[[], torch.Tensor] | None = None,
    ) -> None:
        self.network = network
        self.images = images
        self.targets = targets
        self.objective = objective
        self.drawn = drawn
        self._network_old = network_old
        self.autocast = autocast
        self.share = share
        self._known_z_old = known_z_old

    @property
    def network_old(self) -> Embedder:
        """The frozen network of the task before."""
        if self._network_old is None:
            raise RuntimeError("the first task has no old network")
        return self._network_old

    @cached_property
    def old(self) -> Step:
        """The same views through the frozen old network, without gradient."""
        with torch.no_grad():
            old = Step(
                self.network_old,
                self.images,
                self.targets,
                objective=self.objective,
                drawn=self.drawn,
                autocast=self.autocast,
                share=self.share,
            )
            if self._known_z_old is not None:
                old.z = self._known_z_old()
            return old

    @cached_property
    def feature_maps(self) -> torch.Tensor:
        """Maps of the backbone's last convolution, (N, C, h, w)."""
        return self._gathered(self._backbone(self.network.feature_maps, self.images), maps=True)

    @cached_property
    def features(self) -> torch.Tensor:
        """Pooled features of the backbone, (N, features)."""
        # Through the maps where a backbone has them: a penalty that asks for them later does not pay a second pass.
        if all(callable(getattr(self.network.backbone, name, None)) for name in ("feature_maps", "from_maps")):
            return self._backbone(self.network.from_maps, self.feature_maps)
        return self._backbone(self.network.features, self.images)

    def _gathered(self, own: torch.Tensor, *, maps: bool) -> torch.Tensor:
        """Return the whole batch's rows, where it lies on several ranks; from the maps on or from z on, not twice."""
        return own if self.share is None or self.share.of_maps != maps else self.share.gather(own)

    def _backbone(self, part: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        if self.autocast is None:
            return part(inputs)
        with torch.autocast(inputs.device.type, self.autocast):
            out = part(inputs)
        return out.to(next(self.network.parameters()).dtype)

    @cached_property
    def raw(self) -> torch.Tensor:
        """Embeddings before normalization, (N, D)."""
        out: torch.Tensor = self.network.head(self.features)
        return out

    @cached_property
    def z(self) -> torch.Tensor:
        """Embeddings z^t of the batch, (N, D)."""
        return self._gathered(self.network.finish(self.raw), maps=False)

    @cached_property
    def z_old(self) -> torch.Tensor:
        """Embeddings z^{t-1} of the same views through the frozen old network, (N, D); no gradient."""
        with torch.no_grad():
            return self.old.z

    @cached_property
    def logits(self) -> list[torch.Tensor]:
        """The outputs of every classification head, (N, classes of its task) each."""
        return self.network.logits(self.z)

    @cached_property
    def logits_old(self) -> list[torch.Tensor]:
        """The outputs of the old network's heads; no gradient."""
        with torch.no_grad():
            return self.old.logits

    @cached_property
    def loss(self) -> torch.Tensor:
        """L_ML of the batch, a scalar."""
        return self.objective.loss(self)

    @cached_property
    def single_losses(self) -> torch.Tensor:
        """L_ML of each image or anchor, (A,)."""
        return self.objective.single_losses(self)

    @cached_property
    def output(self) -> torch.Tensor:
        """The function's output whose sensitivity MAS measures, (N, outputs)."""
        return self.objective.output(self)

    @cached_property
    def held(self) -> Held:
        """What LwF holds."""
        return self.objective.held(self)

    def scores_of_maps(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the outputs of all heads for feature maps of this network, (N, C, h, w) -> (N, K)."""
        network = self.network
        return torch.cat(network.logits(network.finish(network.head(network.from_maps(maps)))), dim=1)


class KnownAnswers:
    """z^{t-1} of all images of a task, for views that never change: the old network sees each image once.

    All of it is computed when first asked for, in parts of one size, so that a training that is resumed has the same
    bits.

    Args:
        network_old: F^{t-1}.
        images, targets: of the whole task.
        objective, autocast: as for `Step`.
    """

    def __init__(
        self,
        network_old: Embedder,
        images: torch.Tensor,
        targets: torch.Tensor,
        *,
        objective: Objective,
        autocast: torch.dtype | None = None,
    ) -> None:
        self._network, self._images, self._targets = network_old, images, targets
        self._objective, self._autocast = objective, autocast

    @cached_property
    @torch.no_grad()
    def z_old(self) -> torch.Tensor:
        """z^{t-1} of every image, (N, D)."""
        device = next(self._network.parameters()).device
        size = cache_sized(self._images.shape[1:], self._network.crop, device)
        parts = zip(self._images.split(size), self._targets.split(size), strict=True)
        steps = (
            Step(self._network, laid_out(x, device), y, objective=self._objective, autocast=self._autocast)
            for x, y in parts
        )
        return torch.cat([step.z for step in steps])

    def of(self, batch: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Return what gives z^{t-1} of a batch, (B,) positions of its images."""
        return lambda: self.z_old[batch.to(self.z_old.device)]
