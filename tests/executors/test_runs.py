"""Runs: attached, resumed or started; recorded once; ended with the same answer for everybody who follows."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from executors import fake_child, runs
from executors.base import Attempt, Resources, RunSpec
from executors.fake import FakeExecutor
from executors.launchers.local import LocalLauncher, read_process
from executors.pipe import CheckpointWritten, Message, Progress
from executors.recording import BadCheckpoint, RunRecord, RunRecorder, decimal_summary
from executors.runs import RunOutcome, attempt_directory, materialise_run, recorded_spec, resume_run, stop_run
from ledger import budget
from ledger.artifacts import ArtifactStore
from ledger.errors import BudgetExceeded, InfrastructureError, InputError, NotFound, RefusedError, TamperFound
from ledger.home import Ledger
from tests.executors.specs import fake_spec

SLOW = {"steps": 30, "checkpoint_every": 3, "step_seconds": 0.03}


@pytest.fixture
def ledger(home: Path) -> Iterator[Ledger]:
    opened = Ledger.open(home, create=True, actor="tester")
    budget.set_price(opened, "cpu", "3600")
    yield opened
    for attempt in (home / "runs").glob("r-*/attempt-*"):
        LocalLauncher().stop(attempt, 0.0)


def types(ledger: Ledger, run_id: str) -> list[str]:
    return [event.type for event in ledger.log.stream(f"run/{run_id}")]


def outcomes(ledger: Ledger, run_id: str) -> list[tuple[str, int | None]]:
    return [(ended.outcome, ended.exit_code) for ended in RunRecord.read(ledger, run_id).ended.values()]


def once(condition: Callable[[Message], bool], action: Callable[[], None]) -> Callable[[Message], None]:
    """A watcher that acts at the first message that fits."""
    done: list[bool] = []

    def watch(message: Message) -> None:
        if not done and condition(message):
            done.append(True)
            action()

    return watch


def kill_child(ledger: Ledger, spec: RunSpec, attempt: int = 1) -> None:
    os.kill(read_process(attempt_directory(ledger, spec.run_id, attempt))["child"], signal.SIGKILL)


def wait_for(condition: Callable[[], Any], what: str) -> None:
    give_up_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up_at, f"waited for: {what}"
        time.sleep(0.01)


def check_recorded_once(ledger: Ledger, spec: RunSpec, outcome: RunOutcome) -> None:
    """Whatever happened on the way, the ledger tells one story."""
    record = RunRecord.read(ledger, spec.run_id)
    count = Counter(types(ledger, spec.run_id))
    assert (count["RunSubmitted"], count["RunCompleted"]) == (1, 1)
    assert count["AttemptStarted"] == count["AttemptEnded"] == len(record.attempts)
    every, last = int(spec.config["checkpoint_every"]), int(spec.config["steps"])
    assert [saved.step for saved in record.checkpoints] == sorted({*range(every, last + 1, every), last})
    settled = [
        event for event in ledger.log.read(types=("CostSettled",)) if getattr(event.payload, "run_id", 0) == spec.run_id
    ]
    assert len(settled) == len(record.attempts)
    assert budget.status(ledger, spec.stage).reserved == "0"
    assert record.completed is not None
    assert outcome.model == record.completed.model == record.checkpoints[-1].model
    assert not list((ledger.home / "runs").rglob("step-*")), "a local copy was left"


# ------------------------------------------------------------------------------------------------------------ the story


def test_a_run_is_recorded_from_its_submission_to_its_cost(ledger: Ledger) -> None:
    spec = fake_spec()
    seen: list[Message] = []
    outcome = materialise_run(ledger, spec, watch=seen.append)
    assert types(ledger, spec.run_id) == [
        "RunSubmitted", "AttemptStarted", "CheckpointCommitted", "CheckpointCommitted", "CheckpointCommitted",
        "AttemptEnded", "RunCompleted",
    ]  # fmt: skip
    assert [event.type for event in outcome.events] == types(ledger, spec.run_id)
    assert (outcome.state, outcome.step) == ("completed", 6)
    assert [m.step for m in seen if isinstance(m, Progress)] == [1, 2, 3, 4, 5, 6]
    check_recorded_once(ledger, spec, outcome)
    cost = budget.cost_report(ledger)[0]
    ended = RunRecord.read(ledger, spec.run_id).ended[1]
    assert (cost.run_id, cost.device_seconds) == (spec.run_id, ended.device_seconds)
    assert recorded_spec(ledger, spec.run_id) == spec


def test_the_artifacts_are_those_of_the_child(ledger: Ledger) -> None:
    outcome = materialise_run(ledger, fake_spec())
    assert outcome.checkpoint is not None
    assert outcome.model is not None
    checkpoint, model = (ledger.artifacts.manifest(digest).files for digest in (outcome.checkpoint, outcome.model))
    assert set(model) == {"config.json", "weights.json"}
    assert model["weights.json"].digest == checkpoint["model/weights.json"].digest
    assert ledger.artifacts.manifest(outcome.model).annotations == {"posttrain.step": "6"}
    config = ledger.artifacts.config(outcome.checkpoint)
    assert (config["step"], config["resume"], config["samples_seen"]) == (6, "exact", 6)
    assert json.loads(outcome.outputs["history.jsonl"].read_text().splitlines()[5])["loss"] > 0
    assert not ledger.artifacts.problems(outcome.checkpoint)


def test_a_complete_run_is_a_hit_and_starts_nothing(ledger: Ledger) -> None:
    first = materialise_run(ledger, fake_spec())
    size = ledger.log.size()
    second = materialise_run(ledger, fake_spec().model_copy(update={"stage": "elsewhere"}))
    assert (second.state, second.model, second.outputs) == ("hit", first.model, first.outputs)
    assert second.events == ()
    assert ledger.log.size() == size


def test_a_rerun_is_a_run_of_its_own_with_the_same_model(ledger: Ledger) -> None:
    first = materialise_run(ledger, fake_spec())
    second = materialise_run(ledger, fake_spec(), rerun=True)
    third = materialise_run(ledger, fake_spec(), rerun=True)
    assert len({first.run_id, second.run_id, third.run_id}) == 3
    assert first.model == second.model == third.model
    assert first.checkpoint == second.checkpoint


# --------------------------------------------------------------------------------------------------- death of the child


def test_a_killed_child_is_resumed_to_the_same_bytes(ledger: Ledger) -> None:
    spec = fake_spec(**SLOW)
    watch = once(lambda m: isinstance(m, CheckpointWritten), lambda: kill_child(ledger, spec))
    with pytest.raises(
        InfrastructureError, match=rf"attempt 1 of run {spec.run_id} was killed by signal 9; .*from step \d+"
    ):
        materialise_run(ledger, spec, watch=watch)
    assert outcomes(ledger, spec.run_id) == [("killed", -9)]
    outcome = materialise_run(ledger, spec)
    record = RunRecord.read(ledger, spec.run_id)
    last = [saved for saved in record.checkpoints if saved.attempt == 1][-1]
    assert (record.attempts[1].resumed_from, record.attempts[1].from_step) == (last.checkpoint, last.step)
    assert outcomes(ledger, spec.run_id) == [("killed", -9), ("completed", 0)]
    check_recorded_once(ledger, spec, outcome)
    uninterrupted = materialise_run(ledger, spec, rerun=True)
    assert (outcome.model, outcome.checkpoint) == (uninterrupted.model, uninterrupted.checkpoint)
    assert not (attempt_directory(ledger, spec.run_id, 2) / "resume").exists()


def test_a_killed_supervisor_leaves_a_lost_attempt_and_the_next_goes_on(ledger: Ledger) -> None:
    spec = fake_spec(**SLOW)

    def kill_supervisor() -> None:
        os.kill(read_process(attempt_directory(ledger, spec.run_id, 1))["pid"], signal.SIGKILL)

    with pytest.raises(InfrastructureError, match="was lost with its machine or supervisor"):
        materialise_run(ledger, spec, watch=once(lambda m: isinstance(m, CheckpointWritten), kill_supervisor))
    outcome = materialise_run(ledger, spec)
    assert outcomes(ledger, spec.run_id) == [("lost", None), ("completed", 0)]
    check_recorded_once(ledger, spec, outcome)


def test_a_failing_child_shows_its_log_and_can_be_tried_again(ledger: Ledger) -> None:
    spec = fake_spec(fault="exit", fault_step=4)
    with pytest.raises(InfrastructureError, match=r"(?s)failed: exit code 3.*  \| fault: exit.*goes on from step 2"):
        materialise_run(ledger, spec)
    assert types(ledger, spec.run_id)[-2:] == ["AttemptEnded", "RunFailed"]
    assert "fault" not in ledger.log.stream(f"run/{spec.run_id}")[-1].body.decode()  # no log line is recorded
    outcome = materialise_run(ledger, spec)
    assert outcomes(ledger, spec.run_id) == [("failed", 3), ("completed", 0)]
    check_recorded_once(ledger, spec, outcome)


def test_a_fault_of_the_input_is_an_input_error(ledger: Ledger) -> None:
    spec = fake_spec(fault="fail", fault_attempts=9)
    with pytest.raises(InputError, match=r"attempt 1 of run .* failed: the fake was told to fail"):
        materialise_run(ledger, spec)
    failed = ledger.log.last(f"run/{spec.run_id}", "RunFailed")
    assert failed is not None
    assert failed.payload.to_json() == {
        "run_id": spec.run_id, "reason": "the fake was told to fail", "retryable": False,
    }  # fmt: skip


def test_a_child_that_writes_nonsense_is_stopped(ledger: Ledger) -> None:
    spec = fake_spec(fault="malformed", fault_step=3)
    with pytest.raises(InfrastructureError, match=r"pipe\.jsonl, byte \d+: not strict JSON"):
        materialise_run(ledger, spec)
    assert LocalLauncher().state(attempt_directory(ledger, spec.run_id, 1)).over
    check_recorded_once(ledger, spec, materialise_run(ledger, spec))


def test_a_child_that_dies_before_its_first_word_is_begun_again(ledger: Ledger) -> None:
    spec = fake_spec(fault="kill", fault_step=1)
    with pytest.raises(InfrastructureError, match="goes on from the beginning"):
        materialise_run(ledger, spec)
    outcome = materialise_run(ledger, spec)
    assert RunRecord.read(ledger, spec.run_id).attempts[1].resumed_from is None
    check_recorded_once(ledger, spec, outcome)


def test_a_child_that_completed_and_does_not_end_is_ended(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "lingering_child.py"
    child.write_text("import time\nfrom executors import fake_child\nfake_child.main()\ntime.sleep(600)\n")

    class Lingering(FakeExecutor):
        def command(self, config: Any, resources: Resources) -> tuple[str, ...]:
            return (*super().command(config, resources)[:2], str(child))

    monkeypatch.setattr(runs, "TEARDOWN_S", 0.1)
    spec = fake_spec()
    outcome = materialise_run(ledger, spec, executor=Lingering())
    assert outcomes(ledger, spec.run_id) == [("completed", -15)]
    check_recorded_once(ledger, spec, outcome)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ("state.step += 1", "it completed at step 7, but its last checkpoint is of step 6"),
        ("writer.output = lambda **_: None", "it completed without the output history.jsonl"),
        ("import atexit, os; atexit.register(os._exit, 5)", "it completed and then ended with exit code 5"),
        ("os._exit(0)", "it ended with exit code 0 without saying that it completed"),
    ],
)
def test_a_child_that_claims_too_much_has_failed(ledger: Ledger, tmp_path: Path, steps: str, reason: str) -> None:
    source = Path(fake_child.__file__).read_text("utf-8")
    child = tmp_path / "boasting_child.py"
    child.write_text(
        source.replace("    history = output_directory()", f"    {steps}\n    history = output_directory()")
    )

    class Boasting(FakeExecutor):
        def command(self, config: Any, resources: Resources) -> tuple[str, ...]:
            return (*super().command(config, resources)[:2], str(child))

    with pytest.raises(InfrastructureError, match=f"failed: {reason}"):
        materialise_run(ledger, fake_spec(), executor=Boasting())
    assert RunRecord.read(ledger, fake_spec().run_id).completed is None


def test_a_dead_attempt_that_nobody_saw_die_is_recorded_and_followed_by_the_next(ledger: Ledger) -> None:
    """The parent is interrupted, the child is killed later: one more call does everything."""
    spec = fake_spec(**SLOW)
    interrupt(ledger, spec)
    kill_child(ledger, spec)
    wait_for(lambda: LocalLauncher().state(attempt_directory(ledger, spec.run_id, 1)).over, "the child to end")
    outcome = materialise_run(ledger, spec)
    assert outcome.state == "completed"
    assert outcomes(ledger, spec.run_id) == [("killed", -9), ("completed", 0)]
    check_recorded_once(ledger, spec, outcome)


# -------------------------------------------------------------------------------------------------- death of the parent


def interrupt(ledger: Ledger, spec: RunSpec) -> None:
    """A follower that gets Ctrl-C after the first checkpoint."""

    def ctrl_c() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        materialise_run(ledger, spec, watch=once(lambda m: isinstance(m, CheckpointWritten), ctrl_c))


def test_an_interrupted_follower_leaves_the_child_alone_and_the_next_attaches(ledger: Ledger) -> None:
    spec = fake_spec(**SLOW)
    interrupt(ledger, spec)
    process = read_process(attempt_directory(ledger, spec.run_id, 1))
    seen: list[Message] = []
    outcome = materialise_run(ledger, spec, watch=seen.append)
    assert outcome.state == "attached"
    assert read_process(attempt_directory(ledger, spec.run_id, 1)) == process
    assert [message.seq for message in seen] == list(range(1, len(seen) + 1))
    check_recorded_once(ledger, spec, outcome)


def test_an_end_that_nobody_saw_is_recorded_by_the_next(ledger: Ledger) -> None:
    spec = fake_spec(steps=6, checkpoint_every=2, step_seconds=0.02)
    interrupt(ledger, spec)
    wait_for(lambda: LocalLauncher().state(attempt_directory(ledger, spec.run_id, 1)).over, "the child to end")
    outcome = materialise_run(ledger, spec)
    assert outcomes(ledger, spec.run_id) == [("completed", 0)]
    check_recorded_once(ledger, spec, outcome)


# --------------------------------------------------------------------------------------------------- several followers


def test_followers_at_once_start_one_child_and_agree(ledger: Ledger) -> None:
    spec = fake_spec(steps=12, checkpoint_every=2, step_seconds=0.02)
    start = threading.Barrier(3)

    def follow() -> RunOutcome:
        own = Ledger.open(ledger.home, actor="tester")
        start.wait()
        return materialise_run(own, spec)

    with ThreadPoolExecutor(3) as pool:
        results = [future.result() for future in [pool.submit(follow) for _ in range(3)]]
    assert len({(result.run_id, result.model, result.checkpoint) for result in results}) == 1
    assert len(RunRecord.read(ledger, spec.run_id).attempts) == 1
    check_recorded_once(ledger, spec, results[0])


# ---------------------------------------------------------------------------------------------------------------- stop


def test_a_stopped_run_keeps_its_checkpoints_and_resumes(ledger: Ledger) -> None:
    spec = fake_spec(**SLOW)
    interrupt(ledger, spec)
    ending = stop_run(ledger, spec.run_id, grace_s=5.0)
    assert ending.outcome == "canceled"
    assert types(ledger, spec.run_id)[-2:] == ["AttemptEnded", "RunCanceled"]
    with pytest.raises(InputError, match=f"no attempt of run {spec.run_id} is running"):
        stop_run(ledger, spec.run_id)
    outcome = materialise_run(ledger, spec)
    assert RunRecord.read(ledger, spec.run_id).attempts[1].from_step >= 3
    check_recorded_once(ledger, spec, outcome)


def test_a_stop_by_somebody_else_ends_the_follower(ledger: Ledger) -> None:
    spec = fake_spec(fault="hang", fault_step=3)
    stopped = threading.Thread(
        target=lambda: stop_run(Ledger.open(ledger.home, actor="other"), spec.run_id, grace_s=0.1)
    )
    with pytest.raises(InfrastructureError, match=f"was stopped; `posttrain resume {spec.run_id}` goes on from step 2"):
        materialise_run(ledger, spec, watch=once(lambda m: isinstance(m, CheckpointWritten), stopped.start))
    stopped.join()
    assert outcomes(ledger, spec.run_id) == [("canceled", -9)]
    assert Counter(types(ledger, spec.run_id))["RunCanceled"] == 1


def test_an_attempt_that_was_recorded_and_never_started_is_started_and_not_stopped(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = fake_spec()

    def power_failure(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalLauncher, "start", power_failure)
        with pytest.raises(KeyboardInterrupt):
            materialise_run(ledger, spec)
    with pytest.raises(InputError, match=f"attempt 1 of run {spec.run_id} has not been started"):
        stop_run(ledger, spec.run_id)
    outcome = materialise_run(ledger, spec)
    assert len(RunRecord.read(ledger, spec.run_id).attempts) == 1
    check_recorded_once(ledger, spec, outcome)


def test_an_attempt_whose_directory_is_gone_is_lost_and_not_begun_again_under_its_number(ledger: Ledger) -> None:
    spec = fake_spec(**SLOW)
    interrupt(ledger, spec)
    LocalLauncher().stop(attempt_directory(ledger, spec.run_id, 1), 0.0)
    shutil.rmtree(attempt_directory(ledger, spec.run_id, 1))
    outcome = materialise_run(ledger, spec)
    assert outcomes(ledger, spec.run_id) == [("lost", None), ("completed", 0)]
    check_recorded_once(ledger, spec, outcome)


def test_an_unknown_run_is_not_found(ledger: Ledger) -> None:
    for call in (resume_run, stop_run):
        with pytest.raises(NotFound, match="no run r-0000000000000000 in the ledger"):
            call(ledger, "r-0000000000000000")


# -------------------------------------------------------------------------------------------------------------- resume


def test_resume_goes_on_by_the_id_alone(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = fake_spec(fault="exit", fault_step=4)
    with pytest.raises(InfrastructureError):
        materialise_run(ledger, spec, budget_stage="payer")
    with pytest.raises(
        RefusedError, match=r"pins the code tree with diff .*; check that code out, or run the stage again"
    ):
        resume_run(ledger, spec.run_id)
    monkeypatch.setattr("executors.runs.code_revision", lambda _: spec.code)
    outcome = resume_run(ledger, spec.run_id)
    assert outcome.step == 6
    assert {row.stage for row in budget.cost_report(ledger)} == {"payer"}
    assert resume_run(ledger, spec.run_id).state == "hit"


# -------------------------------------------------------------------------------------------------------------- budget


def test_a_run_beyond_the_budget_starts_nothing(ledger: Ledger) -> None:
    budget.set_budget(ledger, "sft", "5", "small")
    spec = fake_spec(steps=6)  # 6 device seconds of 1 each
    with pytest.raises(BudgetExceeded, match="projected to cost 6, but 5 is left"):
        materialise_run(ledger, spec)
    assert types(ledger, spec.run_id) == []
    assert not (ledger.home / "runs").exists()
    assert ledger.log.last("budget/sft", "LaunchBlocked") is not None
    check_recorded_once(ledger, spec, materialise_run(ledger, spec, budget_stage="other"))


def test_a_device_without_a_price_starts_nothing(home: Path) -> None:
    ledger = Ledger.open(home, create=True, actor="tester")
    with pytest.raises(RefusedError, match="device kind cpu has no price"):
        materialise_run(ledger, fake_spec())
    assert ledger.log.size() == 0


# ------------------------------------------------------------------------------------------------------------ bad bytes


def test_a_full_disk_interrupts_the_follower_and_not_the_run(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's copy of the checkpoint stays until it is stored; the next call stores it."""
    spec = fake_spec()

    def full(*_arguments: object, **_options: object) -> None:
        raise InfrastructureError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ArtifactStore, "add_files", full)
        with pytest.raises(InfrastructureError, match="no space left"):
            materialise_run(ledger, spec)
    assert types(ledger, spec.run_id) == ["RunSubmitted", "AttemptStarted"]
    outcome = materialise_run(ledger, spec)
    assert outcomes(ledger, spec.run_id) == [("completed", 0)]
    check_recorded_once(ledger, spec, outcome)


