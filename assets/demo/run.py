"""Materialising the demo's assets one after another, in this process, in a Dagster instance that `dagster dev` shows later."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from threading import Thread
from time import monotonic
from types import TracebackType
from typing import Self

from dagster import AssetSelection, DagsterInstance, ExecuteInProcessResult, materialize

from assets.chain import Chain
from assets.demo.narration import Narration
from assets.factory import EXIT_CODE, chain_assets, chain_checks, key
from assets.resources import LedgerResource
from assets.steps import specification
from executors.launchers.local import read_process
from executors.pipe import Message, Progress
from ledger.errors import InfrastructureError, PosttrainError
from ledger.events import AttemptStarted, CheckpointCommitted
from ledger.home import Ledger

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
STEPS_PAST_CHECKPOINT = 5
INSTANCE = """telemetry:
  enabled: false
compute_logs:  # the steps print through the demo; a capturing process would only get in the way of Ctrl-C
  module: dagster.core.storage.noop_compute_log_manager
  class: NoOpComputeLogManager
"""


class KillOnce:
    """Sends SIGKILL to the training process of one run, once: some steps after its first checkpoint is in the ledger."""

    def __init__(self, ledger: Ledger, say: Callable[[str], None]) -> None:
        self._ledger = ledger
        self._say = say
        self.run_id: str | None = None

    def __call__(self, message: Message) -> None:
        if self.run_id is None or not isinstance(message, Progress):
            return
        with self._ledger.log.as_of() as history:
            attempts = history.payloads(f"run/{self.run_id}", AttemptStarted)
            saved = history.payloads(f"run/{self.run_id}", CheckpointCommitted)
        step = message.step
        if len(attempts) != 1 or not saved or step < saved[-1].step + STEPS_PAST_CHECKPOINT:
            return
        process = read_process(self._ledger.home / "runs" / self.run_id / "attempt-1")
        self._say(
            f"kill -9 of the training process {process['child']} at step {step}, after the checkpoint at {saved[-1].step}"
        )
        os.kill(int(process["child"]), signal.SIGKILL)
        self.run_id = None


class Assets(AbstractContextManager["Assets"]):
    """The demo's chain in a Dagster instance under the home directory."""

    def __init__(self, ledger: Ledger, chain: Chain, say: Narration, killer: KillOnce) -> None:
        self.chain = chain
        self._ledger = ledger
        self._say = say
        self._killer = killer
        self._assets = [*chain_assets(chain, self._watch, say.note), *chain_checks(chain)]
        self._instance = _instance(ledger)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._say.end_bar()
        self._instance.dispose()

    def make(self, *parts: str) -> None:
        """Materialise one asset and say what came of it.

        Raises:
            StepFailed: the step was refused or failed; message and exit code are the step's own.
        """
        self._killer.run_id = self._run_id(parts[0]) if parts == ("sft", "model") else None
        started = monotonic()
        result = self._materialise(parts)
        self._say.end_bar()
        failure = _failure(result)
        if failure is not None:
            raise StepFailed(f"{'/'.join(parts)}: {failure[0]}", failure[1])
        self._narrate(result, parts, monotonic() - started)

    def refused(self, *parts: str) -> str | None:
        """Materialise one asset alone; the reason why it was refused, `None` when it was not."""
        failure = _failure(self._materialise(parts))
        return failure[0] if failure else None

    def attempts(self, candidate: str) -> int:
        return len([e for e in self._ledger.log.stream(f"run/{self._run_id(candidate)}") if e.type == "AttemptStarted"])

    def _materialise(self, parts: tuple[str, ...]) -> ExecuteInProcessResult:
        """In a thread of its own: in the main one Dagster holds Ctrl-C back for as long as the step takes."""
        answer: Future[ExecuteInProcessResult] = Future()

        def work() -> None:
            try:
                answer.set_result(
                    materialize(
                        self._assets,
                        selection=AssetSelection.assets(key(self.chain, *parts)),
                        instance=self._instance,
                        resources={"ledger": LedgerResource(home=str(self._ledger.home))},
                        run_config=QUIET,
                        raise_on_error=False,
                    )
                )
            except BaseException as error:  # whatever it is belongs to who waits
                answer.set_exception(error)

        Thread(target=work, daemon=True).start()
        return answer.result()

    def _narrate(self, result: ExecuteInProcessResult, parts: tuple[str, ...], seconds: float) -> None:
        for materialised in result.asset_materializations_for_node(key(self.chain, *parts).to_python_identifier()):
            shown = {name: value.value for name, value in materialised.metadata.items()}
            reused = bool(shown.pop("reused", False))
            facts = "  ".join(f"{name} {value}" for name, value in shown.items() if name in SHOWN)
            self._say.made("/".join(parts), facts, reused, seconds)
        for check in result.get_asset_check_evaluations():
            shown = {name: value.value for name, value in check.metadata.items()}
            verdict = "passes" if check.passed else "fails"
            self._say.result(
                f"gate {verdict}: gain {shown['gain']:+.3f}, interval {shown['interval']} {shown['reasons']}"
            )

    def _watch(self, message: Message) -> None:
        self._say.watch(message)
        self._killer(message)

    def _run_id(self, candidate: str) -> str:
        return specification(self._ledger, self.chain, candidate).run_id


SHOWN = (
    "digest",
    "run",
    "step",
    "accuracy",
    "interval",
    "rows",
    "duplicates_removed",
    "items",
    "parameters",
    "endpoint",
    "stage",
    "actor",
)


class StepFailed(PosttrainError):
    """A step that failed, with the exit code that the command line would have given it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # of this error, not of the class


def _failure(result: ExecuteInProcessResult) -> tuple[str, int] | None:
    """What failed and its exit code."""
    if result.success:
        return None
    for event in result.all_events:
        data = event.event_specific_data
        failure = getattr(data, "user_failure_data", None)
        if event.is_step_failure and failure is not None and failure.description:
            code = failure.metadata.get(EXIT_CODE)
            return str(failure.description), int(code.value) if code else InfrastructureError.exit_code
    failed = [check for check in result.get_asset_check_evaluations() if not check.passed]
    if failed:
        return None  # a gate that says no is an answer
    reason = next((str(event.message) for event in result.all_events if event.is_failure), "failed without a reason")
    return reason, InfrastructureError.exit_code


def _instance(ledger: Ledger) -> DagsterInstance:
    place = ledger.home / "dagster"
    place.mkdir(parents=True, exist_ok=True)
    config = place / "dagster.yaml"
    config.write_text(INSTANCE)
    os.environ["DAGSTER_HOME"] = str(place)
    return DagsterInstance.get()
