"""The embedded store: one SQLite file, WAL, `synchronous=FULL`, so that an acknowledged append survives a power cut."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Select, create_engine, event, func, insert, select
from sqlalchemy.exc import DBAPIError

from ledger.errors import InfrastructureError, InputError, NewerLedger, TamperFound
from ledger.store import schema
from ledger.store.base import Batch, Direction, EdgeRow, HeadRow, Row, SubtreeRow

BUSY_TIMEOUT_MS = 60_000
_ROW_COLUMNS = tuple(schema.events.columns)


class SqliteStore:
    """A store in one file. Many processes may read and append; appends take turns."""

    name = "sqlite"

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Open the file, making the schema when `create` is set.

        Raises:
            InputError: the file is missing, or is no ledger.
            NewerLedger: a later release wrote it.
            InfrastructureError: it cannot be opened or written.
        """
        self.path = path
        if not create and not path.is_file():
            raise InputError(f"no ledger at {path}; run `posttrain init`")
        self._engine = _engine(path)
        with _boundary(path):
            if create:
                self._create()
            self._check_version()

    @contextmanager
    def reader(self) -> Iterator[_SqlReader]:
        with _boundary(self.path), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            yield _SqlReader(connection)

    @contextmanager
    def writer(self) -> Iterator[_SqlWriter]:
        with _boundary(self.path), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield _SqlWriter(connection)
            connection.commit()

    def close(self) -> None:
        self._engine.dispose()

    def _create(self) -> None:
        with self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            found = connection.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = 'ledger_meta'").first()
            if found is None:
                schema.metadata.create_all(connection)
                for statement in schema.sqlite_triggers():
                    connection.exec_driver_sql(statement)
                connection.execute(insert(schema.meta), {"key": "schema_version", "text": str(schema.SCHEMA_VERSION)})
            connection.commit()

    def _check_version(self) -> None:
        with self._engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = 'ledger_meta'").first()
            version = _SqlReader(connection).meta("schema_version") if found else None
        if version is None:
            raise InputError(f"{self.path} is not a posttrain ledger; run `posttrain init` or set POSTTRAIN_HOME")
        if int(version) > schema.SCHEMA_VERSION:
            raise NewerLedger(
                f"{self.path} has schema version {version}, this release reads up to {schema.SCHEMA_VERSION}; "
                "upgrade posttrain to use it"
            )


