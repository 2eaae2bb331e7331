"""Rows of a source file: JSONL, plain or gzip, read one bounded line at a time."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ledger.errors import InfrastructureError, InputError

MAX_LINE_BYTES = 4 << 20
MAX_FILE_BYTES = 64 << 30  # decompressed: a bound on what a small archive can become


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A prompt and its response; `number` is the line in the source, from 1."""

    number: int
    prompt: str
    response: str


def read_rows(path: Path, prompt_field: str, response_field: str) -> Iterator[SourceRow]:
    """The rows of a file in its order; empty lines are left out.

    Raises:
        InputError: a line that is too long, no JSON object, or without one of the fields as text; with file and line.
        InfrastructureError: the file cannot be read.
    """
    for number, line in _lines(path):
        row = parse_object(line, f"{path}:{number}")
        texts = [row.get(field) for field in (prompt_field, response_field)]
        for field, text in zip((prompt_field, response_field), texts, strict=True):
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"{path}:{number}: field {field!r} is missing, empty or not a text")
        yield SourceRow(number, str(texts[0]), str(texts[1]))


def parse_object(line: bytes, place: str) -> dict[str, object]:
    """The JSON object in a line. Raises InputError, beginning with `place`."""
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # UnicodeEncodeError, a lone surrogate, is a ValueError
        raise InputError(f"{place}: not valid JSON text: {str(error)[:120]}") from None
    if not isinstance(value, dict):
        raise InputError(f"{place}: expected a JSON object, found {type(value).__name__}")
    return value


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    total = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number, total = number + 1, total + len(line)
                if len(line) > MAX_LINE_BYTES:
                    raise InputError(f"{path}:{number}: the line is longer than {MAX_LINE_BYTES} bytes")
                if total > MAX_FILE_BYTES:
                    raise InputError(f"{path}: larger than {MAX_FILE_BYTES} bytes when decompressed")
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError) as error:
        raise InputError(f"{path}: not a whole gzip file: {error}") from None
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be read: {error.strerror or error}") from error


def file_digest(path: Path) -> str:
    """The digest of a source file's bytes as they lie there."""
    try:
        with path.open("rb") as file:
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be read: {error.strerror or error}") from error
