"""The two JSON documents that say what a checkpoint directory holds. What is read here may come from anywhere.

`checkpoint.json` is written last within the directory and lists the size of every other file. A shard plan lists, for each
tensor in a rank's files, its whole shape and where along its first dimension the piece begins; the piece's own shape is in
the header of its file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from executors.base import CHECKPOINT_INDEX, MAX_INDEX_BYTES
from ledger.errors import InputError

FORMAT = "posttrain-sharded-1"
MAX_JSON_BYTES = 64 << 20
MAX_FILES = 100_000
ShardKind = Literal["model", "optimizer"]

_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a tensor. `offset` is along the first dimension; `None` when the piece is all of it."""

    shape: tuple[int, ...]  # of the whole tensor
    offset: int | None


@dataclass(frozen=True, slots=True)
class Index:
    """`checkpoint.json`. `files` maps every other file's name to its size in bytes."""

    step: int
    resume: str
    world_size: int
    samples_seen: int
    files: Mapping[str, int]

    def document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "step": self.step,
            "resume": self.resume,
            "world_size": self.world_size,
            "samples_seen": self.samples_seen,
            "files": dict(self.files),
        }

    @classmethod
    def read(cls, directory: Path) -> Index:
        """The index of a checkpoint whose every listed file is there in the listed size.

        Raises:
            InputError: the index is missing or malformed, or a file is missing, a link, or of another size.
        """
        place = directory / CHECKPOINT_INDEX
        body = read_json(place, MAX_INDEX_BYTES)
        if body.get("format") != FORMAT:
            raise InputError(f"{place}: format {body.get('format')!r}; this release reads {FORMAT}")
        counts = [body.get(name) for name in ("step", "world_size", "samples_seen")]
        files = body.get("files")
        if not all(type(count) is int and count >= 0 for count in counts) or counts[1] == 0:
            raise InputError(f"{place}: step, world_size and samples_seen are {counts}, not counts")
        if not isinstance(files, dict) or len(files) > MAX_FILES:
            raise InputError(f"{place}: files is not an object of at most {MAX_FILES} names")
        for name, size in files.items():
            _check_file(directory, name, size)
        return cls(body["step"], str(body.get("resume")), body["world_size"], body["samples_seen"], files)


def shard_plan_name(rank: int) -> str:
    return f"shards/rank-{rank:05d}.json"


def shard_name(rank: int, kind: ShardKind) -> str:
    return f"shards/rank-{rank:05d}-{kind}.safetensors"


def random_state_name(rank: int) -> str:
    return f"rng/rank-{rank:05d}.json"


def plan_document(pieces: Mapping[ShardKind, Mapping[str, Piece]]) -> dict[str, Any]:
    """The shard plan of one rank."""
    return {
        kind: {name: {"shape": list(piece.shape), "offset": piece.offset} for name, piece in own.items()}
        for kind, own in pieces.items()
    }


def read_plan(directory: Path, rank: int, kind: ShardKind) -> dict[str, Piece]:
    """What one rank's file of `kind` holds, by tensor name.

    Raises:
        InputError: the plan is missing or malformed.
    """
    place = directory / shard_plan_name(rank)
    body = read_json(place, MAX_JSON_BYTES).get(kind)
    if not isinstance(body, dict):
        raise InputError(f"{place} has no object {kind}")
    pieces: dict[str, Piece] = {}
    for name, entry in body.items():
        shape, offset = (entry.get("shape"), entry.get("offset")) if isinstance(entry, dict) else (None, None)
        lengths = [*shape, 0 if offset is None else offset] if isinstance(shape, list) else [None]
        if not all(type(length) is int and 0 <= length < 2**53 for length in lengths):
            raise InputError(f"{place}: {kind}.{name} has shape {shape!r} and offset {offset!r}")
        pieces[name] = Piece(tuple(shape or ()), offset)
    return pieces


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """A JSON object.

    Raises:
        InputError: missing, larger than `max_bytes`, or not a JSON object.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise InputError(f"{path} is larger than {max_bytes} bytes")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON") from None
    if not isinstance(body, dict):
        raise InputError(f"{path} is not a JSON object")
    return body


def _check_file(directory: Path, name: Any, size: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"{directory / CHECKPOINT_INDEX}: {name!r} is no name of a file within the checkpoint")
    path = directory / name
    if path.is_symlink() or not path.is_file():
        raise InputError(f"checkpoint {directory} has no file {name}")
    if path.stat().st_size != size:
        raise InputError(f"checkpoint {directory}: {name} has {path.stat().st_size} bytes, {size} were written")
