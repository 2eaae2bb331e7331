"""Files that are hashed while they are written and durable when they are closed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from executors.pipe import FileRecord, Part
from ledger.errors import InfrastructureError

CHUNK_BYTES = 8 << 20

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""torch type → the word of the safetensors format."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor as a safetensors header lists it."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        count = self.dtype.itemsize
        for length in self.shape:
            count *= length
        return count

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> TensorEntry:
        return cls(name, tensor.dtype, tuple(tensor.shape))


class DurableFile:
    """A new file as a context: hashed by a second thread while it is written, on the disk when the context ends.

    Raises:
        InfrastructureError: it exists already, or the disk fails or is full.
    """

    def __init__(self, path: Path, part: Part) -> None:
        self.path = path
        self.part = part
        self.size_bytes = 0
        self._hash = hashlib.sha256()
        self._hasher = ThreadPoolExecutor(max_workers=1)

    def __enter__(self) -> Self:
        try:
            self._stream = self.path.open("xb", buffering=0)
        except OSError as error:
            raise InfrastructureError(f"{self.path} cannot be written: {error.strerror}") from error
        return self

    def write(self, data: bytes | memoryview) -> None:
        """Write and hash all of `data`; hashing overlaps with the disk."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), CHUNK_BYTES):
            chunk = view[start : start + CHUNK_BYTES]
            hashed = self._hasher.submit(self._hash.update, chunk)
            try:
                while chunk:
                    chunk = chunk[self._stream.write(chunk) :]
            except OSError as error:
                raise InfrastructureError(f"{self.path} cannot be written: {error.strerror}") from error
            finally:
                hashed.result()
        self.size_bytes += len(view)

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._hasher.shutdown()
        with self._stream:
            if kind is None:
                try:
                    os.fsync(self._stream.fileno())
                except OSError as error:
                    raise InfrastructureError(f"{self.path} cannot be made durable: {error.strerror}") from error

    def record(self) -> FileRecord:
        """What was written; call it after the context."""
        return FileRecord(self._hash.hexdigest(), self.size_bytes, self.part)


def write_bytes(path: Path, data: bytes, part: Part) -> FileRecord:
    """Write a small file."""
    with DurableFile(path, part) as file:
        file.write(data)
    return file.record()


def write_json(path: Path, content: Any, part: Part) -> FileRecord:
    """Write strict JSON; floats keep all their digits."""
    return write_bytes(path, json.dumps(content, sort_keys=True, allow_nan=False).encode("ascii"), part)


def write_tensors(
    path: Path, entries: Sequence[TensorEntry], tensors: Iterable[torch.Tensor], part: Part, metadata: Mapping[str, str]
) -> FileRecord:
    """Write a safetensors file, one tensor at a time, so that no second copy of all of them exists.

    Args:
        entries: in the order of `tensors`; see `file_order` for the order that loaders expect.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for entry in entries:
        begin, end = end, end + entry.size_bytes
        header[entry.name] = {"dtype": DTYPES[entry.dtype], "shape": list(entry.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8, for readers that map the file
    with DurableFile(path, part) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry, tensor in zip(entries, tensors, strict=True):
            assert (tuple(tensor.shape), tensor.dtype) == (entry.shape, entry.dtype), entry.name
            file.write(_bytes(tensor))
    return file.record()


def file_order(entries: Iterable[TensorEntry]) -> list[TensorEntry]:
    """Wider types first, so that every tensor is aligned; then by name."""
    return sorted(entries, key=lambda entry: (-entry.dtype.itemsize, entry.name))


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _bytes(tensor: torch.Tensor) -> memoryview:
    """A tensor's bytes, little-endian and row-major, without a copy when it lies so already."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    array: Any = flat.view(torch.uint8).numpy()
    return memoryview(array) if flat.numel() else memoryview(b"")
