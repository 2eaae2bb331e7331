"""How a child process reports: one JSON object a line, appended to a file. Standard library only.

The file may be copied into any Python (3.11 or newer) environment; nothing here knows the rest of the project. The
parent sets three variables:

    POSTTRAIN_PLAN   path of `plan.json`: what to do, resolved (see `executors.base.LaunchPlan.document`)
    POSTTRAIN_PIPE   path of the file that messages are appended to
    POSTTRAIN_OUT    directory for everything that the child leaves behind

A line is `{"seq": n, "at": "…Z", "type": …, …}`; `seq` counts from 1. `checkpoint`, `output`, `completed` and `failed`
are durable when the call returns (fsync): what they announce must be durable before. Metrics that are not finite travel
as the strings `nan`, `inf`, `-inf`, so every line is strict JSON. One process writes (rank 0); any number may read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

MAX_LINE_BYTES = 1 << 20
MAX_READ_BYTES = 8 << 20  # a call never holds more; the rest comes with the next call
MAX_COUNT = 2**53 - 1
PARTS = ("model", "optimizer", "scheduler", "scaler", "rng", "loader", "trainer")
LEVELS = ("exact", "state", "weights")
MODEL_PREFIX = "model/"

ResumeLevel = Literal["exact", "state", "weights"]
Part = Literal["model", "optimizer", "scheduler", "scaler", "rng", "loader", "trainer"]


class PipeError(ValueError):
    """A message that is malformed, too long or out of order; the text says which and where."""


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint as the child wrote it. `sha256` is 64 hex digits."""

    sha256: str
    size_bytes: int
    part: Part


@dataclass(frozen=True)
class Started:
    """The child is up; `device` is `cpu` or `cuda`."""

    seq: int
    at: str
    world_size: int
    device: str


@dataclass(frozen=True)
class Progress:
    """After `step` of `total` steps. Metrics may be `nan` or infinite."""

    seq: int
    at: str
    step: int
    total: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class CheckpointWritten:
    """All files of a checkpoint are durable in directory `path` (absolute, or relative to POSTTRAIN_OUT).

    `model_files` name those of `files` that make a loadable model directory; each begins with `model/`.
    """

    seq: int
    at: str
    step: int
    path: str
    files: Mapping[str, FileRecord]
    resume: ResumeLevel
    world_size: int
    samples_seen: int
    model_files: tuple[str, ...]


@dataclass(frozen=True)
class OutputWritten:
    """A file or directory that the run leaves behind, durable at `path`."""

    seq: int
    at: str
    name: str
    path: str


@dataclass(frozen=True)
class Completed:
    """The work is done; everything that it leaves was announced before."""

    seq: int
    at: str
    step: int
    summary: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """The child gives up. `retryable` is False when the same input would fail again: the user must change something."""

    seq: int
    at: str
    reason: str
    retryable: bool


Message = Started | Progress | CheckpointWritten | OutputWritten | Completed | Failed


# ---------------------------------------------------------------------------------------------------------- child side


def read_plan() -> dict[str, Any]:
    """The plan of this process: the content of POSTTRAIN_PLAN."""
    plan = json.loads(Path(_variable("POSTTRAIN_PLAN")).read_text("utf-8"))
    if not isinstance(plan, dict):
        raise PipeError("POSTTRAIN_PLAN does not hold a JSON object")
    return plan


def output_directory() -> Path:
    """POSTTRAIN_OUT, made when it is missing."""
    path = Path(_variable("POSTTRAIN_OUT"))
    path.mkdir(parents=True, exist_ok=True)
    return path


def file_record(path: Path, part: Part) -> FileRecord:
    """Hash a file that is already durable. A writer that can hash while it writes makes its own record instead."""
    hasher = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            hasher.update(chunk)
    return FileRecord(hasher.hexdigest(), path.stat().st_size, part)


