"""Runs as a table: each run's stream folded into one row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ledger import events as ev
from ledger.events import Event
from ledger.home import Ledger

State = Literal["submitted", "running", "interrupted", "ended", "completed", "failed", "canceled"]


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as the ledger knows it.

    `state`: `running` means that an attempt has started and its end is not recorded; `interrupted`, that the last attempt
    did not complete, so that `posttrain resume` goes on from the last checkpoint; `ended`, that the attempt completed but
    the run's completion is not recorded yet. `step` is the last that was recorded, `None` before the first checkpoint.
    """

    run_id: str
    kind: str
    stage: str
    executor: str
    state: State
    seed: int
    step: int | None
    attempts: int
    checkpoints: int
    model: str | None  # that it made last
    submitted_at: str
    updated_at: str
    position: int  # of its RunSubmitted event

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_rows(ledger: Ledger, limit: int | None = None) -> list[RunRow]:
    """The newest `limit` runs (`None`: every run), newest first, in one snapshot."""
    with ledger.log.as_of() as history:
        submitted = list(history.read(types=("RunSubmitted",)))
        newest = submitted[-limit:] if limit else submitted
        return [fold_run(history.stream(event.stream)) for event in reversed(newest)]


def fold_run(events: Iterable[Event]) -> RunRow:
    """The row of one run, from its stream's events by version."""
    events = list(events)
    first = events[0].payload
    if not isinstance(first, ev.RunSubmitted):
        raise AssertionError(f"{events[0].stream} begins with {events[0].type}")
    payloads = [event.payload for event in events]
    saved = [p for p in payloads if isinstance(p, ev.CheckpointCommitted)]
    reached = [p for p in payloads if isinstance(p, ev.CheckpointCommitted | ev.RunCompleted)]
    models = [p.model for p in reached if p.model is not None]
    return RunRow(
        run_id=first.run_id,
        kind=first.kind,
        stage=first.stage,
        executor=first.executor,
        state=_state(payloads),
        seed=first.seed,
        step=max((p.step for p in reached), default=None),
        attempts=sum(isinstance(p, ev.AttemptStarted) for p in payloads),
        checkpoints=len(saved),
        model=models[-1] if models else None,
        submitted_at=events[0].recorded_at,
        updated_at=events[-1].recorded_at,
        position=events[0].position,
    )


def _state(payloads: list[ev.Payload]) -> State:
    state: State = "submitted"
    for payload in payloads:
        match payload:
            case ev.AttemptStarted():
                state = "running"
            case ev.AttemptEnded(outcome="completed"):
                state = "ended"
            case ev.AttemptEnded(outcome="canceled"):
                state = "canceled"
            case ev.AttemptEnded():
                state = "interrupted"
            case ev.RunCompleted():
                state = "completed"
            case ev.RunFailed():
                state = "failed"
            case ev.RunCanceled():
                state = "canceled"
            case _:
                pass
    return state
