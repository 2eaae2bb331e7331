"""A run from its specification to its end: attach, resume or start, then follow. `materialise_run` is the whole story.

A process that follows a run owns nothing of it. The child runs under its supervisor, its messages lie in a file, and the
ledger says which of them were recorded; so a follower may be killed at any moment, started again, or run twice at once, and
nothing is lost or recorded twice.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from executors.base import Attempt, Executor, LaunchPlan, ResumePoint, RunSpec
from executors.environment import code_revision, own_code
from executors.launchers.base import Launcher, ProcessState
from executors.pipe import (
    CheckpointWritten,
    Completed,
    Failed,
    Message,
    OutputWritten,
    PipeError,
    check_order,
    read_messages,
)
from executors.recording import BadCheckpoint, Ending, RunRecord, RunRecorder
from executors.registry import load_executor
from ledger.errors import InfrastructureError, InputError, NotFound, RefusedError
from ledger.events import CostReserved, Event
from ledger.home import Ledger

Watch = Callable[[Message], None]

POLL_S = (0.01, 0.25)  # after a message, and when nothing has come for a while
TEARDOWN_S = 60.0  # a child that completed may take this long to end
STOP_GRACE_S = 10.0
LOG_LINES = 12
LOG_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run stands. `state`: the ledger had it, a running attempt was followed, or this call started one.

    `outputs` are the files that the child announced, as long as the run's directory is there. `events` are those of the run
    that were recorded while this call lasted.
    """

    run_id: str
    state: Literal["hit", "attached", "completed"]
    model: str | None
    checkpoint: str | None
    step: int
    events: tuple[Event, ...] = ()
    outputs: Mapping[str, Path] = field(default_factory=dict)


def materialise_run(
    ledger: Ledger,
    spec: RunSpec,
    *,
    executor: Executor | None = None,
    launcher: Launcher | None = None,
    watch: Watch | None = None,
    budget_stage: str | None = None,
    rerun: bool = False,
) -> RunOutcome:
    """Make sure that the run is complete: from the ledger when it is, else by following, resuming or starting it.

    Interrupt the call at any moment (Ctrl-C, kill -9): the child runs on, and the next call attaches to it.

    Args:
        executor: by default the one that the spec names, with `launcher` (default: this machine).
        watch: called with every message, those of before an attachment too.
        budget_stage: whose budget pays; the spec's stage by default.
        rerun: run the specification once more when it is complete already; the repeat is a run of its own.

    Raises:
        BudgetExceeded, RefusedError: the ledger refuses the launch; nothing was started.
        InputError: the child says that its input is at fault, or the settings do not fit.
        InfrastructureError: the attempt failed or was killed; the next call goes on from the last checkpoint.
        TamperFound: an input or the checkpoint is not what was recorded.
    """
    if rerun:
        spec = next_repeat(ledger, spec)
    executor = executor or load_executor(spec.executor, launcher)
    payer = _payer(ledger, spec.run_id) or budget_stage or spec.stage  # who paid first pays on
    run = _Run(ledger, spec, executor, watch or _ignore, payer)
    if run.recorder.read().completed:
        return run.outcome("hit")
    attempt, attached = run.open_attempt()
    if attempt is not None:
        run.finish(attempt, run.follow(attempt))
    return run.outcome("attached" if attached else "completed")


def resume_run(
    ledger: Ledger, run_id: str, *, launcher: Launcher | None = None, watch: Watch | None = None
) -> RunOutcome:
    """Go on with a recorded run, as `materialise_run` does, by its id alone.

    Raises:
        NotFound: no such run.
        RefusedError: the code here is not the code that the run pins, and no attempt is running that could be followed.
    """
    spec, record = recorded_spec(ledger, run_id), RunRecord.read(ledger, run_id)
    executor = load_executor(spec.executor, launcher)
    if record.completed is None and not _is_running(ledger, executor, record, run_id):
        code = code_revision(own_code())
        if code.node() != spec.code.node():
            raise RefusedError(
                f"run {run_id} pins the code {spec.code.commit} with diff {spec.code.diff}, but here are {code.commit} and "
                f"{code.diff}; check that code out, or run the stage again, which makes a new run"
            )
    return materialise_run(ledger, spec, executor=executor, watch=watch, budget_stage=_payer(ledger, run_id))


