"""A dataset version from a recipe: read, deduplicate, compare with every held-out suite, store, seal."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ledger.artifacts import media_types
from ledger.canonical import canonical_bytes, canonical_digest
from ledger.datasets.overlap import METHOD, HeldOut, Match, normalise
from ledger.datasets.rows import SourceRow, file_digest, parse_object, read_rows
from ledger.errors import InputError, LeakFound
from ledger.events import DatasetVersionSealed, DecontaminationChecked, Event, NewEvent, SourceRows
from ledger.events.base import Name
from ledger.home import Ledger
from ledger.rules import registered_suites
from ledger.yamlfile import load_yaml

Progress = Callable[[int], None]

ROWS = "rows.jsonl"
ITEMS = "items.jsonl"
MAX_SUITE_BYTES = 256 << 20
MAX_ROWS_BYTES = 8 << 30
SHOWN = 5
CAPPED_FROM = 100  # rows of a source from which the removal cap holds


class SourceFile(BaseModel):
    """A source of a recipe; `path` is relative to the recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    path: str
    licence: str = Field(min_length=1)
    generated_by: str | None = None
    prompt_field: str = "prompt"
    response_field: str = "response"


class Recipe(BaseModel):
    """The build file. `removal_cap`: a source that would lose more than this share to deduplication stops the build."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    format: Literal["prompt-response"] = "prompt-response"
    sources: list[SourceFile] = Field(min_length=1)
    removal_cap: float = Field(default=0.9, gt=0, le=1)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A dataset version; `reused` when the ledger held it."""

    event: Event
    reused: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """How rows compare with every registered suite."""

    rows: int
    suites: tuple[str, ...]
    matches: tuple[Match, ...]


def build_dataset(ledger: Ledger, recipe_path: Path, *, progress: Progress | None = None) -> Sealed:
    """Build and seal what a recipe describes; `progress` gets 1 for every row.

    Raises:
        InputError: a malformed recipe or row, or a source that loses more rows than the cap allows.
        LeakFound: rows overlap a registered suite; the check is recorded, nothing is sealed.
    """
    recipe = load_yaml(recipe_path, Recipe)
    names = [source.name for source in recipe.sources]
    if len(set(names)) != len(names):
        raise InputError(f"{recipe_path}: sources: two have one name among {', '.join(names)}")
    suites, held_out = held_out_index(ledger)
    with tempfile.TemporaryDirectory(prefix="posttrain-dataset-") as place:
        build = _Build(recipe, recipe_path.parent, held_out, Path(place) / ROWS)
        sources = build.run(progress or (lambda _rows: None))
        if build.rows == 0:
            raise InputError(f"{recipe_path}: no row is left")
        about = {"format": recipe.format, "name": recipe.name, "rows": build.rows}
        files: dict[str, Path | bytes] = {
            ROWS: build.output,
            "dataset.json": canonical_bytes(about),
            "recipe.json": canonical_bytes(_recipe_json(recipe)),
        }
        if build.matches:
            _refuse(
                ledger, recipe.name, ledger.artifacts.describe(files, media_types.DATASET).digest, suites, build.matches
            )
        digest = ledger.artifacts.add_files(files, media_types.DATASET).digest
    return _seal(ledger, recipe, digest, build, sources, suites)


def held_out_index(ledger: Ledger) -> tuple[tuple[str, ...], HeldOut]:
    """Every registered suite and the index over their items."""
    with ledger.log.as_of() as history:
        suites = tuple(registered_suites(history))
    index = HeldOut()
    for suite in suites:
        index.add(suite, suite_prompts(ledger, suite))
    return suites, index


def suite_prompts(ledger: Ledger, suite: str) -> Iterator[tuple[str, str]]:
    """Item digests and prompts of a registered suite."""
    for number, line in enumerate(ledger.artifacts.read(suite, ITEMS, max_bytes=MAX_SUITE_BYTES).splitlines(), 1):
        item = parse_object(line, f"suite {suite}, item {number}")
        yield canonical_digest({"prompt": item["prompt"], "answer": item["answer"]}), str(item["prompt"])


def check_dataset(ledger: Ledger, rows: Iterator[SourceRow], source: str) -> Checked:
    """Compare rows with every registered suite; nothing is recorded."""
    suites, index = held_out_index(ledger)
    count, matches = 0, []
    for row in rows:
        count += 1
        found = index.find(row.prompt, row.response)
        if found:
            matches.append(Match(source, row.number, *found))
    return Checked(count, suites, tuple(matches))


def check_sealed(ledger: Ledger, dataset: str) -> Checked:
    """Compare a sealed version with every registered suite; nothing is recorded."""
    lines = ledger.artifacts.read(dataset, ROWS, max_bytes=MAX_ROWS_BYTES).splitlines()
    rows = (parse_object(line, f"dataset {dataset}, row {number}") for number, line in enumerate(lines, 1))
    pairs = (SourceRow(i, str(row["prompt"]), str(row["response"])) for i, row in enumerate(rows, 1))
    return check_dataset(ledger, pairs, dataset[7:19])


