"""Held-out suites: registered once, and compared with every dataset that was sealed before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ledger.artifacts import media_types
from ledger.canonical import canonical_bytes, canonical_digest
from ledger.datasets.build import ITEMS, MAX_ROWS_BYTES, ROWS
from ledger.datasets.overlap import METHOD, HeldOut, normalise
from ledger.datasets.rows import parse_object, read_rows
from ledger.errors import InputError
from ledger.events import DatasetVersionSealed, DecontaminationChecked, Event, SuiteRegistered
from ledger.events.base import Name
from ledger.home import Ledger
from ledger.yamlfile import load_yaml


class SuiteFile(BaseModel):
    """A suite as it is written; `items` is a JSONL file of `{"prompt", "answer"}` relative to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    items: str
    verifier: Name
    verifier_config: dict[str, str] = {}
    licence: str = Field(min_length=1)
    source: str = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Registered:
    """A suite; `leaked` names the sealed dataset versions that hold items of it and can be used no more."""

    event: Event
    reused: bool
    leaked: tuple[str, ...] = ()


def load_suite_file(path: Path) -> SuiteFile:
    """Raises InputError with file, line and key."""
    return load_yaml(path, SuiteFile)


def register_suite_file(ledger: Ledger, path: Path) -> Registered:
    """Register what a suite file describes.

    Raises:
        InputError: a malformed file or item, an item twice, or none.
    """
    suite = load_suite_file(path)
    return register_suite(ledger, path.parent / suite.items, suite)


def register_suite(ledger: Ledger, items: Path, suite: SuiteFile) -> Registered:
    """Store and record a suite, and look for its items in every sealed dataset. Raises as `register_suite_file`."""
    prompts, lines = _read_items(items)
    about = {
        "name": suite.name,
        "verifier": suite.verifier,
        "verifier_config": suite.verifier_config,
        "items": len(lines),
    }
    files: dict[str, Path | bytes] = {ITEMS: b"\n".join(lines) + b"\n", "suite.json": canonical_bytes(about)}
    digest = ledger.artifacts.add_files(files, media_types.SUITE).digest
    payload = SuiteRegistered(
        name=suite.name,
        suite=digest,
        items=len(lines),
        verifier=suite.verifier,
        verifier_config=suite.verifier_config,
        licence=suite.licence,
        source=suite.source,
    )
    last = ledger.log.last(f"suite/{suite.name}", "SuiteRegistered")
    if last is not None and last.payload == payload:
        return Registered(last, True)
    event = ledger.record(payload, expected_version=last.version if last else 0)
    return Registered(event, False, tuple(_look_back(ledger, digest, prompts)))


def _read_items(path: Path) -> tuple[list[tuple[str, str]], list[bytes]]:
    seen: dict[str, int] = {}
    prompts, lines = [], []
    for row in read_rows(path, "prompt", "answer"):
        text = normalise(row.prompt)
        if text in seen:
            raise InputError(f"{path}:{row.number}: the same prompt as line {seen[text]}; an item counts once")
        seen[text] = row.number
        item = {"prompt": row.prompt, "answer": row.response}
        prompts.append((canonical_digest(item), row.prompt))
        lines.append(canonical_bytes(item, max_bytes=16 << 20))
    if not lines:
        raise InputError(f"{path}: no items; an empty suite measures nothing")
    return prompts, lines


def _look_back(ledger: Ledger, suite: str, prompts: list[tuple[str, str]]) -> list[str]:
    """Datasets that hold items of a new suite: recorded, so that no run takes them any more."""
    index = HeldOut()
    index.add(suite, prompts)
    leaked = []
    for event in ledger.log.read(types=("DatasetVersionSealed",)):
        payload = event.payload
        assert isinstance(payload, DatasetVersionSealed)
        examples = []
        for number, line in enumerate(ledger.artifacts.read(payload.dataset, ROWS, MAX_ROWS_BYTES).splitlines(), 1):
            row = parse_object(line, f"dataset {payload.dataset}, row {number}")
            found = index.find(str(row["prompt"]), str(row["response"]))
            if found:
                examples.append(f"{found[1]} row {number}")
        if examples:
            leaked.append(payload.dataset)
            check = DecontaminationChecked(
                name=payload.name,
                dataset=payload.dataset,
                suites=(suite,),
                method=METHOD,
                outcome="leaked",
                matches=len(examples),
                examples=tuple(examples[:5]),
            )
            ledger.record(check)
    return leaked
