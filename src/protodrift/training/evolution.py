"""How prototypes live on from task to task: the one rule that the learner and the experiments share."""

from __future__ import annotations

import torch

from ..common.covariance import Covariance
from ..common.labels import sorted_labels
from ..data.examples import Examples
from ..drift import FittedDrift
from ..methods import Method
from ..networks.embedder import Embedder, evaluating, laid_out
from ..networks.folding import folded
from ..penalties import Tensors
from ..prototypes import update
from ..prototypes.store import Prototypes
from ..prototypes.update import DriftReport
from ..readouts import View


def update_prototypes(
    old: Prototypes | None,
    method: Method,
    *,
    task: int,
    new: Examples,
    z_new: torch.Tensor,
    z_old: torch.Tensor | None,
    kept: tuple[Examples, torch.Tensor] | None = None,
    fitted: FittedDrift | None = None,
) -> tuple[Prototypes, DriftReport]:
    """Return all prototypes after a task: the old ones compensated for drift (Eq. 13), the new ones computed (Eq. 3).

    Args:
        old: the prototypes before the task, or None.
        method: its drift and read-out say how.
        task: t, counted from 1.
        new: D^t.
        z_new: (N, D) z^t, its embeddings by the network after the task.
        z_old: (N, D) z^{t-1}, by the network before it; None if the network did not change.
        kept: what a memory holds, and its embeddings now: then those prototypes are computed anew instead.
        fitted: an estimator that knows already (the oracle); else the method's is fitted on z_old and z_new.
    """
    space = method.readout.space
    covariance = kept_covariance(method)
    added = sorted_labels(new.labels)
    if kept is None:
        computed = Prototypes.of(added, space(z_new), new.targets_of(added), task, covariance)
    else:
        images, z_kept = kept
        order = [label for label in (() if old is None else old.labels) if label in set(images.labels)]
        classes = (*order, *added)
        computed = Prototypes.of(classes, space(z_kept), images.targets_of(classes), task, covariance)
    gone = (
        () if old is None else set(old.labels) - set(computed.labels)
    )  # exemplars may begin late, or cover some classes
    if fitted is None and method.drift is not None and z_old is not None and gone:
        fitted = method.drift.fit(space(z_old), space(z_new), new.targets_of(added))
    return update.update_prototypes(old, computed, fitted)


def probed(
    method: Method, network_old: Embedder, network_new: Embedder, images: torch.Tensor, old: Prototypes
) -> FittedDrift:
    """Return the fitted estimator of a method whose drift needs images and both networks (ADC)."""
    assert method.drift is not None
    device = next(network_new.parameters()).device
    space = method.readout.space
    with evaluating(network_old), evaluating(network_new):
        before, after = folded(network_old), folded(network_new)
        return method.drift.probe(
            lambda x: space(before(laid_out(x, device))),
            lambda x: space(after(laid_out(x, device))),
            images,
            old.means,
        )


def kept_covariance(method: Method) -> Covariance | None:
    """Return what a method keeps of every class beside its mean: what the read-out asks for, or else the drift."""
    return method.readout.keeps or (None if method.drift is None else method.drift.keeps)


def readout_view(z: torch.Tensor, prototypes: Prototypes, network: Embedder, kept: Tensors) -> View:
    """Return what a read-out may look at, for embeddings z by this network."""
    device = next(network.parameters()).device
    with torch.no_grad():
        logits = [part.cpu() for part in network.logits(z.to(device))]
    return View(z, prototypes.means, logits, kept, statistics=prototypes.statistics, counts=prototypes.counts)
