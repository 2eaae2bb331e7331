"""Source files: rows in order with their lines, the digest of the bytes, and one line for each kind of damage."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import pytest

from ledger.datasets import rows
from ledger.datasets.rows import RowFile, SourceRow
from ledger.errors import InfrastructureError, InputError

GOOD = b'{"prompt": "a", "response": "b"}\n'


def write(tmp_path: Path, content: bytes, name: str = "rows.jsonl") -> RowFile:
    path = tmp_path / name
    path.write_bytes(content)
    return RowFile(path)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_rows_lines_and_digest(tmp_path, name):
    text = b'\xef\xbb\xbf{"prompt": "a", "response": "b", "id": 1}\r\n\n{"prompt": "\xc3\xa9\xe2\x80\xa8", "response": "c"}'
    data = gzip.compress(text) if name.endswith("gz") else text
    file = write(tmp_path, data, name)
    assert list(file) == [SourceRow(1, "a", "b"), SourceRow(3, "é\u2028", "c")]
    assert file.content == "sha256:" + hashlib.sha256(data).hexdigest()


def test_two_archives_in_one_file_are_read_as_one(tmp_path):
    file = write(tmp_path, gzip.compress(GOOD) + gzip.compress(GOOD), "rows.jsonl.gz")
    assert [row.number for row in file] == [1, 2]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{nonsense}", r"rows.jsonl:2: not valid JSON: .* at column 2"),
        (b"[1]", "rows.jsonl:2: expected a JSON object, found list"),
        (b"\xff\xfe", "rows.jsonl:2: (byte 0xff is not UTF-8|not valid JSON)"),
        (b'{"prompt": "a\xff", "response": "b"}', "rows.jsonl:2: byte 0xff is not UTF-8"),
        (b'{"prompt": "a"}', "rows.jsonl:2: no field 'response'; the row has 'prompt'"),
        (b'{"prompt": " ", "response": "b"}', "rows.jsonl:2: field 'prompt' is empty"),
        (b'{"prompt": 7, "response": "b"}', "rows.jsonl:2: field 'prompt' is 7, not a text"),
        (b'{"prompt": "a", "response": null}', "rows.jsonl:2: field 'response' is null, not a text"),
        (b'{"prompt": "\\ud800", "response": "b"}', "rows.jsonl:2: field 'prompt' holds a lone surrogate"),
        (b'{"prompt": ' + b"[" * 200_000, "rows.jsonl:2: not valid JSON"),
        (b'{"prompt": ' + b"9" * 10_000 + b"}", "rows.jsonl:2: not valid JSON"),
        (b'{"prompt": "' + b"a" * (4 << 20), "rows.jsonl:2: the line is longer than 4194304 bytes"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(tmp_path, content, problem):
    with pytest.raises(InputError, match=problem) as caught:
        list(write(tmp_path, GOOD + content))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


def test_damaged_archives(tmp_path):
    whole = gzip.compress(GOOD * 5000)
    with pytest.raises(InputError, match="damaged or cut off"):
        list(write(tmp_path, whole[:-20], "a.jsonl.gz"))
    with pytest.raises(InputError, match="damaged or cut off"):
        list(write(tmp_path, GOOD, "b.jsonl.gz"))
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 0xFF
    with pytest.raises(InputError, match=r"c\.jsonl\.gz:\d+"):
        list(write(tmp_path, bytes(broken), "c.jsonl.gz"))


def test_a_decompression_bomb_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "MAX_FILE_BYTES", 100_000)
    with pytest.raises(InputError, match="longer than"):
        list(write(tmp_path, gzip.compress(b"a" * 50_000_000), "a.jsonl.gz"))
    with pytest.raises(InputError, match="larger than 100000 bytes when decompressed"):
        list(write(tmp_path, gzip.compress(b"\n" * 5_000_000), "b.jsonl.gz"))


def test_what_is_not_a_file(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        list(RowFile(tmp_path / "absent.jsonl"))
    with pytest.raises(InputError, match="not a regular file"):
        list(RowFile(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        list(RowFile(tmp_path / "pipe"))
    if os.getuid() != 0:
        hidden = tmp_path / "hidden.jsonl"
        hidden.write_bytes(GOOD)
        hidden.chmod(0)
        with pytest.raises(InfrastructureError):
            list(RowFile(hidden))


def test_fields_can_have_other_names(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"question": "q", "answer": "a"}\n')
    assert list(RowFile(path, "question", "answer")) == [SourceRow(1, "q", "a")]
