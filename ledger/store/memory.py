"""The in-memory store: a list, a lock, and the same answers as the others. For tests and for reading exports."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from ledger.store.base import Batch, Direction, EdgeRow, HeadRow, Row


class MemoryStore:
    """Keeps everything in this process; nothing is durable."""

    name = "memory"

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._state = _State()

    @contextmanager
    def reader(self) -> Iterator[_State]:
        with self._lock:
            yield self._state

    @contextmanager
    def writer(self) -> Iterator[_MemoryWriter]:
        with self._lock:
            writer = _MemoryWriter(self._state)
            yield writer
            writer.commit()

    def close(self) -> None:
        pass


class _State:
    def __init__(self) -> None:
        self.all_rows: list[Row] = []
        self.all_heads: list[HeadRow] = []
        self.by_stream: dict[str, list[Row]] = defaultdict(list)
        self.keys: dict[str, Row] = {}
        self.nodes: dict[tuple[str, Direction], list[EdgeRow]] = defaultdict(list)
        self.at: dict[int, list[EdgeRow]] = defaultdict(list)
        self.subtree_hashes: dict[tuple[int, int], bytes] = {}
        self.metas: dict[str, str] = {}

    def size(self) -> int:
        return len(self.all_rows)

    def meta(self, key: str) -> str | None:
        return self.metas.get(key)

    def row(self, position: int) -> Row | None:
        return self.all_rows[position - 1] if 0 < position <= len(self.all_rows) else None

    def rows(self, after: int, upto: int | None, types: Collection[str], limit: int | None) -> Iterator[Row]:
        found = (r for r in self.all_rows[after:upto] if not types or r.type in types)
        for count, row in enumerate(found):
            if limit is not None and count >= limit:
                return
            yield row

    def stream(self, stream: str, upto: int | None) -> list[Row]:
        return [row for row in self.by_stream.get(stream, []) if upto is None or row.position <= upto]

    def streams(self, prefix: str, upto: int | None) -> list[str]:
        return sorted(
            name
            for name, rows in self.by_stream.items()
            if name.startswith(prefix) and (upto is None or rows[0].position <= upto)
        )

    def version(self, stream: str) -> int:
        return len(self.by_stream.get(stream, []))

    def by_key(self, idempotency_key: str) -> Row | None:
        return self.keys.get(idempotency_key)

    def edges_of(self, node: str, direction: Direction, upto: int | None) -> list[EdgeRow]:
        return [edge for edge in self.nodes.get((node, direction), []) if upto is None or edge.position <= upto]

    def edges_at(self, position: int) -> list[EdgeRow]:
        return list(self.at.get(position, []))

    def leaves(self, start: int, end: int) -> list[bytes]:
        return [row.leaf for row in self.all_rows[start:end]]

    def subtree(self, level: int, index: int) -> bytes | None:
        return self.subtree_hashes.get((level, index))

    def head(self) -> HeadRow | None:
        return self.all_heads[-1] if self.all_heads else None

    def heads(self, after: int) -> Iterator[HeadRow]:
        return iter([head for head in self.all_heads if head.size > after])

    def apply(self, batch: Batch) -> None:
        for row in batch.rows:
            self.all_rows.append(row)
            self.by_stream[row.stream].append(row)
            if row.idempotency_key is not None:
                self.keys[row.idempotency_key] = row
        for edge in batch.edges:
            self.nodes[edge.node, edge.direction].append(edge)
            self.at[edge.position].append(edge)
        for subtree in batch.subtrees:
            self.subtree_hashes[subtree.level, subtree.index] = subtree.hash
        self.all_heads.append(batch.head)


class _MemoryWriter(_State):
    """Sees the state as it is and applies its inserts when it ends well."""

    def __init__(self, state: _State) -> None:
        self.__dict__.update(state.__dict__)
        self._target = state
        self._pending: list[Batch] = []
        self._metas: dict[str, str] = {}

    def insert(self, batch: Batch) -> None:
        self._pending.append(batch)

    def set_meta(self, key: str, text: str) -> None:
        self._metas[key] = text

    def commit(self) -> None:
        for batch in self._pending:
            self._target.apply(batch)
        for key, text in self._metas.items():
            self._target.metas.setdefault(key, text)
