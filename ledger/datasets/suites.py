"""Held-out suites: registered once, and compared with every dataset version that was sealed before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from ledger.artifacts import media_types
from ledger.canonical import canonical_bytes
from ledger.datasets.checks import (
    ITEMS,
    MAX_SUITE_BYTES,
    MAX_TEXT_BYTES,
    Checked,
    held_out_index,
    item_digest,
    list_datasets,
    newest_check,
    outcome,
    sealed_rows,
)
from ledger.datasets.overlap import METHOD, HeldOut, Match, normalise
from ledger.datasets.recipe import SuiteFile, load_suite_file
from ledger.datasets.rows import RowFile
from ledger.errors import InputError, NotFound
from ledger.events import DatasetVersionSealed, DecontaminationChecked, Event, NewEvent, SuiteRegistered
from ledger.home import Ledger

CREATE = EntryPoint("verifiers", "verifiers.registry:create", "posttrain.registries")
"""Makes a verifier from its name and configuration. Found by name, because the ledger imports nothing above itself."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A suite; `leaked` names the sealed dataset versions that hold items of it and can be used no more."""

    event: Event
    reused: bool
    leaked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Items:
    prompts: list[tuple[str, str]]  # item digest and prompt
    lines: list[bytes]


def register_suite_file(ledger: Ledger, path: Path) -> Registered:
    """Register what a suite file describes; its items are taken relative to it.

    Raises:
        InputError: a malformed file or item, a prompt twice, no items, or an item that the verifier cannot judge.
        NotFound: no verifier has that name.
    """
    suite = load_suite_file(path)
    return register_suite(ledger, Path(path).parent / suite.items, suite)


def register_suite(ledger: Ledger, items: Path, suite: SuiteFile) -> Registered:
    """Store and record a suite, and look for its items in every sealed dataset version. Raises as `register_suite_file`.

    A version that holds items of it is recorded as leaked together with the suite, so that no run can take it between.
    """
    read = _read_items(items, suite)
    about = {
        "name": suite.name,
        "verifier": suite.verifier,
        "verifier_config": suite.verifier_config,
        "items": len(read.lines),
    }
    data = b"\n".join(read.lines) + b"\n"
    if len(data) > MAX_SUITE_BYTES:
        raise InputError(f"{items}: {len(data)} bytes of items; a suite holds at most {MAX_SUITE_BYTES}")
    digest = ledger.artifacts.add_files({ITEMS: data, "suite.json": canonical_bytes(about)}, media_types.SUITE).digest
    payload = SuiteRegistered(
        name=suite.name,
        suite=digest,
        items=len(read.lines),
        verifier=suite.verifier,
        verifier_config=suite.verifier_config,
        licence=suite.licence,
        source=suite.source,
    )
    return _record(ledger, payload, read)


def _record(ledger: Ledger, payload: SuiteRegistered, items: _Items) -> Registered:
    last = ledger.log.last(payload.stream(), payload.type_name())
    reused = last is not None and last.payload == payload
    checks = list(_look_back(ledger, payload.suite, items))
    new = [NewEvent(check) for check in checks]
    if not reused:
        new.insert(0, NewEvent(payload, expected_version=last.version if last else 0))
    recorded = ledger.log.append_many(new) if new else []
    event = last if reused and last is not None else recorded[0]
    # What was sealed while the rows were read did not know the suite yet. Whatever is sealed from now on does.
    late = list(_look_back(ledger, payload.suite, items)) if recorded else []
    if late:
        ledger.log.append_many([NewEvent(check) for check in late])
    return Registered(event, reused, _leaked_by(ledger, payload.suite))


def _look_back(ledger: Ledger, suite: str, items: _Items) -> Iterator[DecontaminationChecked]:
    """A new check for every sealed version that was not compared with this suite yet, against this and all other suites."""
    compared: tuple[tuple[str, ...], HeldOut] | None = None
    for name, dataset in _versions(ledger):
        with ledger.log.as_of() as history:
            last = newest_check(history, name, dataset)
        if last is not None and suite in last.suites and last.method == METHOD:
            continue
        # The last check decides, so it has to be about every suite, not only about the new one.
        compared = compared or held_out_index(ledger, (suite, items.prompts))
        suites, index = compared
        try:
            matches = [
                Match("row", row.number, *hit)
                for row in sealed_rows(ledger, dataset)
                if (hit := index.find(row.prompt, row.response))
            ]
        except NotFound:
            continue  # its bytes were erased: nothing can be trained on them
        yield outcome(name, dataset, Checked(0, suites, tuple(matches)))


def _versions(ledger: Ledger) -> list[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}  # in order, each once
    for event in list_datasets(ledger):
        assert isinstance(event.payload, DatasetVersionSealed)
        found[event.payload.name, event.payload.dataset] = None
    return list(found)


def _leaked_by(ledger: Ledger, suite: str) -> tuple[str, ...]:
    """The sealed versions whose deciding check, in which this suite took part, found held-out items."""
    with ledger.log.as_of() as history:
        checks = [newest_check(history, name, dataset) for name, dataset in _versions(ledger)]
    return tuple(check.dataset for check in checks if check and check.outcome == "leaked" and suite in check.suites)


def _read_items(path: Path, suite: SuiteFile) -> _Items:
    check_task = _task_check(suite)
    seen: dict[str, int] = {}
    items = _Items([], [])
    for row in RowFile(path, suite.prompt_field, suite.answer_field):
        place = f"{path}:{row.number}"
        text = normalise(row.prompt)
        if not text:
            raise InputError(f"{place}: the prompt has no word to be recognised by")
        if text in seen:
            raise InputError(f"{place}: the same prompt as line {seen[text]}; an item counts once")
        seen[text] = row.number
        item = {"prompt": row.prompt, "answer": row.response}
        try:
            check_task(item)
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
        items.prompts.append((item_digest(row.prompt, row.response), row.prompt))
        items.lines.append(canonical_bytes(item, MAX_TEXT_BYTES))
    if not items.lines:
        raise InputError(f"{path}: no items; an empty suite measures nothing")
    return items


def _task_check(suite: SuiteFile) -> Callable[[dict[str, str]], Any]:
    """What the suite's verifier says of a task before anybody has answered it."""
    verifier = CREATE.load()(suite.verifier, suite.verifier_config)
    check: Callable[[dict[str, str]], Any] = verifier.check_task
    return check
