"""One digest for weights, on disk and in memory.

    weights = digest of canonical [{"name", "dtype", "shape", "content"}, …], sorted by name

`content` is the digest of the tensor's bytes, little-endian and row-major, as a safetensors file stores them; `dtype` is
the file format's own word (`F32`, `BF16`). Only names that are in the file count: a tied weight that is stored once is
hashed once. So a parent without torch computes from the verified files what an engine computes from its memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ledger.artifacts.weights import read_header
from ledger.canonical import canonical_bytes
from ledger.digest import sha256_digest
from ledger.errors import InputError

MAX_INDEX_BYTES = 64 << 20
MAX_ROWS_BYTES = 1 << 30
CHUNK_BYTES = 4 << 20
FLOATS = ("F64", "F32", "BF16", "F16")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as a safetensors header declares it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int  # offset in the file
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TensorDigest:
    name: str
    dtype: str
    shape: tuple[int, ...]
    content: str  # digest of the bytes


def combine(tensors: Iterable[TensorDigest]) -> str:
    """The digest of a set of tensors, whatever order they come in."""
    rows = [
        {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "content": tensor.content}
        for tensor in sorted(tensors, key=lambda tensor: tensor.name)
    ]
    return sha256_digest(canonical_bytes(rows, max_bytes=MAX_ROWS_BYTES))


def directory_digest(directory: Path) -> str:
    """The weights digest of a Hugging Face directory, read from its safetensors files.

    Raises:
        InputError: there are none, or a header is malformed.
    """
    return combine(_digests(tensor_specs(directory)))


def tensor_specs(directory: Path) -> list[TensorSpec]:
    """Every tensor that the directory's weight files declare, by name.

    Raises:
        InputError: no safetensors file, a header that lies about its bytes, or a name in two files.
    """
    specs: dict[str, TensorSpec] = {}
    for file in weight_files(directory):
        for spec in _specs(file):
            if spec.name in specs:
                raise InputError(f"{file}: tensor {spec.name!r} is also in {specs[spec.name].file.name}")
            specs[spec.name] = spec
    return [specs[name] for name in sorted(specs)]


def weight_files(directory: Path) -> list[Path]:
    """`model.safetensors`, or the shards that `model.safetensors.index.json` lists (the order in which loaders look)."""
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        raise InputError(f"{directory} holds no model.safetensors; only safetensors weights are served")
    shards = _read_index(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise InputError(f"{index}: no weight_map")
    names = sorted({str(name) for name in shards.values()})
    for name in names:
        if "/" in name or "\\" in name or name.startswith(".") or not name.endswith(".safetensors"):
            raise InputError(f"{index}: {name!r} is not the name of a safetensors file beside it")
    return [directory / name for name in names]


def main_dtype(specs: Iterable[TensorSpec]) -> str | None:
    """The floating dtype that most bytes have: the one to load in. `None` when there is no floating tensor."""
    sizes: dict[str, int] = {}
    for spec in specs:
        if spec.dtype in FLOATS:
            sizes[spec.dtype] = sizes.get(spec.dtype, 0) + spec.size_bytes
    return max(sizes, key=lambda dtype: sizes[dtype]) if sizes else None


def _specs(file: Path) -> list[TensorSpec]:
    tensors = read_header(file)  # refuses a header that does not describe exactly the bytes that follow
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
    specs = []
    for name, tensor in tensors.items():
        start, end = header[name]["data_offsets"]
        specs.append(TensorSpec(name, tensor.dtype, tensor.shape, file, 8 + length + start, end - start))
    return specs


def _digests(specs: Iterable[TensorSpec]) -> Iterator[TensorDigest]:
    for spec in specs:
        with spec.file.open("rb") as stream:
            stream.seek(spec.start)
            content = _hash_exactly(stream, spec)
        yield TensorDigest(spec.name, spec.dtype, spec.shape, content)


def _hash_exactly(stream: BinaryIO, spec: TensorSpec) -> str:
    state, left = hashlib.sha256(), spec.size_bytes
    while left:
        chunk = stream.read(min(CHUNK_BYTES, left))
        if not chunk:
            raise InputError(f"{spec.file} ends inside tensor {spec.name!r}: {left} bytes are missing")
        state.update(chunk)
        left -= len(chunk)
    return "sha256:" + state.hexdigest()


def _read_index(index: Path) -> dict[str, Any]:
    with index.open("rb") as stream:
        data = stream.read(MAX_INDEX_BYTES + 1)
    if len(data) > MAX_INDEX_BYTES:
        raise InputError(f"{index}: more than {MAX_INDEX_BYTES} bytes")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(f"{index}: not JSON") from None
    if not isinstance(content, dict):
        raise InputError(f"{index}: not a JSON object")
    return content
