"""SQL over the log: right answers, a projection that is always equal to a rebuild, and no way to change or reach anything."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ledger import events as ev
from ledger.digest import sha256_digest
from ledger.errors import InputError, RefusedError
from ledger.events import PAYLOADS
from ledger.home import Ledger
from ledger.projections import database
from ledger.projections.runs import run_rows
from ledger.projections.views import VIEWS, event_view
from ledger.sql import Answer, ask, tables
from ledger.testing.history import DemoHistory, demo_history

duckdb = pytest.importorskip("duckdb")

EVERYTHING = ["events", "edges", *VIEWS, *(event_view(name) for name in PAYLOADS)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DemoHistory]:
    home = tmp_path_factory.mktemp("sql") / "home"
    return home, demo_history(Ledger.open(home, create=True, actor="ada"))


@pytest.fixture
def shared(recorded: tuple[Path, DemoHistory]) -> Ledger:
    """For tests that record nothing."""
    return Ledger.open(recorded[0], actor="ada")


@pytest.fixture
def history(recorded: tuple[Path, DemoHistory]) -> DemoHistory:
    return recorded[1]


@pytest.fixture
def ledger(recorded: tuple[Path, DemoHistory], home: Path) -> Ledger:
    shutil.copytree(recorded[0], home, ignore=shutil.ignore_patterns("projections*"))
    return Ledger.open(home, actor="ada")


def content(ledger: Ledger) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, in an order of its own."""
    with database.opened(ledger) as projection:
        return {
            name: sorted(projection.connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr)
            for name in EVERYTHING
        }


def submit(ledger: Ledger, number: int) -> str:
    """A run that is submitted and nothing more."""
    spec = sha256_digest(f"run {number}".encode())
    payload = ev.RunSubmitted(
        run_id=f"r-{spec[7:23]}", kind="sft", stage="sft", executor="fake", spec=spec, config={"n": number}, seed=number,
        code=ev.CodeRevision(commit="tree", diff=sha256_digest(b""), dirty=True), environment=sha256_digest(b"lock"),
    )  # fmt: skip
    ledger.record(payload)
    return payload.run_id


# What it answers


def test_every_event_and_edge_is_there(shared: Ledger, history: DemoHistory) -> None:
    answer = ask(shared, "SELECT position, type, actor, payload FROM events ORDER BY position")
    assert answer.columns == ("position", "type", "actor", "payload")
    assert answer.rows == tuple((e.position, e.type, "ada", e.payload.to_json()) for e in history.events)
    assert answer.position == len(history.events)
    edges = ask(shared, "SELECT direction, role, node FROM edges ORDER BY ALL").rows
    declared = [("in", *edge) for e in history.events for edge in e.payload.inputs()]
    declared += [("out", *edge) for e in history.events for edge in e.payload.outputs()]
    assert list(edges) == sorted(declared)


@pytest.mark.parametrize("name", sorted(PAYLOADS))
def test_every_event_type_has_a_view_with_its_fields(shared: Ledger, history: DemoHistory, name: str) -> None:
    answer = ask(shared, f"SELECT * FROM {event_view(name)} ORDER BY position")
    assert answer.columns == ("position", "recorded_at", "actor", *PAYLOADS[name].model_fields)
    recorded = [e.payload.to_json() for e in history.events if e.type == name]
    shown = [dict(zip(answer.columns[3:], row[3:], strict=True)) for row in answer.rows]
    assert [shaped(row) for row in shown] == [shaped(row) for row in recorded]


def shaped(row: dict[str, Any]) -> dict[str, Any]:
    """`0.10` and `0.1` are one number."""
    return {name: number(cell) if isinstance(cell, str) else cell for name, cell in row.items()}


def number(text: str) -> Decimal | str:
    try:
        return Decimal(text)
    except ArithmeticError:
        return text


