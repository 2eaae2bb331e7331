"""Bases, datasets and suites: what a run starts from and what it is measured on."""

from __future__ import annotations

from typing import Literal

from ledger.digest import Digest
from ledger.events.base import Edge, Name, Payload, Record, Text, edges


class BaseRevisionPinned(Payload):
    """The bytes of a base model were stored and their digest is now its identity."""

    name: Name
    base: Digest  # manifest digest of the directory
    source: Text  # where it came from: a path, a URL, or `generated:…`
    upstream_revision: Text | None = None
    licence: Text | None = None
    size_bytes: int
    files: int
    parameters: int | None = None
    tokenizer: Digest  # of tokenizer.json
    chat_template: Digest | None = None  # of the template's text

    def stream(self) -> str:
        return f"base/{self.name}"

    def outputs(self) -> tuple[Edge, ...]:
        # A base is served and evaluated like any model, so it is known under both kinds.
        return edges(("base", "base", self.base), ("model", "model", self.base))


class SourceRows(Record):
    """One source of a dataset version, as it was read."""

    name: Name
    uri: Text
    content: Digest  # of the source file's bytes
    licence: Text
    generated_by: Text | None = None
    rows_read: int
    rows_kept: int


class DatasetVersionSealed(Payload):
    """A dataset version was built and is closed for ever."""

    name: Name
    dataset: Digest
    rows: int
    duplicates_removed: int
    sources: tuple[SourceRows, ...]
    recipe: Digest  # canonical digest of the build file
    checked_suites: tuple[Digest, ...]  # suites that it was compared with and does not overlap

    def stream(self) -> str:
        return f"dataset/{self.name}"

    def inputs(self) -> tuple[Edge, ...]:
        return edges(("config", "config", self.recipe))

    def outputs(self) -> tuple[Edge, ...]:
        return edges(("dataset", "dataset", self.dataset))


class DecontaminationChecked(Payload):
    """Rows about to become (or already) a dataset version were compared with held-out suites."""

    name: Name
    dataset: Digest
    suites: tuple[Digest, ...]
    method: Text
    outcome: Literal["clean", "leaked"]
    matches: int
    examples: tuple[Text, ...] = ()  # digests of leaked items, `suite-item-digest row-number`

    def stream(self) -> str:
        return f"dataset/{self.name}"

    def inputs(self) -> tuple[Edge, ...]:
        return edges(*(("suite", "suite", suite) for suite in self.suites))


class SuiteRegistered(Payload):
    """A held-out suite: items with answers that no dataset version may contain."""

    name: Name
    suite: Digest
    items: int
    verifier: Name
    verifier_config: dict[str, str] = {}
    licence: Text
    source: Text

    def stream(self) -> str:
        return f"suite/{self.name}"

    def outputs(self) -> tuple[Edge, ...]:
        return edges(("suite", "suite", self.suite))


class ArtifactErased(Payload):
    """The bytes under a digest were deleted; the events about them stay."""

    artifact: Digest
    reason: Text
    size_bytes: int

    def stream(self) -> str:
        return f"artifact/{self.artifact.removeprefix('sha256:')}"
