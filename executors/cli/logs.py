"""`posttrain logs`: what a run's process printed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from executors.launchers.local import LocalLauncher
from executors.recording import RunRecord
from executors.runs import attempt_directory
from ledger.cli.output import JsonFlag, emit, plain, write
from ledger.errors import InputError, NotFound
from ledger.home import Ledger
from ledger.references import resolve_run

CHUNK_BYTES = 64 << 10
MAX_LINE_CHARACTERS = 10_000
MAX_JSON_BYTES = 16 << 20
POLL_S = 0.2


def logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id or its first digits.", show_default=False)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the attempt ends.")] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Which attempt; the last one without it.", show_default=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print stdout and stderr of a run's process. Control characters are shown, not obeyed."""
    ledger = Ledger.open()
    run_id = resolve_run(ledger, run)
    number = _attempt(ledger, run_id, attempt)
    directory = attempt_directory(ledger, run_id, number)
    if follow and as_json:
        raise InputError("--follow prints lines as they come, --json one document; choose one of them")
    if not (directory / "log").exists() and LocalLauncher().state(directory).kind == "absent":
        raise NotFound(f"the directory of attempt {number} of run {run_id} is not on this machine: {directory}")
    if as_json:
        value = {"run_id": run_id, "attempt": number, "lines": _tail(directory / "log")}
        emit(value, lambda _console: None, True)
        return
    for line in _lines(directory, follow):
        write(plain(line))
        sys.stdout.flush()


def _attempt(ledger: Ledger, run_id: str, wanted: int | None) -> int:
    numbers = [attempt.attempt for attempt in RunRecord.read(ledger, run_id).attempts]
    if not numbers:
        raise NotFound(f"run {run_id} has no attempt yet")
    if wanted is not None and wanted not in numbers:
        raise NotFound(f"run {run_id} has no attempt {wanted}; it has {len(numbers)}")
    return wanted or numbers[-1]


def _tail(path: Path) -> list[str]:
    """The lines of a log, of a very long one the last."""
    if not path.exists():
        return []
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - MAX_JSON_BYTES))
        return stream.read(MAX_JSON_BYTES).decode("utf-8", errors="replace").splitlines()


def _lines(directory: Path, follow: bool) -> Iterator[str]:
    """The lines of the log; with `follow`, until the attempt is over and all was read."""
    rest = b""
    for chunk in _chunks(directory, follow):
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_CHARACTERS:
            whole, rest = [*whole, rest], b""
        for line in whole:
            yield line.rstrip(b"\r").decode("utf-8", errors="replace")
    if rest:
        yield rest.decode("utf-8", errors="replace")


def _chunks(directory: Path, follow: bool) -> Iterator[bytes]:
    offset = 0
    while True:
        running = follow and LocalLauncher().state(directory).kind == "running"  # looked at before the log is read
        while chunk := _read(directory / "log", offset):
            offset += len(chunk)
            yield chunk
        if not running:
            return
        time.sleep(POLL_S)


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            return stream.read(CHUNK_BYTES)
    except FileNotFoundError:  # nothing was printed yet
        return b""
