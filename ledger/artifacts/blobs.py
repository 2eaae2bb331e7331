"""Verified reading of blobs: missing, wrong size and wrong digest are told apart, and each names the place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.artifacts.storage import Storage, Tick, blob_key
from ledger.errors import InputError, NotFound, TamperFound

if TYPE_CHECKING:
    from hashlib import _Hash


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a stored or staged file."""

    blob: str  # the digest that it should have; of a file that should not be there, the one that it has
    name: str  # of the file within its artifact; `manifest` and `config` for those two
    what: str
    path: str  # where it is, or should be

    def __str__(self) -> str:
        return f"{self.name}: {self.what} ({self.path})"


def read(storage: Storage, digest: str, *, max_bytes: int, size_bytes: int | None = None) -> bytes:
    """All bytes of a blob; `size_bytes` is what its descriptor declares, `None` where there is no descriptor.

    Raises:
        NotFound: the blob is missing.
        InputError: it has more than `max_bytes`.
        TamperFound: it has another size or another digest.
    """
    bound = storage.size_bytes(blob_key(digest)) if size_bytes is None else size_bytes
    if bound is None:
        raise _missing(storage, digest)
    if bound > max_bytes:
        raise InputError(
            f"blob {digest} has {bound} bytes, more than the {max_bytes} that may be read at once; "
            "materialise the artifact and read the file from there"
        )
    # Nothing is returned before the digest of the whole was checked at the end of the stream.
    return b"".join(stream(storage, digest, bound))


def stream(
    storage: Storage, digest: str, size_bytes: int, *, offset: int = 0, hasher: _Hash | None = None
) -> Iterator[bytes]:
    """The bytes of a blob from `offset` on, hashed on the way; `hasher` has seen those before.

    The chunks are unverified until the iterator has ended without raising: use them for nothing that survives a failure.
    Never yields more than the declared size.

    Raises:
        NotFound: the blob is missing.
        TamperFound: it has another size, or another digest (known only at the end).
    """
    key = blob_key(digest)
    actual = storage.size_bytes(key)
    if actual is None:
        raise _missing(storage, digest)
    if actual != size_bytes:
        raise _tampered(storage, digest, _size_differs(actual, size_bytes))
    hasher = hasher or hashlib.sha256()
    position = offset
    for chunk in storage.read(key, offset):
        position += len(chunk)
        if position > size_bytes:
            break
        hasher.update(chunk)
        yield chunk
    if position != size_bytes:
        raise _tampered(storage, digest, _size_differs(position, size_bytes))
    if "sha256:" + hasher.hexdigest() != digest:
        raise _tampered(storage, digest, "its bytes have another digest")


def check(storage: Storage, digest: str, size_bytes: int, name: str, tick: Tick) -> Problem | None:
    """What is wrong with one stored blob, read from beginning to end; `None` when nothing is."""
    place = storage.place(blob_key(digest))
    actual = storage.size_bytes(blob_key(digest))
    if actual is None:
        return Problem(digest, name, "missing", place)
    if actual != size_bytes:
        return Problem(digest, name, _size_differs(actual, size_bytes), place)
    try:
        for chunk in stream(storage, digest, size_bytes):
            tick(len(chunk))
    except (TamperFound, NotFound):
        return Problem(digest, name, "its bytes have another digest", place)
    return None


def _size_differs(actual: int, declared: int) -> str:
    return f"it has {actual} bytes, not {declared}"


def _missing(storage: Storage, digest: str) -> NotFound:
    return NotFound(
        f"blob {digest} is missing: there is nothing at {storage.place(blob_key(digest))}; "
        "add the artifact again from its source, or restore the file"
    )


def _tampered(storage: Storage, digest: str, what: str) -> TamperFound:
    return TamperFound(
        f"blob {digest} is damaged: {what} ({storage.place(blob_key(digest))}); "
        "add the artifact again from its source, or restore the file"
    )
