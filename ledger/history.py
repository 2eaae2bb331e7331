"""The log as it was after one of its events: what rules, lineage and questions read from."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeVar

from ledger.errors import NotFound
from ledger.events import Event, Payload
from ledger.events.codec import from_row
from ledger.store.base import EdgeRow, Reader

P = TypeVar("P", bound=Payload)


class History:
    """Events up to and including position `upto` (`None`: up to the end), read in one snapshot."""

    def __init__(self, reader: Reader, upto: int | None = None) -> None:
        self._reader = reader
        self._upto = upto

    def size(self) -> int:
        """The position of the last event of this history; 0 for none."""
        size = self._reader.size()
        return size if self._upto is None else min(size, self._upto)

    def event(self, position: int) -> Event:
        """The event at a position.

        Raises:
            NotFound: there is none.
        """
        row = self._reader.row(position) if 0 < position <= self.size() else None
        if row is None:
            raise NotFound(f"no event at position {position}; the log has {self.size()}")
        return from_row(row)

    def read(self, after: int = 0, *, types: Collection[str] = (), limit: int | None = None) -> Iterator[Event]:
        """Events after a position, in order; only of `types` when any are named."""
        return (from_row(row) for row in self._reader.rows(after, self._upto, types, limit))

    def stream(self, stream: str) -> list[Event]:
        """A stream's events by version; empty when there is no such stream."""
        return [from_row(row) for row in self._reader.stream(stream, self._upto)]

    def streams(self, prefix: str) -> list[str]:
        return self._reader.streams(prefix, self._upto)

    def last(self, stream: str, type: str | None = None) -> Event | None:
        """The stream's last event, or its last event of a type."""
        row = self._reader.last(stream, type, self._upto)
        return None if row is None else from_row(row)

    def made(self, node: str) -> list[Event]:
        """Events that have the node among their outputs, by position."""
        return [self.event(edge.position) for edge in self._reader.edges_of(node, "out", self._upto)]

    def used(self, node: str) -> list[Event]:
        """Events that have the node among their inputs, by position."""
        return [self.event(edge.position) for edge in self._reader.edges_of(node, "in", self._upto)]

    def edges_of(self, node: str, outgoing: bool) -> list[EdgeRow]:
        """The node's edges: where it is made (`outgoing`) or read."""
        return self._reader.edges_of(node, "out" if outgoing else "in", self._upto)

    def edges_at(self, position: int) -> list[EdgeRow]:
        return self._reader.edges_at(position)

    def payloads(self, stream: str, cls: type[P]) -> list[P]:
        """The stream's payloads of one class, by version."""
        return [event.payload for event in self.stream(stream) if isinstance(event.payload, cls)]
