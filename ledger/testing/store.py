"""The conformance kit of stores."""

from __future__ import annotations

from collections.abc import Callable

from ledger import events as ev
from ledger.errors import PosttrainError
from ledger.events import NewEvent
from ledger.log import Log
from ledger.store.base import Batch, EdgeRow, HeadRow, Row, Store, SubtreeRow
from ledger.tree_head import SigningKey

MakeStore = Callable[[], Store]


def check_store(make_store: MakeStore) -> None:
    """Everything that a store promises; `make_store` gives a new, empty one each time.

    Raises:
        AssertionError: the promise that it breaks.
    """
    for check in STORE_CHECKS:
        store = make_store()
        try:
            check(store)
        finally:
            store.close()


def example_batch(
    first: int, streams: list[tuple[str, int]], *, type: str = "PriceSet", key: str | None = None
) -> Batch:
    """A batch of rows for `(stream, version)` pairs, with one edge each; bodies and hashes are placeholders."""
    rows = [
        Row(
            position=first + i,
            stream=stream,
            version=version,
            event_id=f"id-{first + i}",
            type=type,
            schema_version=1,
            recorded_at=f"2026-01-01T00:00:00.{first + i:06}Z",
            actor="ada",
            idempotency_key=None if key is None else f"{key}-{i}",
            body=b"body %d" % (first + i),
            leaf=(first + i).to_bytes(32, "big"),
        )
        for i, (stream, version) in enumerate(streams)
    ]
    edges = [EdgeRow(row.position, "out", "model", f"model:{row.stream}") for row in rows]
    size = first + len(rows) - 1
    return Batch(rows, edges, [], HeadRow(size, size.to_bytes(32, "big"), f"note {size}"))


def _insert(store: Store, batch: Batch) -> None:
    with store.writer() as writer:
        writer.insert(batch)


def _refused(store: Store, batch: Batch) -> None:
    """The store refuses the batch with an error of the tree, and nothing of it stays."""
    with store.reader() as reader:
        before = reader.size(), reader.head()
    try:
        _insert(store, batch)
    except PosttrainError:
        pass
    else:
        raise AssertionError(f"{store.name} accepted {batch.rows[0]}")
    with store.reader() as reader:
        assert (reader.size(), reader.head()) == before


def _empty(store: Store) -> None:
    with store.reader() as reader:
        assert reader.size() == 0
        assert reader.row(1) is None
        assert reader.head() is None
        assert list(reader.rows(0, None, (), None)) == []
        assert reader.stream("a/b", None) == []
        assert reader.last("a/b", None, None) is None
        assert reader.version("a/b") == 0
        assert reader.streams("", None) == []
        assert reader.leaves(0, 10) == []
        assert reader.subtree(1, 0) is None


def _append_and_read(store: Store) -> None:
    first = example_batch(1, [("a/x", 1), ("a/y", 1), ("a/x", 2)], key="k")
    second = example_batch(4, [("a/x", 3)], type="BudgetSet")
    _insert(store, first)
    _insert(store, second)
    rows = [*first.rows, *second.rows]
    with store.reader() as reader:
        assert reader.size() == 4
        assert [reader.row(position) for position in range(6)] == [None, *rows, None]
        assert list(reader.rows(0, None, (), None)) == rows
        assert list(reader.rows(1, 3, (), None)) == rows[1:3]
        assert list(reader.rows(0, None, (), 2)) == rows[:2]
        assert list(reader.rows(0, None, (), 0)) == []
        assert list(reader.rows(0, None, ("BudgetSet",), None)) == rows[3:]
        assert list(reader.rows(0, 3, ("BudgetSet",), None)) == []
        assert list(reader.rows(1, None, ("BudgetSet", "PriceSet"), 1)) == rows[1:2]
        assert list(reader.rows(9, None, (), None)) == []
        assert reader.stream("a/x", None) == [rows[0], rows[2], rows[3]]
        assert reader.stream("a/x", 3) == [rows[0], rows[2]]
        assert (reader.version("a/x"), reader.version("a/y")) == (3, 1)
        assert reader.last("a/x", None, None) == rows[3]
        assert reader.last("a/x", "PriceSet", None) == rows[2]
        assert reader.last("a/x", None, 2) == rows[0]
        assert reader.last("a/x", "BudgetSet", 3) is None
        assert reader.by_key("k-1") == rows[1]
        assert reader.by_key("k-9") is None
        assert reader.leaves(1, 3) == [row.leaf for row in rows[1:3]]
        assert reader.leaves(3, 9) == [rows[3].leaf]


def _heads(store: Store) -> None:
    _insert(store, example_batch(1, [("a/x", 1), ("a/x", 2)]))
    _insert(store, example_batch(3, [("a/x", 3)]))
    with store.reader() as reader:
        newest = reader.head()
        assert newest is not None
        assert newest.size == 3
        assert [head.size for head in reader.heads(0)] == [2, 3]
        assert [head.note for head in reader.heads(2)] == ["note 3"]


