"""`posttrain sql`: one read-only query over views of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledger.errors import InputError
from ledger.home import Ledger
from ledger.projections.analytics import VIEWS, connect

TABLES = ("events", "edges", *VIEWS)


@dataclass(frozen=True, slots=True)
class Answer:
    """Column names and rows; values are what JSON has, everything else as text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def to_json(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def ask(ledger: Ledger, query: str, limit: int | None = None) -> Answer:
    """Run `query` on DuckDB, which can read the views and nothing else: no files, no network, no writes.

    Raises:
        InputError: the query is wrong, or tries to write or to leave.
        MissingExtra: duckdb is not installed.
    """
    with connect(ledger) as connection:
        import duckdb  # `connect` has said what is missing when it is

        try:
            done = connection.execute(query)
            rows = done.fetchall() if limit is None else done.fetchmany(limit)
            columns = tuple(str(column[0]) for column in done.description or ())
        except duckdb.Error as error:
            raise InputError(f"sql: {error}; tables: {', '.join(TABLES)}") from None
    return Answer(columns, tuple(tuple(_json(value) for value in row) for row in rows))


def _json(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | str) else _number(value)


def _number(value: Any) -> Any:
    return value if isinstance(value, float) and value == value and abs(value) != float("inf") else str(value)
