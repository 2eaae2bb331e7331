"""The log: append and read.

An append goes: idempotency key → stream version → rules → canonical body → leaf hash → Merkle frontier → signed tree head →
one durable transaction. Whatever fails before the end leaves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ledger import rules
from ledger.canonical import canonical_bytes
from ledger.errors import KeyReused, NotFound, StaleVersion
from ledger.events import Event, NewEvent, Payload
from ledger.events.codec import encode, from_row, new_event_id, payload_content, to_edges, to_row, utc_now
from ledger.history import History
from ledger.merkle import Frontier, RangeHash
from ledger.store.base import Batch, HeadRow, Reader, Row, Store, SubtreeRow, Writer
from ledger.subtrees import full_subtrees, range_hashes, read_frontier
from ledger.tree_head import SigningKey, TreeHead


class Log:
    """An append-only, signed Merkle log over a store. Safe to share between processes, each with its own `Log`."""

    def __init__(self, store: Store, key: SigningKey, actor: str) -> None:
        self.store = store
        self.key = key
        self.actor = actor

    def append(
        self, payload: Payload, *, expected_version: int | None = None, idempotency_key: str | None = None
    ) -> Event:
        """Record one event; it is durable when this returns.

        Raises:
            StaleVersion: the stream is not at `expected_version` any more.
            KeyReused: the idempotency key was used for another payload.
            RuleBroken: an invariant refuses the event.
            CanonicalError: the payload has no canonical bytes.
        """
        return self.append_many([NewEvent(payload, expected_version, idempotency_key)])[0]

    def append_many(self, new: Sequence[NewEvent]) -> list[Event]:
        """Record several events, all or none, with neighbouring positions. Raises as `append` does."""
        with self.store.writer() as writer:
            drafting = _Drafting(writer, self.actor)
            answers = [drafting.place(item) for item in new]
            if drafting.events:
                self._commit(writer, drafting.events)
        return answers

    def _commit(self, writer: Writer, events: list[Event]) -> None:
        rows = [to_row(event) for event in events]
        before = read_frontier(writer)
        after, subtrees = _grow(writer, before, rows)
        head = self.key.sign(after.size, after.root())
        edges = [edge for event in events for edge in to_edges(event)]
        writer.insert(Batch(rows, edges, subtrees, HeadRow(head.size, head.root, head.note)))

    def size(self) -> int:
        with self.store.reader() as reader:
            return reader.size()

    def read(self, after: int = 0, *, types: Collection[str] = (), limit: int | None = None) -> Iterator[Event]:
        """Events after a position, in order; only of `types` when any are named."""
        with self.as_of() as history:
            yield from history.read(after, types=types, limit=limit)

    def event(self, position: int) -> Event:
        """The event at a position. Raises NotFound when there is none."""
        with self.as_of() as history:
            return history.event(position)

    def stream(self, stream: str) -> list[Event]:
        with self.as_of() as history:
            return history.stream(stream)

    def streams(self, prefix: str) -> list[str]:
        with self.as_of() as history:
            return history.streams(prefix)

    def last(self, stream: str, type: str | None = None) -> Event | None:
        with self.as_of() as history:
            return history.last(stream, type)

    def made(self, node: str) -> list[Event]:
        """Events with the node among their outputs, by position."""
        with self.as_of() as history:
            return history.made(node)

    def used(self, node: str) -> list[Event]:
        """Events with the node among their inputs, by position."""
        with self.as_of() as history:
            return history.used(node)

    def head(self) -> TreeHead:
        """The newest signed tree head.

        Raises:
            NotFound: the log is empty.
        """
        with self.store.reader() as reader:
            row = reader.head()
        if row is None:
            raise NotFound("the log is empty and has no tree head yet")
        return TreeHead(self.key.name, row.size, row.root, row.note)

    @contextmanager
    def as_of(self, position: int | None = None) -> Iterator[History]:
        """The history up to a position, in one snapshot."""
        with self.store.reader() as reader:
            yield History(reader, position)

    @contextmanager
    def tree(self) -> Iterator[RangeHash]:
        """Hashes of leaf ranges, for proofs."""
        with self.store.reader() as reader:
            yield range_hashes(reader)


class _Drafting:
    """Gives new events their place within one write, and lets rules see those that were placed before."""

    def __init__(self, writer: Writer, actor: str) -> None:
        self.events: list[Event] = []
        self._writer = writer
        self._actor = actor
        self._size = writer.size()
        last = writer.row(self._size) if self._size else None
        # Times never run backwards within the log, whatever the clock does.
        self._now = max(utc_now(), last.recorded_at) if last else utc_now()

    def place(self, new: NewEvent) -> Event:
        earlier = self._earlier(new)
        if earlier is not None:
            return earlier
        stream = new.payload.stream()
        version = self._writer.version(stream) + sum(event.stream == stream for event in self.events)
        if new.expected_version is not None and new.expected_version != version:
            raise StaleVersion(
                f"stream {stream} is at version {version}, not {new.expected_version}: another writer was first; "
                "read it again and decide anew"
            )
        rules.check(new.payload, rules.Draft(self._writer, self.events))
        event = Event(
            position=self._size + len(self.events) + 1,
            stream=stream,
            version=version + 1,
            event_id=new_event_id(),
            type=new.payload.type_name(),
            schema_version=new.payload.schema_version,
            recorded_at=self._now,
            actor=self._actor,
            payload=new.payload,
            body=b"",
            idempotency_key=new.idempotency_key,
        )
        event = replace(event, body=encode(event))
        self.events.append(event)
        return event

    def _earlier(self, new: NewEvent) -> Event | None:
        """The first event under the same idempotency key."""
        key = new.idempotency_key
        if key is None:
            return None
        canonical_bytes(key)  # refuse what no event can carry before the store is asked for it
        row = self._writer.by_key(key)
        found = from_row(row) if row else next((e for e in self.events if e.idempotency_key == key), None)
        if found is None:
            return None
        same = found.type == new.payload.type_name() and canonical_bytes(
            payload_content(found.payload)
        ) == canonical_bytes(payload_content(new.payload))
        if not same:
            raise KeyReused(
                f"idempotency key {key!r} was used for {found.type} at position {found.position} with another content"
            )
        return found


def _grow(reader: Reader, before: Frontier, rows: Sequence[Row]) -> tuple[Frontier, list[SubtreeRow]]:
    leaves = [row.leaf for row in rows]
    return before.extended(leaves), full_subtrees(reader, before.size, leaves)
