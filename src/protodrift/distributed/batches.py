"""A step of training over several ranks, equal to the step of one process on the whole batch.

Every rank sends its own images through its own copy of the network; embeddings are gathered, so that every rank has the
whole batch's and computes the SAME loss L, with the same triplets and the same penalties. For a weight theta

    dL/dtheta = sum over ranks r of  sum_{i of r} (dL/dz_i) (dz_i/dtheta)   +   (partial of L by theta itself)

The first part is in pieces on the ranks; the second (penalties such as EWC, classification heads, which see gathered
embeddings) is whole on each of W ranks. The backward of gathering therefore gives each rank W times its own rows of
dL/dz, and gradients are averaged over ranks: the W cancels in the first part, and the second is counted once,

    1/W sum_r ( W * piece_r + whole ) = sum_r piece_r + whole.

That is what DistributedDataParallel's average and a gather with a summing backward would give; W equal gradients need
not be sent to be summed, though. DDP itself is not used: it hooks into `forward`, and objectives and penalties here use
a network in several ways (feature maps, features, heads) and may replace its layers (R-EWC).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import InputError, RunError
from .world import World


class Share:
    """A rank's part of one global batch.

    Args:
        world: the ranks.
        count: N, images in the whole batch.
        of_maps: gather feature maps instead of embeddings, for penalties that look at maps and at what follows from
            them; what comes after the maps is then computed for the whole batch on every rank.
    """

    def __init__(self, world: World, count: int, *, of_maps: bool = False) -> None:
        self.world = world
        self.count = count
        self.own = world.own(count)
        self.of_maps = of_maps

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        """Return the rows of the whole batch, (n, ...) -> (N, ...), with gradient."""
        if own.requires_grad:
            gathered: torch.Tensor = _Gather.apply(own, self)  # type: ignore[no-untyped-call]
            return gathered
        return self.world.gather(own, self.count, "embeddings", hurry=True)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, share: Share) -> torch.Tensor:
        ctx.share = share
        return share.world.gather(own, share.count, "embeddings", hurry=True)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        share: Share = ctx.share
        return gradient[share.own] * share.world.size, None


def average_gradients(world: World, weights: Iterable[torch.Tensor]) -> None:
    """Replace every weight's gradient by its mean over the ranks, in one message; see the equation above."""
    if world.alone:
        return
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    for kind in dict.fromkeys(gradient.dtype for gradient in gradients):
        same = [gradient for gradient in gradients if gradient.dtype == kind]
        world.sum(same, "gradients", hurry=True)
    for gradient in gradients:
        gradient /= world.size


def same_weights(world: World, network: nn.Module) -> None:
    """Overwrite the weights of all ranks by the first one's: a module of the user's may begin with others on each."""
    if not world.alone:
        weights = {name: value.detach() for name, value in network.state_dict().items()}
        _, files = world.on_first(lambda: (None, {"network": weights}))
        network.load_state_dict(files["network"])


def check_agreement(world: World, network: nn.Module) -> None:
    """Refuse to go on if the ranks' weights are not the same bits: they would train several networks as if one."""
    if world.alone:
        return
    state = {name: value.detach().cpu().contiguous().view(-1) for name, value in network.state_dict().items()}
    own = b"".join(hashlib.sha256(value.view(torch.uint8).numpy().tobytes()).digest()[:8] for value in state.values())
    digests = world.gather(torch.frombuffer(bytearray(own), dtype=torch.int64)[None], world.size, "state")
    differ = [name for name, row in zip(state, digests.T, strict=True) if len(row.unique()) > 1]
    if differ:
        raise RunError(
            f"the ranks do not have the same weights any more: {differ[0]} and {len(differ) - 1} others differ. Use "
            "the same torch and the same kind of processor for all ranks."
        )


