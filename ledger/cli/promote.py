"""`posttrain promote`."""

from __future__ import annotations

from typing import Annotated

import typer

from ledger import registry
from ledger.cli.output import JsonFlag, emit
from ledger.home import Ledger
from ledger.references import resolve_model


def promote(
    model: Annotated[str, typer.Argument(metavar="MODEL", show_default=False)],
    to: Annotated[str, typer.Option("--to", help="The stage, such as production.", show_default=False)],
    reason: Annotated[str, typer.Option(help="Why; it is recorded.")] = "promoted from the command line",
    name: Annotated[str | None, typer.Option(help="The registry's name for it; the stage's without it.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Move a stage to MODEL. Refused (exit 3) unless a passing gate decided on this very model."""
    ledger = Ledger.open()
    digest = resolve_model(ledger, model)
    promoted = registry.promote(ledger, digest, to, reason=reason, name=name)
    word = "serves it already" if promoted.reused else "now points to it"
    emit(
        {**promoted.event.to_json(), "reused": promoted.reused},
        lambda console: console.print(
            f"{digest}\n{to} {word} (position {promoted.event.position}); next: posttrain serve {to}"
        ),
        as_json,
    )
