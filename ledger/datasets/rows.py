"""Rows of a source file: JSONL, plain or gzip, read once, one bounded line at a time, hashed while it is read."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ledger.artifacts.storage import open_regular, storage_errors
from ledger.errors import InputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_LINE_BYTES = 4 << 20
MAX_FILE_BYTES = 64 << 30  # decompressed: a bound on what a small archive can become


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A prompt and its response; `number` is the line in the source, from 1."""

    number: int
    prompt: str
    response: str


class RowFile:
    """The rows of a file in its order; iterate once. Empty lines are left out.

    `content` is the digest of the file's bytes as they lie there, known when the iteration is over.

    Raises, while iterating:
        InputError: no such file; a line that is too long, no JSON object, or without one of the fields as text. The message
            begins with the file and the line.
        InfrastructureError: the file cannot be read.
    """

    def __init__(self, path: Path, prompt_field: str = "prompt", response_field: str = "response") -> None:
        self.path = path
        self.content = ""
        self._fields = (prompt_field, response_field)

    def __iter__(self) -> Iterator[SourceRow]:
        for number, line in self._lines():
            place = f"{self.path}:{number}"
            row = parse_object(line, place)
            prompt, response = (_text(row, field, place) for field in self._fields)
            yield SourceRow(number, prompt, response)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with open_regular(self.path) as file:
            hashed = _Hashed(file)
            raw = io.BufferedReader(hashed, 1 << 20)
            # Decompression is asked for by name and not guessed: a text that begins like an archive is refused as a text.
            stream = gzip.GzipFile(fileobj=raw) if self.path.suffix == ".gz" else raw
            yield from _bounded_lines(stream.readline, self.path)
            while raw.read(1 << 20):  # what a decompressor left unread counts too
                pass
        self.content = f"sha256:{hashed.hash.hexdigest()}"


def read_rows(path: Path, prompt_field: str, response_field: str) -> Iterator[SourceRow]:
    """The rows of a file; see `RowFile`."""
    return iter(RowFile(path, prompt_field, response_field))


def parse_object(line: bytes, place: str) -> dict[str, object]:
    """The JSON object in a line. Raises InputError, beginning with `place`."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: not valid JSON: {error.msg} at column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: byte {line[error.start]:#04x} is not UTF-8; save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not valid JSON: {str(error)[:120]}") from None
    if not isinstance(value, dict):
        raise InputError(f"{place}: expected a JSON object, found {type(value).__name__}")
    return value


def _text(row: dict[str, object], field: str, place: str) -> str:
    text = row.get(field)
    if field not in row:
        known = ", ".join(repr(key[:40]) for key in sorted(row)[:8])
        raise InputError(f"{place}: no field {field!r}; the row has {known or 'none'}")
    if not isinstance(text, str) or not text.strip():
        what = "empty" if isinstance(text, str) else f"{json.dumps(text)[:40]}, not a text"
        raise InputError(f"{place}: field {field!r} is {what}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{place}: field {field!r} holds a lone surrogate, which is no text") from None
    return text


def _bounded_lines(read_line: Callable[[int], bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    number = total = 0
    while True:
        try:
            line = read_line(MAX_LINE_BYTES + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{path}:{number + 1}: the gzip data is damaged or cut off: {error}") from None
        except OSError:
            with storage_errors("read", path):
                raise
        if not line:
            return
        number, total = number + 1, total + len(line)
        if len(line) > MAX_LINE_BYTES:
            raise InputError(f"{path}:{number}: the line is longer than {MAX_LINE_BYTES} bytes")
        if total > MAX_FILE_BYTES:
            raise InputError(f"{path}: larger than {MAX_FILE_BYTES} bytes when decompressed")
        if line.strip():
            yield number, line


class _Hashed(io.RawIOBase):
    """Passes bytes on and hashes them."""

    def __init__(self, file: BinaryIO) -> None:
        self.hash = hashlib.sha256()
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        count: int = self._file.readinto(view)  # type: ignore[attr-defined]  # unbuffered files have it
        self.hash.update(view[:count])
        return count
