"""`posttrain budget` and `posttrain cost`."""

from __future__ import annotations

from dataclasses import asdict
from decimal import Decimal
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ledger.budget import cost_report, set_budget, set_price, status
from ledger.cli.output import JsonFlag, emit, example, plain
from ledger.events import Event
from ledger.home import Ledger

budget = typer.Typer(no_args_is_help=True, help="Set and show what stages may spend, and prices.")

Stage = Annotated[str, typer.Argument(metavar="STAGE", show_default=False)]


@budget.command("set", epilog=example('posttrain budget set sft 25.00 --reason "the first week"'))
def set_command(
    stage: Stage,
    cap: Annotated[str, typer.Argument(metavar="CAP", help="All that the stage may spend.", show_default=False)],
    reason: Annotated[str, typer.Option(help="Why; it is recorded.")] = "set from the command line",
    as_json: JsonFlag = False,
) -> None:
    """Set what the runs of STAGE may cost in all."""
    _recorded(set_budget(Ledger.open(), stage, cap, reason), f"{stage} may spend {cap}", as_json)


@budget.command("price", epilog=example("posttrain budget price cuda 2.50"))
def price(
    kind: Annotated[str, typer.Argument(metavar="DEVICE", help="cpu or cuda.", show_default=False)],
    per_hour: Annotated[str, typer.Argument(metavar="PRICE", help="For one device and hour.", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """Set the price of one device for an hour. A device without a price cannot be used."""
    _recorded(set_price(Ledger.open(), kind, per_hour), f"one {kind} device costs {per_hour} an hour", as_json)


@budget.command("show", epilog=example("posttrain budget show", "posttrain budget show sft --json"))
def show(
    stage: Annotated[str | None, typer.Argument(metavar="STAGE", help="Every stage without it.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Cap, spent, reserved and what is left."""
    ledger = Ledger.open()
    stages = [stage] if stage else [name.removeprefix("budget/") for name in ledger.log.streams("budget/")]
    rows = [status(ledger, name) for name in stages]

    def render(console: Console) -> None:
        table = Table("stage", "cap", "spent", "reserved", "left", box=None)
        for row in rows:
            shown = (row.stage, row.cap or "none", row.spent, row.reserved, row.remaining or "-")
            table.add_row(*map(plain, shown))
        console.print(table if rows else "no stage has spent anything yet")

    emit([asdict(row) for row in rows], render, as_json)


def cost(as_json: JsonFlag = False) -> None:
    """What runs did cost, by stage."""
    rows = cost_report(Ledger.open())

    def render(console: Console) -> None:
        table = Table("stage", "run", "device", "attempts", "device seconds", "spent", "reserved", box=None)
        for row in rows:
            shown = (row.stage, row.run_id, row.device_kind, row.attempts, row.device_seconds, row.spent, row.reserved)
            table.add_row(*map(plain, shown))
        if not rows:
            console.print("no run has cost anything yet")
            return
        spent, reserved = (
            sum((Decimal(getattr(row, name)) for row in rows), Decimal()) for name in ("spent", "reserved")
        )
        table.add_section()
        table.add_row("total", "", "", "", "", f"{spent.normalize():f}", f"{reserved.normalize():f}", style="bold")
        console.print(table)

    emit([asdict(row) for row in rows], render, as_json)


def _recorded(event: Event, line: str, as_json: bool) -> None:
    emit(event.to_json(), lambda console: console.print(f"{plain(line)} (position {event.position})"), as_json)
