"""ImageNet-Subset with ResNet-18 from scratch: Table 5, right, and Fig. 7."""

from __future__ import annotations

from dataclasses import replace

from ...drift import SDC
from ..recipe import Recipe
from ..setup import Network
from . import cifar100
from .rows import CPU_PENALTIES, PAPER_PENALTIES, check_budget, embedding_rows, frozen_rows


def subset_eleven(budget: str = "cpu") -> Recipe:
    """Return the eleven-task protocol on a hundred ImageNet classes; the `cpu` budget sees them at 64 x 64."""
    check_budget(budget)
    small = cifar100.eleven_tasks(budget)
    if budget == "cpu":  # thirty epochs of 64,500 images would take two cores hours
        small = cifar100.warmed(small, epochs=10)
    penalties = PAPER_PENALTIES if budget == "paper" else CPU_PENALTIES
    rows = {
        **frozen_rows(cifar100.OBJECTIVE),
        **embedding_rows(cifar100.OBJECTIVE, penalties, SDC(sigma=0.3)),  # Sec. 5: all sets but CIFAR-100
        **{name: method for name, method in small.rows if not name.startswith("E-")},
    }
    return replace(
        small,
        name="imagenet-subset-eleven",
        about="Table 5, Fig. 7: ImageNet-Subset in eleven tasks, 50 + 10x5, ResNet-18 after a warm-up",
        data="imagenet-subset",
        rows=tuple(rows.items()),
        size=224 if budget == "paper" else 64,
        view="paper",
        network=Network("resnet18"),
        table="table5_eleven_tasks/imagenet_subset",
        data_seed=cifar100.CLASS_ORDER,  # Sec. 5: a hundred classes, chosen at random
    )
