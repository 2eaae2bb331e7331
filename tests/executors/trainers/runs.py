"""Fine-tuning runs of a model of a few thousand parameters, without a ledger."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from executors.base import Attempt, ResumePoint
from executors.pipe import CheckpointWritten, Completed, Message, Progress
from executors.plans import LaunchPlan, Resources, RunSpec, canonical_config
from executors.testing import follow, wait_for_checkpoint
from executors.trainers.config import SftConfig
from executors.trainers.fsdp import FsdpExecutor
from ledger.digest import sha256_digest
from tests.executors.rollout.tiny import save_model
from tests.executors.specs import CODE, ENVIRONMENT

BASE, DATASET = sha256_digest(b"base"), sha256_digest(b"dataset")
QUICK: dict[str, Any] = {
    "steps": 6, "batch_size": 8, "micro_batch_size": 3, "learning_rate": 0.01, "warmup_steps": 2, "checkpoint_every": 2,
    "log_every": 1, "max_length": 32,
}  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """Directories of a base and a dataset."""

    base: Path
    dataset: Path

    def paths(self) -> dict[str, Path]:
        return {"base": self.base, "dataset": self.dataset}


def make_inputs(directory: Path, rows: int = 21, dropout: float = 0.1) -> Inputs:
    """A model that draws random numbers in every step (dropout), and additions of two digits."""
    base = save_model(directory / "base")
    if dropout:
        config = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps({**config, "attention_dropout": dropout}))
    pairs = [(f"{i}+{i % 7}=", str(i + i % 7) + "!" * (i % 3)) for i in range(rows)]
    return Inputs(base, write_dataset(directory / "dataset", pairs))


def write_dataset(directory: Path, pairs: Sequence[tuple[str, str]]) -> Path:
    directory.mkdir(parents=True)
    lines = [{"prompt": p, "response": r, "source": "sums", "licence": "CC0-1.0"} for p, r in pairs]
    (directory / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def make_spec(processes: int = 1, dataset: str = DATASET, seed: int = 1, **config: Any) -> RunSpec:
    return RunSpec(
        stage="sft",
        kind="sft",
        executor="fsdp",
        config=canonical_config(SftConfig.model_validate({**QUICK, **config})),
        seed=seed,
        resources=Resources(device="cpu", processes=processes),
        base=BASE,
        dataset=dataset,
        code=CODE,
        environment=ENVIRONMENT,
    )


@dataclass(frozen=True)
class Finished:
    """An attempt that is over."""

    attempt: Attempt
    messages: list[Message]

    @property
    def last(self) -> Message:
        return self.messages[-1]

    def checkpoint(self, step: int) -> CheckpointWritten:
        found = [m for m in self.messages if isinstance(m, CheckpointWritten) and m.step == step]
        assert found, f"no checkpoint of step {step}: {self.words()}"
        return found[0]

    def digests(self, step: int) -> dict[str, str]:
        return {name: record.sha256 for name, record in self.checkpoint(step).files.items()}

    def losses(self) -> list[float]:
        return [message.metrics["loss"] for message in self.messages if isinstance(message, Progress)]

    def words(self) -> str:
        return f"{self.messages[-1:]}\n{self.attempt.log.read_text()[-2000:]}"


def place(
    directory: Path, spec: RunSpec, paths: Mapping[str, Path], resume: CheckpointWritten | None = None
) -> LaunchPlan:
    executor = FsdpExecutor()
    plan = executor.plan(spec, spec.resources).placed(1, directory, paths)
    if resume is not None:
        plan = executor.resume(plan, ResumePoint(sha256_digest(b"of no concern"), Path(resume.path), resume.step))
    return plan


def run(directory: Path, spec: RunSpec, paths: Mapping[str, Path], resume: CheckpointWritten | None = None) -> Finished:
    """Launch an attempt and wait for its end."""
    executor = FsdpExecutor()
    attempt = executor.launch(place(directory, spec, paths, resume))
    return Finished(attempt, follow(executor, attempt))


def complete(
    directory: Path, spec: RunSpec, paths: Mapping[str, Path], resume: CheckpointWritten | None = None
) -> Finished:
    """As `run`, and it must succeed."""
    done = run(directory, spec, paths, resume)
    assert isinstance(done.last, Completed), done.words()
    return done


def run_and_kill(directory: Path, spec: RunSpec, paths: Mapping[str, Path], victim: str) -> CheckpointWritten:
    """Launch an attempt and kill -9 rank 0 or the supervisor after the first checkpoint, which is returned."""
    executor = FsdpExecutor()
    plan = place(directory, spec, paths)
    # The second checkpoint must not come before the kill: a slow step makes room.
    attempt = executor.launch(replace(plan, environment={**plan.environment}))
    saved = wait_for_checkpoint(executor, attempt)
    process = json.loads((attempt.directory / "pid").read_text())
    os.kill(process["child"] if victim == "child" else process["pid"], signal.SIGKILL)
    messages = follow(executor, attempt)
    assert not isinstance(messages[-1], Completed), "it was not killed in time"
    return saved