def stop_run(ledger: Ledger, run_id: str, *, grace_s: float = STOP_GRACE_S, launcher: Launcher | None = None) -> Ending:
    """Stop the running attempt and record what it left: its checkpoints stay, and the run can be resumed.

    Raises:
        NotFound: no such run.
        InputError: no attempt of it is running.
    """
    spec, record = recorded_spec(ledger, run_id), RunRecord.read(ledger, run_id)
    executor = load_executor(spec.executor, launcher)
    current = record.open_attempt
    if current is None:
        raise InputError(f"no attempt of run {run_id} is running; `posttrain runs` shows how it ended")
    run = _Run(ledger, spec, executor, _ignore, _payer(ledger, run_id) or spec.stage)
    attempt = executor.attach(run_id, current.attempt, attempt_directory(ledger, run_id, current.attempt))
    if executor.state(attempt).kind == "absent":  # somebody may be about to start it
        raise InputError(f"attempt {attempt.number} of run {run_id} has not been started; stop it when it runs")
    executor.stop(attempt, grace_s)
    ending = run.follow(attempt)
    run.recorder.close(attempt.number, ending)
    return ending


def recorded_spec(ledger: Ledger, run_id: str) -> RunSpec:
    """The specification that a run was submitted with.

    Raises:
        NotFound: no such run.
    """
    submitted = RunRecord.read(ledger, run_id).submitted
    if submitted is None:
        raise NotFound(f"no run {run_id} in the ledger; `posttrain runs` lists them")
    return RunSpec.from_submitted(submitted)


def next_repeat(ledger: Ledger, spec: RunSpec) -> RunSpec:
    """The first repeat of the specification that is not complete."""
    while RunRecord.read(ledger, spec.run_id).completed:
        spec = spec.model_copy(update={"repeat": spec.repeat + 1})
    return spec


def attempt_directory(ledger: Ledger, run_id: str, number: int) -> Path:
    """Where everything about an attempt lies."""
    return ledger.home / "runs" / run_id / f"attempt-{number}"