class PipeWriter:
    """Appends messages, one writer a file. A torn line left by a writer that died is cut off when the file is opened."""

    def __init__(self, path: str | Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o644)
        self._seq = self._recover()
        _sync_directory(Path(path).parent)

    @classmethod
    def from_environment(cls) -> PipeWriter:
        return cls(_variable("POSTTRAIN_PIPE"))

    def started(self, *, world_size: int, device: str) -> None:
        self._write("started", {"world_size": world_size, "device": device})

    def progress(self, *, step: int, total: int, metrics: Mapping[str, float]) -> None:
        self._write("progress", {"step": step, "total": total, "metrics": _carry(metrics)})

    def checkpoint(
        self,
        *,
        step: int,
        path: str | Path,
        files: Mapping[str, FileRecord],
        resume: ResumeLevel,
        world_size: int,
        samples_seen: int,
        model_files: Sequence[str],
    ) -> None:
        """Announce a checkpoint whose files and directories were fsynced before this call."""
        body = {
            "step": step,
            "path": str(path),
            "files": {name: vars(record) for name, record in files.items()},
            "resume": resume,
            "world_size": world_size,
            "samples_seen": samples_seen,
            "model_files": list(model_files),
        }
        self._write("checkpoint", body, durable=True)

    def output(self, *, name: str, path: str | Path) -> None:
        self._write("output", {"name": name, "path": str(path)}, durable=True)

    def completed(self, *, step: int, summary: Mapping[str, float] | None = None) -> None:
        self._write("completed", {"step": step, "summary": _carry(summary or {})}, durable=True)

    def failed(self, *, reason: str, retryable: bool) -> None:
        self._write("failed", {"reason": reason[:2000], "retryable": retryable}, durable=True)

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, kind: str, body: dict[str, Any], *, durable: bool = False) -> None:
        at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        message = {"seq": self._seq + 1, "at": at, "type": kind, **body}
        line = json.dumps(message, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
        parse_line(line[:-1])  # the writer is told at once, not the reader later
        view = memoryview(line)
        while view:
            view = view[os.write(self._fd, view) :]
        self._seq += 1
        if durable:
            os.fsync(self._fd)

    def _recover(self) -> int:
        """Cut a torn tail and return the last seq of the file."""
        end = os.lseek(self._fd, 0, os.SEEK_END)
        if end == 0:
            return 0
        start = max(0, end - 2 * MAX_LINE_BYTES)
        tail = os.pread(self._fd, end - start, start)
        whole = tail.rfind(b"\n") + 1
        os.ftruncate(self._fd, start + whole)
        lines = tail[:whole].splitlines()
        return parse_line(lines[-1]).seq if lines else 0


# --------------------------------------------------------------------------------------------------------- parent side


def read_messages(path: str | Path, cursor: int = 0) -> tuple[list[Message], int]:
    """The whole messages after byte `cursor`, and the cursor to go on from. A missing file has none.

    A last line without its newline is not read: its writer is about to finish it, or died and it never counts. What stands
    before a malformed line is returned first; the next call raises.

    Raises:
        PipeError: the line at the cursor is malformed or longer than MAX_LINE_BYTES; the text names file and byte.
    """
    try:
        with open(path, "rb") as stream:
            stream.seek(cursor)
            data = stream.read(MAX_READ_BYTES)
    except FileNotFoundError:
        return [], cursor
    messages: list[Message] = []
    offset = 0
    while (end := data.find(b"\n", offset)) >= 0:
        try:
            messages.append(parse_line(data[offset:end]))
        except PipeError as error:
            if messages:
                return messages, cursor + offset
            raise PipeError(f"{path}, byte {cursor + offset}: {error}") from None
        offset = end + 1
    if not messages and len(data) > MAX_LINE_BYTES:
        raise PipeError(f"{path}, byte {cursor}: a line longer than {MAX_LINE_BYTES} bytes")
    return messages, cursor + offset


def check_order(before: int, message: Message) -> int:
    """The seq of a message that comes after `before` (0 at the beginning).

    Raises:
        PipeError: it is not the next one.
    """
    if message.seq != before + 1:
        raise PipeError(f"message {message.seq} where {before + 1} was expected; two writers, or a line was lost")
    return message.seq


def parse_line(line: bytes) -> Message:
    """One message from its line without the newline.

    Raises:
        PipeError: not strict JSON, an unknown type, a missing, unknown or ill-typed field, a name that is not a
            relative path, or too long.
    """
    if len(line) > MAX_LINE_BYTES:
        raise PipeError(f"a line of {len(line)} bytes; at most {MAX_LINE_BYTES} are read")
    try:
        body = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise PipeError(f"not strict JSON: {error}") from None
    if not isinstance(body, dict):
        raise PipeError("not a JSON object")
    kind = body.pop("type", None)
    if not isinstance(kind, str) or kind not in _MESSAGES:
        raise PipeError(f"unknown message type {kind!r}; known: {', '.join(_MESSAGES)}")
    cls, fields = _MESSAGES[kind]
    fields = {"seq": _count, "at": _text, **fields}
    if body.keys() != fields.keys():
        missing, unknown = sorted(fields.keys() - body.keys()), sorted(body.keys() - fields.keys())
        raise PipeError(f"{kind}: missing fields {missing}, unknown fields {unknown}")
    message: Message = cls(**{name: check(f"{kind}.{name}", body[name]) for name, check in fields.items()})
    if isinstance(message, CheckpointWritten):
        _check_model_files(message)
    return message


def _check_model_files(message: CheckpointWritten) -> None:
    for name in message.model_files:
        if name not in message.files:
            raise PipeError(f"checkpoint.model_files: {name!r} is not among the files")
        if not name.startswith(MODEL_PREFIX):
            raise PipeError(f"checkpoint.model_files: {name!r} does not begin with {MODEL_PREFIX!r}")


# ------------------------------------------------------------------------------------------------------------- fields

_METRIC_NAME = re.compile(r"[A-Za-z0-9_./@:-]{1,120}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
MAX_METRICS = 500
MAX_TEXT = 4096


def _count(place: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise PipeError(f"{place}: {value!r} is not a whole number from 0 to 2^53 - 1")
    return value


def _text(place: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or "\0" in value:
        raise PipeError(f"{place}: not a text of at most {MAX_TEXT} characters")
    return value


def _flag(place: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise PipeError(f"{place}: {value!r} is not true or false")
    return value


def _one_of(allowed: tuple[str, ...]) -> Callable[[str, Any], str]:
    def check(place: str, value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise PipeError(f"{place}: {value!r} is none of {', '.join(allowed)}")
        return value

    return check


def _relative_name(place: str, value: Any) -> str:
    text = _text(place, value)
    if not text or "\\" in text or any(part in ("", ".", "..") for part in text.split("/")):
        raise PipeError(f"{place}: {value!r} is not a plain relative path")
    return text


def _numbers(place: str, value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or len(value) > MAX_METRICS:
        raise PipeError(f"{place}: not an object of at most {MAX_METRICS} numbers")
    numbers: dict[str, float] = {}
    for name, number in value.items():
        if not _METRIC_NAME.fullmatch(name):
            raise PipeError(f"{place}: {name!r} is not a metric's name")
        if isinstance(number, str) and number in _NOT_FINITE:
            numbers[name] = _NOT_FINITE[number]
        elif isinstance(number, bool) or not isinstance(number, (int, float)) or not _finite(number):
            raise PipeError(f"{place}.{name}: {str(number)[:40]!r} is not a number")
        else:
            numbers[name] = number
    return numbers


def _finite(number: int | float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond the range of floats
        return False


def _files(place: str, value: Any) -> dict[str, FileRecord]:
    if not isinstance(value, dict) or not value:
        raise PipeError(f"{place}: not an object with at least one file")
    records: dict[str, FileRecord] = {}
    for name, record in value.items():
        where = f"{place}[{name!r}]"
        _relative_name(where, name)
        if not isinstance(record, dict) or record.keys() != {"sha256", "size_bytes", "part"}:
            raise PipeError(f"{where}: expected exactly sha256, size_bytes and part")
        if not isinstance(record["sha256"], str) or not _SHA256.fullmatch(record["sha256"]):
            raise PipeError(f"{where}.sha256: {record['sha256']!r} is not 64 lower-case hex digits")
        _count(f"{where}.size_bytes", record["size_bytes"])
        _one_of(PARTS)(f"{where}.part", record["part"])
        records[name] = FileRecord(**record)
    return records


def _names(place: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(set(map(str, value))) != len(value):
        raise PipeError(f"{place}: not a list of distinct names")
    return tuple(_relative_name(place, name) for name in value)


_MESSAGES: dict[str, tuple[Callable[..., Message], dict[str, Callable[[str, Any], Any]]]] = {
    "started": (Started, {"world_size": _count, "device": _text}),
    "progress": (Progress, {"step": _count, "total": _count, "metrics": _numbers}),
    "checkpoint": (
        CheckpointWritten,
        {
            "step": _count,
            "path": _text,
            "files": _files,
            "resume": _one_of(LEVELS),
            "world_size": _count,
            "samples_seen": _count,
            "model_files": _names,
        },
    ),
    "output": (OutputWritten, {"name": _relative_name, "path": _text}),
    "completed": (Completed, {"step": _count, "summary": _numbers}),
    "failed": (Failed, {"reason": _text, "retryable": _flag}),
}


def _carry(numbers: Mapping[str, float]) -> dict[str, float | str]:
    """Numbers as JSON carries them: `nan` and infinities as strings."""
    return {name: value if _finite(value) else str(float(value)) for name, value in numbers.items()}


def _no_constant(text: str) -> float:
    raise PipeError(f"the constant {text} is not strict JSON; write it as a string")


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise PipeError(f"{name} is not set; this program is started by `posttrain run`")
    return value


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
