"""The DuckDB file that follows the log: `opened` brings it up to date and hands out a connection that can only read.

`projections.duckdb` in the home belongs to nobody and is never the truth: whatever is wrong with it (another log, another
release, a torn file), it is deleted and built again. One process at a time may write a DuckDB file, and none while others
read it; so writing is short and under a lock, and a process that cannot have the file builds the same tables in memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.artifacts.locks import locked
from ledger.errors import InfrastructureError, MissingExtra
from ledger.events import Event
from ledger.events.codec import to_edges
from ledger.home import Ledger
from ledger.projections.views import definition, statements

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FILE = "projections.duckdb"
LOCK = "projections.lock"
BATCH = 5_000  # events a transaction
TRIES = 20
WAIT_S = 0.05

CLOSED: dict[str, str | bool | int | float | list[str]] = {
    # Queries are text from outside: no file, no network, no extension, nothing loaded, whatever they say.
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "temp_directory": "",
}

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Projection:
    """An open projection of the log up to and including `position`."""

    connection: DuckDBPyConnection
    position: int


@contextmanager
def opened(ledger: Ledger, progress: Progress | None = None) -> Iterator[Projection]:
    """The projection of the log as it is now, on a connection whose settings are locked and that reaches nothing outside.

    `progress` is called with how many events were added.

    Raises:
        MissingExtra: DuckDB is not installed.
        TamperFound, NewerLedger: an event of the log cannot be read.
    """
    try:
        import duckdb  # noqa: F401
    except ImportError:
        raise MissingExtra("posttrain sql", "sql") from None
    connection = _from_file(ledger, progress or _ignore) or _in_memory(ledger, progress or _ignore)
    with closing(connection):
        connection.execute("SET python_enable_replacements = false")  # else a table name may mean a variable of ours
        connection.execute("SET lock_configuration = true")
        applied = _applied(connection)
        yield Projection(connection, applied.position if applied else 0)


@dataclass(frozen=True, slots=True)
class _Applied:
    """What a database says of itself. `leaf` is the leaf hash of the last event in it: it commits to the whole event, so
    a database that agrees there belongs to this log."""

    definition: str
    position: int
    leaf: str


def _from_file(ledger: Ledger, progress: Progress) -> DuckDBPyConnection | None:
    """A read-only connection to the file, `None` when it cannot be had: others use it, or the home cannot be written."""
    import duckdb

    path = ledger.home / FILE
    for _ in range(TRIES):
        try:
            with locked(ledger.home / LOCK):
                return _current(ledger, path) or _followed(ledger, path, progress)
        except InfrastructureError:
            return None  # no lock in a home that is read-only
        except duckdb.Error as error:
            if not _in_use(error):
                return None  # a full disk, say; memory may still do
            time.sleep(WAIT_S)
    return None


def _in_memory(ledger: Ledger, progress: Progress) -> DuckDBPyConnection:
    import duckdb

    connection = duckdb.connect(":memory:", config=CLOSED)
    try:
        _create(connection)
        _append(ledger, connection, 0, progress)
    except BaseException:
        connection.close()
        raise
    return connection


def _current(ledger: Ledger, path: Path) -> DuckDBPyConnection | None:
    """The file as it is, when it holds the whole log already."""
    import duckdb

    connection = None
    try:
        if not path.exists():
            return None
        connection = duckdb.connect(str(path), read_only=True, config=CLOSED)
        applied = _applied(connection)
        if applied and applied.position == ledger.log.size() and _belongs(ledger, applied):
            return connection
    except duckdb.Error as error:
        if _in_use(error):
            raise
        # Torn, or not DuckDB's: it is built again.
    if connection is not None:
        connection.close()
    return None


def _followed(ledger: Ledger, path: Path, progress: Progress) -> DuckDBPyConnection:
    """The file after it was brought up to date, or made anew because it was no projection of this log."""
    import duckdb

    with closing(_writable(ledger, path)) as connection:
        applied = _applied(connection)
        _append(ledger, connection, applied.position if applied else 0, progress)
    return duckdb.connect(str(path), read_only=True, config=CLOSED)


def _writable(ledger: Ledger, path: Path) -> DuckDBPyConnection:
    import duckdb

    if path.exists():
        try:
            connection = duckdb.connect(str(path), config=CLOSED)
            applied = _applied(connection)
            if applied is not None and _belongs(ledger, applied):
                return connection
            connection.close()
        except duckdb.Error as error:
            if _in_use(error):
                raise
    _discard(path)
    connection = duckdb.connect(str(path), config=CLOSED)
    _create(connection)
    return connection


def _applied(connection: DuckDBPyConnection) -> _Applied | None:
    """Raises duckdb.Error when there is no such table."""
    row = connection.execute("SELECT definition, position, leaf FROM projection").fetchone()
    return None if row is None else _Applied(*row)


def _belongs(ledger: Ledger, applied: _Applied) -> bool:
    if applied.definition != definition():
        return False
    return applied.leaf == _leaf(ledger, applied.position)


def _leaf(ledger: Ledger, position: int) -> str:
    with ledger.log.store.reader() as reader:
        row = reader.row(position) if position else None
    return row.leaf.hex() if row else ""


def _create(connection: DuckDBPyConnection) -> None:
    with _transaction(connection):
        for statement in statements():
            connection.execute(statement)
        connection.execute("INSERT INTO projection VALUES (?, 0, '')", [definition()])


def _append(ledger: Ledger, connection: DuckDBPyConnection, after: int, progress: Progress) -> None:
    events = ledger.log.read(after)
    while batch := list(islice(events, BATCH)):
        with _transaction(connection):
            _insert(connection, batch)
            last = batch[-1].position
            connection.execute("UPDATE projection SET position = ?, leaf = ?", [last, _leaf(ledger, last)])
        progress(len(batch))


def _insert(connection: DuckDBPyConnection, batch: list[Event]) -> None:
    # A list a column: a row at a time takes a hundred times as long.
    rows = [
        (e.position, e.stream, e.version, e.event_id, e.type, e.schema_version, e.recorded_at, e.actor, _payload(e))
        for e in batch
    ]
    _insert_columns(connection, "events", rows)
    edges = [(edge.position, edge.direction, edge.role, edge.node) for event in batch for edge in to_edges(event)]
    if edges:
        _insert_columns(connection, "edges", edges)


def _insert_columns(connection: DuckDBPyConnection, table: str, rows: Sequence[tuple[object, ...]]) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    connection.execute(f"INSERT INTO {table} SELECT {', '.join(['unnest(?)'] * len(columns))}", columns)


def _payload(event: Event) -> str:
    return json.dumps(event.payload.to_json(), ensure_ascii=False, separators=(",", ":"))


@contextmanager
def _transaction(connection: DuckDBPyConnection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _discard(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(f"{path.name}.wal").unlink(missing_ok=True)


def _in_use(error: Exception) -> bool:
    """Whether another process, or another connection of this one, has the file."""
    text = str(error)
    return "Could not set lock" in text or "different configuration" in text


def _ignore(_events: int) -> None:
    pass