class _SqlReader:
    """Statements that hold for every SQL store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def size(self) -> int:
        return int(self._scalar(select(func.coalesce(func.max(schema.events.c.position), 0))))

    def meta(self, key: str) -> str | None:
        found = self._scalar(select(schema.meta.c.text).where(schema.meta.c.key == key))
        return None if found is None else str(found)

    def row(self, position: int) -> Row | None:
        return self._row(select(*_ROW_COLUMNS).where(schema.events.c.position == position))

    def rows(self, after: int, upto: int | None, types: Collection[str], limit: int | None) -> Iterator[Row]:
        query = select(*_ROW_COLUMNS).where(schema.events.c.position > after).order_by(schema.events.c.position)
        if upto is not None:
            query = query.where(schema.events.c.position <= upto)
        if types:
            query = query.where(schema.events.c.type.in_(list(types)))
        if limit is not None:
            query = query.limit(limit)
        for found in self._connection.execute(query).yield_per(1000):
            yield _as_row(found)

    def stream(self, stream: str, upto: int | None) -> list[Row]:
        query = select(*_ROW_COLUMNS).where(schema.events.c.stream == stream).order_by(schema.events.c.version)
        if upto is not None:
            query = query.where(schema.events.c.position <= upto)
        return [_as_row(found) for found in self._connection.execute(query)]

    def streams(self, prefix: str, upto: int | None) -> list[str]:
        stream = schema.events.c.stream
        query = select(stream).where(stream >= prefix, stream < prefix + "\U0010ffff", schema.events.c.version == 1)
        if upto is not None:
            query = query.where(schema.events.c.position <= upto)
        return [str(found) for found in self._connection.scalars(query.order_by(stream))]

    def version(self, stream: str) -> int:
        query = select(func.coalesce(func.max(schema.events.c.version), 0)).where(schema.events.c.stream == stream)
        return int(self._scalar(query))

    def last(self, stream: str, type: str | None, upto: int | None) -> Row | None:
        query = select(*_ROW_COLUMNS).where(schema.events.c.stream == stream)
        if type is not None:
            query = query.where(schema.events.c.type == type)
        if upto is not None:
            query = query.where(schema.events.c.position <= upto)
        return self._row(query.order_by(schema.events.c.version.desc()).limit(1))

    def by_key(self, idempotency_key: str) -> Row | None:
        return self._row(select(*_ROW_COLUMNS).where(schema.events.c.idempotency_key == idempotency_key))

    def edges_of(self, node: str, direction: Direction, upto: int | None) -> list[EdgeRow]:
        edges = schema.edges.c
        query = select(edges.position, edges.direction, edges.role, edges.node)
        query = query.where(edges.node == node, edges.direction == direction)
        if upto is not None:
            query = query.where(edges.position <= upto)
        return [EdgeRow(*found) for found in self._connection.execute(query.order_by(edges.position, edges.ordinal))]

    def edges_at(self, position: int) -> list[EdgeRow]:
        edges = schema.edges.c
        query = select(edges.position, edges.direction, edges.role, edges.node).where(edges.position == position)
        return [EdgeRow(*found) for found in self._connection.execute(query.order_by(edges.ordinal))]

    def stray_edges(self) -> list[EdgeRow]:
        edges = schema.edges.c
        query = select(edges.position, edges.direction, edges.role, edges.node)
        query = query.where(edges.position.not_in(select(schema.events.c.position)))
        return [EdgeRow(*found) for found in self._connection.execute(query.order_by(edges.position, edges.ordinal))]

    def leaves(self, start: int, end: int) -> list[bytes]:
        position = schema.events.c.position
        query = select(schema.events.c.leaf).where(position > start, position <= end).order_by(position)
        return [bytes(leaf) for leaf in self._connection.scalars(query)]

    def subtree(self, level: int, index: int) -> bytes | None:
        table = schema.subtrees.c
        return self._scalar(select(table.hash).where(table.level == level, table["index"] == index))  # type: ignore[no-any-return]  # a BLOB column

    def subtrees(self, level: int, start: int = 0, end: int | None = None) -> Iterator[SubtreeRow]:
        table = schema.subtrees
        index = table.c["index"]
        query = select(*table.columns).where(table.c.level == level, index >= start).order_by(index)
        if end is not None:
            query = query.where(index < end)
        for found in self._connection.execute(query).yield_per(1000):
            yield SubtreeRow(*found)

    def head(self) -> HeadRow | None:
        table = schema.tree_heads
        found = self._connection.execute(select(*table.columns).order_by(table.c.size.desc()).limit(1)).first()
        return None if found is None else HeadRow(*found)

    def heads(self, after: int) -> Iterator[HeadRow]:
        table = schema.tree_heads
        query = select(*table.columns).where(table.c.size > after).order_by(table.c.size)
        for found in self._connection.execute(query).yield_per(1000):
            yield HeadRow(*found)

    def _scalar(self, query: Select[Any]) -> Any:
        return self._connection.execute(query).scalar()

    def _row(self, query: Select[Any]) -> Row | None:
        found = self._connection.execute(query).first()
        return None if found is None else _as_row(found)


class _SqlWriter(_SqlReader):
    def insert(self, batch: Batch) -> None:
        execute = self._connection.execute
        columns = [column.name for column in schema.events.columns]
        execute(insert(schema.events), [{name: getattr(row, name) for name in columns} for row in batch.rows])
        if batch.edges:
            execute(insert(schema.edges), _edge_values(batch))
        if batch.subtrees:
            execute(
                insert(schema.subtrees),
                [{"level": s.level, "index": s.index, "hash": s.hash} for s in batch.subtrees],
            )
        head = batch.head
        execute(insert(schema.tree_heads), {"size": head.size, "root": head.root, "note": head.note})

    def set_meta(self, key: str, text: str) -> None:
        self._connection.execute(insert(schema.meta), {"key": key, "text": text})


def _as_row(found: Sequence[Any]) -> Row:
    """A row as its columns were declared. SQLite keeps whatever type a tamperer wrote; hashes must see its bytes."""
    columns: Sequence[Any] = found[:-2]
    return Row(*columns, *map(_as_bytes, found[-2:]))


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def _edge_values(batch: Batch) -> list[dict[str, Any]]:
    values, last, ordinal = [], 0, 0
    for edge in batch.edges:
        ordinal = ordinal + 1 if edge.position == last else 0
        last = edge.position
        values.append(
            {
                "position": edge.position,
                "ordinal": ordinal,
                "direction": edge.direction,
                "role": edge.role,
                "node": edge.node,
            }
        )
    return values


def _engine(path: Path) -> Engine:
    engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": BUSY_TIMEOUT_MS / 1000})

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # transactions are begun by this module, IMMEDIATE where it writes
        for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={BUSY_TIMEOUT_MS}", "trusted_schema=OFF"):
            connection.execute(f"PRAGMA {pragma}")

    return engine


@contextmanager
def _boundary(path: Path) -> Iterator[None]:
    """SQLite's own complaints as one clear line."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InputError(f"{error.object!r} is not valid Unicode, so nothing in a ledger is called that") from None
    except DBAPIError as error:
        reason = str(error.orig)
        if "not a database" in reason or "malformed" in reason:
            raise TamperFound(
                f"{path} is damaged or not a posttrain ledger: {reason}; restore it from a copy"
            ) from error
        if "full" in reason:
            raise InfrastructureError(
                f"{path}: the disk is full; nothing was recorded, free space and try again"
            ) from error
        raise InfrastructureError(f"{path}: {reason}; nothing was recorded") from error
