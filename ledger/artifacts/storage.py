"""Where blobs live: the seam between the artifact store and a file system.

A `Storage` keeps immutable blobs under their digests and a few small documents of the layout under keys. It checks nothing
that it reads; `ledger.artifacts.blobs` does.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from ledger.digest import parse_digest
from ledger.errors import InfrastructureError, InputError

CHUNK_BYTES = 4 << 20
"""How much of a file is in memory at a time, for each worker."""

Tick = Callable[[int], None]
"""Told of the bytes that were just handled; raises to stop the work."""


class FileTick:
    """Ticks for one file that may have to be read again: no byte is counted twice."""

    def __init__(self, tick: Tick) -> None:
        self._tick = tick
        self._position = self._counted = 0

    def __call__(self, count: int) -> None:
        self._position += count
        new = max(0, self._position - self._counted)
        self._counted += new
        self._tick(new)

    def restart(self) -> None:
        self._position = 0


_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)


def blob_key(digest: str) -> str:
    """The key of a blob (image-spec image-layout.md, "Blobs").

    Raises:
        InputError: not a digest; so no other text ever becomes part of a path.
    """
    return "blobs/sha256/" + parse_digest(digest).removeprefix("sha256:")


class Storage(ABC):
    """Bytes under keys, which are relative POSIX paths."""

    url: str
    """Where it is, for people."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the layout ready for writing; free when it is."""

    @abstractmethod
    def put_file(self, source: Path, tick: Tick) -> tuple[str, int]:
        """Store the bytes of a file as a blob: its digest and size. Durable after `settle`."""

    @abstractmethod
    def put_bytes(self, digest: str, data: bytes) -> None:
        """Store `data`, whose digest is `digest`. Durable after `settle`."""

    @abstractmethod
    def settle(self) -> None:
        """Return when every blob that was put is durable under its name."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Replace a small document; atomic, and durable when it returns."""

    @abstractmethod
    def size_bytes(self, key: str) -> int | None:
        """How many bytes there are under a key; `None` when there is nothing."""

    @abstractmethod
    def read(self, key: str, offset: int = 0) -> Iterator[bytes]:
        """The bytes from `offset` on, in chunks.

        Raises:
            NotFound: there is nothing under the key.
        """

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove what is under a key; nothing there is fine."""

    @abstractmethod
    def keys(self, prefix: str) -> list[str]:
        """The keys directly under a prefix, sorted."""

    @abstractmethod
    def place(self, key: str) -> str:
        """Where a key is, for messages."""

    @abstractmethod
    def locked(self, name: str, *, shared: bool) -> AbstractContextManager[None]:
        """Keep other writers of this store out (`shared`: only exclusive ones)."""


@contextmanager
def storage_errors(doing: str, place: object) -> Iterator[None]:
    """Turn an `OSError` into an `InfrastructureError` that says where and what to do."""
    try:
        yield
    except OSError as error:
        raise InfrastructureError(
            f"cannot {doing} {place}: {error.strerror or error}; {_advice(error.errno)}"
        ) from error


def _advice(number: int | None) -> str:
    if number in _NO_SPACE:
        return "nothing was lost: free space (or raise the limit) and run it again"
    if number in _NO_PERMISSION:
        return "give this user permission and run it again"
    return "see that the disk is healthy and mounted, then run it again"


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """A regular file for unbuffered reading.

    Raises:
        InputError: it is not there, or it is a directory, a device, a pipe or a socket.
        InfrastructureError: it cannot be read.
    """
    try:
        # O_NONBLOCK: opening a pipe that nobody writes to must not hang.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path} does not exist; check the path") from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise InputError(f"{path} is not a regular file; remove it or leave it out") from None
        with storage_errors("read", path):
            raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path} is not a regular file; remove it or leave it out")
    with open(descriptor, "rb", buffering=0) as file:
        yield file


def read_into(file: BinaryIO, view: memoryview, place: object) -> int:
    """Fill as much of `view` as one read gives; 0 at the end of the file."""
    with storage_errors("read", place):
        return file.readinto(view) or 0  # type: ignore[attr-defined]  # unbuffered files have it


def write_all(descriptor: int, data: bytes | memoryview, place: object) -> None:
    """Write all of `data`; a nearly full disk takes a part first and refuses the rest."""
    view = memoryview(data)
    with storage_errors("write", place):
        while view:
            view = view[os.write(descriptor, view) :]


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory durable."""
    with storage_errors("sync", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def hash_file(path: Path, tick: Tick) -> tuple[str, int]:
    """Digest and size of a regular file.

    Raises:
        InputError: it is missing or not a regular file.
        InfrastructureError: it cannot be read.
    """
    count = FileTick(tick)
    hasher = hashlib.sha256()
    size = 0
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with open_regular(path) as file:
        while length := read_into(file, buffer, path):
            hasher.update(buffer[:length])
            size += length
            count(length)
    return "sha256:" + hasher.hexdigest(), size
