"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from executors.trainers.config import SftConfig


def learning_rate(config: SftConfig, step: int) -> float:
    """The rate of optimizer step `step`, counted from 0. Linear warm-up, then from the peak to `final_ratio` of it."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / (config.warmup_steps + 1)
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    if config.schedule == "constant":
        share = 1.0
    elif config.schedule == "linear":
        share = 1.0 - done
    else:
        share = 0.5 * (1.0 + math.cos(math.pi * done))
    return config.learning_rate * (config.final_ratio + (1.0 - config.final_ratio) * share)
