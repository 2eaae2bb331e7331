"""What the log costs: an append against the bare durable write of the same bytes, and questions at two sizes.

    make bench-ledger

The floor of a durable append is one `INSERT` and `COMMIT` of the same bytes in SQLite with `synchronous=FULL`, and one
`fdatasync`. The three take turns, so that a busy moment hits all of them; figures are medians.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ledger.events import NewEvent, PriceSet
from ledger.home import Ledger
from ledger.lineage import trace
from ledger.testing import DemoHistory, demo_history
from ledger.which import which

APPENDS = 200
BATCH = 1000
SIZES = (1_000, 20_000)
QUESTIONS = 15


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def price(number: int) -> PriceSet:
    return PriceSet(device_kind=f"kind-{number % 50}", per_device_hour=str(number))


def appends(place: Path) -> dict[str, float]:
    """Median seconds of one append, one bare INSERT with COMMIT, and one fdatasync, of the same bytes."""
    ledger = Ledger.open(place / "appends", create=True, actor="bench")
    body = ledger.record(price(0)).body
    bare = sqlite3.connect(place / "bare.db", isolation_level=None)
    bare.execute("PRAGMA journal_mode=WAL")
    bare.execute("PRAGMA synchronous=FULL")
    bare.execute("CREATE TABLE events (position INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def insert() -> None:
        bare.execute("BEGIN IMMEDIATE")
        bare.execute("INSERT INTO events (body) VALUES (?)", (body,))
        bare.execute("COMMIT")

    descriptor = os.open(place / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sync = getattr(os, "fdatasync", os.fsync)

    def write() -> None:
        os.write(descriptor, body)
        sync(descriptor)

    times: dict[str, list[float]] = {"append_s": [], "bare_insert_s": [], "fdatasync_s": []}
    for number in range(APPENDS):
        payload = price(number)
        times["append_s"].append(seconds(lambda payload=payload: ledger.record(payload)))  # type: ignore[misc]
        times["bare_insert_s"].append(seconds(insert))
        times["fdatasync_s"].append(seconds(write))
    os.close(descriptor)
    return {name: statistics.median(values) for name, values in times.items()}


def questions(ledger: Ledger, demo: DemoHistory) -> tuple[float, float]:
    """Median seconds of `which` and of the ancestors of the served model."""
    node = f"promotion:{demo.stage}/{demo.gate_id}"
    ask = statistics.median(seconds(lambda: which(ledger)) for _ in range(QUESTIONS))
    return ask, statistics.median(seconds(lambda: trace(ledger, node)) for _ in range(QUESTIONS))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        figures = appends(place)
        ledger = Ledger.open(place / "home", create=True, actor="bench")
        demo = demo_history(ledger)
        batches = []
        for size in SIZES:
            while (have := ledger.log.size()) < size:
                batch = [NewEvent(price(number)) for number in range(have, min(size, have + BATCH))]
                batches.append(seconds(lambda batch=batch: ledger.log.append_many(batch)) / len(batch))  # type: ignore[misc]
            figures[f"which_at_{size}_s"], figures[f"ancestors_at_{size}_s"] = questions(ledger, demo)
        figures["batch_append_per_event_s"] = statistics.median(batches)
        figures[f"append_at_{SIZES[-1]}_s"] = statistics.median(
            seconds(lambda number=number: ledger.record(price(number)))  # type: ignore[misc]
            for number in range(50)
        )
    small, large = SIZES
    ratios = {
        "append/bare insert": figures["append_s"] / figures["bare_insert_s"],
        "append/fdatasync": figures["append_s"] / figures["fdatasync_s"],
        "append in a batch/append": figures["batch_append_per_event_s"] / figures["append_s"],
        f"append at {large}/append": figures[f"append_at_{large}_s"] / figures["append_s"],
        f"which at {large}/at {small}": figures[f"which_at_{large}_s"] / figures[f"which_at_{small}_s"],
        f"ancestors at {large}/at {small}": figures[f"ancestors_at_{large}_s"] / figures[f"ancestors_at_{small}_s"],
    }
    for name, figure in figures.items():
        print(f"{name:28} {figure * 1000:10.3f} ms")
    rounded = {name: round(figure, 6) for name, figure in figures.items()}
    print(json.dumps({"bench": "ledger", "ratios": {k: round(v, 2) for k, v in ratios.items()}, "figures": rounded}))


if __name__ == "__main__":
    main()
