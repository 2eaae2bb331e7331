"""Roots of full 256-leaf subtrees, kept as they fill up, so that frontiers and proofs read O(log n) rows.

Level k holds one hash for each run of 256^k leaves: what a C2SP tlog tile of level k lists.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger.merkle import Frontier, RangeHash, node_hash, root_hash, split
from ledger.store.base import Reader, SubtreeRow

WIDTH = 256


def full_subtrees(reader: Reader, size: int, leaves: Sequence[bytes]) -> list[SubtreeRow]:
    """The subtrees that fill up when `leaves` are appended to a tree of `size` leaves."""
    rows: list[SubtreeRow] = []
    if size % WIDTH + len(leaves) < WIDTH:
        return rows
    start = size - size % WIDTH
    hashes = reader.leaves(start, size) + list(leaves) if size % WIDTH else list(leaves)
    level, index = 1, start // WIDTH
    while len(hashes) >= WIDTH:
        made = [root_hash(hashes[i : i + WIDTH]) for i in range(0, len(hashes) - WIDTH + 1, WIDTH)]
        rows += [SubtreeRow(level, index + i, made_hash) for i, made_hash in enumerate(made)]
        first = index - index % WIDTH  # the siblings to the left that the next level needs
        hashes = [_stored(reader, level, i) for i in range(first, index)] + made
        level, index = level + 1, first // WIDTH
    return rows


def read_frontier(reader: Reader) -> Frontier:
    """The frontier of the whole log, from the stored subtrees and at most 255 leaf hashes."""
    size = reader.size()
    hash_of = range_hashes(reader)
    roots, start = [], 0
    for bit in range(size.bit_length() - 1, -1, -1):
        if size >> bit & 1:
            roots.append(hash_of(start, start + (1 << bit)))
            start += 1 << bit
    return Frontier(size, tuple(roots))


def range_hashes(reader: Reader) -> RangeHash:
    """The hash of any leaf range `[start, end)` that a proof asks for, from the largest stored pieces."""

    def hash_of(start: int, end: int) -> bytes:
        length = end - start
        level, width = 0, 1
        while length and length % (width * WIDTH) == start % (width * WIDTH) == 0:
            level, width = level + 1, width * WIDTH
        if level:  # whole subtrees, read at once: a tree over them is the tree over their leaves
            stored = [row.hash for row in reader.subtrees(level, start // width, end // width)]
            if len(stored) == length // width:
                return root_hash(stored)
        if length <= WIDTH:
            return root_hash(reader.leaves(start, end))
        middle = start + split(length)
        return node_hash(hash_of(start, middle), hash_of(middle, end))

    return hash_of


def _stored(reader: Reader, level: int, index: int) -> bytes:
    found = reader.subtree(level, index)
    if found is None:  # not kept: recompute from the level below
        return range_hashes(reader)(index * WIDTH**level, (index + 1) * WIDTH**level)
    return found
