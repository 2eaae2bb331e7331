"""Losses as sums over tokens. Who calls them divides once, by the count over the whole global batch."""

from __future__ import annotations

import torch
from torch.nn import functional

IGNORED = -100
"""The label of a token that is no part of the objective: prompt and padding."""


def sft_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum of −log p(label) over labelled positions, in fp32.

    Args:
        logits: `[rows, positions, vocabulary]`; position i predicts the label i.
        labels: `[rows, positions]`, `IGNORED` where nothing is learnt. When every one is, the sum is 0, not NaN.
    """
    return functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
