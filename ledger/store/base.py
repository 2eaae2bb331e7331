"""The protocol of a store, on one page."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

Direction = Literal["in", "out"]


@dataclass(frozen=True, slots=True)
class Row:
    """An event as it is stored. All but `leaf` is repeated from `body`, so that it can be searched; `fsck` compares them."""

    position: int
    stream: str
    version: int
    event_id: str
    type: str
    schema_version: int
    recorded_at: str
    actor: str
    idempotency_key: str | None
    body: bytes  # canonical JSON; what the leaf hash covers
    leaf: bytes  # RFC 6962 leaf hash, 32 bytes


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """That the event at `position` reads (`in`) or makes (`out`) a node."""

    position: int
    direction: Direction
    role: str
    node: str


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A signed tree head, one for every committed batch."""

    size: int
    root: bytes
    note: str


@dataclass(frozen=True, slots=True)
class SubtreeRow:
    """The root of a full subtree of 256^level leaves: leaves `[index · 256^level, (index + 1) · 256^level)`."""

    level: int
    index: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """What one append makes durable, all or nothing."""

    rows: Sequence[Row]
    edges: Sequence[EdgeRow]
    subtrees: Sequence[SubtreeRow]
    head: HeadRow


class Reader(Protocol):
    """Reads within one consistent snapshot. `upto` limits an answer to positions up to and including it; `None`: no limit."""

    def size(self) -> int:
        """The position of the last event; 0 for none."""

    def meta(self, key: str) -> str | None: ...

    def row(self, position: int) -> Row | None: ...

    def rows(self, after: int, upto: int | None, types: Collection[str], limit: int | None) -> Iterator[Row]:
        """Rows by position; `types` empty: all."""

    def stream(self, stream: str, upto: int | None) -> list[Row]:
        """A stream's rows by version."""

    def streams(self, prefix: str, upto: int | None) -> list[str]:
        """Names of streams that begin with `prefix`, sorted."""

    def version(self, stream: str) -> int:
        """The version of the stream's last event; 0 for none."""

    def last(self, stream: str, type: str | None, upto: int | None) -> Row | None:
        """The stream's last row, or its last row of a type."""

    def by_key(self, idempotency_key: str) -> Row | None: ...

    def edges_of(self, node: str, direction: Direction, upto: int | None) -> list[EdgeRow]:
        """The node's edges by position."""

    def edges_at(self, position: int) -> list[EdgeRow]: ...

    def stray_edges(self) -> list[EdgeRow]:
        """Edges at positions that hold no event: none, unless the store was tampered with."""

    def leaves(self, start: int, end: int) -> list[bytes]:
        """Leaf hashes of the leaf range `[start, end)`, counted from 0."""

    def subtree(self, level: int, index: int) -> bytes | None: ...

    def subtrees(self, level: int, start: int = 0, end: int | None = None) -> Iterator[SubtreeRow]:
        """The stored subtrees of a level with an index in `[start, end)`, by index."""

    def head(self) -> HeadRow | None:
        """The newest tree head."""

    def heads(self, after: int) -> Iterator[HeadRow]:
        """Tree heads with a size above `after`, by size."""


class Writer(Reader, Protocol):
    """A reader that holds the only right to append until it ends."""

    def insert(self, batch: Batch) -> None: ...

    def set_meta(self, key: str, text: str) -> None:
        """Set once; a second call for the key is refused by the store."""


class Store(Protocol):
    """Durable, append-only, safe for many processes."""

    name: str

    def reader(self) -> AbstractContextManager[Reader]:
        """A snapshot."""

    def writer(self) -> AbstractContextManager[Writer]:
        """The writer; leaving the block without an error makes its inserts durable, leaving with one leaves nothing.

        Raises:
            InfrastructureError: disk full, locked for too long, server gone.
        """

    def close(self) -> None: ...
