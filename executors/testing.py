"""The conformance kit: what every executor must do, checked with real processes and without a ledger.

    def test_mine(tmp_path):
        check_executor(MineExecutor(), lambda **config: make_spec("mine", **config), tmp_path)

`make_spec` returns a `RunSpec` whose `config` has the given settings changed; `paths` names the inputs of the spec that are
on disk. `slow` are settings with which the run lasts long enough to be killed after its first checkpoint and before its end.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from executors.base import Attempt, Executor, LaunchPlan, ResumePoint, RunSpec
from executors.launchers.local import read_process
from executors.pipe import CheckpointWritten, Completed, Failed, Message, Started
from ledger.digest import sha256_digest
from ledger.errors import InputError

PATIENCE_S = 120.0


class MakeSpec(Protocol):
    def __call__(self, **config: Any) -> RunSpec: ...


@dataclass(frozen=True)
class Kit:
    """An executor, its inputs and a directory for attempts."""

    executor: Executor
    make_spec: MakeSpec
    directory: Path
    paths: Mapping[str, Path]

    def place(self, spec: RunSpec, number: int, resume: CheckpointWritten | None = None) -> LaunchPlan:
        plan = self.executor.plan(spec, spec.resources)
        placed = plan.placed(number, self.directory / spec.run_id / f"attempt-{number}", self.paths)
        if resume is None:
            return placed
        return self.executor.resume(
            placed, ResumePoint(sha256_digest(b"of no concern here"), Path(resume.path), resume.step)
        )


def check_executor(
    executor: Executor,
    make_spec: MakeSpec,
    tmp_path: Path,
    *,
    paths: Mapping[str, Path] | None = None,
    slow: Mapping[str, Any] | None = None,
) -> None:
    """Every check below, each in its own directory. Raises AssertionError with what is wrong."""
    for check in (check_plan, check_completion, check_kill_and_resume, check_stop):
        kit = Kit(executor, make_spec, tmp_path / check.__name__, paths or {})
        check(kit, dict(slow or {}))


def check_plan(kit: Kit, slow: Mapping[str, Any]) -> None:
    """Capabilities are stated, a plan is a pure function of the spec, and wrong settings are refused before anything runs."""
    able, spec = kit.executor.capabilities(), kit.make_spec()
    assert able.kinds and able.devices and able.max_processes >= 1
    assert spec.kind in able.kinds and spec.executor == kit.executor.name
    first, second = (kit.executor.plan(spec, spec.resources) for _ in range(2))
    assert first == second, "plan is not deterministic"
    assert not kit.directory.exists(), "plan wrote to the disk"
    assert first.run_id == spec.run_id and first.seed == spec.seed
    assert first.argv and all(isinstance(word, str) for word in first.argv)
    assert dict(first.inputs) == spec.inputs()
    assert first.projection.device_seconds > 0
    assert first.attempt == 0 and first.directory is None and first.checkpoint is None
    refused(lambda: kit.executor.plan(spec.model_copy(update={"config": {"no_such_setting": 1}}), spec.resources))
    refused(lambda: kit.executor.plan(spec.model_copy(update={"kind": "no-such-kind"}), spec.resources))
    refused(lambda: kit.executor.launch(first))


def check_completion(kit: Kit, slow: Mapping[str, Any]) -> None:
    """Launch, follow, complete; a second launch attaches; the announced files are there with the announced bytes."""
    spec = kit.make_spec()
    plan = kit.place(spec, 1)
    attempt = kit.executor.launch(plan)
    assert kit.executor.launch(plan) == attempt
    messages = follow(kit.executor, attempt)
    assert isinstance(messages[0], Started), "the first message is not `started`"
    assert messages[0].world_size == spec.resources.processes and messages[0].device == spec.resources.device
    assert isinstance(messages[-1], Completed), f"it did not complete: {_last_words(attempt, messages)}"
    assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
    state = kit.executor.state(attempt)
    assert (state.kind, state.exit_code) == ("ended", 0)
    again = kit.executor.launch(plan)
    assert again == attempt and kit.executor.state(again) == state, "a launch after the end started something"
    assert follow(kit.executor, again) == messages
    for checkpoint in _checkpoints(messages):
        check_checkpoint(kit.executor, attempt, checkpoint)
    names = {message.name for message in messages if hasattr(message, "name")}
    assert names >= set(plan.expected_outputs), "an expected output was not announced"
    if kit.executor.capabilities().resume is not None:
        assert _checkpoints(messages)[-1].step == messages[-1].step, "there is no checkpoint of the last step"


def check_checkpoint(executor: Executor, attempt: Attempt, message: CheckpointWritten) -> None:
    """The files are those that were announced, and `inspect` says what the message said."""
    path = attempt.out / message.path
    assert attempt.out.resolve() in path.resolve().parents
    for name, record in message.files.items():
        data = (path / name).read_bytes()
        assert sha256_digest(data) == f"sha256:{record.sha256}" and len(data) == record.size_bytes, name
    on_disk = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert on_disk == set(message.files), "files on the disk and in the message differ"
    assert message.model_files, "a checkpoint without a model"
    info = executor.inspect(path)
    assert (info.step, info.resume) == (message.step, message.resume)
    assert (info.world_size, info.samples_seen) == (message.world_size, message.samples_seen)
    refused(lambda: executor.inspect(attempt.out))


def check_kill_and_resume(kit: Kit, slow: Mapping[str, Any]) -> None:
    """Killed with -9 after a checkpoint and resumed from it, a run ends with the bytes of one that was never killed."""
    if kit.executor.capabilities().resume != "exact":
        return
    spec = kit.make_spec(**slow)
    attempt = kit.executor.launch(kit.place(spec, 1))
    saved = wait_for_checkpoint(kit.executor, attempt)
    os.kill(read_process(attempt.directory)["child"], signal.SIGKILL)
    first = follow(kit.executor, attempt)
    state = kit.executor.state(attempt)
    assert (state.kind, state.exit_code) == ("ended", -signal.SIGKILL), "it was not killed in time; make `slow` slower"
    assert not any(isinstance(message, Completed) for message in first)

    second = kit.executor.launch(kit.place(spec, 2, resume=saved))
    resumed = follow(kit.executor, second)
    assert isinstance(resumed[-1], Completed), f"the resumed attempt did not complete: {_last_words(second, resumed)}"
    steps = [checkpoint.step for checkpoint in _checkpoints(resumed)]
    assert steps and min(steps) > saved.step, f"resumed from step {saved.step}, it saved steps {steps}"

    whole = kit.executor.launch(kit.place(spec, 3))
    uninterrupted = follow(kit.executor, whole)
    assert isinstance(uninterrupted[-1], Completed), _last_words(whole, uninterrupted)
    ours, theirs = _checkpoints(resumed)[-1], _checkpoints(uninterrupted)[-1]
    assert ours.step == theirs.step and ours.samples_seen == theirs.samples_seen
    differing = sorted(name for name in ours.files if ours.files[name] != theirs.files.get(name))
    assert not differing, f"resumed from step {saved.step} the run ends otherwise: {', '.join(differing)}"


def check_stop(kit: Kit, slow: Mapping[str, Any]) -> None:
    """A stopped attempt is over when `stop` returns, and says that it was stopped."""
    spec = kit.make_spec(**slow)
    attempt = kit.executor.launch(kit.place(spec, 1))
    while not kit.executor.events(attempt, 0).messages:
        assert kit.executor.state(attempt).kind == "running", _last_words(attempt, [])
        time.sleep(0.01)
    kit.executor.stop(attempt, 5.0)
    state = kit.executor.state(attempt)
    assert (state.kind, state.stopped) == ("ended", True), f"after stop it is {state}"
    assert not any(isinstance(message, Completed) for message in follow(kit.executor, attempt))
    kit.executor.stop(attempt, 5.0)
    assert kit.executor.state(attempt) == state, "a second stop changed something"


def follow(executor: Executor, attempt: Attempt) -> list[Message]:
    """All messages of an attempt, to its end."""
    messages: list[Message] = []
    cursor, give_up_at = 0, time.monotonic() + PATIENCE_S
    while True:
        batch = executor.events(attempt, cursor)
        messages += batch.messages
        cursor = batch.cursor
        if not batch.messages:
            if batch.state.kind != "running":
                return messages
            assert time.monotonic() < give_up_at, f"it does not end: {_last_words(attempt, messages)}"
            time.sleep(0.01)


def wait_for_checkpoint(executor: Executor, attempt: Attempt) -> CheckpointWritten:
    """The first checkpoint of a running attempt."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not (found := _checkpoints(executor.events(attempt, 0).messages)):
        assert executor.state(attempt).kind == "running", f"it ended without a checkpoint: {_last_words(attempt, [])}"
        assert time.monotonic() < give_up_at, "it writes no checkpoint"
        time.sleep(0.005)
    return found[0]


def refused(call: Any) -> None:
    """`call` raises InputError."""
    try:
        call()
    except InputError:
        return
    raise AssertionError("a wrong input was accepted")


def _checkpoints(messages: Any) -> list[CheckpointWritten]:
    return [message for message in messages if isinstance(message, CheckpointWritten)]


def _last_words(attempt: Attempt, messages: list[Message]) -> str:
    reasons = [message.reason for message in messages if isinstance(message, Failed)]
    log = attempt.log.read_text("utf-8", errors="replace")[-2000:] if attempt.log.exists() else ""
    return f"{'; '.join(reasons)}\n{log}"
