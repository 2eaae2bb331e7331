"""RFC 6962 Merkle tree arithmetic: pure functions over 32-byte SHA-256 hashes, and a check for every proof.

Leaves are counted from 0 here, as in the RFC; a log position is the leaf index plus 1. A *range* `[start, end)` is a run of
leaves; proofs are made from a function that gives the hash of a range, so where hashes are kept is the caller's affair.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()  # RFC 6962 §2.1: MTH({})

RangeHash = Callable[[int, int], bytes]


def leaf_hash(body: bytes) -> bytes:
    """RFC 6962 §2.1: SHA-256(0x00 || body)."""
    return hashlib.sha256(b"\x00" + body).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """RFC 6962 §2.1: SHA-256(0x01 || left || right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass(frozen=True, slots=True)
class Frontier:
    """The roots of the perfect subtrees that make up a tree, largest (leftmost) first: one for each 1 bit of `size`."""

    size: int = 0
    roots: tuple[bytes, ...] = ()

    def extended(self, leaves: Iterable[bytes]) -> Frontier:
        """The frontier after more leaf hashes; amortised one node hash a leaf."""
        size, roots = self.size, list(self.roots)
        for leaf in leaves:
            carry, height = leaf, size
            while height & 1:
                carry = node_hash(roots.pop(), carry)
                height >>= 1
            roots.append(carry)
            size += 1
        return Frontier(size, tuple(roots))

    def root(self) -> bytes:
        """The tree's root: the subtrees folded from the right."""
        if not self.roots:
            return EMPTY_ROOT
        folded = self.roots[-1]
        for left in reversed(self.roots[:-1]):
            folded = node_hash(left, folded)
        return folded


def root_hash(leaves: Iterable[bytes]) -> bytes:
    """The root over leaf hashes; 32 zero-argument bytes of SHA-256 for no leaves."""
    return Frontier().extended(leaves).root()


def range_hash(leaves: Sequence[bytes]) -> RangeHash:
    """A range function over leaf hashes held in memory."""
    return lambda start, end: root_hash(leaves[start:end])


def split(size: int) -> int:
    """The largest power of two smaller than `size` (> 1): where RFC 6962 divides a tree."""
    return 1 << ((size - 1).bit_length() - 1)


def prove_inclusion(index: int, size: int, hash_of: RangeHash) -> list[bytes]:
    """The audit path of leaf `index` in the tree of `size` leaves (RFC 6962 §2.1.1), leaf side first.

    Raises:
        ValueError: the leaf is not in the tree.
    """
    if not 0 <= index < size:
        raise ValueError(f"leaf {index} is not in a tree of {size} leaves")
    path: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + split(end - start)
        if index < middle:
            path.append(hash_of(middle, end))
            end = middle
        else:
            path.append(hash_of(start, middle))
            start = middle
    return path[::-1]


def check_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Whether `path` proves that `leaf` is leaf `index` of the tree with that size and root (RFC 9162 §2.1.3.2)."""
    if not 0 <= index < size:
        return False
    node, last, computed = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            return False
        if node & 1 or node == last:
            computed = node_hash(sibling, computed)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            computed = node_hash(computed, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and computed == root


def prove_consistency(old: int, size: int, hash_of: RangeHash) -> list[bytes]:
    """The proof that the tree of `old` leaves is a prefix of the tree of `size` leaves (RFC 6962 §2.1.2).

    Raises:
        ValueError: `old` is not within 1…size.
    """
    if not 0 < old <= size:
        raise ValueError(f"no consistency proof from {old} to {size} leaves")
    path: list[bytes] = []
    start, end, whole = 0, size, True
    while old != end:
        middle = start + split(end - start)
        if old <= middle:
            path.append(hash_of(middle, end))
            end = middle
        else:
            path.append(hash_of(start, middle))
            start, whole = middle, False
    if not whole:
        path.append(hash_of(start, end))
    return path[::-1]


def check_consistency(old: int, size: int, path: Sequence[bytes], old_root: bytes, root: bytes) -> bool:
    """Whether `path` proves that the old tree is a prefix of the new one (RFC 9162 §2.1.4.2)."""
    if old == size:
        return not path and old_root == root
    if not 0 < old < size or not path:
        return False
    nodes = list(path)
    if old & (old - 1) == 0:  # the old tree is itself a node of the new one
        nodes.insert(0, old_root)
    node, last = old - 1, size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    first = second = nodes[0]
    for sibling in nodes[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            first, second = node_hash(sibling, first), node_hash(sibling, second)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            second = node_hash(second, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and first == old_root and second == root