class _Run:
    """One follower of one run."""

    def __init__(self, ledger: Ledger, spec: RunSpec, executor: Executor, watch: Watch, payer: str) -> None:
        self.ledger = ledger
        self.spec = spec
        self.executor = executor
        self.watch = watch
        self.recorder = RunRecorder(ledger, spec, payer)
        self.plan: LaunchPlan = executor.plan(spec, spec.resources)
        self.first_position = ledger.log.size()

    def open_attempt(self) -> tuple[Attempt | None, bool]:
        """An attempt that is under way, and whether it was before; `None` when the run completed meanwhile.

        An attempt that is found dead is recorded with all that it left, and the next one begins.
        """
        while not (record := self.recorder.read()).completed:
            current = record.open_attempt
            if current is None:
                self.executor.require_installed()
                number = len(record.attempts) + 1
                placed = self._place(record, number)
                self.recorder.begin(placed, number, placed.checkpoint, self.executor.launcher.name)
                current = self.recorder.read().open_attempt
                if current is None or current.attempt != number:
                    continue  # another follower began it, and it is over already
                return self.executor.launch(placed), False
            attempt = self._attach(current.attempt)
            state = self.executor.state(attempt)
            if state.kind == "running":
                return attempt, True
            left_something = any(saved.attempt == attempt.number for saved in record.checkpoints)
            if state.kind == "absent" and not left_something:  # recorded, then the recorder died before it started it
                return self.executor.launch(self._place(record, attempt.number)), False
            self.recorder.close(attempt.number, self.follow(attempt))
        return None, True

    def follow(self, attempt: Attempt) -> Ending:
        """Every message from the first one to the end of the attempt: record what must be, tell the watcher."""
        seen, swept = _Seen(), False
        cursor, pause, give_up_at = 0, POLL_S[0], None
        while True:
            try:
                batch = self.executor.events(attempt, cursor)
                for message in batch.messages:
                    seen.take(message, attempt)
                    if isinstance(message, CheckpointWritten):
                        self.recorder.commit(attempt, message)
                    self.watch(message)
            except (PipeError, BadCheckpoint) as error:
                self.executor.stop(attempt, STOP_GRACE_S)
                return Ending(self.executor.state(attempt), None, seen.outputs, reason=str(error))
            cursor = batch.cursor
            if batch.messages:
                pause = POLL_S[0]
                continue
            if batch.state.kind == "lost" and not swept:  # what outlived the supervisor must not write any more
                swept = True
                self.executor.launcher.sweep(attempt.directory)
                continue
            if batch.state.kind != "running":
                return self._ending(batch.state, seen)
            if seen.completed and give_up_at is None:
                give_up_at = time.monotonic() + TEARDOWN_S
            if give_up_at is not None and time.monotonic() > give_up_at:
                self.executor.stop(attempt, STOP_GRACE_S)
            time.sleep(pause)
            pause = min(pause * 1.5, POLL_S[1])

    def finish(self, attempt: Attempt, ending: Ending) -> None:
        """Record the end; raise unless the run is complete."""
        self.recorder.close(attempt.number, ending)
        shutil.rmtree(attempt.directory / "resume", ignore_errors=True)  # a copy of what the store has
        if ending.outcome == "completed" or self.recorder.read().completed:
            return
        run, number = self.spec.run_id, attempt.number
        again = f"`posttrain resume {run}` goes on from {self._last_step()}"
        if ending.outcome == "failed":
            what = f"attempt {number} of run {run} failed: {ending.reason}{_log_tail(attempt)}"
            if not ending.retryable:
                raise InputError(what)
            raise InfrastructureError(f"{what}; {again}")
        if ending.outcome == "canceled":
            raise InfrastructureError(f"attempt {number} of run {run} was stopped; {again}")
        how = "was lost with its machine or supervisor"
        if ending.outcome == "killed":
            how = f"was killed by signal {-(ending.state.exit_code or 0)}"
        raise InfrastructureError(f"attempt {number} of run {run} {how}; {again}")

    def outcome(self, state: Literal["hit", "attached", "completed"]) -> RunOutcome:
        record = self.recorder.read()
        completed = record.completed
        if completed is None:
            raise InfrastructureError(f"run {self.spec.run_id} ended without being recorded as complete")
        stream = self.ledger.log.stream(f"run/{self.spec.run_id}")
        return RunOutcome(
            run_id=self.spec.run_id,
            state=state,
            model=completed.model,
            checkpoint=completed.checkpoint,
            step=completed.step,
            events=tuple(event for event in stream if event.position > self.first_position),
            outputs=self._outputs(record),
        )

    def _place(self, record: RunRecord, number: int) -> LaunchPlan:
        """The plan of attempt `number`, with inputs and the newest checkpoint on this disk, verified."""
        directory = attempt_directory(self.ledger, self.spec.run_id, number)
        store = self.ledger.artifacts
        paths = {name: store.materialise(digest, self._cached(digest)) for name, digest in self.plan.inputs.items()}
        plan = self.plan.placed(number, directory, paths)
        newest = record.newest_checkpoint
        if newest is None:
            return plan
        path = store.materialise(newest.checkpoint, directory / "resume")
        found = self.executor.inspect(path).step
        if found != newest.step:
            raise InputError(f"checkpoint {newest.checkpoint} was recorded at step {newest.step} and says step {found}")
        return self.executor.resume(plan, ResumePoint(newest.checkpoint, path, newest.step))

    def _cached(self, digest: str) -> Path:
        return self.ledger.home / "cache" / digest.removeprefix("sha256:")

    def _attach(self, number: int) -> Attempt:
        directory = attempt_directory(self.ledger, self.spec.run_id, number)
        return self.executor.attach(self.spec.run_id, number, directory)

    def _ending(self, state: ProcessState, seen: _Seen) -> Ending:
        reason, retryable = None, True
        if seen.completed is not None:
            reason = self._broken_promise(seen)
            if reason is None and (state.exit_code or 0) > 0:
                reason = f"it completed and then ended with exit code {state.exit_code}"
        elif state.stopped:
            reason = None
        elif seen.failed is not None:
            reason, retryable = seen.failed.reason or "it gave no reason", seen.failed.retryable
        elif state.exit_code == 0:
            reason = "it ended with exit code 0 without saying that it completed"
        elif (state.exit_code or 0) > 0:
            reason = f"exit code {state.exit_code}"
        return Ending(state, seen.completed, seen.outputs, reason, retryable)

    def _broken_promise(self, seen: _Seen) -> str | None:
        """What is missing from a run that calls itself complete."""
        last = self.recorder.read().newest_checkpoint
        if seen.completed and last and last.step != seen.completed.step:
            return f"it completed at step {seen.completed.step}, but its last checkpoint is of step {last.step}"
        missing = [name for name in self.plan.expected_outputs if name not in seen.outputs]
        return f"it completed without the output {missing[0]}" if missing else None

    def _outputs(self, record: RunRecord) -> Mapping[str, Path]:
        number = record.attempts[-1].attempt if record.attempts else 0
        attempt = self._attach(number)
        seen, cursor = _Seen(), 0
        while (batch := read_messages(attempt.pipe, cursor))[0]:
            for message in batch[0]:
                seen.take(message, attempt)
            cursor = batch[1]
        return {name: path for name, path in seen.outputs.items() if path.exists()}

    def _last_step(self) -> str:
        newest = self.recorder.read().newest_checkpoint
        return f"step {newest.step}" if newest else "the beginning"


