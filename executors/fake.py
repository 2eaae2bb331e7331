"""A deterministic executor without dependencies: for tests, for the conformance kit, and to try a set-up out.

Its child is a real process (`fake_child`), its checkpoints are small files, and it fails where it is told to.
"""

from __future__ import annotations

import sys
from typing import ClassVar, Literal

from pydantic import Field

from executors.base import Capabilities, ExecutorConfig, ProcessExecutor
from executors.plans import Resources

Fault = Literal["none", "exit", "kill", "hang", "fail", "malformed"]


class FakeConfig(ExecutorConfig):
    """`fault` happens before step `fault_step` in attempts up to `fault_attempts`: `exit` ends with code 3, `kill` dies by
    SIGKILL, `hang` sleeps for ever and ignores SIGTERM, `fail` reports a failure that the user must mend, `malformed`
    writes a line that is no message."""

    steps: int = Field(default=6, ge=1, le=1_000_000)
    checkpoint_every: int = Field(default=2, ge=1)
    step_seconds: float = Field(default=0.0, ge=0, le=60)
    rate: float = Field(default=0.125, gt=0)
    fault: Fault = "none"
    fault_step: int = Field(default=1, ge=1)
    fault_attempts: int = Field(default=1, ge=1)


class FakeExecutor(ProcessExecutor):
    name: ClassVar[str] = "fake"
    config_model: ClassVar[type[FakeConfig]] = FakeConfig

    def capabilities(self) -> Capabilities:
        return Capabilities(frozenset({"fake", "sft"}), frozenset({"cpu"}), max_processes=8, resume="exact")

    def command(self, config: FakeConfig, resources: Resources) -> tuple[str, ...]:
        return (sys.executable, "-S", "-m", "executors.fake_child")

    def expected_outputs(self, config: FakeConfig) -> tuple[str, ...]:
        return ("history.jsonl",)
