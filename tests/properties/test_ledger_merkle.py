"""Merkle proofs: each one holds, and no changed one does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledger.merkle import (
    Frontier,
    check_consistency,
    check_inclusion,
    leaf_hash,
    prove_consistency,
    prove_inclusion,
    range_hash,
    root_hash,
)

LEAVES = [leaf_hash(b"%d" % number) for number in range(300)]
SIZES = st.integers(1, 300)


@given(SIZES, st.data())
def test_inclusion(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    root, path = root_hash(LEAVES[:size]), prove_inclusion(index, size, range_hash(LEAVES))
    leaf = LEAVES[index]
    assert check_inclusion(leaf, index, size, path, root)
    assert not check_inclusion(leaf_hash(b"another"), index, size, path, root)
    assert not check_inclusion(leaf, index, size, [*path, root], root)
    assert not check_inclusion(leaf, index, size, path, LEAVES[0] if size > 1 else LEAVES[1])
    other = data.draw(st.integers(0, size - 1).filter(lambda i: i != index)) if size > 1 else size
    assert not check_inclusion(leaf, other, size, path, root)
    if path:
        assert not check_inclusion(leaf, index, size, path[:-1], root)
        assert not check_inclusion(leaf, index, size, _flipped(path, data), root)


@given(SIZES, st.data())
def test_consistency(size: int, data: st.DataObject) -> None:
    old = data.draw(st.integers(1, size))
    before, after = root_hash(LEAVES[:old]), root_hash(LEAVES[:size])
    path = prove_consistency(old, size, range_hash(LEAVES))
    assert check_consistency(old, size, path, before, after)
    assert not check_consistency(old, size, path, leaf_hash(b"another"), after)
    assert not check_consistency(old, size, path, before, leaf_hash(b"another"))
    assert not check_consistency(old, size, [*path, after], before, after)
    if path:
        assert not check_consistency(old, size, path[:-1], before, after)
        assert not check_consistency(old, size, _flipped(path, data), before, after)


@given(st.lists(st.integers(0, 60), max_size=6))
def test_a_frontier_grows_in_any_steps(steps: list[int]) -> None:
    frontier, size = Frontier(), 0
    for step in steps:
        frontier = frontier.extended(LEAVES[size : size + step])
        size = frontier.size
    assert frontier.root() == root_hash(LEAVES[:size])
    assert len(frontier.roots) == size.bit_count()


def _flipped(path: list[bytes], data: st.DataObject) -> list[bytes]:
    at, bit = data.draw(st.integers(0, len(path) - 1)), data.draw(st.integers(0, 255))
    changed = (int.from_bytes(path[at], "big") ^ (1 << bit)).to_bytes(32, "big")
    return [*path[:at], changed, *path[at + 1 :]]
