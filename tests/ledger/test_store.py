"""Both stores pass the conformance kit; the SQLite file refuses what no log may do."""

from __future__ import annotations

import multiprocessing
import sqlite3
from itertools import count
from pathlib import Path

import pytest

from ledger.errors import InfrastructureError, InputError, NewerLedger, TamperFound
from ledger.home import Ledger
from ledger.store.memory import MemoryStore
from ledger.store.sqlite import SqliteStore
from ledger.testing import STORE_CHECKS, check_store, demo_history, example_batch

KIT = pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__.strip("_"))


@KIT
def test_memory(check: object) -> None:
    check(MemoryStore())  # type: ignore[operator]


@KIT
def test_sqlite(check: object, tmp_path: Path) -> None:
    check(SqliteStore(tmp_path / "ledger.db", create=True))  # type: ignore[operator]


def test_the_kit_gives_each_check_a_new_store(tmp_path: Path) -> None:
    numbers = count()
    check_store(lambda: SqliteStore(tmp_path / f"{next(numbers)}.db", create=True))
    assert next(numbers) == len(STORE_CHECKS)


def test_the_kit_finds_a_store_that_keeps_what_failed() -> None:
    class Leaky(MemoryStore):
        name = "leaky"

        def writer(self):  # type: ignore[no-untyped-def]  # a broken store
            kept = self._kept

            class Writer:
                def __enter__(self):  # type: ignore[no-untyped-def]
                    return self

                def __exit__(self, *_: object) -> None:
                    pass

                def insert(self, batch) -> None:  # type: ignore[no-untyped-def]
                    kept.add(batch)

                def set_meta(self, key: str, text: str) -> None:
                    kept.metas[key] = text

            return Writer()

    with pytest.raises(AssertionError):
        check_store(Leaky)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("recorded")
    demo_history(Ledger.open(home, create=True, actor="ada"))
    return home / "ledger.db"


@pytest.mark.parametrize("table", ["events", "edges", "subtrees", "tree_heads", "ledger_meta"])
@pytest.mark.parametrize("verb", ["UPDATE", "DELETE", "REPLACE"])
def test_rows_are_only_ever_inserted(recorded: Path, table: str, verb: str) -> None:
    connection = sqlite3.connect(recorded, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("INSERT INTO subtrees VALUES (9, 9, x'00')")  # a demo's log fills no subtree
    column = connection.execute(f"SELECT name FROM pragma_table_info('{table}')").fetchone()[0]
    statement = {
        "UPDATE": f'UPDATE {table} SET "{column}" = "{column}"',
        "DELETE": f"DELETE FROM {table}",
        "REPLACE": f"INSERT OR REPLACE INTO {table} SELECT * FROM {table} LIMIT 1",
    }[verb]
    with pytest.raises(sqlite3.IntegrityError, match=r"append-only|appended at the end"):
        connection.execute(statement)
    connection.execute("ROLLBACK")


@pytest.mark.parametrize("column", ["event_id", "idempotency_key", "stream, version"])
def test_replace_by_another_unique_key_is_refused(tmp_path: Path, column: str) -> None:
    store = SqliteStore(tmp_path / "ledger.db", create=True)
    with store.writer() as writer:
        writer.insert(example_batch(1, [("a/x", 1)], key="k"))
    connection = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    fresh = {"stream": "'b/y'", "version": "1", "event_id": "'other'", "idempotency_key": "'other'", "position": "2"}
    names = [row[0] for row in connection.execute("SELECT name FROM pragma_table_info('events')")]
    values = ", ".join(name if name in column.split(", ") else fresh.get(name, name) for name in names)
    with pytest.raises(sqlite3.IntegrityError, match="append-only: the row exists"):
        connection.execute(f"INSERT OR REPLACE INTO events SELECT {values} FROM events")
    assert connection.execute("SELECT COUNT(*) FROM events").fetchone() == (1,)


def test_a_gap_is_refused_by_the_file_itself(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db", create=True)
    with pytest.raises(InfrastructureError, match="without gaps; nothing was recorded"), store.writer() as writer:
        writer.insert(example_batch(2, [("a/x", 1)]))


def test_a_newer_schema(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    SqliteStore(path, create=True).close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DROP TRIGGER ledger_meta_no_update")
    connection.execute("UPDATE ledger_meta SET text = '2' WHERE key = 'schema_version'")
    with pytest.raises(NewerLedger, match="has schema version 2, this release reads up to 1; upgrade posttrain"):
        SqliteStore(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run `posttrain init`"):
        SqliteStore(tmp_path / "ledger.db")
    assert list(tmp_path.iterdir()) == []


def test_another_programs_database(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    sqlite3.connect(path).execute("CREATE TABLE t (x)")
    with pytest.raises(InputError, match="not a posttrain ledger"):
        SqliteStore(path)


@pytest.mark.parametrize(
    ("offset", "junk"), [(0, b"not a database at all"), (100, b"\xff" * 4000)], ids=["header", "first page"]
)
def test_a_damaged_file(recorded: Path, tmp_path: Path, offset: int, junk: bytes) -> None:
    source, copy = sqlite3.connect(recorded), sqlite3.connect(tmp_path / "ledger.db")
    source.backup(copy)
    copy.close()
    path = tmp_path / "ledger.db"
    data = bytearray(path.read_bytes())
    data[offset : offset + len(junk)] = junk
    path.write_bytes(bytes(data))
    with pytest.raises(TamperFound, match=r"ledger\.db is damaged or not a posttrain ledger"):
        SqliteStore(path)


def test_a_directory_with_odd_characters(tmp_path: Path) -> None:
    home = tmp_path / "a?mode=ro#100%25 \u00e9"
    demo = Ledger.open(home, create=True, actor="ada")
    assert (home / "ledger.db").is_file()
    assert demo.log.size() == 0


def _open_new(home: Path) -> str:
    return str(Ledger.open(home, create=True, actor="ada").verifying_key())


def test_processes_that_start_together_make_one_ledger(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        keys = pool.map(_open_new, [tmp_path / "home"] * 8, chunksize=1)
    assert len(set(keys)) == 1
    assert [path.name for path in (tmp_path / "home" / "keys").iterdir()] == ["log.key"]
