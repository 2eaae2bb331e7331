"""`posttrain gate`: may a candidate replace an incumbent?"""

from __future__ import annotations

from typing import Annotated

import typer

from ledger.cli.groups import default_group
from ledger.cli.output import JsonFlag, emit, example, plain
from ledger.errors import InputError
from ledger.events import GateDecided, GatePolicySet, ModelPromoted
from ledger.home import Ledger
from ledger.references import resolve_model
from ledger.registry import decide_gate, describe_decision, live, set_gate_policy

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
    candidate: Annotated[str, typer.Argument(metavar="CANDIDATE", show_default=False)],
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
        lambda console: console.print(plain(describe_decision(payload)), soft_wrap=True),
        as_json,
    )
    if payload.decision != "pass":
        raise typer.Exit(1)


@gate.command("policy", epilog=example("posttrain gate policy production --suite word-problems --min-items 500"))
def policy(
    stage: Annotated[str, typer.Argument(metavar="STAGE", show_default=False)],
    suite: Annotated[
        str, typer.Option(help="The registered suite that candidates are compared on.", show_default=False)
    ],
    confidence: Annotated[str, typer.Option(help="Of the two-sided interval.")] = "0.95",
    min_gain: Annotated[str, typer.Option(help="What the lower bound must exceed.")] = "0",
    min_items: Annotated[int, typer.Option(min=2, help="Items that both must have answered.")] = 100,
    as_json: JsonFlag = False,
) -> None:
    """Set what a candidate must show before it may be promoted to STAGE."""
    event = set_gate_policy(Ledger.open(), stage, suite, confidence, min_gain, min_items)
    payload = event.payload
    assert isinstance(payload, GatePolicySet)
    line = (
        f"{stage}: a candidate passes when the {payload.confidence} interval of its paired gain on {payload.suite} lies above "
        f"{payload.min_gain}, over {payload.min_items} items or more (position {event.position})"
    )
    emit(event.to_json(), lambda console: console.print(line), as_json)


def _live_model(ledger: Ledger, stage: str) -> str:
    event = live(ledger, stage)
    if event is None or not isinstance(event.payload, ModelPromoted):
        raise InputError(f"stage {stage} serves nothing yet; name the incumbent with --against")
    return event.payload.model
