"""Analytic questions to the whole ledger in SQL, answered by DuckDB from a projection. Nothing can be changed through it."""

from __future__ import annotations

import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ledger.errors import InputError, RefusedError
from ledger.home import Ledger
from ledger.projections.database import Progress, opened
from ledger.projections.views import VIEWS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MAX_QUERY_CHARS = 100_000
_EXPLAIN = re.compile(r"^\s*EXPLAIN(\s+ANALYZE)?(\s*\([^()]*\))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of plain JSON values: decimals, times and bytes are text. `position`: the log's last event that it includes."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    position: int

    def to_json(self) -> dict[str, Any]:
        names = _distinct(self.columns)
        return {
            "position": self.position,
            "columns": [{"name": name, "type": kind} for name, kind in zip(names, self.types, strict=True)],
            "rows": [dict(zip(names, row, strict=True)) for row in self.rows],
        }


def ask(ledger: Ledger, text: str, *, progress: Progress | None = None) -> Answer:
    """The answer to one SELECT over the views that `tables` lists.

    Raises:
        MissingExtra: DuckDB is not installed.
        InputError: not one statement, or one that DuckDB cannot parse, bind or run; the message is DuckDB's.
        RefusedError: a statement that is not a question, or one that reaches for files, settings or extensions.
    """
    if len(text) > MAX_QUERY_CHARS:
        raise InputError(f"the query has {len(text)} characters; at most {MAX_QUERY_CHARS} are read")
    with opened(ledger, progress) as projection:
        import duckdb

        try:
            _check_question(text)
            described, cells = _run(projection.connection, text)
        except duckdb.PermissionException as error:
            raise RefusedError(f"a query reads the ledger and nothing else: {_first_line(error)}") from None
        except duckdb.Error as error:
            raise InputError(f"SQL: {_first_line(error)}") from None
        names, types = tuple(str(column[0]) for column in described), tuple(str(column[1]) for column in described)
        return Answer(names, types, tuple(tuple(map(_plain, row, types)) for row in cells), projection.position)


def tables() -> list[tuple[str, str]]:
    """What can be asked: `(name, what it holds)`. Every event type has a view of its own besides."""
    described = [("events", "every event; `payload` is JSON"), ("edges", "every typed reference of an event to a node")]
    return described + [(name, what) for name, (what, _) in VIEWS.items()]


def _run(connection: DuckDBPyConnection, text: str) -> tuple[list[Any], list[tuple[Any, ...]]]:
    """The columns' description and the rows. On a thread of its own: DuckDB looks at signals too seldom, and Ctrl-C must end
    any query at once."""

    def work() -> tuple[list[Any], list[tuple[Any, ...]]]:
        cursor = connection.execute(text)
        return list(cursor.description or []), cursor.fetchall()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        try:
            return running.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


def _check_question(text: str) -> None:
    import duckdb

    statements = duckdb.extract_statements(text)
    if len(statements) != 1:
        raise InputError(f"one query at a time; there are {len(statements)} statements here")
    kind = statements[0].type
    if kind == duckdb.StatementType.EXPLAIN:  # EXPLAIN ANALYZE runs what it explains
        explained = duckdb.extract_statements(_EXPLAIN.sub("", text, count=1))
        kind = explained[0].type if explained else kind
    # The connection could change nothing anyway; this says it in better words than DuckDB does.
    if kind != duckdb.StatementType.SELECT:
        raise RefusedError(f"{_verb(text)} is refused: the ledger answers SELECT (and DESCRIBE, SHOW, EXPLAIN) only")


def _verb(text: str) -> str:
    words = text.split()
    return words[0].upper()[:20] if words else "nothing"


def _plain(cell: Any, kind: str = "") -> Any:
    """A cell as JSON has it; `kind` is the type of its column."""
    if cell is None or isinstance(cell, bool | int):
        return cell
    if isinstance(cell, str):
        return json.loads(cell) if kind == "JSON" else cell
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else str(cell)
    if isinstance(cell, Decimal):
        return _decimal(cell)
    if isinstance(cell, bytes | bytearray | memoryview):
        return bytes(cell).hex()
    if isinstance(cell, datetime | date | time):
        return cell.isoformat()
    if isinstance(cell, list | tuple):
        return [_plain(item) for item in cell]
    if isinstance(cell, dict):
        return {str(key): _plain(item) for key, item in cell.items()}
    return str(cell)


def _decimal(number: Decimal) -> str:
    """Without the zeros that a column of 12 decimals adds."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _distinct(names: tuple[str, ...]) -> list[str]:
    """Names as keys: the second `n` is `n_2`."""
    seen: dict[str, int] = {}
    keys: list[str] = []
    for name in names:
        key = name
        while key in seen:
            seen[name] += 1
            key = f"{name}_{seen[name]}"
        seen.setdefault(name, 1)
        seen.setdefault(key, 1)
        keys.append(key)
    return keys


def _first_line(error: Exception) -> str:
    """DuckDB's message without the drawing of the query below it."""
    return " ".join(str(error).split("\n\nLINE ")[0].split("\nLINE ")[0].split())
