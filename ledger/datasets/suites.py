"""Held-out suites: registered once, and compared with every dataset version that was sealed before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from ledger.artifacts import media_types
from ledger.canonical import canonical_bytes
from ledger.datasets.checks import (
    ITEMS,
    MAX_SUITE_BYTES,
    MAX_TEXT_BYTES,
    NewSuite,
    compare,
    held_out_index,
    item_digest,
    list_datasets,
    newest_check,
    outcome,
    sealed_rows,
)
from ledger.datasets.overlap import METHOD, HeldOut, normalise
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
    prompts, lines = _read_items(items, suite)
    about = {
        "name": suite.name,
        "verifier": suite.verifier,
        "verifier_config": suite.verifier_config,
        "items": len(lines),
    }
    data = b"\n".join(lines) + b"\n"
    if len(data) > MAX_SUITE_BYTES:
        raise InputError(f"{items}: {len(data)} bytes of items; a suite holds at most {MAX_SUITE_BYTES}")
    digest = ledger.artifacts.add_files({ITEMS: data, "suite.json": canonical_bytes(about)}, media_types.SUITE).digest
    payload = SuiteRegistered(
        name=suite.name,
        suite=digest,
        items=len(lines),
        verifier=suite.verifier,
        verifier_config=suite.verifier_config,
        licence=suite.licence,
        source=suite.source,
    )
    return _record(ledger, payload, prompts)


def _record(ledger: Ledger, payload: SuiteRegistered, prompts: list[tuple[str, str]]) -> Registered:
    last = ledger.log.last(payload.stream(), payload.type_name())
    reused = last is not None and last.payload == payload
    new = NewSuite(payload.suite, str(getattr(last.payload, "suite", "")) if last else None, prompts)
    events = [NewEvent(check) for check in _look_back(ledger, new)]
    if not reused:
        events.insert(0, NewEvent(payload, expected_version=last.version if last else 0))
    recorded = ledger.log.append_many(events) if events else []
    # What was sealed while the rows were read did not know the suite yet. Whatever is sealed from now on does.
    late = [NewEvent(check) for check in _look_back(ledger, new)] if recorded else []
    if late:
        ledger.log.append_many(late)
    event = last if reused and last is not None else recorded[0]
    return Registered(event, reused, _leaked_by(ledger, new))


def _look_back(ledger: Ledger, new: NewSuite) -> Iterator[DecontaminationChecked]:
    """A check for every sealed version that was not compared with the suite yet, against this and all other suites."""
    compared: tuple[tuple[str, ...], HeldOut] | None = None
    for name, dataset in _versions(ledger):
        with ledger.log.as_of() as history:
            last = newest_check(history, name, dataset)
        if last is not None and new.suite in last.suites and last.method == METHOD:
            continue
        # The last check decides, so it has to be about every suite, not only about the new one.
        compared = compared or held_out_index(ledger, new)
        suites, index = compared
        try:
            checked = compare(index, suites, sealed_rows(ledger, dataset), "row")
        except NotFound:
            continue  # its bytes were erased: nothing can be trained on them
        # Matches of the new suite come first: the event names the first few, and they are what this is about.
        matches = tuple(sorted(checked.matches, key=lambda match: match.suite != new.suite))
        yield outcome(name, dataset, replace(checked, matches=matches))


def _versions(ledger: Ledger) -> list[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}  # in order, each once
    for event in list_datasets(ledger):
        assert isinstance(event.payload, DatasetVersionSealed)
        found[event.payload.name, event.payload.dataset] = None
    return list(found)


def _leaked_by(ledger: Ledger, new: NewSuite) -> tuple[str, ...]:
    """The sealed versions whose deciding check found items of this suite."""
    items = {item for item, _ in new.prompts}
    with ledger.log.as_of() as history:
        checks = [newest_check(history, name, dataset) for name, dataset in _versions(ledger)]
    return tuple(
        check.dataset
        for check in checks
        if check and check.outcome == "leaked" and any(example.partition(" ")[0] in items for example in check.examples)
    )


def _read_items(path: Path, suite: SuiteFile) -> tuple[list[tuple[str, str]], list[bytes]]:
    """Item digests with prompts, and the lines of the artifact."""
    check_task = _task_check(suite)
    seen: dict[str, int] = {}
    prompts: list[tuple[str, str]] = []
    lines: list[bytes] = []
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
        prompts.append((item_digest(row.prompt, row.response), row.prompt))
        lines.append(canonical_bytes(item, MAX_TEXT_BYTES))
    if not lines:
        raise InputError(f"{path}: no items; an empty suite measures nothing")
    return prompts, lines


def _task_check(suite: SuiteFile) -> Callable[[dict[str, str]], Any]:
    """What the suite's verifier says of a task before anybody has answered it."""
    verifier = CREATE.load()(suite.verifier, suite.verifier_config)
    check: Callable[[dict[str, str]], Any] = verifier.check_task
    return check
