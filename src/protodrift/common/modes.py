"""Torch's modes of this thread: gradients, inference mode, autocast, transforms of torch.func.

Torch sets them on the way in and back on the way out, in Python. Ctrl-C between the two leaves one set: without
gradients every later training would silently do nothing. So whatever is computed here sets what it needs itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

_functorch = torch._C._functorch  # torch.func has no public way to ask for transforms that were left open


@contextlib.contextmanager
def own_modes() -> Iterator[None]:
    """Compute with gradients, and without inference mode, autocast and open transforms of torch.func, in the block.

    After it, however it ends, gradients are on or off as before.

    >>> with torch.no_grad(), own_modes():
    ...     torch.is_grad_enabled()
    True
    """
    before = torch.is_grad_enabled()
    try:
        if _functorch.peek_interpreter_stack() is not None:
            _functorch.pop_dynamic_layer_stack_and_undo_to_depth(0)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            torch.set_grad_enabled(True)
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    stack.callback(torch.set_autocast_enabled, device, True)
                    torch.set_autocast_enabled(device, False)
            _at_the_top_of_autocast()
            yield
    finally:
        torch.set_grad_enabled(before)


def _at_the_top_of_autocast() -> None:
    """Forget blocks of autocast that were never left: weights in low precision are kept until the outermost one ends,
    and would be older than the weights themselves."""
    for _ in range(torch.autocast_increment_nesting()):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
