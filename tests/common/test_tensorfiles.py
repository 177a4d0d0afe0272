"""Folders of tensor files."""

from __future__ import annotations

import safetensors.torch
import torch

from protodrift import IncrementalClassifier
from protodrift.common import tensorfiles

load = IncrementalClassifier.load


def test_files_have_the_bytes_that_safetensors_writes(monkeypatch):
    """Also where a tensor is larger than what is held at once, and where tensors share memory or are not contiguous."""
    monkeypatch.setattr(tensorfiles, "_PART", 4096)
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(300, 20, generator=generator)
    named = {
        "wide": shared, "turned": shared.T, "again": shared, "doubles": shared.double()[:3], "scalar": torch.tensor(3),
        "none": torch.empty(0, 4), "flags": torch.tensor([True, False]), "half": shared[:2].half(),
        "brain": shared[:2].bfloat16(), "pixels": torch.arange(9, dtype=torch.uint8),
        "words \"ü\"": torch.arange(3).int(),
        "small": torch.arange(3, dtype=torch.int8), "short": torch.arange(5, dtype=torch.int16),
    }  # fmt: skip
    expected = safetensors.torch.save({name: value.contiguous().clone() for name, value in named.items()})
    parts = list(tensorfiles.packed_parts(named))
    assert len(parts) > 5
    assert b"".join(parts) == expected
