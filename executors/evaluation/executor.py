"""The executor of kind `evaluation`: one child process that answers every item of a suite greedily."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from executors.base import Capabilities, ExecutorConfig, ProcessExecutor, Resources

COMPLETIONS = "completions.jsonl"


class EvaluationConfig(ExecutorConfig):
    """How answers are generated. `batch_size` counts prompts; on a small model a large one is quicker."""

    decoding: Literal["greedy"] = "greedy"
    max_new_tokens: int = Field(default=64, ge=1, le=131_072)
    batch_size: int = Field(default=128, ge=1, le=65_536)


class EvaluationExecutor(ProcessExecutor):
    name: ClassVar[str] = "evaluate"
    config_model: ClassVar[type[EvaluationConfig]] = EvaluationConfig
    needs: ClassVar[tuple[str, ...]] = ("torch", "transformers", "safetensors")
    extra: ClassVar[str] = "evaluate"
    default_step_seconds: ClassVar[float] = 60.0  # the whole evaluation is one step

    def capabilities(self) -> Capabilities:
        return Capabilities(frozenset({"evaluation"}), frozenset({"cpu", "cuda"}), max_processes=1, resume=None)

    def command(self, config: Any, resources: Resources) -> tuple[str, ...]:
        return (sys.executable, "-m", "executors.evaluation.worker")

    def environment(self, config: Any, resources: Resources) -> Mapping[str, str]:
        # cuBLAS sums in the same order every time only with a workspace of its own.
        return {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if resources.device == "cuda" else {}

    def expected_outputs(self, config: Any) -> tuple[str, ...]:
        return (COMPLETIONS,)
