"""`posttrain base`: pin, verify and list base models."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ledger.bases import list_bases, pin_base, verify_base
from ledger.cli.output import JsonFlag, emit, example, plain, progress
from ledger.digest import short
from ledger.events import BaseRevisionPinned
from ledger.home import Ledger

base = typer.Typer(no_args_is_help=True, help="Pin base models by digest, verify and list them.")

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


@base.command("pin", epilog=example("posttrain base pin tiny ./models/tiny --licence Apache-2.0"))
def pin(
    name: Name,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A Hugging Face directory.", show_default=False)],
    source: Annotated[str | None, typer.Option(help="Where it came from; PATH without it.")] = None,
    licence: Annotated[str | None, typer.Option(help="Its licence, such as Apache-2.0.")] = None,
    revision: Annotated[str | None, typer.Option(help="The upstream revision.")] = None,
    expect: Annotated[str | None, typer.Option(help="The digest that it must have.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Store the bytes at PATH under their digest and record them as base NAME."""
    total = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else None
    with progress(f"pinning {name}", total, "bytes") as advance:
        pinned = pin_base(
            Ledger.open(),
            name,
            path,
            source=source,
            licence=licence,
            upstream_revision=revision,
            expect=expect,
            progress=advance,
        )
    payload = pinned.event.payload
    assert isinstance(payload, BaseRevisionPinned)
    what = "is pinned already" if pinned.reused else "pinned"
    emit(
        {**pinned.event.to_json(), "reused": pinned.reused},
        lambda console: console.print(f"{what} {name}  {payload.base}  position {pinned.event.position}"),
        as_json,
    )


@base.command("verify", epilog=example("posttrain base verify tiny", "posttrain base verify tiny ./models/tiny"))
def verify(
    name: Name,
    path: Annotated[Path | None, typer.Argument(metavar="PATH", help="Compare this directory too.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check the stored bytes of NAME, and the files at PATH, against the recorded digests; exit 1 when they differ."""
    with progress(f"verifying {name}", None, "bytes") as advance:
        found = verify_base(Ledger.open(), name, path, progress=advance)
    lines = [f"{problem.name}: {problem.what}" for problem in found] or [f"{name}: every byte is as it was pinned"]
    emit(
        [{key: str(value) for key, value in asdict(problem).items()} for problem in found],
        lambda console: console.print("\n".join(map(plain, lines))),
        as_json,
    )
    if found:
        raise typer.Exit(1)


@base.command("list", epilog=example("posttrain base list"))
def list_command(as_json: JsonFlag = False) -> None:
    """The newest revision of every base."""
    events = list_bases(Ledger.open())

    def render(console: Console) -> None:
        table = Table("base", "digest", "licence", "parameters", "source", "position", box=None)
        for event in events:
            payload = event.payload
            assert isinstance(payload, BaseRevisionPinned)
            parameters = f"{payload.parameters:,}" if payload.parameters else "-"
            row = (payload.name, short(payload.base), payload.licence or "-", parameters, payload.source)
            table.add_row(*map(plain, row), str(event.position))
        console.print(table if events else "no base is pinned yet")

    emit([event.to_json() for event in events], render, as_json)
