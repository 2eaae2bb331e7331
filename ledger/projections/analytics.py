"""Events and edges in one DuckDB file, caught up by position, and the views that `posttrain sql` offers."""

from __future__ import annotations

import fcntl
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ledger.errors import InfrastructureError, MissingExtra
from ledger.events import Event
from ledger.history import History
from ledger.home import Ledger

BATCH = 50_000
FORMAT = 1  # a file of another format is made again

COLUMNS = {
    "position": "BIGINT",
    "stream": "VARCHAR",
    "version": "BIGINT",
    "event_id": "VARCHAR",
    "type": "VARCHAR",
    "schema_version": "INTEGER",
    "recorded_at": "TIMESTAMPTZ",
    "actor": "VARCHAR",
    "payload": "JSON",
}
EDGE_COLUMNS = {"position": "BIGINT", "direction": "VARCHAR", "role": "VARCHAR", "node": "VARCHAR"}

VIEWS = {
    "bases": ("BaseRevisionPinned", "name base source licence size_bytes:BIGINT parameters:BIGINT"),
    "datasets": ("DatasetVersionSealed", "name dataset rows:BIGINT duplicates_removed:BIGINT recipe"),
    "suites": ("SuiteRegistered", "name suite items:BIGINT verifier licence"),
    "runs": ("RunSubmitted", "run_id kind stage executor spec seed:BIGINT base dataset parent model suite environment"),
    "attempts": ("AttemptEnded", "run_id attempt:INTEGER outcome exit_code:INTEGER device_seconds:DOUBLE"),
    "completed_runs": ("RunCompleted", "run_id step:BIGINT checkpoint model"),
    "checkpoints": (
        "CheckpointCommitted",
        "run_id attempt:INTEGER step:BIGINT checkpoint model resume world_size:INTEGER samples_seen:BIGINT",
    ),
    "evaluations": (
        "EvaluationReported",
        "run_id report model suite verifier items:BIGINT passed:BIGINT masked:BIGINT accuracy:DOUBLE",
    ),
    "gates": ("GateDecided", "gate_id stage candidate incumbent suite decision"),
    "promotions": ("ModelPromoted", "stage model gate_id previous rollback:BOOLEAN reason"),
    "deployments": ("DeploymentRequested", "deployment_id stage model served_name engine"),
    "costs": ("CostSettled", "stage run_id amount:DOUBLE device_kind device_seconds:DOUBLE"),
}
"""View name → event type, and its payload's columns (`name` or `name:TYPE`); each has position, recorded_at and actor too."""


@contextmanager
def connect(ledger: Ledger) -> Iterator[Any]:
    """A DuckDB connection over the whole log that can read its tables and views and nothing else.

    Raises:
        MissingExtra: duckdb is not installed.
        InfrastructureError: the file cannot be made.
    """
    try:
        import duckdb
    except ImportError:
        raise MissingExtra("posttrain sql", "sql") from None
    path = ledger.home / "projections.duckdb"
    with _locked(ledger.home / "projections.lock"):
        try:
            _catch_up(duckdb, ledger, path)
        except duckdb.Error as error:
            raise InfrastructureError(f"{path} cannot be caught up: {error}; delete it and ask again") from error
        reader = duckdb.connect(str(path), read_only=True)
        try:
            reader.execute("SET enable_external_access = false")
            reader.execute("SET lock_configuration = true")
            yield reader
        finally:
            reader.close()


def _catch_up(duckdb: Any, ledger: Ledger, path: Path) -> None:
    writer = duckdb.connect(str(path))
    try:
        if not _is_current(duckdb, writer, ledger):
            writer.close()
            path.unlink()
            writer = duckdb.connect(str(path))
            _create(writer, str(ledger.verifying_key()))
        with ledger.log.as_of() as history:
            while events := list(history.read(after=_position(writer), limit=BATCH)):
                _load(writer, history, events)
    finally:
        writer.close()


def _is_current(duckdb: Any, writer: Any, ledger: Ledger) -> bool:
    """Whether the file is of this format and this log."""
    try:
        found = writer.execute("SELECT format, log FROM about").fetchone()
        return bool(found == (FORMAT, str(ledger.verifying_key())) and _position(writer) <= ledger.log.size())
    except duckdb.CatalogException:
        return False


def _create(writer: Any, log: str) -> None:
    writer.execute("BEGIN")
    for name, columns in (("events", COLUMNS), ("edges", EDGE_COLUMNS)):
        writer.execute(f"CREATE TABLE {name} ({', '.join(f'{column} {kind}' for column, kind in columns.items())})")
    for name, (type_name, fields) in VIEWS.items():
        chosen = ", ".join(_field(*field.partition(":")[::2]) for field in fields.split())
        writer.execute(
            f"CREATE VIEW {name} AS SELECT position, recorded_at, actor, {chosen} FROM events WHERE type = '{type_name}'"
        )
    writer.execute("CREATE TABLE about (format INTEGER, log VARCHAR)")
    writer.execute("INSERT INTO about VALUES (?, ?)", [FORMAT, log])
    writer.execute("COMMIT")


def _field(name: str, kind: str) -> str:
    text = f"payload->>'$.{name}'"
    return f'CAST({text} AS {kind}) AS "{name}"' if kind else f'{text} AS "{name}"'


def _position(writer: Any) -> int:
    return int(writer.execute("SELECT coalesce(max(position), 0) FROM events").fetchone()[0])


def _load(writer: Any, history: History, events: list[Event]) -> None:
    edges = (
        {"position": edge.position, "direction": edge.direction, "role": edge.role, "node": edge.node}
        for event in events
        for edge in history.edges_at(event.position)
    )
    writer.execute("BEGIN")
    _insert(writer, "events", COLUMNS, (event.to_json() for event in events))
    _insert(writer, "edges", EDGE_COLUMNS, edges)
    writer.execute("COMMIT")


def _insert(writer: Any, table: str, columns: dict[str, str], rows: Iterator[dict[str, Any]]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        written = sum(file.write(json.dumps(row) + "\n") > 0 for row in rows)
        file.flush()
        if written:
            kinds = ", ".join(f"{name}: '{kind}'" for name, kind in columns.items())
            names = ", ".join(columns)
            query = f"INSERT INTO {table} SELECT {names} FROM read_json(?, format = 'newline_delimited', columns = {{{kinds}}})"
            writer.execute(query, [file.name])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time: DuckDB gives a file to one writer."""
    try:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise InfrastructureError(f"{path}: {error.strerror or error}") from error
