"""The one relational schema. Rows are only ever inserted; triggers refuse the rest."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, LargeBinary, MetaData, String, Table, UniqueConstraint

SCHEMA_VERSION = 1

metadata = MetaData()

meta = Table(
    "ledger_meta",
    metadata,
    Column("key", String, primary_key=True),
    Column("text", String, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("stream", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("event_id", String, nullable=False, unique=True),
    Column("type", String, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("recorded_at", String, nullable=False),
    Column("actor", String, nullable=False),
    Column("idempotency_key", String, nullable=True, unique=True),
    Column("body", LargeBinary, nullable=False),
    Column("leaf", LargeBinary, nullable=False),
    UniqueConstraint("stream", "version"),
    Index("events_by_type", "type", "position"),
)

edges = Table(
    "edges",
    metadata,
    Column("position", Integer, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("direction", String, nullable=False),
    Column("role", String, nullable=False),
    Column("node", String, nullable=False),
    UniqueConstraint("position", "ordinal"),
    Index("edges_by_node", "node", "direction", "position"),
)

subtrees = Table(
    "subtrees",
    metadata,
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("index", Integer, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, nullable=False),
)

tree_heads = Table(
    "tree_heads",
    metadata,
    Column("size", Integer, primary_key=True, autoincrement=False),
    Column("root", LargeBinary, nullable=False),
    Column("note", String, nullable=False),
)


def sqlite_triggers() -> list[str]:
    """Statements that make every table append-only in SQLite, `INSERT OR REPLACE` included, and positions gap-free."""
    statements = []
    for table in metadata.sorted_tables:
        name = table.name
        for verb in ("UPDATE", "DELETE"):
            statements.append(
                f"CREATE TRIGGER {name}_no_{verb.lower()} BEFORE {verb} ON {name} "
                f"BEGIN SELECT RAISE(ABORT, '{name} is append-only: {verb} refused'); END"
            )
        statements.append(_no_replace(table))
    statements.append(
        "CREATE TRIGGER events_gap_free BEFORE INSERT ON events "
        "WHEN NEW.position <> (SELECT COALESCE(MAX(position), 0) + 1 FROM events) "
        "BEGIN SELECT RAISE(ABORT, 'events are appended at the end, without gaps'); END"
    )
    return statements


def _no_replace(table: Table) -> str:
    """REPLACE deletes without firing DELETE triggers, so an insert that meets an existing key is refused before that."""
    unique = [tuple(table.primary_key.columns.keys())]
    unique += [tuple(c.columns.keys()) for c in table.constraints if isinstance(c, UniqueConstraint)]
    unique += [(column.name,) for column in table.columns if column.unique]
    tests = [
        f"EXISTS (SELECT 1 FROM {table.name} WHERE " + " AND ".join(f'"{c}" = NEW."{c}"' for c in columns) + ")"
        for columns in dict.fromkeys(unique)
        if columns
    ]
    return (
        f"CREATE TRIGGER {table.name}_no_replace BEFORE INSERT ON {table.name} WHEN {' OR '.join(tests)} "
        f"BEGIN SELECT RAISE(ABORT, '{table.name} is append-only: the row exists'); END"
    )
