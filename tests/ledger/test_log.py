"""Appending and reading: versions, idempotency, atomicity, clocks, keys, limits."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from ledger import log as log_module
from ledger.canonical import canonical_digest
from ledger.digest import sha256_digest
from ledger.errors import (
    CanonicalError,
    InfrastructureError,
    InputError,
    KeyReused,
    NewerLedger,
    NotFound,
    PosttrainError,
    RuleBroken,
    StaleVersion,
)
from ledger.events import BudgetSet, CodeRevision, NewEvent, PriceSet, RunSubmitted, parse_payload
from ledger.fsck import verify_log
from ledger.home import Ledger
from ledger.log import Log
from ledger.store.memory import MemoryStore
from ledger.store.sqlite import SqliteStore
from ledger.tree_head import SigningKey, open_note


@pytest.fixture(params=["memory", "sqlite"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "ledger.db", create=True)
    return Log(store, SigningKey.generate(), "ada")


def price(amount: int | str, device_kind: str = "cpu") -> PriceSet:
    return PriceSet(device_kind=device_kind, per_device_hour=str(amount))


def run(config: dict[str, Any]) -> RunSubmitted:
    spec = canonical_digest("any")
    return RunSubmitted(
        run_id="r-" + spec[7:23],
        kind="sft",
        stage="sft",
        executor="fake",
        spec=spec,
        config=config,
        seed=0,
        code=CodeRevision(commit="tree", diff=sha256_digest(b""), dirty=False),
        environment=sha256_digest(b"lock"),
    )


def test_positions_versions_and_reads(log: Log) -> None:
    made = [log.append(price(1)), log.append(price(1, "gpu")), log.append(price(2))]
    assert [(e.position, e.stream, e.version) for e in made] == [
        (1, "price/cpu", 1),
        (2, "price/gpu", 1),
        (3, "price/cpu", 2),
    ]
    assert list(log.read()) == made
    assert list(log.read(1, limit=1)) == made[1:2]
    assert list(log.read(types=("BudgetSet",))) == []
    assert log.stream("price/cpu") == [made[0], made[2]]
    assert log.streams("price/") == ["price/cpu", "price/gpu"]
    assert log.last("price/cpu") == made[2]
    assert log.last("price/cpu", "BudgetSet") is None
    assert log.event(2) == made[1]
    assert {e.actor for e in made} == {"ada"}
    assert len({e.event_id for e in made}) == 3
    with pytest.raises(NotFound, match="no event at position 4; the log has 3"):
        log.event(4)


def test_as_of(log: Log) -> None:
    for amount in range(1, 5):
        log.append(price(amount))
    with log.as_of(2) as history:
        assert history.size() == 2
        last = history.last("price/cpu")
        assert last is not None
        assert last.position == 2
        assert [e.position for e in history.read()] == [1, 2]
        with pytest.raises(NotFound):
            history.event(3)


def test_expected_version(log: Log) -> None:
    log.append(price(1), expected_version=0)
    with pytest.raises(StaleVersion, match="stream price/cpu is at version 1, not 0: another writer was first"):
        log.append(price(2), expected_version=0)
    assert log.append(price(2), expected_version=1).version == 2
    assert log.append(price(2), expected_version=None).version == 3


def test_an_idempotency_key(log: Log) -> None:
    first = log.append(price(1), idempotency_key="k")
    log.append(price(9))
    assert log.append(price(1), idempotency_key="k", expected_version=0) == first  # a retry after a lost answer
    assert log.size() == 2
    with pytest.raises(KeyReused, match="'k' was used for PriceSet at position 1 with another content"):
        log.append(price(2), idempotency_key="k")
    with pytest.raises(KeyReused):
        log.append(BudgetSet(stage="cpu", cap="1", reason=""), idempotency_key="k")
    assert log.append(price(1), idempotency_key="other").position == 3


def test_one_key_twice_in_one_append(log: Log) -> None:
    new = NewEvent(price(1), idempotency_key="k")
    assert [e.position for e in log.append_many([new, new])] == [1, 1]
    assert log.size() == 1


def test_many_or_none(log: Log) -> None:
    with pytest.raises(StaleVersion):
        log.append_many([NewEvent(price(1)), NewEvent(price(2), expected_version=0)])
    with pytest.raises(RuleBroken):
        log.append_many([NewEvent(price(1)), NewEvent(run({}).model_copy(update={"run_id": "r-" + "0" * 16}))])
    with pytest.raises(CanonicalError):
        log.append_many([NewEvent(price(1)), NewEvent(run({"rate": 0.1}))])
    assert log.size() == 0
    made = log.append_many([NewEvent(price(1)), NewEvent(price(2), expected_version=1)])
    assert [(e.position, e.version) for e in made] == [(1, 1), (2, 2)]
    assert log.append_many([]) == []
    assert log.head().size == 2


def test_a_rule_sees_what_is_recorded_with_it(log: Log) -> None:
    with pytest.raises(RuleBroken, match="was submitted before"):
        log.append_many([NewEvent(run({})), NewEvent(run({}))])
    assert log.size() == 0


def test_the_clock_goes_backwards(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(["2026-05-01T12:00:00.000000Z", "2020-01-01T00:00:00.000000Z", "2026-05-01T12:00:00.000001Z"])
    monkeypatch.setattr(log_module, "utc_now", lambda: next(times))
    at = [log.append(price(n)).recorded_at for n in range(3)]
    assert at == ["2026-05-01T12:00:00.000000Z", "2026-05-01T12:00:00.000000Z", "2026-05-01T12:00:00.000001Z"]
    assert verify_log(log, log.key.verifying_key()).findings == ()


def test_every_append_has_a_signed_head(log: Log) -> None:
    with pytest.raises(NotFound, match="the log is empty"):
        log.head()
    for size in (1, 2, 3):
        log.append(price(size))
        head = log.head()
        assert open_note(head.note, log.key.verifying_key()) == head
        with log.tree() as hash_of:
            assert (head.size, head.root) == (size, hash_of(0, size))


def _nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"rate": 0.1}, r"payload\.config\.rate: float 0.1 has no canonical form; write a fraction as a string"),
        ({"rate": float("nan")}, "config"),
        ({"rate": float("inf")}, "config"),
        ({"big": 2**53}, r"config\.big: 9007199254740992 is beyond"),
        ({"text": "x" * 2_000_000}, "is more than a record may hold"),
        ({"deep": _nested(40)}, "nested deeper than 32"),
        ({"deep": _nested(3000)}, "nested deeper than 32|depth"),
        ({"text": "\ud800"}, "surrogate"),
        ({"\u00e9": 1}, "is not an ASCII string"),
        ({"bytes": {1, 2}}, "config"),
    ],
    ids=["float", "nan", "infinity", "integer", "2 MB", "deep", "very deep", "surrogate", "key", "set"],
)
def test_what_a_payload_may_not_hold(log: Log, config: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        log.append(run(config))
    assert log.size() == 0
    assert log.append(run({"rate": "0.1", "big": 2**53 - 1, "deep": _nested(20)})).position == 1


@pytest.mark.parametrize("key", ["\ud800", "k" * 2_000_000], ids=["surrogate", "2 MB"])
def test_what_a_key_may_not_hold(log: Log, key: str) -> None:
    with pytest.raises(InputError):
        log.append(price(1), idempotency_key=key)
    assert log.append(price(1)).position == 1


# One home


def test_open_twice_changes_nothing(tmp_path: Path) -> None:
    first = Ledger.open(tmp_path, create=True, actor="ada")
    first.record(price(1))
    again = Ledger.open(tmp_path, create=True, actor="bob")
    assert again.verifying_key() == first.verifying_key()
    assert again.record(price(2)).actor == "bob"
    assert [e.actor for e in Ledger.open(tmp_path).log.read()] == ["ada", "bob"]


def test_no_home(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run `posttrain init`"):
        Ledger.open(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_the_key_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    Ledger.open(tmp_path, create=True, actor="ada")
    assert os.stat(tmp_path / "keys" / "log.key").st_mode & 0o777 == 0o600


@pytest.mark.parametrize("change", ["missing", "another", "empty", "noise"])
def test_a_key_that_is_not_this_logs(tmp_path: Path, change: str) -> None:
    Ledger.open(tmp_path, create=True, actor="ada")
    path = tmp_path / "keys" / "log.key"
    kept = path.read_bytes()
    path.unlink()
    if change == "another":
        SigningKey.generate().save(path)
    elif change != "missing":
        path.write_bytes(b"" if change == "empty" else b"\xff\xfe\n\x00")
    for create in (False, True):
        with pytest.raises(InputError, match=r"log\.key"):
            Ledger.open(tmp_path, create=create, actor="ada")
    path.write_bytes(kept)
    assert Ledger.open(tmp_path, actor="ada").record(price(1)).position == 1


def test_an_event_of_a_newer_release(tmp_path: Path) -> None:
    with pytest.raises(
        NewerLedger, match="event type PriceSet version 2 is unknown to this release; upgrade posttrain"
    ):
        parse_payload("PriceSet", 2, {})
    with pytest.raises(NewerLedger, match="event type TeaMade version 1 is unknown"):
        parse_payload("TeaMade", 1, {})
    with pytest.raises(InputError, match="PriceSet: field device_kind: Field required"):
        parse_payload("PriceSet", 1, {"per_device_hour": "1"})


def test_a_full_disk(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, create=True, actor="ada")
    ledger.record(price(1))
    store = ledger.log.store
    assert isinstance(store, SqliteStore)
    big = BudgetSet(stage="x", cap="1", reason="y" * 2000)
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
    many = [NewEvent(big)] * 100
    with pytest.raises(InfrastructureError, match="the disk is full; nothing was recorded, free space and try again"):
        ledger.log.append_many(many)
    assert ledger.log.size() == 1
    with store._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 100000")
    assert ledger.record(big).position == 2
    assert verify_log(ledger.log, ledger.verifying_key()).findings == ()


def test_a_writer_that_waits_too_long_says_so(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, create=True, actor="ada")
    store = ledger.log.store
    assert isinstance(store, SqliteStore)
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with store._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 50")
    with pytest.raises(InfrastructureError, match="database is locked; nothing was recorded"):
        ledger.record(price(1))
    other.execute("ROLLBACK")
    assert ledger.record(price(1)).position == 1


def test_every_error_is_one_of_ours() -> None:
    assert issubclass(StaleVersion, PosttrainError)
    assert (StaleVersion.exit_code, RuleBroken.exit_code, NewerLedger.exit_code) == (3, 3, 2)
