"""The in-memory store: a list, a lock, and the same answers as the others. For tests and for reading exports."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from ledger.errors import InfrastructureError
from ledger.store.base import Batch, Direction, EdgeRow, HeadRow, Row, SubtreeRow
from ledger.subtrees import WIDTH


class MemoryStore:
    """Keeps everything in this process; nothing is durable."""

    name = "memory"

    def __init__(self) -> None:
        self._writing = threading.RLock()
        self._kept = _Kept()

    @contextmanager
    def reader(self) -> Iterator[_Snapshot]:
        yield _Snapshot(self._kept)

    @contextmanager
    def writer(self) -> Iterator[_MemoryWriter]:
        with self._writing:
            writer = _MemoryWriter(self._kept)
            yield writer
            writer.commit()

    def close(self) -> None:
        pass


class _Kept:
    """What was committed. Only ever added to, so that a size is enough to name a snapshot of it."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.heads: list[HeadRow] = []
        self.streams: dict[str, list[Row]] = defaultdict(list)
        self.keys: dict[str, Row] = {}
        self.nodes: dict[tuple[str, Direction], list[EdgeRow]] = defaultdict(list)
        self.edges: dict[int, list[EdgeRow]] = defaultdict(list)
        self.subtrees: dict[tuple[int, int], SubtreeRow] = {}
        self.metas: dict[str, str] = {}

    def add(self, batch: Batch) -> None:
        for row in batch.rows:
            self.streams[row.stream].append(row)
            if row.idempotency_key is not None:
                self.keys[row.idempotency_key] = row
        for edge in batch.edges:
            self.nodes[edge.node, edge.direction].append(edge)
            self.edges[edge.position].append(edge)
        for subtree in batch.subtrees:
            self.subtrees[subtree.level, subtree.index] = subtree
        self.heads.append(batch.head)
        self.rows.extend(batch.rows)  # last: a snapshot begins with the count of these


class _Snapshot:
    def __init__(self, kept: _Kept) -> None:
        self._kept = kept
        self._size = len(kept.rows)

    def size(self) -> int:
        return self._size

    def meta(self, key: str) -> str | None:
        return self._kept.metas.get(key)

    def row(self, position: int) -> Row | None:
        return self._kept.rows[position - 1] if 0 < position <= self._size else None

    def rows(self, after: int, upto: int | None, types: Collection[str], limit: int | None) -> Iterator[Row]:
        found = (row for row in self._kept.rows[after : self._end(upto)] if not types or row.type in types)
        for count, row in enumerate(found):
            if limit is not None and count >= limit:
                return
            yield row

    def stream(self, stream: str, upto: int | None) -> list[Row]:
        end = self._end(upto)
        return [row for row in self._kept.streams.get(stream, []) if row.position <= end]

    def streams(self, prefix: str, upto: int | None) -> list[str]:
        end = self._end(upto)
        return sorted(
            name
            for name, rows in list(self._kept.streams.items())
            if name.startswith(prefix) and rows and rows[0].position <= end
        )

    def version(self, stream: str) -> int:
        return len(self.stream(stream, None))

    def last(self, stream: str, type: str | None, upto: int | None) -> Row | None:
        return next((row for row in reversed(self.stream(stream, upto)) if type is None or row.type == type), None)

    def by_key(self, idempotency_key: str) -> Row | None:
        row = self._kept.keys.get(idempotency_key)
        return row if row is not None and row.position <= self._size else None

    def edges_of(self, node: str, direction: Direction, upto: int | None) -> list[EdgeRow]:
        end = self._end(upto)
        return [edge for edge in self._kept.nodes.get((node, direction), []) if edge.position <= end]

    def edges_at(self, position: int) -> list[EdgeRow]:
        return list(self._kept.edges.get(position, [])) if position <= self._size else []

    def stray_edges(self) -> list[EdgeRow]:
        kept = list(self._kept.edges.items())
        return [edge for position, edges in kept if not 0 < position <= len(self._kept.rows) for edge in edges]

    def leaves(self, start: int, end: int) -> list[bytes]:
        return [row.leaf for row in self._kept.rows[start : self._end(end)]]

    def subtree(self, level: int, index: int) -> bytes | None:
        found = self._kept.subtrees.get((level, index))
        return found.hash if found is not None and self._full(found) else None

    def subtrees(self, level: int, start: int = 0, end: int | None = None) -> Iterator[SubtreeRow]:
        found = [row for row in list(self._kept.subtrees.values()) if row.level == level and self._full(row)]
        wanted = [row for row in found if start <= row.index and (end is None or row.index < end)]
        return iter(sorted(wanted, key=lambda row: row.index))

    def head(self) -> HeadRow | None:
        return next((head for head in reversed(self._kept.heads) if head.size <= self._size), None)

    def heads(self, after: int) -> Iterator[HeadRow]:
        return iter([head for head in self._kept.heads if after < head.size <= self._size])

    def _end(self, upto: int | None) -> int:
        return self._size if upto is None else min(upto, self._size)

    def _full(self, row: SubtreeRow) -> bool:
        leaves: int = WIDTH**row.level
        return (row.index + 1) * leaves <= self._size


class _MemoryWriter(_Snapshot):
    """Sees the state as it was and applies its inserts when it ends well."""

    def __init__(self, kept: _Kept) -> None:
        super().__init__(kept)
        self._batches: list[Batch] = []
        self._metas: dict[str, str] = {}

    def insert(self, batch: Batch) -> None:
        expected = self._size + 1 + sum(len(earlier.rows) for earlier in self._batches)
        if [row.position for row in batch.rows] != list(range(expected, expected + len(batch.rows))):
            raise InfrastructureError("events are appended at the end, without gaps; nothing was recorded")
        self._batches.append(batch)

    def set_meta(self, key: str, text: str) -> None:
        if key in self._kept.metas or key in self._metas:
            raise InfrastructureError(f"ledger_meta is append-only: {key!r} is set; nothing was recorded")
        self._metas[key] = text

    def commit(self) -> None:
        for batch in self._batches:
            self._kept.add(batch)
        self._kept.metas.update(self._metas)
