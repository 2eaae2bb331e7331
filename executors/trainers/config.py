"""The settings of a fine-tuning stage."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from executors.base import ExecutorConfig

Precision = Literal["fp32", "bf16"]


class SftConfig(ExecutorConfig):
    """Supervised fine-tuning. Every field takes part in the identity of a run, so two equal runs are one.

    Attributes:
        batch_size: rows of one optimizer step, over all processes; a multiple of their number.
        micro_batch_size: rows of one forward pass of one process at most; changes memory and speed, not the gradient.
        max_length: tokens of a row at most, prompt, response and end; a longer row fails the run, nothing is cut.
        schedule: how the learning rate goes from its peak, after the warm-up, to `final_ratio` of it.
        max_grad_norm: gradients are scaled down to this norm; 0 leaves them.
        checkpoint_every: steps between checkpoints; there is always one after the last step.
        precision: `bf16` computes in bfloat16 and keeps weights, gradients and moments in fp32.
        threads: of one process, on a CPU. Small models lose by more than one. It takes part in the order of sums, hence here.
        log_every: steps between progress messages.
    """

    steps: int = Field(ge=1, le=10_000_000)
    batch_size: int = Field(default=64, ge=1, le=1_000_000)
    micro_batch_size: int = Field(default=32, ge=1, le=1_000_000)
    max_length: int = Field(default=1024, ge=2, le=10_000_000)
    learning_rate: float = Field(gt=0, le=10)
    warmup_steps: int = Field(default=0, ge=0)
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    final_ratio: float = Field(default=0.1, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    max_grad_norm: float = Field(default=1.0, ge=0)
    checkpoint_every: int = Field(default=100, ge=1)
    log_every: int = Field(default=10, ge=1)
    precision: Precision = "fp32"
    threads: int = Field(default=1, ge=1, le=1024)
    activation_checkpointing: bool = False
    reshard_after_forward: bool = True

    @model_validator(mode="after")
    def _warm_up_ends(self) -> Self:
        if self.warmup_steps >= self.steps and self.warmup_steps > 0:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} leaves no step of {self.steps} at the full learning rate"
            )
        return self
