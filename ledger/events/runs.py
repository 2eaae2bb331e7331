"""Runs, their attempts and their checkpoints.

A run is its specification: `run_id` is derived from the digest of everything that it pins, so the same specification is
the same run. An attempt is one launch of it; a run ends once, its attempts as often as machines fail.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import StringConstraints

from ledger.digest import Digest
from ledger.events.base import DecimalText, Edge, Name, Payload, Record, Text, edges

RunId = Annotated[str, StringConstraints(pattern=r"^r-[0-9a-f]{16}$")]
ResumeLevel = Literal["exact", "state", "weights"]


class CodeRevision(Record):
    """The code that a run used: a commit and what was changed on top of it.

    `commit` is the git commit, or `tree` where there is no repository; `diff` is the digest of the uncommitted change
    (the digest of no bytes when there is none), or of the source tree itself.
    """

    commit: Text
    diff: Digest
    dirty: bool

    def node(self) -> str:
        return f"{self.commit}+{self.diff}"


class RunSubmitted(Payload):
    """Everything that a run pins. `config` is the resolved configuration: fractions are decimal strings."""

    run_id: RunId
    kind: Name  # sft, evaluation, …
    stage: Name
    executor: Name
    spec: Digest  # canonical digest of the specification; run_id is its first 16 digits
    config: dict[str, Any]
    seed: int
    base: Digest | None = None
    dataset: Digest | None = None
    parent: Digest | None = None  # the model that training continues from
    model: Digest | None = None  # the model under evaluation
    suite: Digest | None = None
    tokenizer: Digest | None = None
    chat_template: Digest | None = None
    verifier: Text | None = None
    code: CodeRevision
    environment: Digest

    def stream(self) -> str:
        return f"run/{self.run_id}"

    def inputs(self) -> tuple[Edge, ...]:
        return edges(
            ("base", "base", self.base),
            ("dataset", "dataset", self.dataset),
            ("parent", "model", self.parent),
            ("model", "model", self.model),
            ("suite", "suite", self.suite),
            ("code", "code", self.code.node()),
            ("config", "config", self.spec),
            ("environment", "environment", self.environment),
            ("verifier", "verifier", self.verifier),
        )

    def outputs(self) -> tuple[Edge, ...]:
        return edges(("run", "run", self.run_id))


class AttemptStarted(Payload):
    run_id: RunId
    attempt: int
    launcher: Name
    host: Text
    devices: int
    device_kind: Text
    resumed_from: Digest | None = None  # checkpoint
    from_step: int = 0

    def stream(self) -> str:
        return f"run/{self.run_id}"

    def inputs(self) -> tuple[Edge, ...]:
        return edges(("run", "run", self.run_id), ("checkpoint", "checkpoint", self.resumed_from))


class AttemptEnded(Payload):
    run_id: RunId
    attempt: int
    outcome: Literal["completed", "failed", "killed", "lost", "canceled"]
    exit_code: int | None  # None when nothing is known of the end; negative for a signal
    device_seconds: DecimalText

    def stream(self) -> str:
        return f"run/{self.run_id}"


class RunCompleted(Payload):
    run_id: RunId
    step: int
    checkpoint: Digest | None = None
    model: Digest | None = None
    summary: dict[str, DecimalText]  # final loss, tokens a second, …

    def stream(self) -> str:
        return f"run/{self.run_id}"


class RunFailed(Payload):
    run_id: RunId
    reason: Text
    retryable: bool

    def stream(self) -> str:
        return f"run/{self.run_id}"


class RunCanceled(Payload):
    run_id: RunId
    reason: Text

    def stream(self) -> str:
        return f"run/{self.run_id}"


class CheckpointPart(Record):
    """A part of the training state. `content` digests the listed files of that part."""

    part: Literal["model", "optimizer", "scheduler", "scaler", "rng", "loader", "trainer"]
    content: Digest
    size_bytes: int


class CheckpointCommitted(Payload):
    """All bytes of a checkpoint are durable. This event is the only mark of completeness."""

    run_id: RunId
    attempt: int
    step: int
    checkpoint: Digest  # manifest of every part
    model: Digest  # manifest of the weights, configuration and tokenizer alone, as an engine loads them
    parts: tuple[CheckpointPart, ...]
    resume: ResumeLevel
    world_size: int
    samples_seen: int

    def stream(self) -> str:
        return f"run/{self.run_id}"

    def inputs(self) -> tuple[Edge, ...]:
        return edges(("run", "run", self.run_id))

    def outputs(self) -> tuple[Edge, ...]:
        return edges(("checkpoint", "checkpoint", self.checkpoint), ("model", "model", self.model))
