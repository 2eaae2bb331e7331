"""`posttrain sql`."""

from __future__ import annotations

import csv
import io
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ledger.cli.output import JsonFlag, emit, plain, write
from ledger.home import Ledger
from ledger.sql import Answer, ask


class Format(StrEnum):
    table = "table"
    json = "json"
    csv = "csv"


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", show_default=False)],
    form: Annotated[Format, typer.Option("--format", help="How to print rows.")] = Format.table,
    as_json: JsonFlag = False,
) -> None:
    """Ask the ledger in SQL (DuckDB), read-only. Tables: events, edges, bases, datasets, suites, runs, attempts, completed_runs,
    checkpoints, evaluations, gates, promotions, deployments, costs."""
    answer = ask(Ledger.open(), query)
    if form is Format.csv and not as_json:
        write(_csv(answer))
    else:
        emit(answer.to_json(), lambda console: _show(answer, console), as_json or form is Format.json)


def _csv(answer: Answer) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows(answer.rows)
    return text.getvalue().rstrip("\n")


def _show(answer: Answer, console: Console) -> None:
    table = Table(*map(plain, answer.columns), box=None)
    for row in answer.rows:
        table.add_row(*("" if value is None else plain(value) for value in row))
    console.print(table)
    console.print(f"{len(answer.rows)} rows", style="dim")