class Layers:
    """Layers that look at a whole batch, made to do so when it lies on several ranks.

    Inside `with layers.of(network):` batch norm takes its statistics from the global batch, and dropout draws for the
    global batch and keeps its own rows: both give what one process gives. Set `share` before each step.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.share: Share | None = None

    @contextlib.contextmanager
    def of(self, network: nn.Module) -> Iterator[None]:
        """Replace the forward of those layers inside the block; modules, weights and names stay."""
        changed: list[nn.Module] = []
        if not self.world.alone:
            for module in network.modules():
                forward = self._forward_of(module)
                if forward is not None:
                    module.forward = forward
                    changed.append(module)
        try:
            yield
        finally:
            for module in changed:
                del module.forward

    def _forward_of(self, module: nn.Module) -> Any:
        if isinstance(module, _BatchNorm):
            return partial(self._batch_norm, module)
        if type(module) is nn.Dropout:
            return partial(self._dropout, module)
        return None

    def _batch_norm(self, module: _BatchNorm, x: torch.Tensor) -> torch.Tensor:
        if not module.training and module.running_mean is not None:  # frozen statistics: each image by itself
            return type(module).forward(module, x)
        if self.share is not None and self.share.of_maps and len(x) == self.share.count:
            return type(module).forward(module, x)  # after the gathering: the whole batch is here already
        return batch_norm(module, x, self.world)

    def _dropout(self, module: nn.Dropout, x: torch.Tensor) -> torch.Tensor:
        share = self.share
        if not module.training or share is None or len(x) != share.own.stop - share.own.start:
            return nn.functional.dropout(x, module.p, module.training, module.inplace)
        layout = torch.channels_last if x.ndim == 4 and _is_channels_last(x) else torch.contiguous_format
        whole = x.new_ones(share.count, *x.shape[1:]).contiguous(memory_format=layout)
        mask = nn.functional.dropout(whole, module.p, training=True)
        return x * mask[share.own]


def _is_channels_last(x: torch.Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def batch_norm(module: _BatchNorm, x: torch.Tensor, world: World) -> torch.Tensor:
    """Normalize with the statistics of the batch of all ranks, and update the module's running ones.

        y = gamma (x - mean) / sqrt(var + eps) + beta,   mean and var over all images (and positions) of all ranks

    Each rank's count, mean and sum of squared deviations are gathered and merged (Chan et al. 1979): sums of squares
    that cancel are never formed. torch's SyncBatchNorm does the same on CUDA devices only.

    Args:
        module: a batch norm layer in training mode.
        x: (n, C, ...) this rank's part.
        world: the ranks.
    """
    module._check_input_dim(x)
    channels = x.shape[1]
    weight = x.new_ones(channels) if module.weight is None else module.weight
    bias = torch.zeros_like(weight) if module.bias is None else module.bias
    out, count, mean, var = _GlobalBatchNorm.apply(x, weight, bias, module.eps, world)  # type: ignore[no-untyped-call]
    if module.track_running_stats and module.running_mean is not None:
        assert module.running_var is not None
        with torch.no_grad():
            assert module.num_batches_tracked is not None
            module.num_batches_tracked += 1
            rate = 1 / float(module.num_batches_tracked) if module.momentum is None else module.momentum
            module.running_mean.lerp_(mean.to(module.running_mean.dtype), rate)
            unbiased = var * (count / (count - 1))
            module.running_var.lerp_(unbiased.to(module.running_var.dtype), rate)
    result: torch.Tensor = out
    return result


class _GlobalBatchNorm(torch.autograd.Function):
    """Returns y, and the batch's count, mean and biased variance; only y has a gradient.

    torch's fused kernels do the work on a rank's own rows, as they do in one process; written as single operations it
    is three times slower. They cannot be given no rows at all.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, world: World
    ) -> tuple[torch.Tensor, int, torch.Tensor, torch.Tensor]:
        rows = x.numel() // x.shape[1]
        mean = var = torch.zeros_like(weight)
        if rows:
            mean, var = torch.batch_norm_update_stats(x, None, None, 0.0)
        own = torch.cat([mean.new_tensor([rows]), mean, var]).double()
        parts = world.gather(own[None], world.size, "batch norm", hurry=True)
        counts, means, variances = parts[:, :1], *parts[:, 1:].tensor_split(2, dim=1)
        count = int(counts.sum())
        if count < 2:
            raise InputError("batch norm needs two values per channel in a batch. Use a larger batch_size.")
        center = (counts * means).sum(dim=0) / count
        spread = (counts * (variances + (means - center).square())).sum(dim=0) / count
        mean, var = center.to(weight.dtype), spread.to(weight.dtype)
        out = nn.functional.batch_norm(x, mean, var, weight, bias, False, 0.0, eps) if rows else x.clone()
        ctx.save_for_backward(x, weight, mean, var)
        ctx.world, ctx.count, ctx.rows, ctx.eps = world, count, rows, eps
        ctx.mark_non_differentiable(center, spread)
        return out, count, center, spread

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, *unused: Any) -> Any:
        x, weight, mean, var = ctx.saved_tensors
        by_x, by_weight, by_bias = torch.zeros_like(gradient), torch.zeros_like(weight), torch.zeros_like(weight)
        if ctx.rows:  # as if mean and variance were constants
            by_x, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
                gradient, x, weight, mean, var, None, None, False, ctx.eps, [True, True, True]
            )
        sums = torch.stack([by_bias, by_weight])
        ctx.world.sum([sums], "batch norm", hurry=True)
        # What the mean and the variance carry: dx -= gamma s (mean of dy + x^ mean of dy x^), x^ = s (x - mean).
        scale = (var + ctx.eps).rsqrt()
        shape = [1, -1] + [1] * (x.ndim - 2)
        level, slope = -weight * scale * sums / ctx.count
        by_x = by_x + level.view(shape)
        by_x.addcmul_(x - mean.view(shape), (scale * slope).view(shape))
        return by_x, by_weight, by_bias, None, None
