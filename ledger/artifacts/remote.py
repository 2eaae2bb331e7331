"""Blobs in an object store, through fsspec: `s3://…`, `gs://…`, `memory://…`.

An upload costs more than a read, and an object store has no rename: a file is hashed first, skipped when its blob is there,
and otherwise hashed again while it is uploaded under its final key. Objects appear whole or not at all there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs

from ledger.artifacts.storage import CHUNK_BYTES, Storage, Tick, blob_key, hash_file, open_regular, read_into
from ledger.errors import InfrastructureError, InputError, NotFound, PosttrainError

_RANGE_BYTES = 4 * CHUNK_BYTES  # each range is a request


class RemoteStorage(Storage):
    """Raises InputError for a URL that fsspec does not know, InfrastructureError for everything that the far side refuses."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            # A cached listing would hide what other processes wrote.
            self._fs, self._root = url_to_fs(url, use_listings_cache=False)
        except (ValueError, ImportError) as error:
            raise InputError(f"cannot open the artifact store {url!r}: {error}") from None

    def prepare(self) -> None:
        """Nothing to do: keys need no directories, and a bucket that is not there is a mistake in the URL."""

    def put_file(self, source: Path, tick: Tick) -> tuple[str, int]:
        digest, size = hash_file(source, tick)
        key = blob_key(digest)
        if self.size_bytes(key) == size:
            return digest, size
        hasher = hashlib.sha256()
        buffer = memoryview(bytearray(CHUNK_BYTES))
        with open_regular(source) as file, self._errors("write", key), self._fs.open(self._path(key), "wb") as out:
            while count := read_into(file, buffer, source):
                hasher.update(buffer[:count])
                out.write(buffer[:count])
                tick(0)
        if "sha256:" + hasher.hexdigest() != digest:
            self.remove(key)
            raise InputError(
                f"{source} changed while it was being stored; wait until nothing writes to it and run it again"
            )
        return digest, size

    def put_bytes(self, digest: str, data: bytes) -> None:
        if self.size_bytes(blob_key(digest)) != len(data):
            self.write(blob_key(digest), data)

    def settle(self) -> None:
        """Nothing to do: an object that was acknowledged is durable."""

    def write(self, key: str, data: bytes) -> None:
        with self._errors("write", key):
            self._fs.pipe_file(self._path(key), data)

    def size_bytes(self, key: str) -> int | None:
        with self._errors("look at", key):
            try:
                return int(self._fs.info(self._path(key))["size"])
            except FileNotFoundError:
                return None

    def read(self, key: str, offset: int = 0) -> Iterator[bytes]:
        size = self.size_bytes(key)
        if size is None:
            raise NotFound(f"there is nothing at {self.place(key)}")
        # By ranges, not by an open file: some file systems share one position between all readers of a path.
        while offset < size:
            with self._errors("read", key):
                end = min(offset + _RANGE_BYTES, size)
                chunk: bytes = self._fs.cat_file(self._path(key), start=offset, end=end)
            if not chunk:
                return
            offset += len(chunk)
            yield chunk

    def remove(self, key: str) -> None:
        with self._errors("remove", key):
            try:
                self._fs.rm_file(self._path(key))
            except FileNotFoundError:
                return

    def keys(self, prefix: str) -> list[str]:
        with self._errors("list", prefix):
            try:
                found: list[Any] = self._fs.ls(self._path(prefix), detail=False)
            except FileNotFoundError:
                return []
        return sorted(f"{prefix}/{str(path).rsplit('/', 1)[-1]}" for path in found)

    def place(self, key: str) -> str:
        return f"{self.url}/{key}"

    def locked(self, name: str, *, shared: bool) -> AbstractContextManager[None]:
        """Nothing: object stores have no locks. Do not erase while another process adds."""
        return nullcontext()

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @contextmanager
    def _errors(self, doing: str, key: str) -> Iterator[None]:
        try:
            yield
        except PosttrainError:
            raise
        except Exception as error:  # each backend has exceptions of its own, with no common base
            reason = str(error) or type(error).__name__
            raise InfrastructureError(
                f"cannot {doing} {self.place(key)}: {reason}; check the network, the credentials and the URL"
            ) from error