def test_runs_are_what_the_table_of_runs_says(ledger: Ledger, history: DemoHistory) -> None:
    """The fold in Python and the view in SQL agree in every state that a run can be in."""
    runs = [submit(ledger, n) for n in range(8)]
    for run_id in runs[1:]:
        started = {"run_id": run_id, "launcher": "local", "host": "h", "devices": 1, "device_kind": "cpu"}
        ledger.record(ev.AttemptStarted(attempt=1, **started))
    for run_id, outcome in zip(
        runs[2:], ("killed", "failed", "completed", "completed", "canceled", "lost"), strict=True
    ):
        ended = {"run_id": run_id, "attempt": 1, "exit_code": None, "device_seconds": "1.5"}
        ledger.record(ev.AttemptEnded(outcome=outcome, **ended))
    ledger.record(ev.RunFailed(run_id=runs[3], reason="out of memory", retryable=False))
    ledger.record(ev.RunCompleted(run_id=runs[5], step=9, summary={}))
    ledger.record(ev.RunCanceled(run_id=runs[6], reason="stopped"))
    ledger.record(
        ev.AttemptStarted(run_id=runs[7], attempt=2, launcher="local", host="h", devices=1, device_kind="cpu")
    )
    expected = [row.to_json() for row in run_rows(ledger)]
    names = [name for name in expected[0] if not name.endswith("_at")]
    answer = ask(ledger, f"SELECT {', '.join(names)} FROM runs ORDER BY position DESC").to_json()["rows"]
    assert answer == [{name: row[name] for name in names} for row in expected]
    states = {row["run_id"]: row["state"] for row in answer}
    assert [states[run_id] for run_id in runs] == [
        "submitted", "running", "interrupted", "failed", "ended", "completed", "canceled", "running",
    ]  # fmt: skip
    seconds = ask(ledger, f"SELECT device_seconds, attempts FROM runs WHERE run_id = '{runs[7]}'").rows
    assert seconds == (("1.5", 2),)


def test_sums_of_money_are_exact(ledger: Ledger) -> None:
    submit(ledger, 1)
    for n in range(10):
        ledger.record(ev.BudgetSet(stage="other", cap=f"{n}.1", reason="test"))
    assert ask(ledger, "SELECT sum(cap) AS total FROM budget_set WHERE stage = 'other'").rows == (("46",),)


def test_who_serves(ledger: Ledger, history: DemoHistory) -> None:
    assert ask(ledger, "SELECT stage, model, live FROM promotions").rows == (("production", history.model, True),)
    deployed = ask(ledger, "SELECT deployment_id, state, traffic, model FROM deployments").rows
    assert deployed == ((history.deployment_id, "ready", True, history.model),)
    ledger.record(ev.DeploymentStopped(deployment_id=history.deployment_id, stage="production", reason="test"))
    assert ask(ledger, "SELECT state, traffic FROM deployments").rows == (("stopped", False),)


def test_values_are_json(shared: Ledger) -> None:
    query = (
        "SELECT 1 AS n, 'a' AS n, 0.5::DOUBLE, 'nan'::DOUBLE, NULL, true, 1.50::DECIMAL(9, 2), [1, 2], "
        "{'k': 1.0::DECIMAL(3, 1)}, '\\xAA'::BLOB, DATE '2026-01-31', INTERVAL 1 DAY, '{\"a\": 1}'::JSON, "
        "170141183460469231731687303715884105727::HUGEINT"
    )
    answer = ask(shared, query)
    plain = [
        1,
        "a",
        0.5,
        "nan",
        None,
        True,
        "1.5",
        [1, 2],
        {"k": "1"},
        "aa",
        "2026-01-31",
        "1 day, 0:00:00",
        {"a": 1},
        2**127 - 1,
    ]
    assert list(answer.rows[0]) == plain
    keys = [column["name"] for column in answer.to_json()["columns"]]
    assert keys[:2] == ["n", "n_2"]
    assert json.loads(json.dumps(answer.to_json(), allow_nan=False))["rows"][0]["n_2"] == "a"


def test_names_that_meet_stay_apart() -> None:
    answer = Answer(("a", "a", "a_2", "a"), ("",) * 4, ((1, 2, 3, 4),), 0)
    (row,) = answer.to_json()["rows"]
    assert sorted(row.values()) == [1, 2, 3, 4]


def test_what_can_be_asked_is_listed(shared: Ledger) -> None:
    for name, what in tables():
        assert what
        ask(shared, f"DESCRIBE {name}")


# A projection is disposable and always equal to a rebuild


