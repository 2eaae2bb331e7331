"""Writes what happens to a run into the ledger, each thing once.

Any number of processes may follow the same run and be killed anywhere: every write looks first whether it was done, carries
an idempotency key, and, when it is refused because another follower came first, looks again.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from executors.base import Attempt
from executors.launchers.base import ProcessState
from executors.pipe import MODEL_PREFIX, CheckpointWritten, Completed, FileRecord
from executors.plans import LaunchPlan, ResumePoint, RunSpec
from ledger import budget, rules
from ledger.artifacts import Artifact, media_types
from ledger.canonical import canonical_digest, decimal_string
from ledger.errors import Conflict, InputError, PosttrainError, RuleBroken
from ledger.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointPart,
    NewEvent,
    Payload,
    RunCanceled,
    RunCompleted,
    RunFailed,
    RunSubmitted,
)
from ledger.home import Ledger

STEP_ANNOTATION = "posttrain.step"
SUMMARY_PLACES = 9


class BadCheckpoint(Exception):
    """What the child announced is not what lies on the disk; the attempt cannot be trusted any further."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What the ledger has of a run."""

    submitted: RunSubmitted | None
    attempts: tuple[AttemptStarted, ...]
    ended: Mapping[int, AttemptEnded]
    checkpoints: tuple[CheckpointCommitted, ...]  # by step
    completed: RunCompleted | None

    @classmethod
    def read(cls, ledger: Ledger, run_id: str) -> RunRecord:
        payloads = [event.payload for event in ledger.log.stream(f"run/{run_id}")]
        ended = {p.attempt: p for p in payloads if isinstance(p, AttemptEnded)}
        return cls(
            submitted=next((p for p in payloads if isinstance(p, RunSubmitted)), None),
            attempts=tuple(p for p in payloads if isinstance(p, AttemptStarted)),
            ended=ended,
            checkpoints=tuple(p for p in payloads if isinstance(p, CheckpointCommitted)),
            completed=next((p for p in payloads if isinstance(p, RunCompleted)), None),
        )

    @property
    def open_attempt(self) -> AttemptStarted | None:
        """The attempt that started and has not ended."""
        return next((attempt for attempt in reversed(self.attempts) if attempt.attempt not in self.ended), None)

    @property
    def newest_checkpoint(self) -> CheckpointCommitted | None:
        return self.checkpoints[-1] if self.checkpoints else None

    def has_step(self, step: int) -> bool:
        return any(checkpoint.step == step for checkpoint in self.checkpoints)


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended, as everybody who follows it sees it. `reason` is for the ledger: no log lines, no secrets."""

    state: ProcessState
    completed: Completed | None
    outputs: Mapping[str, Path]
    reason: str | None = None  # why it failed, `None` when it did not
    retryable: bool = True

    @property
    def outcome(self) -> str:
        """`completed`, `failed`, `killed`, `lost` or `canceled`."""
        if self.completed is not None and self.reason is None:
            return "completed"
        if self.state.stopped and self.reason is None:
            return "canceled"
        if self.reason is not None:
            return "failed"
        return "killed" if self.state.kind == "ended" else "lost"


class RunRecorder:
    """The writing side of one run. `payer` is the stage whose budget is charged."""

    def __init__(self, ledger: Ledger, spec: RunSpec, payer: str) -> None:
        self.ledger = ledger
        self.spec = spec
        self.payer = payer
        self.run_id = spec.run_id

    def read(self) -> RunRecord:
        return RunRecord.read(self.ledger, self.run_id)

    def begin(self, plan: LaunchPlan, number: int, resume: ResumePoint | None, launcher: str) -> None:
        """Reserve the projected cost, submit the run unless it was, and record that attempt `number` starts.

        Raises:
            BudgetExceeded: the projection exceeds what the budget has left; the refusal is recorded as well.
            RefusedError: the device has no price, or an input may not be used.
        """
        devices, device_kind = plan.resources.processes, plan.resources.device
        self._check_submission()
        budget.reserve(
            self.ledger,
            stage=self.payer,
            run_id=self.run_id,
            spec=self.spec.digest,
            device_kind=device_kind,
            devices=devices,
            device_seconds=plan.projection.device_seconds,
        )
        self._once({"submitted": self.spec.submitted()}, lambda record: record.submitted is not None)
        started = AttemptStarted(
            run_id=self.run_id,
            attempt=number,
            launcher=launcher,
            host=platform.node(),
            devices=devices,
            device_kind=device_kind,
            resumed_from=resume.checkpoint if resume else None,
            from_step=resume.step if resume else 0,
        )
        self._once({f"attempt/{number}/started": started}, lambda record: len(record.attempts) >= number)

    def _check_submission(self) -> None:
        """Raise what the log would, before money is held back for a run that a rule refuses."""
        submission = self.spec.submitted()
        with self.ledger.log.as_of() as history:  # one snapshot: another follower may submit it meanwhile
            if history.last(submission.stream(), "RunSubmitted") is None:
                rules.check(submission, history)

    def commit(self, attempt: Attempt, message: CheckpointWritten) -> CheckpointCommitted:
        """Store a checkpoint, record it, and only then delete the child's copy.

        Raises:
            BadCheckpoint: a file is missing, leads elsewhere, or has other bytes than the child reported.
            InfrastructureError: the store failed; the child's copy is untouched.
        """
        local = _inside(attempt.out, message.path)
        if not self.read().has_step(message.step):
            try:
                self._commit(attempt, message, local)
            except (BadCheckpoint, PosttrainError):
                if not self.read().has_step(message.step):  # else another follower was first and deleted the files
                    raise
        shutil.rmtree(local, ignore_errors=True)  # what stays is untidy, not wrong
        return next(checkpoint for checkpoint in self.read().checkpoints if checkpoint.step == message.step)

    def close(self, number: int, ending: Ending) -> None:
        """Charge an attempt that is over and record how it, and with it perhaps the run, ended."""
        device_seconds = decimal_string(ending.state.elapsed_s * self.spec.resources.processes)
        budget.settle(
            self.ledger,
            stage=self.payer,
            run_id=self.run_id,
            device_kind=self.spec.resources.device,
            device_seconds=device_seconds,
            attempt=number,
        )
        ended = AttemptEnded.model_validate(
            {
                "run_id": self.run_id,
                "attempt": number,
                "outcome": ending.outcome,
                "exit_code": ending.state.exit_code,
                "device_seconds": device_seconds,
            }
        )
        with_run: dict[str, Payload] = {f"attempt/{number}/ended": ended}
        if ending.outcome == "completed" and ending.completed is not None:
            with_run["completed"] = self._completion(ending.completed)
        elif ending.outcome == "failed":
            reason = (ending.reason or "")[:2000]
            failed = RunFailed(run_id=self.run_id, reason=reason, retryable=ending.retryable)
            with_run[f"attempt/{number}/failed"] = failed
        elif ending.outcome == "canceled":
            with_run[f"attempt/{number}/canceled"] = RunCanceled(run_id=self.run_id, reason="stopped on request")
        self._once(with_run, lambda record: number in record.ended)

    def _completion(self, completed: Completed) -> RunCompleted:
        last = self.read().newest_checkpoint
        return RunCompleted(
            run_id=self.run_id,
            step=completed.step,
            checkpoint=last.checkpoint if last else None,
            model=last.model if last else None,
            summary=decimal_summary(completed.summary),
        )

    def _commit(self, attempt: Attempt, message: CheckpointWritten, local: Path) -> None:
        sources = {name: _inside(local, name) for name in message.files}
        parts = checkpoint_parts(message.files)
        config = {
            "step": message.step,
            "resume": message.resume,
            "world_size": message.world_size,
            "samples_seen": message.samples_seen,
            "parts": [part.model_dump(mode="json") for part in parts],
        }
        try:
            stored = self.ledger.artifacts.add_files(sources, media_types.CHECKPOINT, config=config)
            _check_reported(message.files, stored)
            model = self.ledger.artifacts.add_files(
                {name.removeprefix(MODEL_PREFIX): sources[name] for name in message.model_files},
                media_types.MODEL,
                annotations={STEP_ANNOTATION: str(message.step)},
            )
        except InputError as error:  # the store refuses a file that is missing, a link or a device
            raise BadCheckpoint(f"checkpoint at step {message.step}: {error}") from None
        committed = CheckpointCommitted(
            run_id=self.run_id,
            attempt=attempt.number,
            step=message.step,
            checkpoint=stored.digest,
            model=model.digest,
            parts=parts,
            resume=message.resume,
            world_size=message.world_size,
            samples_seen=message.samples_seen,
        )
        key = f"attempt/{attempt.number}/checkpoint/{message.step}"
        self._once({key: committed}, lambda record: record.has_step(message.step))

    def _once(self, payloads: Mapping[str, Payload], done: Callable[[RunRecord], bool]) -> None:
        """Record all payloads in one append, unless they are there or another follower is quicker."""
        if done(self.read()):
            return
        new = [NewEvent(payload, idempotency_key=f"{self.run_id}/{key}") for key, payload in payloads.items()]
        try:
            self.ledger.log.append_many(new)
        except (Conflict, RuleBroken):
            if not done(self.read()):
                raise


def checkpoint_parts(files: Mapping[str, FileRecord]) -> tuple[CheckpointPart, ...]:
    """The parts that the files make up, each digested over the names and digests of its files."""
    found: list[CheckpointPart] = []
    for part in sorted({record.part for record in files.values()}):
        own = {name: record for name, record in files.items() if record.part == part}
        content = canonical_digest({name: f"sha256:{record.sha256}" for name, record in own.items()})
        found.append(CheckpointPart(part=part, content=content, size_bytes=sum(r.size_bytes for r in own.values())))
    return tuple(found)


def decimal_summary(summary: Mapping[str, float]) -> dict[str, str]:
    """Numbers as events carry them. What is not finite has no decimal: it is counted as `not_finite` and left out."""
    finite = {name: value for name, value in summary.items() if abs(value) < 1e29}
    texts = {name: decimal_string(value, places=SUMMARY_PLACES) for name, value in finite.items()}
    lost = len(summary) - len(finite)
    return {**texts, "not_finite": str(lost)} if lost else texts


def _check_reported(files: Mapping[str, FileRecord], stored: Artifact) -> None:
    for name, record in files.items():
        blob = stored.manifest.files[name]
        if (blob.digest, blob.size_bytes) != (f"sha256:{record.sha256}", record.size_bytes):
            raise BadCheckpoint(
                f"{name} has {blob.size_bytes} bytes with digest {blob.digest}, "
                f"but the child wrote {record.size_bytes} bytes with sha256:{record.sha256}"
            )


def _inside(directory: Path, name: str) -> Path:
    """`directory / name`, which must lie strictly inside of the directory, links followed.

    Raises:
        BadCheckpoint: it does not.
    """
    path, root = (directory / name).resolve(), directory.resolve()
    if root not in path.parents:
        raise BadCheckpoint(f"{name!r} leads outside of {directory}")
    return path
