"""Files on the disk: a blob's own, a damaged one, and directories that hold the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from ledger.artifacts import ArtifactStore


def blob_file(store: ArtifactStore, digest: str) -> Path:
    return Path(store.url) / "blobs/sha256" / digest.removeprefix("sha256:")


def same_files(left: Path, right: Path) -> bool:
    names = [{path.relative_to(place) for path in place.rglob("*") if path.is_file()} for place in (left, right)]
    return names[0] == names[1] and all((left / name).read_bytes() == (right / name).read_bytes() for name in names[0])


def change(path: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.chmod(0o644)
    path.write_bytes(data)


def flip(data: bytearray) -> None:
    position = random.Random(len(data)).randrange(len(data))
    data[position] ^= 1 << position % 8
