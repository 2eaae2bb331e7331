"""What the header of a safetensors file says, checked before anything is loaded from it.

The format: 8 bytes little-endian header length, that many bytes of JSON, then the tensors without gaps. The checks are those of
the format's reference reader, on top of bounds: a header that passes describes exactly the bytes that follow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ledger.artifacts.storage import open_regular, storage_errors
from ledger.errors import InputError

MAX_HEADER_BYTES = 100_000_000
_MAX_DIMENSIONS = 64
_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


class _HeaderError(Exception):
    """What is wrong with a header; becomes an InputError with the file's path."""


@dataclass(frozen=True, slots=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count


def read_header(path: Path) -> dict[str, Tensor]:
    """Tensor name → type and shape, in the order of the file.

    Raises:
        InputError: the file is missing, or its header is too large, not what the format says, or does not fit the file.
        InfrastructureError: it cannot be read.
    """
    with open_regular(path) as file, storage_errors("read", path):
        try:
            return _header(file)
        except _HeaderError as error:
            raise InputError(f"{path} is not a sound safetensors file: {error}; get the file again") from None


def _header(file: BinaryIO) -> dict[str, Tensor]:
    size = file.seek(0, 2)
    file.seek(0)
    start = _exactly(file, 8)
    length = int.from_bytes(start, "little")
    if length > MAX_HEADER_BYTES:
        raise _HeaderError(f"its header would have {length} bytes, more than {MAX_HEADER_BYTES}")
    if 8 + length > size:
        raise _HeaderError(f"its header would have {length} bytes, but the file has only {size}")
    text = _exactly(file, length)
    if not text.startswith(b"{"):
        raise _HeaderError("its header does not begin with {")
    try:
        entries = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise _HeaderError(f"its header is not JSON ({error})") from None
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(item, str) for item in metadata.values()):
        raise _HeaderError("its __metadata__ is not an object of texts")
    return _tensors(entries, size - 8 - length)


def _tensors(entries: dict[str, Any], data_bytes: int) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in entries.items():
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise _HeaderError(f"tensor {name!r} has other fields than dtype, shape and data_offsets")
        tensor = _tensor(name, entry["dtype"], entry["shape"], data_bytes)
        offsets = entry["data_offsets"]
        if not _are_lengths(offsets) or len(offsets) != 2:
            raise _HeaderError(f"tensor {name!r} has data_offsets {str(offsets)[:80]}")
        if (offsets[1] - offsets[0]) * 8 != tensor.elements * _BITS[tensor.dtype]:
            raise _HeaderError(f"tensor {name!r} has a shape that its offsets {offsets} do not fit")
        tensors[name] = tensor
        spans.append((offsets[0], offsets[1], name))
    end = 0
    for begin, stop, name in sorted(spans):
        if begin != end:
            raise _HeaderError(f"tensor {name!r} begins at {begin}, where {end} was due")
        end = stop
    if end != data_bytes:
        raise _HeaderError(f"its tensors end at {end}, its data at {data_bytes}")
    return tensors


def _tensor(name: str, dtype: Any, shape: Any, data_bytes: int) -> Tensor:
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise _HeaderError(f"tensor {name!r} has the unknown type {str(dtype)[:80]!r}")
    if not _are_lengths(shape) or len(shape) > _MAX_DIMENSIONS:
        raise _HeaderError(f"tensor {name!r} has the shape {str(shape)[:80]}")
    count = 0 if 0 in shape else 1
    for length in shape:
        count *= length
        if count * _BITS[dtype] > data_bytes * 8:  # before the product grows without bound
            raise _HeaderError(f"tensor {name!r} is larger than the file")
    return Tensor(dtype, tuple(shape))


def _are_lengths(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = file.read(count - len(data))
        if not chunk:
            raise _HeaderError(f"it ends after {len(data)} of {count} bytes")
        data += chunk
    return bytes(data)


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is there twice")
    return value
