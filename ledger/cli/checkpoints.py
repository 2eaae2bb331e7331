"""`posttrain checkpoint`: what a run saved."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ledger import events as ev
from ledger.cli.output import JsonFlag, emit, example, plain
from ledger.digest import short
from ledger.home import Ledger
from ledger.references import resolve_checkpoint, resolve_run

checkpoint = typer.Typer(no_args_is_help=True, help="List a run's checkpoints or show one.")


@checkpoint.command("list", epilog=example("posttrain checkpoint list r-0123456789abcdef"))
def list_command(
    run: Annotated[str, typer.Argument(metavar="RUN", show_default=False)], as_json: JsonFlag = False
) -> None:
    """Committed checkpoints of a run, oldest first."""
    ledger = Ledger.open()
    run_id = resolve_run(ledger, run)
    with ledger.log.as_of() as history:
        saved = history.payloads(f"run/{run_id}", ev.CheckpointCommitted)

    def render(console: Console) -> None:
        table = Table("step", "checkpoint", "model", "attempt", "resume", "processes", "bytes", box=None)
        for c in saved:
            total = sum(part.size_bytes for part in c.parts)
            row = (c.step, short(c.checkpoint), short(c.model), c.attempt, c.resume, c.world_size, f"{total:,}")
            table.add_row(*map(plain, row))
        console.print(table if saved else f"run {run_id} has no checkpoint yet")

    emit([c.to_json() for c in saved], render, as_json)


@checkpoint.command("show", epilog=example("posttrain checkpoint show r-0123456789abcdef:40"))
def show(
    reference: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A digest, RUN or RUN:STEP.", show_default=False)
    ],
    as_json: JsonFlag = False,
) -> None:
    """A checkpoint with its parts and files."""
    ledger = Ledger.open()
    found = resolve_checkpoint(ledger, reference)
    files = ledger.artifacts.manifest(found.checkpoint).files

    def render(console: Console) -> None:
        console.print(f"checkpoint {found.checkpoint}\nmodel      {found.model}")
        console.print(f"run {found.run_id}  step {found.step}  resume {found.resume}  processes {found.world_size}")
        table = Table("part", "content", "bytes", box=None)
        for part in found.parts:
            table.add_row(part.part, short(part.content), f"{part.size_bytes:,}")
        console.print(table)
        table = Table("file", "digest", "bytes", box=None)
        for name, file in files.items():
            table.add_row(plain(name), short(file.digest), f"{file.size_bytes:,}")
        console.print(table)

    listed = {name: {"digest": file.digest, "size_bytes": file.size_bytes} for name, file in files.items()}
    emit({**found.to_json(), "files": listed}, render, as_json)