def list_datasets(ledger: Ledger) -> list[Event]:
    """Every sealed version, oldest first."""
    return list(ledger.log.read(types=("DatasetVersionSealed",)))


class _Build:
    """Writes the rows that are kept, in the order of the recipe, and finds what overlaps."""

    def __init__(self, recipe: Recipe, root: Path, held_out: HeldOut, output: Path) -> None:
        self.recipe, self.output = recipe, output
        self.rows = self.duplicates = 0
        self.matches: list[Match] = []
        self._root = root
        self._held_out = held_out
        self._seen: set[bytes] = set()

    def run(self, progress: Progress) -> tuple[SourceRows, ...]:
        with self.output.open("wb") as file:
            return tuple(self._source(source, file.write, progress) for source in self.recipe.sources)

    def _source(self, source: SourceFile, write: Callable[[bytes], int], progress: Progress) -> SourceRows:
        path = self._root / source.path
        content = file_digest(path)
        read = kept = 0
        for row in read_rows(path, source.prompt_field, source.response_field):
            read += 1
            progress(1)
            key = _row_key(row)
            if key in self._seen:
                self.duplicates += 1
                continue
            self._seen.add(key)
            found = self._held_out.find(row.prompt, row.response)
            if found:
                self.matches.append(Match(source.name, row.number, *found))
            kept += 1
            record = {"prompt": row.prompt, "response": row.response, "source": source.name, "licence": source.licence}
            write(canonical_bytes(record, max_bytes=16 << 20) + b"\n")
        self.rows += kept
        self._check_cap(source.name, read, kept)
        return SourceRows(
            name=source.name,
            uri=f"file:{os.path.basename(source.path)}",
            content=content,
            licence=source.licence,
            generated_by=source.generated_by,
            rows_read=read,
            rows_kept=kept,
        )

    def _check_cap(self, name: str, read: int, kept: int) -> None:
        if read >= CAPPED_FROM and read - kept > self.recipe.removal_cap * read:
            raise InputError(
                f"source {name}: deduplication removes {read - kept} of {read} rows, more than removal_cap "
                f"{self.recipe.removal_cap} allows; look at the source, or raise removal_cap"
            )


def _row_key(row: SourceRow) -> bytes:
    text = normalise(row.prompt) + "\x00" + " ".join(row.response.split())
    return hashlib.sha256(text.encode()).digest()[:16]


def _recipe_json(recipe: Recipe) -> dict[str, object]:
    return {**recipe.model_dump(mode="json"), "removal_cap": str(recipe.removal_cap)}


def _refuse(ledger: Ledger, name: str, dataset: str, suites: tuple[str, ...], matches: list[Match]) -> None:
    shown = tuple(f"{match.item} {match.source}:{match.row}" for match in matches[:SHOWN])
    check = DecontaminationChecked(
        name=name, dataset=dataset, suites=suites, method=METHOD, outcome="leaked", matches=len(matches), examples=shown
    )
    ledger.record(check, idempotency_key=f"leaked/{name}/{canonical_digest([dataset, *suites])}")
    places = ", ".join(f"{match.source} line {match.row} (item {match.item[7:19]})" for match in matches[:SHOWN])
    raise LeakFound(
        f"dataset {name}: {len(matches)} rows overlap a held-out suite: {places}"
        f"{', …' if len(matches) > SHOWN else ''}; remove them from the source and build again"
    )


def _seal(
    ledger: Ledger, recipe: Recipe, digest: str, build: _Build, sources: tuple[SourceRows, ...], suites: tuple[str, ...]
) -> Sealed:
    stream = f"dataset/{recipe.name}"
    sealed = [e for e in ledger.log.stream(stream) if isinstance(e.payload, DatasetVersionSealed)]
    known = next((e for e in sealed if getattr(e.payload, "dataset", None) == digest), None)
    check = DecontaminationChecked(
        name=recipe.name, dataset=digest, suites=suites, method=METHOD, outcome="clean", matches=0
    )
    key = canonical_digest([digest, *suites])
    checked = NewEvent(check, idempotency_key=f"checked/{recipe.name}/{key}")
    if known is not None:
        ledger.log.append_many([checked])  # a suite may be new since it was sealed
        return Sealed(known, True)
    payload = DatasetVersionSealed(
        name=recipe.name,
        dataset=digest,
        rows=build.rows,
        duplicates_removed=build.duplicates,
        sources=sources,
        recipe=canonical_digest(_recipe_json(recipe)),
        checked_suites=suites,
    )
    new = NewEvent(payload, idempotency_key=f"sealed/{recipe.name}/{digest}")
    return Sealed(ledger.log.append_many([checked, new])[-1], False)
