"""Local pieces of sharded tensors: each rank writes its own, and any number of ranks reads them back.

FSDP2 shards a tensor along its first dimension as `torch.chunk` does: rank r of W holds rows [r·c, (r+1)·c) of n, with
c = ⌈n / W⌉; the last ranks may hold fewer, or none. At the same world size a rank reads exactly what it wrote; at another
one it reads the overlapping rows of several files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.distributed.tensor import DTensor, Shard

from executors.checkpoints.files import DTYPES, TensorEntry, file_order, write_tensors
from executors.checkpoints.layout import Piece, ShardKind, read_plan, shard_name
from executors.pipe import FileRecord
from ledger.artifacts.weights import read_header
from ledger.errors import InputError


def local_part(tensor: torch.Tensor) -> tuple[torch.Tensor, Piece]:
    """The rows of `tensor` that this rank holds, and where they belong. They share memory with `tensor`."""
    if not isinstance(tensor, DTensor):
        return tensor.detach(), Piece(tuple(tensor.shape), None)
    (placement,) = tensor.placements
    if not isinstance(placement, Shard) or placement.dim != 0:
        raise InputError(f"a tensor is placed as {placement}; checkpoints hold tensors sharded along dimension 0")
    local = tensor.to_local().detach()
    rows, ranks = tensor.shape[0], tensor.device_mesh.size()
    chunk = -(-rows // ranks)
    offset = min(tensor.device_mesh.get_local_rank() * chunk, rows)
    assert local.shape[0] == min(chunk, rows - offset), "FSDP2 shards otherwise than torch.chunk"
    return local, Piece(tuple(tensor.shape), offset)


def write_shard(
    directory: Path, rank: int, kind: ShardKind, tensors: Mapping[str, torch.Tensor]
) -> tuple[FileRecord, dict[str, Piece]]:
    """Write this rank's pieces of `tensors`; returns the file's record and its part of the shard plan."""
    parts = {name: local_part(tensor) for name, tensor in tensors.items()}
    entries = file_order(TensorEntry.of(name, local) for name, (local, _) in parts.items())
    content = (parts[entry.name][0] for entry in entries)
    record = write_tensors(directory / shard_name(rank, kind), entries, content, kind, {"format": "pt"})
    return record, {name: piece for name, (_, piece) in parts.items()}


def read_shards(
    directory: Path, kind: ShardKind, tensors: Mapping[str, torch.Tensor], *, rank: int, size: int, written_by: int
) -> None:
    """Fill this rank's pieces of `tensors` from the files of `written_by` ranks.

    Raises:
        InputError: a tensor is missing or unknown, has another shape or type, or some of its rows are in no file.
    """
    sources = [rank] if written_by == size else range(written_by)
    missing = {name: _rows(*local_part(tensor)) for name, tensor in tensors.items()}
    for source in sources:
        plan = read_plan(directory, source, kind)
        path = directory / shard_name(source, kind)
        _check(path, plan, tensors)
        with safe_open(path, framework="pt") as file:
            for name, tensor in tensors.items():
                missing[name] -= _copy(file, name, plan[name], tensor)
    for name, rows in missing.items():
        if rows > 0:
            raise InputError(f"checkpoint {directory}: {rows} rows of {kind} tensor {name} are in no shard")


def _check(path: Path, plan: Mapping[str, Piece], tensors: Mapping[str, torch.Tensor]) -> None:
    """A shard's header, its plan and the running model agree, before anything is read."""
    header = read_header(path)
    if not (header.keys() == plan.keys() == tensors.keys()):
        other = sorted(header.keys() ^ tensors.keys()) or sorted(plan.keys() ^ tensors.keys())
        raise InputError(f"{path}: its tensors are not those of this run, for instance {other[0]}")
    for name, tensor in tensors.items():
        piece, entry = plan[name], header[name]
        if piece.shape != tuple(tensor.shape) or entry.dtype != DTYPES[tensor.dtype]:
            raise InputError(
                f"{path}: {name} is {entry.dtype} {list(piece.shape)}; this run has {DTYPES[tensor.dtype]} {list(tensor.shape)}"
            )
        whole = piece.offset is None
        if entry.shape[1:] != piece.shape[1:] or (whole and entry.shape != piece.shape):
            raise InputError(f"{path}: {name} has the shape {list(entry.shape)}, no piece of {list(piece.shape)}")
        if not whole and (piece.offset or 0) + entry.shape[0] > piece.shape[0]:
            raise InputError(f"{path}: {name} has rows beyond the tensor's end")


def _copy(file: Any, name: str, piece: Piece, tensor: torch.Tensor) -> int:
    """Copy the rows that the file and this rank's part share; returns how many."""
    local, own = local_part(tensor)
    if own.offset is None or piece.offset is None:
        if (own.offset is None) != (piece.offset is None):
            raise InputError(f"tensor {name} is sharded in the checkpoint or in this run, not in both")
        local.copy_(file.get_tensor(name))
        return _rows(local, own)
    stored = file.get_slice(name)
    begin = max(own.offset, piece.offset)
    end = min(own.offset + local.shape[0], piece.offset + int(stored.get_shape()[0]))
    if end <= begin:
        return 0
    rows = stored[begin - piece.offset : end - piece.offset]
    local[begin - own.offset : end - own.offset].copy_(rows)
    return end - begin


def _rows(local: torch.Tensor, piece: Piece) -> int:
    return 1 if piece.offset is None else local.shape[0]
