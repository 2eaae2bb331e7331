"""`posttrain sql`."""

from __future__ import annotations

import csv
import io
import json
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ledger.cli.output import JsonFlag, emit, plain, progress, write
from ledger.home import Ledger
from ledger.sql import Answer, ask, tables


class Format(StrEnum):
    table = "table"
    json = "json"
    csv = "csv"


def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="One SELECT; without it the tables are listed.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How to print rows.")] = Format.table,
    as_json: JsonFlag = False,
) -> None:
    """Ask the ledger in SQL (DuckDB), read-only. Every event type has a view by its name too, such as checkpoint_committed."""
    if query is None:
        listed = tables()
        emit([{"name": name, "holds": what} for name, what in listed], lambda console: _list(listed, console), as_json)
        return
    ledger = Ledger.open()
    with progress("following the log", None, "events") as advance:
        answer = ask(ledger, query, progress=advance)
    if form is Format.csv and not as_json:
        write(to_csv(answer, safe=sys.stdout.isatty()))
    else:
        emit(answer.to_json(), lambda console: _show(answer, console), as_json or form is Format.json)


def to_csv(answer: Answer, safe: bool) -> str:
    """RFC 4180 with a header; NULL is empty. `safe`: for a terminal, without control characters."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(name, safe) for name in answer.columns])
    writer.writerows([_cell(value, safe) for value in row] for row in answer.rows)
    return text.getvalue().removesuffix("\n")


def _cell(value: Any, safe: bool = True) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return plain(text) if safe else text


def _show(answer: Answer, console: Console) -> None:
    table = Table(box=None)
    for name, kind in zip(answer.columns, answer.types, strict=True):
        number = kind.startswith(("DECIMAL", "DOUBLE", "FLOAT", "HUGEINT")) or kind.endswith("INT") or kind == "INTEGER"
        table.add_column(plain(name), justify="right" if number else "left", overflow="fold")
    for row in answer.rows:
        table.add_row(*map(_cell, row))
    if answer.columns:
        console.print(table)
    count = len(answer.rows)
    console.print(f"{count:,} row{'' if count == 1 else 's'}, as of position {answer.position}", style="dim")


def _list(listed: list[tuple[str, str]], console: Console) -> None:
    table = Table("table", "holds", box=None)
    for name, what in listed:
        table.add_row(name, what)
    console.print(table)
