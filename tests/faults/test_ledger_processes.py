"""Writers in processes of their own: together, and killed at any moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ledger.errors import InfrastructureError
from ledger.events import BudgetSet, PriceSet
from ledger.fsck import fsck, verify_log
from ledger.home import Ledger

ROOT = Path(__file__).resolve().parents[2]
WRITER = """
import sys
from pathlib import Path
from ledger.events import NewEvent, PriceSet
from ledger.home import Ledger

home, name, count, batch = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
ledger = Ledger.open(home, create=True, actor=name)
for number in range(count):
    new = [
        NewEvent(PriceSet(device_kind=name, per_device_hour=str(number * batch + i)), idempotency_key=f"{name}-{number}-{i}")
        for i in range(batch)
    ]
    for event in ledger.log.append_many(new):
        print(event.position, event.payload.per_device_hour, flush=True)
"""


def start(home: Path, name: str, count: int, batch: int = 1) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(home), name, str(count), str(batch)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def acknowledged(output: str) -> dict[int, str]:
    """Position to amount, of the lines that were written whole."""
    lines = [line.split() for line in output.split("\n")[:-1]]
    return {int(position): amount for position, amount in lines}


def test_four_writers_at_once(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, create=True, actor="ada")
    writers = {f"w{n}": start(tmp_path, f"w{n}", 25, batch=1 + n % 2) for n in range(4)}
    seen: dict[int, str] = {}
    for writer in writers.values():
        output, errors = writer.communicate(timeout=120)
        assert (writer.returncode, errors) == (0, "")
        seen |= acknowledged(output)
    events = list(ledger.log.read())
    assert [event.position for event in events] == list(range(1, 2 * 25 + 2 * 50 + 1))
    assert sorted(seen) == [event.position for event in events]
    for name in writers:
        stream = ledger.log.stream(f"price/{name}")
        assert [event.version for event in stream] == list(range(1, len(stream) + 1))
        assert [event.payload.per_device_hour for event in stream] == [str(n) for n in range(len(stream))]  # type: ignore[attr-defined]
    assert fsck(ledger) == []


def test_killed_writers_lose_nothing(tmp_path: Path) -> None:
    moments = random.Random(7)
    ledger = Ledger.open(tmp_path, create=True, actor="ada")
    kept: dict[int, str] = {}
    for round_ in range(3):
        writers = [start(tmp_path, f"r{round_}w{n}", 100_000, batch=1 + 2 * n) for n in range(2)]
        before, deadline = ledger.log.size(), time.monotonic() + 60
        while ledger.log.size() < before + 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        for writer in writers:
            time.sleep(moments.uniform(0, 0.05))
            writer.send_signal(signal.SIGKILL)
            output, _ = writer.communicate(timeout=60)
            assert writer.returncode == -signal.SIGKILL
            kept |= acknowledged(output)
    events = {event.position: event for event in ledger.log.read()}
    assert len(kept) >= 20
    assert {p: events[p].payload.per_device_hour for p in kept} == kept  # type: ignore[attr-defined]
    assert sorted(events) == list(range(1, len(events) + 1))
    sizes = {head.size for head in _heads(ledger)}
    for name in ledger.log.streams("price/"):  # a batch of three is there whole or not at all
        batch = 3 if name.endswith("w1") else 1
        stream = ledger.log.stream(name)
        assert len(stream) % batch == 0
        assert {event.position for event in stream[batch - 1 :: batch]} <= sizes
    assert verify_log(ledger.log, ledger.verifying_key()).findings == ()
    assert ledger.record(PriceSet(device_kind="cpu", per_device_hour="1")).position == len(events) + 1


def _heads(ledger: Ledger):  # type: ignore[no-untyped-def]
    with ledger.log.store.reader() as reader:
        return list(reader.heads(0))


def test_a_lost_answer_is_asked_again(tmp_path: Path) -> None:
    """A writer killed and run again with the same keys records each step once."""
    for _ in range(2):
        writer = start(tmp_path, "w", 200)
        assert writer.stdout is not None
        for _ in range(10):
            writer.stdout.readline()
        writer.kill()
        writer.communicate(timeout=60)
    writer = start(tmp_path, "w", 40)
    output, errors = writer.communicate(timeout=60)
    assert errors == ""
    assert list(acknowledged(output).values()) == [str(n) for n in range(40)]
    amounts = [e.payload.per_device_hour for e in Ledger.open(tmp_path).log.stream("price/w")]  # type: ignore[attr-defined]
    assert amounts == [str(n) for n in range(len(amounts))]


def test_a_really_full_disk(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        ledger = Ledger.open(place / "home", create=True, actor="ada")
        ballast = place / "ballast"
        ballast.write_bytes(bytes(200_000))
        big = BudgetSet(stage="x", cap="1", reason="y" * 2000)
        done = 0
        with pytest.raises(InfrastructureError, match=r"nothing was recorded"):  # noqa: PT012  # until it is full
            while done < 2000:
                ledger.record(big)
                done += 1
        assert ledger.log.size() == done > 0
        ballast.unlink()
        assert ledger.record(PriceSet(device_kind="cpu", per_device_hour="1")).position == done + 1
        assert verify_log(ledger.log, ledger.verifying_key()).findings == ()
        ledger.log.store.close()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
