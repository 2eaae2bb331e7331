"""RFC 6962 arithmetic against published vectors, and stored subtrees against the plain root."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from ledger.merkle import (
    EMPTY_ROOT,
    Frontier,
    check_consistency,
    check_inclusion,
    leaf_hash,
    node_hash,
    prove_consistency,
    prove_inclusion,
    range_hash,
    root_hash,
    split,
)
from ledger.store.base import SubtreeRow
from ledger.subtrees import full_subtrees, range_hashes, read_frontier

# The eight leaves and the roots of their prefixes that Certificate Transparency implementations test with.
BODIES = [
    bytes.fromhex(text)
    for text in (
        "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
    )
]  # fmt: skip
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
LEAVES = [leaf_hash(body) for body in BODIES]


def test_the_empty_tree() -> None:
    assert EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert root_hash([]) == EMPTY_ROOT


@pytest.mark.parametrize("size", range(1, 9))
def test_the_known_roots(size: int) -> None:
    assert root_hash(LEAVES[:size]).hex() == ROOTS[size - 1]
    assert Frontier().extended(LEAVES[:3]).extended(LEAVES[3:size]).root().hex() == ROOTS[max(size, 3) - 1]


def test_the_known_proofs() -> None:
    hash_of = range_hash(LEAVES)
    # RFC 6962 §2.1.3, over seven leaves d0…d6.
    seven = range_hash(LEAVES[:7])
    d, g = LEAVES, node_hash(LEAVES[0], LEAVES[1])
    h, i, j = node_hash(d[2], d[3]), node_hash(d[4], d[5]), d[6]
    k = node_hash(g, h)
    leaf = node_hash(i, j)
    assert prove_inclusion(0, 7, seven) == [d[1], h, leaf]
    assert prove_inclusion(3, 7, seven) == [d[2], g, leaf]
    assert prove_inclusion(4, 7, seven) == [d[5], j, k]
    assert prove_inclusion(6, 7, seven) == [i, k]
    assert prove_consistency(3, 7, seven) == [d[2], d[3], g, leaf]
    assert prove_consistency(4, 7, seven) == [leaf]
    assert prove_consistency(6, 7, seven) == [i, j, k]
    assert prove_consistency(8, 8, hash_of) == []


@pytest.mark.parametrize(("size", "expected"), [(2, 1), (3, 2), (4, 2), (5, 4), (8, 4), (9, 8), (65537, 65536)])
def test_where_a_tree_divides(size: int, expected: int) -> None:
    assert split(size) == expected


@pytest.mark.parametrize(("index", "size"), [(-1, 3), (3, 3), (0, 0)])
def test_no_proof_for_a_leaf_outside(index: int, size: int) -> None:
    with pytest.raises(ValueError, match="is not in a tree"):
        prove_inclusion(index, size, range_hash(LEAVES))
    assert not check_inclusion(LEAVES[0], index, size, [], LEAVES[0])


@pytest.mark.parametrize(("old", "size"), [(0, 3), (4, 3), (-1, 3)])
def test_no_proof_from_a_size_outside(old: int, size: int) -> None:
    with pytest.raises(ValueError, match="no consistency proof"):
        prove_consistency(old, size, range_hash(LEAVES))
    assert not check_consistency(old, size, [LEAVES[0]], LEAVES[0], LEAVES[0])


class Leaves:
    """The part of a reader that tree arithmetic uses, counting what it is asked for."""

    def __init__(self) -> None:
        self.hashes: list[bytes] = []
        self.kept: dict[tuple[int, int], bytes] = {}
        self.read = 0

    def size(self) -> int:
        return len(self.hashes)

    def leaves(self, start: int, end: int) -> list[bytes]:
        self.read += end - start
        return self.hashes[start:end]

    def subtree(self, level: int, index: int) -> bytes | None:
        self.read += 1
        return self.kept.get((level, index))

    def subtrees(self, level: int, start: int, end: int) -> Iterator[SubtreeRow]:
        for index in range(start, end):
            self.read += 1
            if (level, index) in self.kept:
                yield SubtreeRow(level, index, self.kept[level, index])

    def append(self, hashes: list[bytes]) -> list[SubtreeRow]:
        made = full_subtrees(self, len(self.hashes), hashes)  # type: ignore[arg-type]
        self.hashes += hashes
        self.kept |= {(row.level, row.index): row.hash for row in made}
        return made


def hashes(start: int, end: int) -> list[bytes]:
    return [hashlib.sha256(number.to_bytes(8, "big")).digest() for number in range(start, end)]


@pytest.mark.parametrize(
    "steps",
    [
        [255, 256, 257],
        [1, 256, 511, 512, 513],
        [257, 1000],
        [65279, 65280, 65535, 65536, 65537],
        [65600],
        [300, 65700, 66000, 131072],
    ],
    ids=str,
)
def test_stored_subtrees_equal_the_plain_root(steps: list[int]) -> None:
    tree, frontier = Leaves(), Frontier()
    for size in steps:
        added = hashes(len(tree.hashes), size)
        tree.append(added)
        frontier = frontier.extended(added)
        assert {key for key in tree.kept if key[0] == 1} == {(1, i) for i in range(size // 256)}
        assert {key for key in tree.kept if key[0] > 1} == {(2, i) for i in range(size // 65536)}
        assert read_frontier(tree) == frontier  # type: ignore[arg-type]
        assert range_hashes(tree)(0, size) == frontier.root()  # type: ignore[arg-type]
    for (level, index), kept in tree.kept.items():
        if level == 2:
            assert kept == root_hash(tree.hashes[index * 65536 : (index + 1) * 65536])


def test_proofs_over_stored_subtrees_read_little() -> None:
    tree = Leaves()
    tree.append(hashes(0, 66_000))
    hash_of = range_hashes(tree)  # type: ignore[arg-type]
    root = hash_of(0, 66_000)
    for index in (0, 255, 256, 40_000, 65_535, 65_536, 65_999):
        tree.read = 0
        path = prove_inclusion(index, 66_000, hash_of)
        assert tree.read < 1500
        assert check_inclusion(tree.hashes[index], index, 66_000, path, root)
    for old in (1, 255, 256, 257, 65_536, 65_537, 66_000):
        path = prove_consistency(old, 66_000, hash_of)
        assert check_consistency(old, 66_000, path, hash_of(0, old), root)


def test_a_subtree_that_was_not_kept_is_computed() -> None:
    tree = Leaves()
    tree.append(hashes(0, 1024))
    root = range_hashes(tree)(0, 1024)  # type: ignore[arg-type]
    tree.kept.clear()
    assert range_hashes(tree)(0, 1024) == root  # type: ignore[arg-type]
    assert tree.append(hashes(1024, 1280)) == [SubtreeRow(1, 4, root_hash(hashes(1024, 1280)))]
