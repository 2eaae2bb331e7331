"""A dataset version from a recipe: read, deduplicate, compare with every held-out suite, store, seal."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ledger.artifacts import media_types
from ledger.artifacts.storage import storage_errors
from ledger.canonical import canonical_bytes, canonical_digest
from ledger.datasets.checks import (
    MAX_TEXT_BYTES,
    ROWS,
    Checked,
    Progress,
    describe_matches,
    held_out_index,
    newest_check,
    outcome,
)
from ledger.datasets.overlap import METHOD, HeldOut, Match, normalise
from ledger.datasets.recipe import Recipe, SourceFile, load_recipe
from ledger.datasets.rows import RowFile, SourceRow
from ledger.errors import InputError, LeakFound, RuleBroken, StaleVersion
from ledger.events import DatasetVersionSealed, DecontaminationChecked, Event, NewEvent, Payload, SourceRows
from ledger.home import Ledger
from ledger.rules import registered_suites

CAPPED_FROM = 100  # rows of a source from which the removal cap holds
MAX_TRIES = 8


@dataclass(frozen=True, slots=True)
class Sealed:
    """A dataset version. `reused`: the ledger held it; `checked_again`: a suite was new to it, and it is still clean."""

    event: Event
    reused: bool
    checked_again: bool = False


def build_dataset(ledger: Ledger, recipe_path: Path, *, progress: Progress | None = None) -> Sealed:
    """Build and seal what a recipe describes; `progress` gets 1 for every row.

    The same sources and recipe always have the same digest. What is sealed already is found again and not recorded twice.

    Raises:
        InputError: a malformed recipe or row, or a source that loses more rows than the cap allows.
        LeakFound: rows overlap a registered suite; the check is recorded, nothing is sealed.
    """
    recipe_path = Path(recipe_path)
    recipe = load_recipe(recipe_path)
    for _ in range(MAX_TRIES):
        try:
            return _build_once(ledger, recipe, recipe_path, progress or (lambda _rows: None))
        except StaleVersion:
            continue  # a suite or a build of the same name came in between: nothing was recorded, look again
    raise StaleVersion(f"others keep changing dataset {recipe.name} and its suites; build it again when they are done")


def _build_once(ledger: Ledger, recipe: Recipe, recipe_path: Path, progress: Progress) -> Sealed:
    suites, held_out = held_out_index(ledger)
    with tempfile.TemporaryDirectory(prefix="posttrain-dataset-") as place:
        build = _Build(recipe, recipe_path.parent, held_out, Path(place) / ROWS)
        with storage_errors("write", place):
            sources = build.run(progress)
        if build.rows == 0:
            raise InputError(f"{recipe_path}: its sources hold no row")
        about = {"format": recipe.format, "name": recipe.name, "rows": build.rows}
        files: dict[str, Path | bytes] = {
            ROWS: build.output,
            "dataset.json": canonical_bytes(about),
            "recipe.json": canonical_bytes(recipe.to_json()),
        }
        checked = Checked(build.rows, suites, tuple(build.matches))
        if checked.matches:
            digest = ledger.artifacts.describe(files, media_types.DATASET).digest
            _refuse(ledger, recipe.name, digest, checked)
        digest = ledger.artifacts.add_files(files, media_types.DATASET).digest
    sealed = DatasetVersionSealed(
        name=recipe.name,
        dataset=digest,
        rows=build.rows,
        duplicates_removed=build.duplicates,
        sources=sources,
        recipe=canonical_digest(recipe.to_json()),
        checked_suites=suites,
    )
    return _seal(ledger, sealed, outcome(recipe.name, digest, checked))


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
        file = RowFile(self._root / source.path, source.prompt_field, source.response_field)
        read = kept = 0
        for row in file:
            read += 1
            progress(1)
            key = _row_key(row)
            if key in self._seen:
                continue
            self._seen.add(key)
            kept += 1
            hit = self._held_out.find(row.prompt, row.response)
            if hit:
                self.matches.append(Match(source.name, row.number, *hit))
            record = {"prompt": row.prompt, "response": row.response, "source": source.name, "licence": source.licence}
            write(canonical_bytes(record, MAX_TEXT_BYTES) + b"\n")
        self._check_cap(file.path, source.name, read, kept)
        self.rows += kept
        self.duplicates += read - kept
        return SourceRows(
            name=source.name,
            uri=f"file:{file.path.name}",
            content=file.content,
            licence=source.licence,
            generated_by=source.generated_by,
            rows_read=read,
            rows_kept=kept,
        )

    def _check_cap(self, path: Path, name: str, read: int, kept: int) -> None:
        cap = self.recipe.removal_cap
        if read >= CAPPED_FROM and read - kept > cap * read:
            raise InputError(
                f"{path}: {read - kept} of the {read} rows of source {name} are duplicates, more than removal_cap {cap} "
                "allows; is this the right file, and are prompt_field and response_field the right fields? "
                "If so, raise removal_cap in the recipe"
            )


def _row_key(row: SourceRow) -> bytes:
    text = f"{normalise(row.prompt)}\0{' '.join(row.response.split())}"
    return hashlib.sha256(text.encode()).digest()[:16]


def _refuse(ledger: Ledger, name: str, dataset: str, checked: Checked) -> None:
    """Record the leak once, and raise."""
    check = outcome(name, dataset, checked)
    with ledger.log.as_of() as history:
        known = newest_check(history, name, dataset) == check
        events = [history.last(stream, "SuiteRegistered") for stream in history.streams("suite/")]
    if not known:
        ledger.record(check)
    names = {str(getattr(e.payload, "suite", "")): e.stream.removeprefix("suite/") for e in events if e}
    count = len(checked.matches)
    raise LeakFound(
        f"dataset {name}: {count} row{' overlaps' if count == 1 else 's overlap'} a held-out suite: "
        f"{describe_matches(checked, names)}; remove them from the sources and build again. Nothing was sealed"
    )


def _seal(ledger: Ledger, sealed: DatasetVersionSealed, check: DecontaminationChecked) -> Sealed:
    """Record what the ledger does not hold yet, all in one append."""
    with ledger.log.as_of() as history:
        events = history.stream(sealed.stream())
        last = newest_check(history, sealed.name, sealed.dataset)
    found = [e for e in events if isinstance(e.payload, DatasetVersionSealed) and e.payload.dataset == sealed.dataset]
    current = (
        last is not None
        and last.outcome == "clean"
        and last.method == METHOD
        and set(check.suites).issubset(last.suites)
    )
    new: list[Payload] = [] if current else [check]
    if not found:
        new.append(sealed)
    if new:
        # Only the first has to meet the stream as it was read; the others follow it in the same append.
        first = NewEvent(new[0], expected_version=len(events))
        try:
            recorded = ledger.log.append_many([first, *(NewEvent(payload) for payload in new[1:])])
        except RuleBroken:
            with ledger.log.as_of() as history:
                known = registered_suites(history)
            if set(known).issubset(check.suites):
                raise
            raise StaleVersion(f"a suite was registered while dataset {sealed.name} was built") from None
    return Sealed(found[-1], True, checked_again=bool(new)) if found else Sealed(recorded[-1], False)
