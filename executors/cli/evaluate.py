"""`posttrain eval`: how good a model is on a held-out suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from executors.evaluation import report
from executors.evaluation.executor import EvaluationConfig
from executors.pipe import Message, Progress
from ledger.cli.output import JsonFlag, emit, plain, progress
from ledger.home import Ledger
from ledger.references import resolve_suite


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A digest, a stage, NAME@VERSION, a base, a run or RUN:STEP.", show_default=False
        ),
    ],
    suite: Annotated[str, typer.Option("--suite", "-s", help="A registered suite.", show_default=False)],
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Where an answer is cut off.")
    ] = EvaluationConfig().max_new_tokens,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Prompts that are answered together.")
    ] = EvaluationConfig().batch_size,
    budget_stage: Annotated[str, typer.Option("--budget", help="The stage whose budget pays.")] = "evaluation",
    as_json: JsonFlag = False,
) -> None:
    """Let MODEL answer every item of a suite and record the verdicts; a report that is recorded already is shown."""
    ledger = Ledger.open()
    config = EvaluationConfig(max_new_tokens=max_new_tokens, batch_size=batch_size)
    with progress("evaluating", _items(ledger, suite), "items") as advance:
        done = report.evaluate(ledger, model, suite, config=config, watch=_watch(advance), budget_stage=budget_stage)
    value = {**done.report.to_json(), "position": done.event.position, "reused": done.reused}
    emit(value, lambda console: _show(console, suite, done), as_json)


def _watch(advance: Callable[[int], None]) -> Callable[[Message], None]:
    shown = 0

    def watch(message: Message) -> None:
        nonlocal shown
        if isinstance(message, Progress) and message.step > shown:
            advance(message.step - shown)
            shown = message.step

    return watch


def _items(ledger: Ledger, suite: str) -> int:
    return report.registered_suite(ledger, resolve_suite(ledger, suite)).items


def _show(console: Console, suite: str, done: report.Evaluated) -> None:
    found = done.report
    low, high = (100 * float(bound) for bound in found.interval)
    grid = Table.grid(padding=(0, 2))
    grid.add_row("accuracy", f"{100 * float(found.accuracy):.1f} %  [{low:.1f}, {high:.1f}]", style="bold")
    grid.add_row("interval", f"{100 * float(found.confidence):g} %, {found.method}")
    grid.add_row("items", f"{found.passed:,} passed of {found.items:,}, {found.masked:,} without a verdict")
    grid.add_row("suite", f"{plain(suite)}  {found.suite}")
    grid.add_row("model", found.model)
    grid.add_row("verifier", found.verifier)
    grid.add_row("report", f"{found.report}{' (recorded before)' if done.reused else ''}")
    grid.add_row("run", f"{found.run_id}, event {done.event.position}")
    console.print(grid)
