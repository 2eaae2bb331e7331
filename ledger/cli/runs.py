"""`posttrain runs`: what ran, how it stands, and everything about one run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ledger import events as ev
from ledger.cli.groups import default_group
from ledger.cli.output import JsonFlag, emit, example, plain
from ledger.digest import short
from ledger.history import History
from ledger.home import Ledger
from ledger.references import resolve_run

runs = typer.Typer(
    cls=default_group("list"),
    help="List runs, or show one with its attempts and checkpoints.",
    epilog=example("posttrain runs", "posttrain runs show r-0123456789abcdef"),
)


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as the list shows it. `state` is that of its newest event that tells: an open attempt is `running`."""

    run_id: str
    stage: str
    kind: str
    executor: str
    state: str
    step: int
    attempts: int
    submitted_at: str


@runs.command("list", epilog=example("posttrain runs", "posttrain runs list --json"))
def list_command(
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="At most this many, newest first.")] = 50,
    as_json: JsonFlag = False,
) -> None:
    """Runs, newest first (the command when no other is named)."""
    with Ledger.open().log.as_of() as history:
        submitted = list(history.read(types=("RunSubmitted",)))[-limit:]
        rows = [_row(history, event) for event in reversed(submitted)]

    def render(console: Console) -> None:
        table = Table("run", "stage", "kind", "executor", "state", "step", "attempts", "age", box=None)
        for r in rows:
            shown = (r.run_id, r.stage, r.kind, r.executor, r.state, r.step, r.attempts, age(r.submitted_at))
            table.add_row(*map(plain, shown))
        console.print(table if rows else "no run yet; start one with: posttrain run STAGE.yaml")

    emit([asdict(row) for row in rows], render, as_json)


@runs.command("show", epilog=example("posttrain runs show r-0123456789abcdef"))
def show(run: Annotated[str, typer.Argument(metavar="RUN", show_default=False)], as_json: JsonFlag = False) -> None:
    """Every event of a run."""
    ledger = Ledger.open()
    events = ledger.log.stream(f"run/{resolve_run(ledger, run)}")

    def render(console: Console) -> None:
        for event in events:
            facts = {k: v for k, v in event.payload.to_json().items() if isinstance(v, (str, int)) and k != "run_id"}
            line = "  ".join(f"{key} {_brief(value)}" for key, value in facts.items())
            console.print(
                f"{event.position:>6}  {event.recorded_at[:19]}  {event.type:<20} {plain(line)}", soft_wrap=True
            )

    emit([event.to_json() for event in events], render, as_json)


def _row(history: History, submitted: ev.Event) -> RunRow:
    payload = submitted.payload
    assert isinstance(payload, ev.RunSubmitted)
    events = history.stream(submitted.stream)
    steps = [e.payload.step for e in events if isinstance(e.payload, ev.CheckpointCommitted | ev.RunCompleted)]
    return RunRow(
        run_id=payload.run_id,
        stage=payload.stage,
        kind=payload.kind,
        executor=payload.executor,
        state=run_state(events),
        step=steps[-1] if steps else 0,
        attempts=sum(isinstance(e.payload, ev.AttemptStarted) for e in events),
        submitted_at=submitted.recorded_at,
    )


def run_state(events: list[ev.Event]) -> str:
    """`completed`, `running`, how the last attempt ended, or `submitted`."""
    state = "submitted"
    for event in events:
        payload = event.payload
        if isinstance(payload, ev.RunCompleted):
            return "completed"
        if isinstance(payload, ev.AttemptStarted):
            state = "running"
        elif isinstance(payload, ev.AttemptEnded):
            state = payload.outcome
    return state


def age(recorded_at: str) -> str:
    """How long ago, in one unit."""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(recorded_at)).total_seconds()
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _brief(value: str | int) -> str:
    return short(value) if isinstance(value, str) and value.startswith("sha256:") else str(value)
