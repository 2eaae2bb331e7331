"""Fine-tuning runs of a model of a few thousand parameters, without a ledger."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from executors.base import Attempt, ResumePoint
from executors.pipe import CheckpointWritten, Completed, Failed, Message, Progress, read_messages
from executors.plans import LaunchPlan, Resources, RunSpec, canonical_config
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
    """A placed plan of attempt 1 in `directory`."""
    executor = FsdpExecutor()
    plan = executor.plan(spec, spec.resources).placed(1, directory, paths)
    if resume is not None:
        plan = executor.resume(plan, ResumePoint(sha256_digest(b"of no concern"), Path(resume.path), resume.step))
    return plan


class Zygote:
    """Starts attempts without a launcher and without their imports; see `zygote.py`."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.executors.trainers.zygote"]
        root = Path(__file__).parents[3]
        environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]  # both are pipes
        self._process.wait()

    def start(self, plan: LaunchPlan, pause_at: int | None = None) -> Ranks:
        """Start every rank of a placed plan; with `pause_at` they stop before that step for ever."""
        directory = plan.directory
        assert directory is not None
        (directory / "out").mkdir(parents=True)
        (directory / "plan.json").write_text(json.dumps(plan.document()))
        request = {"attempt": str(directory), "processes": plan.resources.processes, "pause_at": pause_at}
        return Ranks(self, FsdpExecutor().attach(plan.run_id, 1, directory), self.ask(request)["pids"])

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())  # type: ignore[union-attr]
        return answer

    def complete(
        self, directory: Path, spec: RunSpec, paths: Mapping[str, Path], resume: CheckpointWritten | None = None
    ) -> Finished:
        """An attempt that must succeed."""
        ranks = self.start(place(directory, spec, paths, resume))
        done = ranks.wait()
        assert isinstance(done.last, Completed), done.words()
        assert ranks.codes == [0] * spec.resources.processes
        return done

    def fail(
        self, directory: Path, spec: RunSpec, paths: Mapping[str, Path], resume: CheckpointWritten | None = None
    ) -> Failed:
        """The message with which an attempt must fail; its exit code is 2 or 4."""
        ranks = self.start(place(directory, spec, paths, resume))
        done = ranks.wait()
        assert isinstance(done.last, Failed), done.words()
        assert set(ranks.codes) == {4 if done.last.retryable else 2}
        return done.last


@dataclass
class Ranks:
    """The processes of one attempt, by rank."""

    zygote: Zygote
    attempt: Attempt
    pids: list[int]
    codes: list[int] = field(default_factory=list)

    def wait(self) -> Finished:
        self.codes = self.zygote.ask({"wait": self.pids})["codes"]
        return Finished(self.attempt, read_messages(self.attempt.pipe)[0])

    def kill_after_checkpoint(self) -> Finished:
        """Kill -9 every rank once a checkpoint was announced."""
        give_up_at = time.monotonic() + 60
        while not any(isinstance(m, CheckpointWritten) for m in read_messages(self.attempt.pipe)[0]):
            assert time.monotonic() < give_up_at, self.attempt.log.read_text()
            time.sleep(0.01)
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        done = self.wait()
        assert self.codes == [-signal.SIGKILL] * len(self.pids), "it ended before it was killed"
        return done
