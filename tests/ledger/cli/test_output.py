"""Progress, JSON and pipes, as programs and terminals see them."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ledger.cli.bars import bar
from ledger.cli.output import BROKEN_PIPE, emit, json_requested, progress
from ledger.home import Ledger
from ledger.testing.history import DemoHistory

ROOT = Path(__file__).resolve().parents[3]
POSTTRAIN = [sys.executable, "-m", "ledger.cli"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def start(*words: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen([*POSTTRAIN, *words], cwd=ROOT, text=True, **options)  # type: ignore[call-overload,no-any-return]


def test_emit_prints_one_or_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"é": [1, None]}, lambda console: console.print("drawn"), True)
    out = capsys.readouterr().out
    assert json.loads(out) == {"é": [1, None]}
    assert out.isascii()
    emit({"a": 1}, lambda console: console.print("drawn"), False)
    assert capsys.readouterr().out == "drawn\n"


def test_progress_is_silent_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet, terminal = io.StringIO(), Terminal()
    monkeypatch.setattr(sys, "stderr", quiet)
    with progress("working", 10, "steps") as advance:
        advance(5)
    assert quiet.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", terminal)
    token = json_requested.set(True)
    try:
        with progress("working", 10, "steps") as advance:
            advance(5)
    finally:
        json_requested.reset(token)
    assert terminal.getvalue() == ""


def test_progress_shows_done_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("fine\x1b-tuning", 1000, "steps") as advance:
        advance(250)
    shown = terminal.getvalue()
    assert "fine\\x1b-tuning" in shown
    assert "250/1,000 steps" in shown


@pytest.mark.parametrize(
    ("unit", "total", "done"),
    [
        ("bytes", 4_000_000, r"1\.2 MB/4\.0 MB.*[kMG]?B/s.*\d:\d\d:\d\d"),
        ("rows", None, r"1,200,000 rows.*rows/s"),
    ],
)
def test_a_bar_has_units(unit: str, total: int | None, done: str) -> None:
    out = io.StringIO()
    now = iter(range(10_000))
    console = Console(file=out, force_terminal=True, width=120, get_time=lambda: float(next(now)), color_system=None)
    with bar(console, "reading", total, unit) as advance:
        for _ in range(3):
            advance(400_000)
    assert re.search(done, out.getvalue()), out.getvalue()


def test_a_reader_that_goes_away_ends_the_command_quietly(demo: DemoHistory) -> None:
    ends = []
    for words in (("log", "tail", "-n", "1000", "--json"), ("lineage", "production")):
        reader, writer = os.pipe()
        os.close(reader)
        process = start(*words, stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        _, err = process.communicate(timeout=60)
        ends.append((process.returncode, err))
    assert ends == [(BROKEN_PIPE, "")] * 2


def test_ctrl_c_while_following_is_one_line_and_130(copy: DemoHistory) -> None:
    process = start("log", "tail", "-f", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=1)
    assert process.stdout is not None
    for _ in range(10):
        assert json.loads(process.stdout.readline())["position"] > 0
    price = Ledger.open(actor="bob").log.last("price/cpu")
    assert price is not None
    Ledger.open(actor="bob").record(price.payload)
    assert json.loads(process.stdout.readline())["actor"] == "bob"  # what others record comes by itself
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.count("\n") == 1
    assert err.startswith("posttrain: interrupted")


def test_a_full_disk_is_one_line_and_4(demo: DemoHistory) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with full.open("w") as out:
        process = start("lineage", "production", stdout=out, stderr=subprocess.PIPE)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert err.count("\n") == 1, err
    assert "No space left on device" in err


def test_a_terminal_that_knows_only_ascii_gets_escapes(demo: DemoHistory) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "POSTTRAIN_ACTOR": "é"}
    process = start("which", stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.isascii()
