"""What is asked of a model and what comes back, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are chosen.

    `temperature` 0 takes the likeliest token at each step. Above 0, prompt number i draws from its own stream of random
    numbers, made from `seed` and i, so that a draw does not depend on what shares the batch.

    Raises:
        ValueError: a number that is out of range.
    """

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; at least 1")
        if not 0 <= self.temperature <= 100:
            raise ValueError(f"temperature {self.temperature} is not between 0 and 100")


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model said to one prompt.

    `token_ids` are those that the model chose, the end token included when it chose one: train on these, never on `text`
    tokenised again. `text` is without special tokens; `<think>` and `</think>` stay. `length` means that it was cut off.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: Literal["stop", "length"]
