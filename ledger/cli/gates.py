"""`posttrain gate`: may a candidate replace an incumbent?"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ledger.cli.groups import default_group
from ledger.cli.output import JsonFlag, emit, example, plain
from ledger.digest import short
from ledger.errors import InputError, NotFound
from ledger.events import Event, GateDecided, GatePolicySet, ModelPromoted
from ledger.home import Ledger
from ledger.references import resolve_model
from ledger.registry import decide_gate, gate_policy, live, set_gate_policy

gate = typer.Typer(
    cls=default_group("decide"),
    no_args_is_help=True,
    help="Decide whether a candidate may replace an incumbent.",
    epilog=example(
        "posttrain gate policy production --suite word-problems",
        "posttrain gate r-0123456789abcdef --against demo-base --stage production",
    ),
)


@gate.command("decide", epilog=example("posttrain gate r-0123456789abcdef --against demo-base --stage production"))
def decide(
    candidate: Annotated[
        str, typer.Argument(metavar="CANDIDATE", help="A model: digest, run, RUN:STEP or name.", show_default=False)
    ],
    against: Annotated[str | None, typer.Option(help="The incumbent; what the stage serves without it.")] = None,
    stage: Annotated[str, typer.Option(help="Whose policy decides.")] = "production",
    as_json: JsonFlag = False,
) -> None:
    """Compare CANDIDATE with an incumbent item by item; exit 1 when it does not pass. Both need an evaluation report."""
    ledger = Ledger.open()
    incumbent = resolve_model(ledger, against) if against else _live_model(ledger, stage)
    decided = decide_gate(ledger, resolve_model(ledger, candidate), incumbent, stage)
    payload = decided.event.payload
    assert isinstance(payload, GateDecided)
    emit(
        {**decided.event.to_json(), "reused": decided.reused},
        lambda console: _show(console, payload, decided.event.position, decided.reused),
        as_json,
    )
    if payload.decision != "pass":
        raise typer.Exit(1)


@gate.command(
    "policy",
    epilog=example(
        "posttrain gate policy production --suite word-problems --min-items 500", "posttrain gate policy production"
    ),
)
def policy(
    stage: Annotated[str, typer.Argument(metavar="STAGE", show_default=False)],
    suite: Annotated[
        str | None,
        typer.Option(help="The registered suite that candidates are compared on; without it the policy is shown."),
    ] = None,
    confidence: Annotated[str, typer.Option(help="Of the two-sided interval.")] = "0.95",
    min_gain: Annotated[str, typer.Option(help="What the lower bound must exceed.")] = "0",
    min_items: Annotated[int, typer.Option(min=2, help="Items that both must have answered.")] = 100,
    as_json: JsonFlag = False,
) -> None:
    """Set, or show, what a candidate must show before it may be promoted to STAGE."""
    ledger = Ledger.open()
    event = (
        _policy_in_force(ledger, stage)
        if suite is None
        else set_gate_policy(ledger, stage, suite, confidence, min_gain, min_items)
    )
    payload = event.payload
    assert isinstance(payload, GatePolicySet)
    line = (
        f"{stage}: a candidate passes when the {payload.confidence} interval of its paired gain on {payload.suite} lies above "
        f"{payload.min_gain}, over {payload.min_items} items or more (position {event.position})"
    )
    emit(event.to_json(), lambda console: console.print(plain(line), soft_wrap=True), as_json)


def _policy_in_force(ledger: Ledger, stage: str) -> Event:
    force = gate_policy(ledger, stage)
    if force is None:
        raise NotFound(f"stage {stage} has no gate policy; set one: posttrain gate policy {stage} --suite SUITE")
    return ledger.log.event(force.position)


def _live_model(ledger: Ledger, stage: str) -> str:
    event = live(ledger, stage)
    if event is None or not isinstance(event.payload, ModelPromoted):
        raise InputError(f"stage {stage} serves nothing yet; name the incumbent with --against")
    return event.payload.model


def _show(console: Console, decision: GateDecided, position: int, reused: bool) -> None:
    gain, passed = decision.gain, decision.decision == "pass"
    low, high = gain.interval
    grid = Table.grid(padding=(0, 2))
    grid.add_row("gate", f"{decision.gate_id}, position {position}{' (decided before)' if reused else ''}")
    grid.add_row("candidate", f"{short(decision.candidate)}  accuracy {gain.candidate_accuracy}")
    grid.add_row("incumbent", f"{short(decision.incumbent)}  accuracy {gain.incumbent_accuracy}")
    grid.add_row("paired gain", f"{gain.estimate}, interval [{low}, {high}] at {gain.confidence}")
    grid.add_row("items", f"{gain.items:,}: {gain.wins:,} won, {gain.losses:,} lost ({plain(gain.method)})")
    console.print(grid)
    console.print("passed" if passed else "failed", style="bold green" if passed else "bold red")
    for reason in decision.reasons:
        console.print(f"  {plain(reason)}", soft_wrap=True)
