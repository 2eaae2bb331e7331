"""The loss is a sum; the learning rate a function of the step."""

from __future__ import annotations

import math

import pytest
import torch

from executors.trainers.config import SftConfig
from executors.trainers.objectives import IGNORED, sft_loss
from executors.trainers.schedule import learning_rate


def test_the_loss_is_the_summed_negative_log_probability() -> None:
    logits = torch.tensor([[[0.0, 0.0, math.log(2)], [1.0, 1.0, 1.0]]])  # probabilities 1/4 1/4 1/2, then 1/3 each
    assert float(sft_loss(logits, torch.tensor([[2, 0]]))) == pytest.approx(math.log(2) + math.log(3))
    assert float(sft_loss(logits, torch.tensor([[IGNORED, 0]]))) == pytest.approx(math.log(3))


def test_a_block_without_labels_gives_zero_and_no_gradient() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = sft_loss(logits, torch.full((2, 3), IGNORED))
    torch.autograd.backward(loss)
    assert loss.item() == 0
    assert logits.grad is not None
    assert float(logits.grad.abs().sum()) == 0


def test_low_precision_logits_are_summed_in_fp32() -> None:
    logits = torch.zeros(1, 4096, 8, dtype=torch.bfloat16)
    loss = sft_loss(logits, torch.zeros(1, 4096, dtype=torch.int64))
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(4096 * math.log(8), rel=1e-5)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.05, 0.1, 0.1, 0.1, 0.1]),
        ("linear", [0.05, 0.1, 0.0775, 0.055, 0.0325]),
        ("cosine", [0.05, 0.1, 0.0868, 0.055, 0.0232]),
    ],
)
def test_the_learning_rate_warms_up_and_decays(schedule: str, rates: list[float]) -> None:
    config = SftConfig.model_validate(
        {"steps": 5, "learning_rate": "0.1", "warmup_steps": 1, "schedule": schedule, "final_ratio": 0.1}
    )
    assert [learning_rate(config, step) for step in range(5)] == pytest.approx(rates, abs=1e-4)
