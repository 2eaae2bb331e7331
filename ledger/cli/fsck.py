"""`posttrain fsck`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ledger.cli.output import JsonFlag, emit, plain, progress
from ledger.fsck import fsck
from ledger.home import Ledger


def fsck_command(
    skip_artifacts: Annotated[bool, typer.Option("--skip-artifacts", help="Check events only.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Recompute everything: log, edges, rules, and every artifact's bytes; exit 1 with the place of each finding."""
    ledger = Ledger.open()
    with progress("checking", ledger.log.size(), "events") as advance:
        found = fsck(ledger, artifacts=not skip_artifacts, progress=advance)
    lines = [f"position {finding.position}: {finding.place}: {finding.what}" for finding in found]
    lines = lines or [f"{ledger.log.size()} events and their artifacts are as they were recorded"]
    emit(
        [asdict(finding) for finding in found],
        lambda console: console.print("\n".join(map(plain, lines)), soft_wrap=True),
        as_json,
    )
    if found:
        raise typer.Exit(1)
