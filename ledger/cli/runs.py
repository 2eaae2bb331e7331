"""`posttrain runs`: what ran, how it stands, and everything about one run."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ledger import events as ev
from ledger.cli.groups import default_group
from ledger.cli.output import JsonFlag, emit, example, plain
from ledger.digest import is_digest, short
from ledger.home import Ledger
from ledger.projections.runs import RunRow, fold_run, run_rows
from ledger.references import resolve_run

runs = typer.Typer(
    cls=default_group("list"),
    help="List runs, or show one with its attempts and checkpoints.",
    epilog=example("posttrain runs", "posttrain runs show r-0123456789abcdef"),
)

STYLES = {"completed": "green", "running": "cyan", "failed": "red", "interrupted": "yellow", "canceled": "yellow"}


@runs.command("list", epilog=example("posttrain runs", "posttrain runs --limit 5 --json"))
def list_command(
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="At most this many, newest first.")] = 50,
    as_json: JsonFlag = False,
) -> None:
    """Runs, newest first (the command when no other is named)."""
    ledger = Ledger.open()
    rows, total = run_rows(ledger, limit), len(ledger.log.streams("run/"))

    def render(console: Console) -> None:
        if not rows:
            console.print("no run yet; start one with: posttrain run STAGE.yaml")
            return
        table = Table("run", "stage", "kind", "executor", "state", "step", "attempts", "age", box=None)
        for row in rows:
            table.add_row(*map(plain, _cells(row)), style=STYLES.get(row.state))
        console.print(table)
        if total > len(rows):
            console.print(f"… {total - len(rows):,} older; posttrain runs --limit {total}", style="dim")

    emit([row.to_json() for row in rows], render, as_json)


@runs.command("show", epilog=example("posttrain runs show r-0123456789abcdef", "posttrain runs show r-0123 --json"))
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id or its first digits.", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """What a run pins, and everything that happened to it."""
    ledger = Ledger.open()
    events = ledger.log.stream(f"run/{resolve_run(ledger, run)}")
    row, submitted = fold_run(events), events[0].payload
    assert isinstance(submitted, ev.RunSubmitted)

    def render(console: Console) -> None:
        console.print(_pins(row, submitted))
        console.print()
        for event in events[1:]:
            facts = "  ".join(f"{name} {_brief(fact)}" for name, fact in _facts(event.payload.to_json()).items())
            line = f"{event.position:>6}  {event.recorded_at[:19]}  {event.type:<20} {facts}"
            console.print(plain(line), soft_wrap=not sys.stdout.isatty())

    value = {**row.to_json(), "submitted": submitted.to_json(), "events": [event.to_json() for event in events]}
    emit(value, render, as_json)


def age(recorded_at: str, now: datetime | None = None) -> str:
    """How long ago, in the largest unit that has one or more of it."""
    moment = datetime.fromisoformat(recorded_at)
    seconds = max(0.0, ((now or datetime.now(UTC)) - moment).total_seconds())
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length_s:
            return f"{int(seconds // length_s)} {unit}"
    return f"{int(seconds)} s"


def _cells(row: RunRow) -> tuple[str, ...]:
    step = "-" if row.step is None else f"{row.step:,}"
    when = age(row.submitted_at)
    return (row.run_id, row.stage, row.kind, row.executor, row.state, step, str(row.attempts), when)


def _pins(row: RunRow, submitted: ev.RunSubmitted) -> Table:
    grid = Table.grid(padding=(0, 2))
    step = "" if row.step is None else f" at step {row.step:,}"
    grid.add_row("run", plain(row.run_id), style="bold")
    grid.add_row("state", f"{row.state}{step}, {row.attempts} attempts, {row.checkpoints} checkpoints")
    grid.add_row("what", plain(f"{row.stage} ({row.kind}) by {row.executor}, seed {row.seed}"))
    for name in ("base", "dataset", "parent", "model", "suite", "tokenizer", "chat_template", "verifier"):
        pinned = getattr(submitted, name)
        if pinned is not None:
            grid.add_row(name.replace("_", " "), plain(pinned))
    code = submitted.code
    grid.add_row("code", plain(f"{code.commit} {'with changes' if code.dirty else 'clean'}, diff {code.diff}"))
    grid.add_row("configuration", submitted.spec)
    for key, setting in submitted.config.items():
        grid.add_row("", plain(f"{key} {setting}"))
    grid.add_row("environment", submitted.environment)
    if row.model is not None:
        grid.add_row("made model", row.model, style="bold")
    return grid


def _facts(content: dict[str, Any]) -> dict[str, Any]:
    """The fields of an event that fit into a line."""
    return {name: fact for name, fact in content.items() if isinstance(fact, str | int) and name != "run_id"}


def _brief(fact: object) -> str:
    text = str(fact)
    return short(text) if is_digest(text) else text
