"""`posttrain data`: dataset versions and held-out suites."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ledger.cli.output import JsonFlag, emit, example, plain, progress
from ledger.datasets import build_dataset, check_dataset, check_sealed, list_datasets, register_suite_file
from ledger.datasets.rows import read_rows
from ledger.digest import short
from ledger.errors import InputError, NotFound
from ledger.events import DatasetVersionSealed, Event, SuiteRegistered
from ledger.home import Ledger
from ledger.references import resolve_dataset, resolve_suite

data = typer.Typer(no_args_is_help=True, help="Build dataset versions and suites, check them for leaks.")


@data.command("build", epilog=example("posttrain data build dataset.yaml"))
def build(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", show_default=False)], as_json: JsonFlag = False
) -> None:
    """Build and seal a dataset version; exit 1, and nothing sealed, when rows overlap a held-out suite."""
    with progress("building", None, "rows") as advance:
        sealed = build_dataset(Ledger.open(), recipe, progress=advance)
    payload = sealed.event.payload
    assert isinstance(payload, DatasetVersionSealed)
    word = "unchanged" if sealed.reused else "sealed"
    line = f"{word} {payload.name}  {payload.dataset}  {payload.rows:,} rows, {payload.duplicates_removed:,} duplicates removed"
    emit({**sealed.event.to_json(), "reused": sealed.reused}, lambda console: console.print(line), as_json)


@data.command("suite", epilog=example("posttrain data suite suite.yaml"))
def suite(
    file: Annotated[Path, typer.Argument(metavar="SUITE.yaml", show_default=False)], as_json: JsonFlag = False
) -> None:
    """Register a held-out suite and look for its items in every sealed dataset; exit 1 when one holds some."""
    registered = register_suite_file(Ledger.open(), file)
    payload = registered.event.payload
    assert isinstance(payload, SuiteRegistered)
    word = "unchanged" if registered.reused else "registered"
    lines = [f"{word} {payload.name}  {payload.suite}  {payload.items:,} items"]
    lines += [f"dataset {digest} holds items of it; no run may use it any more" for digest in registered.leaked]
    value = {**registered.event.to_json(), "reused": registered.reused, "leaked": list(registered.leaked)}
    emit(value, lambda console: console.print("\n".join(lines)), as_json)
    if registered.leaked:
        raise typer.Exit(1)


@data.command("check", epilog=example("posttrain data check word-problems", "posttrain data check rows.jsonl"))
def check(
    what: Annotated[str, typer.Argument(metavar="FILE|DATASET", show_default=False)],
    prompt_field: Annotated[str, typer.Option(help="The prompt's field in FILE.")] = "prompt",
    response_field: Annotated[str, typer.Option(help="The response's field in FILE.")] = "response",
    as_json: JsonFlag = False,
) -> None:
    """Compare rows with every registered suite; exit 1 when they overlap. Nothing is recorded."""
    ledger, path = Ledger.open(), Path(what)
    if not path.is_file() and ("/" in what or path.suffix in (".jsonl", ".json", ".gz")):
        raise InputError(f"no file {what}; give a file of rows, or the name or digest of a sealed dataset version")
    if path.is_file():
        checked = check_dataset(ledger, read_rows(path, prompt_field, response_field), path.name)
    else:
        checked = check_sealed(ledger, resolve_dataset(ledger, what))
    lines = [f"{checked.rows:,} rows against {len(checked.suites)} suites: {len(checked.matches)} overlap"]
    lines += [
        f"{match.source}:{match.row} holds item {short(match.item)} of suite {short(match.suite)}"
        for match in checked.matches[:20]
    ]
    emit(asdict(checked), lambda console: console.print("\n".join(map(plain, lines))), as_json)
    if checked.matches:
        raise typer.Exit(1)


@data.command("list", epilog=example("posttrain data list"))
def list_command(as_json: JsonFlag = False) -> None:
    """Every sealed dataset version and registered suite."""
    ledger = Ledger.open()
    datasets = list_datasets(ledger)
    suites = list(ledger.log.read(types=("SuiteRegistered",)))

    def render(console: Console) -> None:
        table = Table("kind", "name", "digest", "rows", "position", box=None)
        for event in [*datasets, *suites]:
            payload = event.payload
            if isinstance(payload, DatasetVersionSealed):
                row = ("dataset", payload.name, short(payload.dataset), f"{payload.rows:,}")
            else:
                assert isinstance(payload, SuiteRegistered)
                row = ("suite", payload.name, short(payload.suite), f"{payload.items:,}")
            table.add_row(*map(plain, row), str(event.position))
        console.print(table if table.row_count else "no dataset version is sealed and no suite registered yet")

    emit([event.to_json() for event in [*datasets, *suites]], render, as_json)


@data.command("show", epilog=example("posttrain data show word-problems", "posttrain data show held-out --json"))
def show(
    reference: Annotated[
        str, typer.Argument(metavar="NAME|DIGEST", help="A dataset version or a suite.", show_default=False)
    ],
    as_json: JsonFlag = False,
) -> None:
    """A dataset version with its sources and licences, or a registered suite."""
    event = _find(Ledger.open(), reference)
    payload = event.payload

    def render(console: Console) -> None:
        if isinstance(payload, SuiteRegistered):
            console.print(f"suite {payload.name}  {payload.suite}\n{payload.items:,} items, position {event.position}")
            about = f"verifier {payload.verifier}, licence {payload.licence}, source {payload.source}"
            console.print(plain(about), soft_wrap=True)
        elif isinstance(payload, DatasetVersionSealed):
            _show_dataset(console, payload, event.position)

    emit(event.to_json(), render, as_json)


def _find(ledger: Ledger, reference: str) -> Event:
    """The event that made a dataset version or, when there is none of that name or digest, a suite."""
    try:
        node = f"dataset:{resolve_dataset(ledger, reference)}"
    except NotFound as error:
        try:
            node = f"suite:{resolve_suite(ledger, reference)}"
        except NotFound:
            raise error from None
    return ledger.log.made(node)[-1]


def _show_dataset(console: Console, payload: DatasetVersionSealed, position: int) -> None:
    console.print(f"dataset {payload.name}  {payload.dataset}")
    console.print(f"{payload.rows:,} rows, {payload.duplicates_removed:,} duplicates removed, position {position}")
    for suite in payload.checked_suites:
        console.print(f"no overlap with suite {suite}")
    table = Table("source", "licence", "generated by", "read", "kept", "content", box=None)
    for s in payload.sources:
        row = (s.name, s.licence, s.generated_by or "-", f"{s.rows_read:,}", f"{s.rows_kept:,}", short(s.content))
        table.add_row(*map(plain, row))
    console.print(table)