def _streams_by_prefix(store: Store) -> None:
    names = [
        "run/r-1",
        "run/r-10",
        "run/r-1\u00e9",
        "runs/x",
        "ru",
        "run_/x",
        "run%/x",
        "stage/a",
        "stage/a.b",
        "Stage/a",
    ]
    _insert(store, example_batch(1, [(name, 1) for name in names]))
    with store.reader() as reader:
        assert reader.streams("run/", None) == ["run/r-1", "run/r-10", "run/r-1\u00e9"]
        assert reader.streams("run/r-1", None) == ["run/r-1", "run/r-10", "run/r-1\u00e9"]
        assert reader.streams("run/r-10", None) == ["run/r-10"]
        assert reader.streams("run_", None) == ["run_/x"]
        assert reader.streams("run%", None) == ["run%/x"]
        assert reader.streams("stage/", None) == ["stage/a", "stage/a.b"]
        assert reader.streams("run/", 2) == ["run/r-1", "run/r-10"]
        assert reader.streams("", None) == sorted(names)
        assert reader.streams("zz", None) == []


def _edges(store: Store) -> None:
    batch = example_batch(1, [("a/x", 1), ("a/y", 1)])
    edges = [
        EdgeRow(1, "in", "base", "base:b"),
        EdgeRow(1, "out", "model", "model:m"),
        EdgeRow(2, "in", "model", "model:m"),
        EdgeRow(2, "in", "parent", "model:m"),  # one node may have two roles
    ]
    _insert(store, Batch(batch.rows, edges, [], batch.head))
    with store.reader() as reader:
        assert reader.edges_at(1) == edges[:2]
        assert reader.edges_at(3) == []
        assert reader.stray_edges() == []
        assert reader.edges_of("model:m", "out", None) == edges[1:2]
        assert reader.edges_of("model:m", "in", None) == edges[2:]
        assert reader.edges_of("model:m", "in", 1) == []
        assert reader.edges_of("model:", "in", None) == []


def _subtrees(store: Store) -> None:
    batch = example_batch(1, [("a/x", version) for version in range(1, 513)])
    kept = [SubtreeRow(1, 1, b"b" * 32), SubtreeRow(1, 0, b"a" * 32)]
    _insert(store, Batch(batch.rows, [], kept, batch.head))
    with store.reader() as reader:
        assert reader.subtree(1, 0) == b"a" * 32
        assert reader.subtree(1, 1) == b"b" * 32
        assert reader.subtree(1, 2) is None
        assert reader.subtree(2, 0) is None
        assert list(reader.subtrees(1)) == kept[::-1]
        assert list(reader.subtrees(1, 0, 1)) == kept[1:]
        assert list(reader.subtrees(1, 1)) == kept[:1]
        assert list(reader.subtrees(2)) == []


def _snapshot(store: Store) -> None:
    _insert(store, example_batch(1, [("a/x", 1)]))
    with store.reader() as reader:
        assert reader.size() == 1
        _insert(store, example_batch(2, [("a/x", 2), ("b/y", 1)], key="k"))
        assert reader.size() == 1
        assert reader.row(2) is None
        assert len(list(reader.rows(0, None, (), None))) == 1
        assert reader.version("a/x") == 1
        assert reader.streams("b/", None) == []
        assert reader.by_key("k-0") is None
        assert reader.edges_of("model:b/y", "out", None) == []
        assert [head.size for head in reader.heads(0)] == [1]
    with store.reader() as reader:
        assert reader.size() == 3


def _an_error_leaves_nothing(store: Store) -> None:
    class Interrupted(Exception):
        pass

    for size in (1, 2):
        try:
            with store.writer() as writer:
                writer.insert(example_batch(size, [("a/x", size)], key=f"k{size}"))
                writer.set_meta("colour", "red")
                raise Interrupted
        except Interrupted:
            pass
        with store.reader() as reader:
            assert reader.size() == size - 1
            assert reader.by_key(f"k{size}-0") is None
            assert reader.meta("colour") is None
        _insert(store, example_batch(size, [("a/x", size)], key=f"k{size}"))
    with store.reader() as reader:
        assert reader.size() == 2


def _positions_have_no_gaps(store: Store) -> None:
    _refused(store, example_batch(2, [("a/x", 1)]))
    _insert(store, example_batch(1, [("a/x", 1)]))
    _refused(store, example_batch(1, [("a/y", 1)]))
    _refused(store, example_batch(3, [("a/y", 1)]))
    _insert(store, example_batch(2, [("a/x", 2)]))


def _meta_is_set_once(store: Store) -> None:
    with store.writer() as writer:
        writer.set_meta("colour", "red")
    try:
        with store.writer() as writer:
            writer.set_meta("colour", "blue")
    except PosttrainError:
        pass
    else:
        raise AssertionError(f"{store.name} let a meta value be set twice")
    with store.reader() as reader:
        assert reader.meta("colour") == "red"
        assert reader.meta("size") is None


def _under_a_log(store: Store) -> None:
    log = Log(store, SigningKey.generate(), "ada")
    first = log.append(ev.PriceSet(device_kind="cpu", per_device_hour="1"), idempotency_key="once")
    again = log.append(ev.PriceSet(device_kind="cpu", per_device_hour="1"), idempotency_key="once")
    assert first == again
    prices = [NewEvent(ev.PriceSet(device_kind="cpu", per_device_hour=str(n))) for n in range(2, 300)]
    assert [event.version for event in log.append_many(prices)] == list(range(2, 300))
    with store.reader() as reader:
        assert reader.subtree(1, 0) is not None
    assert log.head().size == log.size() == 299


STORE_CHECKS: tuple[Callable[[Store], None], ...] = (
    _empty,
    _append_and_read,
    _heads,
    _streams_by_prefix,
    _edges,
    _subtrees,
    _snapshot,
    _an_error_leaves_nothing,
    _positions_have_no_gaps,
    _meta_is_set_once,
    _under_a_log,
)