class _Seen:
    """What the messages of an attempt add up to."""

    def __init__(self) -> None:
        self.seq = 0
        self.completed: Completed | None = None
        self.failed: Failed | None = None
        self.outputs: dict[str, Path] = {}

    def take(self, message: Message, attempt: Attempt) -> None:
        self.seq = check_order(self.seq, message)
        if isinstance(message, Completed):
            self.completed = message
        elif isinstance(message, Failed):
            self.failed = message
        elif isinstance(message, OutputWritten):
            path, root = (attempt.out / message.path).resolve(), attempt.out.resolve()
            if root not in path.parents:
                raise PipeError(f"output {message.name!r} leads outside of {attempt.out}")
            self.outputs[message.name] = path


def _is_running(ledger: Ledger, executor: Executor, record: RunRecord, run_id: str) -> bool:
    current = record.open_attempt
    if current is None:
        return False
    attempt = executor.attach(run_id, current.attempt, attempt_directory(ledger, run_id, current.attempt))
    return executor.state(attempt).kind == "running"


def _payer(ledger: Ledger, run_id: str) -> str | None:
    """The stage whose budget the run was charged to before."""
    reserved = [event.payload for event in ledger.log.read(types=("CostReserved",))]
    return next((p.stage for p in reversed(reserved) if isinstance(p, CostReserved) and p.run_id == run_id), None)


def _log_tail(attempt: Attempt) -> str:
    """The last lines that the child printed, for people; never recorded."""
    try:
        with attempt.log.open("rb") as stream:
            stream.seek(max(0, attempt.log.stat().st_size - LOG_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:  # there is no log; the reason stands for itself
        return ""
    return "\n" + "\n".join(f"  | {line}" for line in lines) if lines else ""


def _ignore(_message: Message) -> None:
    """Nobody watches."""