def test_following_is_equal_to_rebuilding(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BATCH", 7)  # several transactions
    followed = []
    for n in range(4):
        submit(ledger, n)
        ask(ledger, "SELECT 1", progress=followed.append)
    ask(ledger, "SELECT 1", progress=followed.append)
    assert sum(followed) == ledger.log.size()  # nothing was read twice
    by_following = content(ledger)
    (ledger.home / database.FILE).unlink()
    assert content(ledger) == by_following
    monkeypatch.setattr(database, "_from_file", lambda ledger, progress: None)
    assert content(ledger) == by_following  # in memory


def test_a_torn_file_is_built_again(ledger: Ledger) -> None:
    expected = content(ledger)
    path = ledger.home / database.FILE
    whole = path.read_bytes()
    for damage in (b"", b"not a database", whole[: len(whole) // 2], bytes(4096) + whole[4096:]):
        path.write_bytes(damage)
        assert content(ledger) == expected


def test_another_logs_projection_is_built_again(ledger: Ledger, tmp_path: Path) -> None:
    other = Ledger.open(tmp_path / "other", create=True, actor="bob")
    for n in range(3):
        submit(other, n)
    ask(other, "SELECT 1")
    shutil.copy(other.home / database.FILE, ledger.home / database.FILE)
    assert ask(ledger, "SELECT DISTINCT actor FROM events").rows == (("ada",),)
    assert ask(ledger, "SELECT count(*) FROM events").rows == ((ledger.log.size(),),)


def test_another_releases_projection_is_built_again(ledger: Ledger) -> None:
    ask(ledger, "SELECT 1")
    with duckdb.connect(str(ledger.home / database.FILE)) as connection:
        connection.execute("UPDATE projection SET definition = 'older'")
        connection.execute("DELETE FROM events")
    assert ask(ledger, "SELECT count(*) FROM events").rows == ((ledger.log.size(),),)


def test_a_kill_while_following_leaves_whole_batches(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch and its position are one transaction, so whatever was cut off comes again, once."""
    monkeypatch.setattr(database, "BATCH", 5)
    code = (
        "import os, sys; from ledger.home import Ledger; from ledger.projections import database; from ledger.sql import ask\n"
        "database.BATCH = 5; seen = []\n"
        "def stop(n):\n seen.append(n)\n len(seen) == 3 and os.kill(os.getpid(), 9)\n"
        "ask(Ledger.open(), 'SELECT 1', progress=stop)"
    )
    ended = subprocess.run([sys.executable, "-c", code], timeout=60)
    assert ended.returncode == -9
    added: list[int] = []
    assert ask(ledger, "SELECT count(*), count(DISTINCT position) FROM events", progress=added.append).rows == (
        (ledger.log.size(), ledger.log.size()),
    )
    assert sum(added) == ledger.log.size() - 15


def test_a_reader_that_holds_the_file_stops_nobody(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "TRIES", 2)
    ask(ledger, "SELECT 1")
    holding = subprocess.Popen(
        [sys.executable, "-c", f"import duckdb; c = duckdb.connect({str(ledger.home / database.FILE)!r}, read_only=True); "
         "print('held', flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holding.stdout is not None
    try:
        assert holding.stdout.readline() == b"held\n"
        submit(ledger, 1)
        assert ask(ledger, "SELECT count(*) FROM events").rows == ((ledger.log.size(),),)
    finally:
        holding.communicate(b"\n", timeout=60)


def test_many_ask_at_once_while_the_log_grows(ledger: Ledger) -> None:
    code = (
        "from ledger.home import Ledger; from ledger.sql import ask\n"
        "for n in range(4):\n"
        " a = ask(Ledger.open(), 'SELECT count(*), max(position) FROM events'); c, p = a.rows[0]\n"
        " assert c == p == a.position, a\n"
        "print('fine')"
    )
    asking = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for n in range(12):
        submit(ledger, n)
    assert [process.communicate(timeout=120) for process in asking] == [("fine\n", "")] * 3


# Nothing can be changed or reached

CHANGES = [
    "DELETE FROM events",
    "UPDATE events SET actor = 'eve'",
    "INSERT INTO edges VALUES (1, 'in', 'base', 'x')",
    "CREATE TABLE mine (n INTEGER)",
    "CREATE TEMP TABLE mine (n INTEGER)",
    "DROP VIEW runs",
    "SET threads = 1",
    "SET enable_external_access = true",
    "RESET enable_external_access",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CHECKPOINT",
    "ATTACH '{place}/other.duckdb' AS other",
    "COPY events TO '{place}/events.csv'",
    "EXPORT DATABASE '{place}/all'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "BEGIN",
]
REACHES = [
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM read_blob('{home}/keys/log.key')",
    "SELECT * FROM glob('{place}/*')",
    "SELECT * FROM '{secret}'",
    "SELECT * FROM parquet_scan('{secret}')",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT * FROM read_json('http://127.0.0.1:9/x')",
    "SELECT * FROM query_table('{secret}')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT getenv('HOME')",
    "SELECT * FROM secret_rows",
]
SECRET = "the-launch-code"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "secret.csv").write_text(f"secret\n{SECRET}\n")
    before = sorted(tmp_path.iterdir())
    yield tmp_path
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("query", CHANGES)
def test_a_change_is_refused(shared: Ledger, place: Path, query: str) -> None:
    query = query.format(place=place)
    with pytest.raises(RefusedError, match="SELECT"):
        ask(shared, query)
    with pytest.raises((RefusedError, InputError)):
        ask(shared, f"EXPLAIN ANALYZE {query}")
    with pytest.raises((RefusedError, InputError)):
        ask(shared, f"EXPLAIN /* x */ ANALYZE {query}")
    with pytest.raises(InputError, match="2 statements"):
        ask(shared, f"SELECT 1; {query}")


def test_the_connection_itself_can_change_nothing(shared: Ledger, place: Path) -> None:
    """Whatever the words are: the statements are refused by DuckDB too, and the file keeps its bytes."""
    ask(shared, "SELECT 1")
    before = (shared.home / database.FILE).read_bytes()
    with database.opened(shared) as projection:
        for query in CHANGES[:4] + CHANGES[5:9] + CHANGES[12:17]:
            with pytest.raises(duckdb.Error):
                projection.connection.execute(query.format(place=place))
    assert (shared.home / database.FILE).read_bytes() == before


@pytest.mark.parametrize("in_memory", [False, True], ids=["file", "memory"])
@pytest.mark.parametrize("query", REACHES)
def test_a_query_reaches_nothing_outside(
    shared: Ledger, place: Path, monkeypatch: pytest.MonkeyPatch, query: str, in_memory: bool
) -> None:
    secret_rows = [{"n": SECRET}]  # a variable that DuckDB would find by its name
    if in_memory:
        monkeypatch.setattr(database, "_from_file", lambda ledger, progress: None)
    with pytest.raises((RefusedError, InputError)) as refused:
        ask(shared, query.format(place=place, home=shared.home, secret=place / "secret.csv"))
    assert SECRET not in str(refused.value)
    assert secret_rows


def test_no_statement_and_too_long_a_statement(shared: Ledger) -> None:
    for query in ("", " ;", "-- nothing", "SELECT" + " " * 100_000 + "1"):
        with pytest.raises(InputError):
            ask(shared, query)


def test_a_mistake_is_explained_on_one_line(shared: Ledger) -> None:
    with pytest.raises(InputError, match=r"^SQL: .*Referenced column \"stepp\" not found.*$") as error:
        ask(shared, "SELECT stepp FROM runs")
    assert "\n" not in str(error.value)


def test_a_long_query_ends_with_ctrl_c(shared: Ledger) -> None:
    """One that would take hours, in a process of its own."""
    code = (
        "import sys; from pathlib import Path; from ledger.home import Ledger; from ledger.sql import ask\n"
        "ledger = Ledger.open(Path(sys.argv[1])); ask(ledger, 'SELECT 1'); print('asking', flush=True)\n"
        "try:\n ask(ledger, 'SELECT max(hash(a.range, 3)) FROM range(100000000000000) a')\n"
        "except KeyboardInterrupt:\n print(ask(ledger, 'SELECT 42').rows)"
    )
    asking = subprocess.Popen([sys.executable, "-c", code, str(shared.home)], stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    assert asking.stdout.readline() == "asking\n"
    time.sleep(0.3)
    asking.send_signal(signal.SIGINT)
    assert asking.communicate(timeout=60)[0] == "((42,),)\n"
