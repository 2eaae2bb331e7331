"""`posttrain run`, `resume` and `stop`: one run followed by a person."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from executors.launchers.local import LocalLauncher
from executors.pipe import CheckpointWritten, Message, Progress
from executors.recording import RunRecord
from executors.runs import (
    STOP_GRACE_S,
    RunOutcome,
    attempt_directory,
    materialise_run,
    next_repeat,
    resume_run,
    stop_run,
)
from executors.stage import load_stage, resolve_stage
from ledger.budget import cost_report
from ledger.cli.bars import DoneColumn, RateColumn
from ledger.cli.output import JsonFlag, emit, fail, json_requested, plain, stderr
from ledger.home import Ledger
from ledger.references import resolve_run

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run id or its first digits.", show_default=False)]

STATES = {
    "hit": "complete before, nothing was run",
    "attached": "followed to its end",
    "completed": "run to its end",
}
INTERRUPTED, TERMINATED = 130, 143  # what a shell reports for SIGINT and SIGTERM


def run(
    stage_file: Annotated[
        Path, typer.Argument(metavar="STAGE.yaml", help="What to run, and from which inputs.", show_default=False)
    ],
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Run it again, as a run of its own, if it is complete.")
    ] = False,
    quiet: Quiet = False,
    as_json: JsonFlag = False,
) -> None:
    """Make sure that a stage's run is complete.

    The ledger has it: nothing is run. It runs: this follows it. It was killed: it goes on from its last checkpoint. Else it
    starts. Ctrl-C leaves it running.
    """
    ledger = Ledger.open()
    stage = load_stage(stage_file)
    named = resolve_stage(ledger, stage)
    spec = next_repeat(ledger, named) if rerun else named

    def follow(watch: Callable[[Message], None]) -> RunOutcome:
        return materialise_run(ledger, spec, watch=watch, budget_stage=stage.payer)

    _follow(ledger, spec.run_id, follow, quiet=quiet, as_json=as_json)


def resume(run: Run, quiet: Quiet = False, as_json: JsonFlag = False) -> None:
    """Go on with a recorded run: follow it while it runs, else start its next attempt from the last checkpoint."""
    ledger = Ledger.open()
    run_id = resolve_run(ledger, run)
    _follow(ledger, run_id, lambda watch: resume_run(ledger, run_id, watch=watch), quiet=quiet, as_json=as_json)


def stop(
    run: Run,
    grace: Annotated[float, typer.Option("--grace", min=0, help="Seconds between SIGTERM and SIGKILL.")] = STOP_GRACE_S,
    as_json: JsonFlag = False,
) -> None:
    """Stop the running attempt of a run and record what it left. `posttrain resume` goes on from there."""
    ledger = Ledger.open()
    run_id = resolve_run(ledger, run)
    ending = stop_run(ledger, run_id, grace_s=grace)
    newest = RunRecord.read(ledger, run_id).newest_checkpoint
    step = newest.step if newest else 0
    value = {"run_id": run_id, "outcome": ending.outcome, "exit_code": ending.state.exit_code, "step": step}
    line = f"{run_id}: {ending.outcome}; the last checkpoint is of step {step}"
    emit(value, lambda console: console.print(line), as_json)


def _follow(
    ledger: Ledger,
    run_id: str,
    follow: Callable[[Callable[[Message], None]], RunOutcome],
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    with _leaving_it_running(ledger, run_id), _bar(run_id, quiet=quiet) as watch:
        outcome = follow(watch)
    value = summary(ledger, outcome)
    emit(value, lambda console: _show(console, value), as_json)


def summary(ledger: Ledger, outcome: RunOutcome) -> dict[str, Any]:
    """What there is to say about a run that is complete."""
    record = RunRecord.read(ledger, outcome.run_id)
    assert record.submitted is not None
    assert record.completed is not None
    paid = [row for row in cost_report(ledger) if row.run_id == outcome.run_id]
    return {
        "run_id": outcome.run_id,
        "stage": record.submitted.stage,
        "state": outcome.state,
        "step": outcome.step,
        "model": outcome.model,
        "checkpoint": outcome.checkpoint,
        "attempts": len(record.attempts),
        "summary": dict(record.completed.summary),
        "device_seconds": paid[0].device_seconds if paid else "0",
        "cost": paid[0].spent if paid else "0",
        "events": [event.position for event in outcome.events],
        "outputs": {name: str(path) for name, path in outcome.outputs.items()},
    }


def _show(console: Console, value: dict[str, Any]) -> None:
    attempts = "" if value["attempts"] == 1 else f" in {value['attempts']} attempts"
    numbers = "".join(f", {plain(name)} {number}" for name, number in value["summary"].items())
    rows = {
        "run": f"{value['run_id']}  ({STATES[value['state']]})",
        "step": f"{value['step']:,}{attempts}{numbers}",
        "model": value["model"],
        "checkpoint": value["checkpoint"],
        "cost": f"{value['cost']} for {value['device_seconds']} device seconds",
    }
    for name, text in rows.items():
        if text is not None:
            console.print(f"{name:<10}  {text}", style="bold" if name == "run" else "", soft_wrap=True)


@contextmanager
def _leaving_it_running(ledger: Ledger, run_id: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM end this process only; the last line says what became of the run."""

    def terminate(*_signal: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        code = TERMINATED if isinstance(interrupt, _Terminated) else INTERRUPTED
        try:
            fail(_what_runs_on(ledger, run_id), kind="Interrupted", exit_code=code)
        except typer.Exit as ending:  # for the boundary 130 is an interruption that nobody has explained yet
            raise SystemExit(ending.exit_code) from None
    finally:
        signal.signal(signal.SIGTERM, before)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which leaves the run alone as Ctrl-C does."""


def _what_runs_on(ledger: Ledger, run_id: str) -> str:
    current = RunRecord.read(ledger, run_id).open_attempt
    if current is not None:
        directory = attempt_directory(ledger, run_id, current.attempt)
        if LocalLauncher().state(directory).kind == "running":
            return (
                f"interrupted; run {run_id} runs on. Follow it again: posttrain resume {run_id}   "
                f"Stop it: posttrain stop {run_id}"
            )
    return "interrupted before anything was started, or after it ended; repeat the command to go on"


@contextmanager
def _bar(run_id: str, *, quiet: bool) -> Iterator[Callable[[Message], None]]:
    """A bar with steps, rate, time left and loss on stderr; silent when nobody looks."""
    if quiet or json_requested.get() or not sys.stderr.isatty():
        yield lambda _message: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DoneColumn("steps"),
        RateColumn("steps"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Bars(*columns, console=stderr(), transient=True) as bars:
        yield _Shown(bars, bars.add_task(run_id, total=None, note="")).take


class _Shown:
    """What the bar says. The bar begins at the first step that is seen, so that the rate is this attempt's."""

    def __init__(self, bars: Bars, task: TaskID) -> None:
        self.bars, self.task = bars, task
        self.loss = self.saved = ""

    def take(self, message: Message) -> None:
        if isinstance(message, CheckpointWritten):
            self.saved = f"saved {message.step}"
        if isinstance(message, Progress):
            loss = message.metrics.get("loss")
            self.loss = "" if loss is None else f"loss {loss:.4g}"
            self.bars.update(self.task, completed=message.step, total=message.total)
        self.bars.update(self.task, note="  ".join(filter(None, (self.loss, self.saved))))
