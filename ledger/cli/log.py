"""`posttrain log`: verify, follow and show the event log."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.json import JSON

from ledger.cli.output import JsonFlag, emit, example, plain, progress, stdout, write
from ledger.events import Event
from ledger.fsck import verify_log
from ledger.home import Ledger

log = typer.Typer(no_args_is_help=True, help="Verify the event log, follow it, show one event.")

POLL_S = 0.2


@log.command("verify", epilog=example("posttrain log verify"))
def verify(as_json: JsonFlag = False) -> None:
    """Recompute every hash, the order, the tree and every signed head; exit 1 when something differs."""
    ledger = Ledger.open()
    with progress("verifying", ledger.log.size(), "events") as advance:
        report = verify_log(ledger.log, ledger.verifying_key(), advance)
    found = [{"position": f.position, "place": f.place, "what": f.what} for f in report.findings]
    lines = [f"position {f.position}: {f.place}: {f.what}" for f in report.findings]
    lines.append(
        f"{report.size} events, {report.heads} signed heads, root {report.root.hex()}: {'CHANGED' if found else 'verified'}"
    )
    value = {"events": report.size, "heads": report.heads, "root": report.root.hex(), "findings": found}
    emit(value, lambda console: console.print("\n".join(map(plain, lines)), soft_wrap=True), as_json)
    if found:
        raise typer.Exit(1)


@log.command("tail", epilog=example("posttrain log tail -n 20", "posttrain log tail --follow"))
def tail(
    count: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many of the last events.")] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new events until interrupted.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """The last events, oldest first; with --json one object a line."""
    ledger = Ledger.open()
    position = max(0, ledger.log.size() - count)
    console = stdout()
    while True:
        for event in list(ledger.log.read(after=position)):
            position = event.position
            _print(event, console, as_json)
        if not follow:
            return
        time.sleep(POLL_S)


@log.command("show", epilog=example("posttrain log show 42"))
def show(
    position: Annotated[int, typer.Argument(metavar="POSITION", min=1, show_default=False)], as_json: JsonFlag = False
) -> None:
    """One event with its payload."""
    event = Ledger.open().log.event(position)
    emit(event.to_json(), lambda console: console.print(JSON.from_data(event.to_json(), ensure_ascii=True)), as_json)


def _print(event: Event, console: Console, as_json: bool) -> None:
    if as_json:
        write(json.dumps(event.to_json(), ensure_ascii=True))
    else:
        line = f"{event.position:>6}  {event.recorded_at[:19]}  {event.type:<22} {event.stream}  {event.actor}"
        console.print(plain(line), soft_wrap=True)
