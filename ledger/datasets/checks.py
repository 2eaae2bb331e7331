"""Comparing rows with every registered suite: rows in a file, rows about to be sealed, and versions that are sealed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ledger.canonical import canonical_bytes
from ledger.datasets.overlap import METHOD, HeldOut, Match
from ledger.datasets.rows import RowFile, SourceRow, parse_object
from ledger.digest import sha256_digest, short
from ledger.events import DatasetVersionSealed, DecontaminationChecked, Event
from ledger.history import History
from ledger.home import Ledger
from ledger.rules import registered_suites

Progress = Callable[[int], None]

ROWS = "rows.jsonl"
ITEMS = "items.jsonl"
MAX_SUITE_BYTES = 256 << 20
MAX_TEXT_BYTES = 16 << 20  # of a row or item in canonical JSON
SHOWN = 5  # matches that a message and an event name; all are counted


@dataclass(frozen=True, slots=True)
class Checked:
    """How rows compare with every registered suite."""

    rows: int
    suites: tuple[str, ...]
    matches: tuple[Match, ...]


class NewSuite(NamedTuple):
    """A suite that is about to be registered."""

    suite: str
    replaced: str | None  # the digest that its name stood for
    prompts: list[tuple[str, str]]  # item digests and prompts


def check_dataset(ledger: Ledger, rows: Iterable[SourceRow], source: str) -> Checked:
    """Compare rows with every registered suite; nothing is recorded."""
    suites, index = held_out_index(ledger)
    return compare(index, suites, rows, source)


def check_sealed(ledger: Ledger, dataset: str) -> Checked:
    """Compare a sealed version with every registered suite; nothing is recorded.

    Raises:
        NotFound: its bytes are not in the store.
    """
    suites, index = held_out_index(ledger)
    return compare(index, suites, sealed_rows(ledger, dataset), short(dataset))


def sealed_rows(ledger: Ledger, dataset: str) -> Iterator[SourceRow]:
    """The rows of a sealed version, verified before the first is given; in constant memory."""
    with tempfile.TemporaryDirectory(prefix="posttrain-rows-") as place:
        path = ledger.artifacts.materialise(dataset, Path(place) / "dataset")
        yield from RowFile(path / ROWS)


def held_out_index(ledger: Ledger, new: NewSuite | None = None) -> tuple[tuple[str, ...], HeldOut]:
    """Every registered suite and the index over their items, as if `new` were registered too."""
    with ledger.log.as_of() as history:
        registered = registered_suites(history)
    if new is not None:
        registered = [suite for suite in registered if suite not in (new.suite, new.replaced)]
    index = HeldOut()
    if new is not None:
        index.add(new.suite, new.prompts)  # first: a row that is in two suites counts for this one
    for suite in registered:
        index.add(suite, item_prompts(ledger, suite))
    return ((*registered, new.suite) if new else tuple(registered)), index


def item_prompts(ledger: Ledger, suite: str) -> Iterator[tuple[str, str]]:
    """Item digests and prompts of a registered suite."""
    for number, line in enumerate(ledger.artifacts.read(suite, ITEMS, MAX_SUITE_BYTES).splitlines(), 1):
        item = parse_object(line, f"suite {suite}, item {number}")
        yield item_digest(str(item["prompt"]), str(item["answer"])), str(item["prompt"])


def item_digest(prompt: str, answer: str) -> str:
    """The identity of an item."""
    return sha256_digest(canonical_bytes({"prompt": prompt, "answer": answer}, MAX_TEXT_BYTES))


def newest_check(history: History, name: str, dataset: str) -> DecontaminationChecked | None:
    """The check that decides whether a version may be used."""
    checks = [c for c in history.payloads(f"dataset/{name}", DecontaminationChecked) if c.dataset == dataset]
    return checks[-1] if checks else None


def outcome(name: str, dataset: str, checked: Checked) -> DecontaminationChecked:
    """The event that says what a comparison found."""
    return DecontaminationChecked(
        name=name,
        dataset=dataset,
        suites=checked.suites,
        method=METHOD,
        outcome="leaked" if checked.matches else "clean",
        matches=len(checked.matches),
        examples=tuple(f"{match.item} {match.source}:{match.row}" for match in checked.matches[:SHOWN]),
    )


def describe_matches(checked: Checked, names: Mapping[str, str]) -> str:
    """The first matches in words; `names` maps suites' digests to their names."""
    places = [
        f"{match.source} line {match.row} holds item {short(match.item)} of {names.get(match.suite, short(match.suite))}"
        for match in checked.matches[:SHOWN]
    ]
    return ", ".join(places) + (", …" if len(checked.matches) > SHOWN else "")


def list_datasets(ledger: Ledger) -> list[Event]:
    """The event of every sealed version, oldest first."""
    return list(ledger.log.read(types=(DatasetVersionSealed.type_name(),)))


def compare(index: HeldOut, suites: tuple[str, ...], rows: Iterable[SourceRow], source: str) -> Checked:
    """Look every row up; `source` names the rows in the matches."""
    count, matches = 0, []
    for row in rows:
        count += 1
        hit = index.find(row.prompt, row.response)
        if hit:
            matches.append(Match(source, row.number, *hit))
    return Checked(count, suites, tuple(matches))
