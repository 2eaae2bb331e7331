"""Blobs on a local file system: hashed while they are written, durable before they have a name.

    <root>/oci-layout, index.json     the OCI image layout
    <root>/blobs/sha256/<hex>         read-only files
    <root>/manifests/sha256/<hex>     a descriptor for each blob that is a manifest
    <root>/ingest/                    files that are being written, each locked by its writer, and lock files

A file is written under `ingest/`, synced, then renamed to its digest. What a killed writer leaves there is removed by the next.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from ledger.artifacts.locks import is_linked, locked, try_lock
from ledger.artifacts.storage import (
    CHUNK_BYTES,
    FileTick,
    Storage,
    Tick,
    blob_key,
    open_regular,
    read_into,
    storage_errors,
    sync_directory,
    write_all,
)
from ledger.errors import NotFound

_TWIN_BYTES = 1 << 20  # below this, writing a file again is as cheap as looking for it
_SAMPLE_BYTES = 4096
_DIRECTORIES = ("ingest", "manifests/sha256", "blobs/sha256")


class LocalStorage(Storage):
    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))
        self.url = str(self.root)
        self._sizes: dict[int, list[str]] | None = None
        self._sizes_lock = threading.Lock()

    def prepare(self) -> None:
        for name in _DIRECTORIES:
            _make_directory(self.root / name)
        with self._sizes_lock:
            self._sizes = None  # other processes write here too
        self._sweep()

    def put_file(self, source: Path, tick: Tick) -> tuple[str, int]:
        count = FileTick(tick)
        with open_regular(source) as file:
            size = os.fstat(file.fileno()).st_size
            for twin in self._same_size(size) if size >= _TWIN_BYTES else ():
                digest = _compare(file, source, twin, size, count)
                if digest is not None:
                    return digest, size
                file.seek(0)
                count.restart()
            return self._ingest(file, source, count)

    def put_bytes(self, digest: str, data: bytes) -> None:
        path = self.root / blob_key(digest)
        if self.size_bytes(blob_key(digest)) == len(data):
            with open_regular(path) as file, storage_errors("read", path):
                if file.readall() == data:  # type: ignore[attr-defined]  # unbuffered files have it
                    return
        with self._writing() as (descriptor, temporary):
            write_all(descriptor, data, temporary)
            self._seal(descriptor, temporary, path)

    def settle(self) -> None:
        sync_directory(self.root / "blobs/sha256")

    def write(self, key: str, data: bytes) -> None:
        path = self.root / key
        with self._writing() as (descriptor, temporary):
            write_all(descriptor, data, temporary)
            with storage_errors("write", path):
                os.fsync(descriptor)
                os.rename(temporary, path)
        sync_directory(path.parent)

    def size_bytes(self, key: str) -> int | None:
        with storage_errors("look at", self.root / key):
            try:
                return os.stat(self.root / key).st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read(self, key: str, offset: int = 0) -> Iterator[bytes]:
        path = self.root / key
        with storage_errors("read", path):
            try:
                file: BinaryIO = open(path, "rb", buffering=0)  # noqa: SIM115  # closed by `with` below
            except (FileNotFoundError, NotADirectoryError):
                raise NotFound(f"there is nothing at {path}") from None
        with file:
            file.seek(offset)
            while True:
                with storage_errors("read", path):
                    chunk = file.read(CHUNK_BYTES)
                if not chunk:
                    return
                yield chunk

    def remove(self, key: str) -> None:
        path = self.root / key
        with storage_errors("remove", path):
            path.unlink(missing_ok=True)

    def keys(self, prefix: str) -> list[str]:
        with storage_errors("list", self.root / prefix):
            try:
                return sorted(f"{prefix}/{name}" for name in os.listdir(self.root / prefix))
            except FileNotFoundError:
                return []

    def place(self, key: str) -> str:
        return str(self.root / key)

    def locked(self, name: str, *, shared: bool) -> AbstractContextManager[None]:
        return locked(self.root / "ingest" / f"{name}.lock", shared=shared)

    def _ingest(self, file: BinaryIO, source: Path, tick: Tick) -> tuple[str, int]:
        """One pass: read, hash, write. What is stored is what was hashed, even if the source changes meanwhile."""
        hasher = hashlib.sha256()
        size = 0
        buffer = memoryview(bytearray(CHUNK_BYTES))
        with self._writing() as (descriptor, temporary):
            while count := read_into(file, buffer, source):
                hasher.update(buffer[:count])
                write_all(descriptor, buffer[:count], temporary)
                size += count
                tick(count)
            digest = "sha256:" + hasher.hexdigest()
            self._seal(descriptor, temporary, self.root / blob_key(digest))
        return digest, size

    @staticmethod
    def _seal(descriptor: int, temporary: Path, path: Path) -> None:
        with storage_errors("write", temporary):
            os.fchmod(descriptor, 0o444)
            os.fsync(descriptor)
        # Also over a blob of that name: ours was hashed just now, and the one there may have rotted.
        with storage_errors("write", path):
            os.rename(temporary, path)

    @contextmanager
    def _writing(self) -> Iterator[tuple[int, Path]]:
        """A new locked file under `ingest/`; removed at the end unless it was renamed."""
        while True:
            temporary = self.root / "ingest" / secrets.token_hex(16)
            with storage_errors("write", temporary):
                descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
                # Between the two calls a sweep may take the file for a dead writer's: then take another.
                if try_lock(descriptor) and is_linked(descriptor, temporary):
                    break
                os.close(descriptor)
        try:
            yield descriptor, temporary
        finally:
            temporary.unlink(missing_ok=True)
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what killed writers left: files under `ingest/` that nobody holds a lock on."""
        ingest = self.root / "ingest"
        with storage_errors("clean", ingest):
            for name in os.listdir(ingest):
                if name.endswith(".lock"):
                    continue
                try:
                    descriptor = os.open(ingest / name, os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue  # its writer was faster
                try:
                    if try_lock(descriptor) and is_linked(descriptor, ingest / name):
                        os.unlink(ingest / name)
                finally:
                    os.close(descriptor)

    def _same_size(self, size: int) -> list[Path]:
        """Blobs of exactly this size."""
        with self._sizes_lock:
            if self._sizes is None:
                self._sizes = {}
                with (
                    storage_errors("list", self.root / "blobs/sha256"),
                    os.scandir(self.root / "blobs/sha256") as entries,
                ):
                    for entry in entries:
                        self._sizes.setdefault(entry.stat().st_size, []).append(entry.path)
            return [Path(path) for path in self._sizes.get(size, ())]


def _compare(file: BinaryIO, source: Path, twin: Path, size: int, tick: Tick) -> str | None:
    """The digest of `file` when it holds the bytes of the blob `twin` and those are the blob's own; else `None`.

    Storing a file again then costs two reads and no write, so it needs no room on a full disk.
    """
    try:
        other = open(twin, "rb", buffering=0)  # noqa: SIM115  # closed by `with` below
    except FileNotFoundError:
        return None  # erased meanwhile
    with other:
        if not _samples_agree(file, other, size):
            return None
        hasher = hashlib.sha256()
        left, right = memoryview(bytearray(CHUNK_BYTES)), memoryview(bytearray(CHUNK_BYTES))
        while count := read_into(file, left, source):
            if read_into(other, right[:count], twin) != count or left[:count] != right[:count]:
                return None
            hasher.update(left[:count])
            tick(count)
    return "sha256:" + hasher.hexdigest() if hasher.hexdigest() == twin.name else None


def _samples_agree(file: BinaryIO, other: BinaryIO, size: int) -> bool:
    """A cheap look at the middle and the end: checkpoints of one run have equal sizes and different bytes."""
    for offset in (size // 2, size - _SAMPLE_BYTES):
        first = os.pread(file.fileno(), _SAMPLE_BYTES, offset)
        if first != os.pread(other.fileno(), _SAMPLE_BYTES, offset):
            return False
    return True


def _make_directory(path: Path) -> None:
    """Make a directory and its parents, each name durable."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    with storage_errors("make", path):
        path.mkdir(exist_ok=True)
    sync_directory(path.parent)
