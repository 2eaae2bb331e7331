"""The tamper matrix: somebody with the file and no key changes one thing, and the check names the place."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.errors import TamperFound
from ledger.events import NewEvent, PriceSet
from ledger.fsck import Finding, fsck, verify_log
from ledger.home import Ledger
from ledger.merkle import leaf_hash
from ledger.store.sqlite import SqliteStore
from ledger.testing import DemoHistory, demo_history
from ledger.tree_head import SigningKey

Sql = Callable[[sqlite3.Connection], object]
PRICES = 600  # fill two subtrees


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DemoHistory]:
    home = tmp_path_factory.mktemp("pristine")
    ledger = Ledger.open(home, create=True, actor="ada")
    demo = demo_history(ledger)
    prices = [NewEvent(PriceSet(device_kind="gpu", per_device_hour=str(n))) for n in range(PRICES)]
    ledger.log.append_many(prices)
    store = ledger.log.store
    assert isinstance(store, SqliteStore)
    with sqlite3.connect(home / "ledger.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    return home, demo


@pytest.fixture
def home(pristine: tuple[Path, DemoHistory], tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine[0], tmp_path / "copy"))


def tamper(home: Path, change: Sql) -> None:
    connection = sqlite3.connect(home / "ledger.db", isolation_level=None)
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    change(connection)
    connection.close()


def sql(*statements: str) -> Sql:
    return lambda connection: [connection.execute(statement) for statement in statements]


def edit_body(position: int, *, leaf: bool = False) -> Sql:
    def change(connection: sqlite3.Connection) -> None:
        (body,) = connection.execute("SELECT body FROM events WHERE position = ?", (position,)).fetchone()
        changed = body.replace(b'"actor":"ada"', b'"actor":"eve"')
        assert changed != body
        connection.execute("UPDATE events SET body = ?, actor = 'eve' WHERE position = ?", (changed, position))
        if leaf:
            connection.execute("UPDATE events SET leaf = ? WHERE position = ?", (leaf_hash(changed), position))

    return change


def add_event(connection: sqlite3.Connection) -> None:
    """A copy of the last event at the end, its columns made to fit."""
    names = [row[0] for row in connection.execute("SELECT name FROM pragma_table_info('events')")]
    values = ["version + 1" if n == "version" else "'new'" if n == "event_id" else n for n in names]
    values[names.index("position")] = "position + 1"
    connection.execute(f"INSERT INTO events SELECT {', '.join(values)} FROM events ORDER BY position DESC LIMIT 1")


def swap(connection: sqlite3.Connection) -> None:
    for old, new in ((50, -1), (51, 50), (-1, 51)):
        connection.execute(f"UPDATE events SET position = {new} WHERE position = {old}")


LAST = 30 + PRICES
TRUNCATE = f"DELETE FROM events WHERE position = {LAST}"


# Each: the change, the position and a word of the first finding, and how many findings there are at most.
LOG_CASES: dict[str, tuple[Sql, int | None, str, int]] = {
    "body": (edit_body(7), 7, "body was changed", 1),
    "body and leaf": (edit_body(7, leaf=True), 7, "signed root is not the root", 2),
    "body and leaf of many": (edit_body(100, leaf=True), LAST, "signed root is not the root", 2),
    "leaf": (sql("UPDATE events SET leaf = zeroblob(32) WHERE position = 7"), 7, "leaf hash", 2),
    "actor": (sql("UPDATE events SET actor = 'eve' WHERE position = 7"), 7, "column actor differs", 1),
    "time": (sql("UPDATE events SET recorded_at = '2020' WHERE position = 7"), 7, "column recorded_at", 1),
    "type": (sql("UPDATE events SET type = 'BudgetSet' WHERE position = 40"), 40, "column type", 1),
    "stream": (sql("UPDATE events SET stream = 'a/b' WHERE position = 40"), 40, "column stream", 1),
    "key": (sql("UPDATE events SET idempotency_key = 'k' WHERE position = 40"), 40, "column idempotency_key", 1),
    "noise": (sql("UPDATE events SET body = x'ff00' WHERE position = 40"), 40, "body was changed", 3),
    "deleted": (sql("DELETE FROM events WHERE position = 7"), 7, "position 7 is missing, 8 follows", 4),
    "first deleted": (sql("DELETE FROM events WHERE position = 1"), 1, "position 1 is missing", 4),
    "reordered": (swap, 50, "says that it is event 51", 8),
    "truncated": (sql(TRUNCATE), LAST - 1, "the log was truncated", 2),
    "truncated with its head": (
        sql(TRUNCATE, f"DELETE FROM tree_heads WHERE size = {LAST}"), 31, "under no signed head", 1,
    ),
    "added": (add_event, LAST + 1, "says that it is event", 3),
    "root": (sql("UPDATE tree_heads SET root = zeroblob(32) WHERE size = 5"), 5, "columns differ", 1),
    "note": (sql("UPDATE tree_heads SET note = replace(note, '5', '6') WHERE size = 5"), 5, "tree head|signature", 1),
    "no note": (sql("UPDATE tree_heads SET note = '' WHERE size = 5"), 5, "not a tree head", 1),
    "a replayed head": (
        sql("UPDATE tree_heads SET note = (SELECT note FROM tree_heads WHERE size = 4) WHERE size = 5"), 5, "differ", 1,
    ),
    "subtree": (sql('UPDATE subtrees SET hash = zeroblob(32) WHERE "index" = 1'), 257, "not that of its leaves", 1),
    "a subtree of the future": (sql("INSERT INTO subtrees VALUES (1, 7, x'00')"), LAST, "not there", 1),
}  # fmt: skip


@pytest.mark.parametrize("case", LOG_CASES)
def test_the_log(home: Path, case: str) -> None:
    change, position, says, most = LOG_CASES[case]
    tamper(home, change)
    ledger = Ledger.open(home, actor="ada")
    report = verify_log(ledger.log, ledger.verifying_key())
    assert report.findings, "nothing was found"
    first = report.findings[0]
    assert first.position == position, report.findings
    assert any(word in first.what for word in says.split("|")), report.findings
    assert len(report.findings) <= most, report.findings
    assert fsck(ledger, artifacts=False)[: len(report.findings)] == list(report.findings)


EDGE_CASES = {
    "renamed": "UPDATE edges SET node = 'model:x' WHERE position = 2",
    "deleted": "DELETE FROM edges WHERE position = 2",
    "added": "INSERT INTO edges VALUES (2, 9, 'in', 'base', 'base:x')",
    "turned": "UPDATE edges SET direction = 'in' WHERE position = 2",
}


@pytest.mark.parametrize("case", EDGE_CASES)
def test_edges(home: Path, case: str) -> None:
    tamper(home, sql(EDGE_CASES[case]))
    ledger = Ledger.open(home, actor="ada")
    assert verify_log(ledger.log, ledger.verifying_key()).findings == ()
    findings = fsck(ledger, artifacts=False)
    assert findings[0].position == 2
    assert "its stored edges are not those that its payload declares" in findings[0].what


def test_an_edge_of_an_event_that_is_not_there(home: Path, pristine: tuple[Path, DemoHistory]) -> None:
    tamper(home, sql(f"INSERT INTO edges VALUES (9999, 0, 'out', 'base', 'base:{pristine[1].base}')"))
    findings = fsck(Ledger.open(home, actor="ada"), artifacts=False)
    assert [(finding.position, finding.what) for finding in findings] == [
        (9999, "an edge of an event that is not there")
    ]


def test_an_untouched_home(home: Path) -> None:
    ledger = Ledger.open(home, actor="ada")
    seen: list[int] = []
    assert fsck(ledger, progress=seen.append) == []
    assert sum(seen) == LAST
    report = verify_log(ledger.log, ledger.verifying_key())
    assert (report.size, report.root, report.findings) == (LAST, ledger.log.head().root, ())
    assert report.heads == len(_heads(ledger))


def _heads(ledger: Ledger) -> list[int]:
    with ledger.log.store.reader() as reader:
        return [head.size for head in reader.heads(0)]


def test_a_log_signed_anew_with_another_key(home: Path) -> None:
    ledger = Ledger.open(home, actor="ada")
    stranger = SigningKey(ledger.log.key.name, SigningKey.generate().private)
    report = verify_log(ledger.log, stranger.verifying_key())
    assert len(report.findings) == report.heads
    assert all("no valid signature" in finding.what for finding in report.findings)


def test_reading_a_changed_event_is_refused(home: Path) -> None:
    tamper(home, edit_body(7))
    ledger = Ledger.open(home, actor="ada")
    with pytest.raises(TamperFound, match=r"event 7 .* was changed"):
        ledger.log.event(7)
    with pytest.raises(TamperFound, match="event 7"):
        list(ledger.log.read())


KINDS = ("base", "dataset", "suite", "checkpoint", "model", "report", "environment")


@pytest.mark.parametrize(
    ("which", "damage"), [*((kind, "flipped") for kind in KINDS), ("model", "missing"), ("model", "truncated")]
)
def test_artifacts(home: Path, pristine: tuple[Path, DemoHistory], which: str, damage: str) -> None:
    ledger = Ledger.open(home, actor="ada")
    digest = getattr(pristine[1], which)
    # The largest file of the artifact, found by the digest of its bytes.
    file = max(ledger.artifacts.manifest(digest).files.values(), key=lambda file: file.size_bytes)
    path = home / "artifacts" / "blobs" / "sha256" / file.digest.removeprefix("sha256:")
    data = bytearray(path.read_bytes())
    path.chmod(0o644)
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(data[:-1])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    findings = fsck(ledger)
    assert findings
    assert all(file.digest in finding.place for finding in findings), findings
    assert {finding.position for finding in findings} <= {event.position for event in ledger.log.read()}


def test_a_manifest(home: Path, pristine: tuple[Path, DemoHistory]) -> None:
    path = home / "artifacts" / "blobs" / "sha256" / pristine[1].dataset.removeprefix("sha256:")
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"{", b"[", 1))
    findings = fsck(Ledger.open(home, actor="ada"))
    assert [(finding.position, pristine[1].dataset in finding.place) for finding in findings] == [(4, True)]
    assert isinstance(findings[0], Finding)
    assert "digest" in findings[0].what


def test_a_body_rewritten_as_text_is_named(home: Path) -> None:
    """SQLite keeps the type that `replace` makes of a BLOB."""
    tamper(
        home, lambda c: c.execute("UPDATE events SET body = replace(body, 'fake', 'real') WHERE type = 'RunSubmitted'")
    )
    ledger = Ledger.open(home)
    with ledger.log.store.reader() as reader:
        first = next(reader.rows(0, None, ("RunSubmitted",), 1))
    found = verify_log(ledger.log, ledger.verifying_key()).findings
    assert [finding.position for finding in found][:1] == [first.position]
    assert "body was changed" in found[0].what