def test_a_checkpoint_with_other_bytes_than_announced_is_never_recorded(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt is ended, and the next one goes on from the last good checkpoint."""
    spec = fake_spec(**SLOW)
    commit = RunRecorder.commit

    def damage(self: RunRecorder, attempt: Any, message: CheckpointWritten) -> Any:
        if message.step == 6:
            with (Path(message.path) / "rng.json").open("r+b") as stream:
                stream.write(b"!")
        return commit(self, attempt, message)

    monkeypatch.setattr(RunRecorder, "commit", damage)
    with pytest.raises(InfrastructureError, match=r"rng\.json has \d+ bytes with digest .*, but the child wrote"):
        materialise_run(ledger, spec)
    assert [saved.step for saved in RunRecord.read(ledger, spec.run_id).checkpoints] == [3]
    assert [outcome for outcome, _ in outcomes(ledger, spec.run_id)] == ["failed"]
    monkeypatch.setattr(RunRecorder, "commit", commit)
    outcome = materialise_run(ledger, spec)
    assert RunRecord.read(ledger, spec.run_id).attempts[1].from_step == 3
    assert outcome.step == 30


def test_a_damaged_checkpoint_in_the_store_is_not_resumed_from(ledger: Ledger) -> None:
    spec = fake_spec(fault="exit", fault_step=4)
    with pytest.raises(InfrastructureError):
        materialise_run(ledger, spec)
    saved = RunRecord.read(ledger, spec.run_id).checkpoints[-1].checkpoint
    blob = ledger.artifacts.manifest(saved).files["rng.json"].digest.removeprefix("sha256:")
    path = ledger.home / "artifacts" / "blobs" / "sha256" / blob
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"3", b"4", 1))
    size = ledger.log.size()
    with pytest.raises(TamperFound):
        materialise_run(ledger, spec)
    assert ledger.log.size() == size


@pytest.mark.parametrize("path", ["..", ".", "../../attempt-1", "/etc", "link"])
def test_a_checkpoint_outside_of_the_output_directory_is_refused(ledger: Ledger, tmp_path: Path, path: str) -> None:
    attempt = Attempt("r-0", 1, tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link").symlink_to("/etc")
    message = CheckpointWritten(1, "", 1, path, {}, "exact", 1, 1, ())
    with pytest.raises(BadCheckpoint, match="leads outside of"):
        RunRecorder(ledger, fake_spec(), "sft").commit(attempt, message)


def test_a_summary_keeps_what_has_a_decimal_and_counts_the_rest() -> None:
    summary = {"loss": 0.1234567891, "bad": float("nan"), "worse": float("inf"), "huge": 1e40, "tokens": 12}
    assert decimal_summary(summary) == {"loss": "0.123456789", "tokens": "12", "not_finite": "3"}
