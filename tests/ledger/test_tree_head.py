"""Signed tree heads: what holds, what is forged, and keys as text."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from ledger.errors import InfrastructureError, InputError, TamperFound
from ledger.merkle import leaf_hash
from ledger.tree_head import SigningKey, VerifyingKey, open_note

ROOT = leaf_hash(b"x")
KEY = SigningKey.generate()
HEAD = KEY.sign(42, ROOT)


def test_round_trip() -> None:
    assert open_note(HEAD.note, KEY.verifying_key()) == HEAD
    lines = HEAD.note.split("\n")
    assert lines[:4] == [KEY.name, "42", base64.b64encode(ROOT).decode(), ""]
    assert lines[4].startswith(f"\u2014 {KEY.name} ")
    assert lines[5:] == [""]


def test_a_published_key() -> None:
    """The example key of Go's sumdb/note package."""
    text = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
    key = VerifyingKey.parse(text)
    assert (key.name, key.key_id.hex(), str(key)) == ("PeterNeumann", "c74f20a3", text)


def test_other_signatures_beside_ours_are_ignored() -> None:
    witness = SigningKey.generate().sign(42, ROOT).note.splitlines()[-1]
    body, _, ours = HEAD.note.partition("\n\n")
    head = open_note(f"{body}\n\n{witness}\n{ours}", KEY.verifying_key())
    assert (head.size, head.root) == (42, ROOT)


@pytest.mark.parametrize(
    ("forge", "says"),
    [
        (lambda note: note.replace("\n42\n", "\n43\n"), "no valid signature"),
        (lambda note: note.replace("\n42\n", "\n042\n"), "malformed"),
        (lambda note: note.replace("\n42\n", "\n-42\n"), "malformed"),
        (lambda note: note.replace("\n42\n", "\nmany\n"), "not a tree head"),
        (lambda note: note.replace(base64.b64encode(ROOT).decode(), base64.b64encode(ROOT[::-1]).decode()), "no valid"),
        (lambda note: note.replace(base64.b64encode(ROOT).decode(), "AAAA"), "malformed"),
        (lambda note: note.replace("\n\n", "\nmore\n\n", 1), "no valid signature"),
        (lambda note: note.partition("\n\n")[0], "malformed"),
        (lambda note: note.partition("\n\n")[0] + "\n\n", "no valid signature"),
        (lambda note: note.replace("\u2014", "-"), "no valid signature"),
        (lambda note: note.replace(KEY.name, "posttrain/other"), "another log"),
        (lambda note: "", "not a tree head"),
        (lambda note: note[:-10] + "\n", "no valid signature"),
    ],
)
def test_a_forged_head(forge: object, says: str) -> None:
    with pytest.raises(TamperFound, match=says):
        open_note(forge(HEAD.note), KEY.verifying_key())  # type: ignore[operator]


def test_another_key_of_the_same_name() -> None:
    other = SigningKey(KEY.name, SigningKey.generate().private)
    with pytest.raises(TamperFound, match="no valid signature"):
        open_note(HEAD.note, other.verifying_key())


def test_a_head_replayed_from_another_log() -> None:
    with pytest.raises(TamperFound, match="of another log"):
        open_note(SigningKey.generate().sign(42, ROOT).note, KEY.verifying_key())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "name+00000000",
        "name+00000000+!!",
        str(KEY.verifying_key())[:-4],
        str(KEY.verifying_key()).replace("+", "+0", 1),
        str(VerifyingKey("other", KEY.verifying_key().public)).replace("other", KEY.name),
        str(VerifyingKey("", KEY.verifying_key().public)),
        "\ud800+00000000+AAAA",
    ],
    ids=["empty", "name only", "no key", "not base64", "cut", "long id", "other name", "no name", "surrogate"],
)
def test_what_is_no_verifying_key(text: str) -> None:
    with pytest.raises(InputError, match="verifier key"):
        VerifyingKey.parse(text)


def test_a_key_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "log.key"
    KEY.save(path)
    with pytest.raises(InfrastructureError, match="File exists"):
        SigningKey.generate().save(path)
    assert SigningKey.load(path).verifying_key() == KEY.verifying_key()
    assert [p.name for p in path.parent.iterdir()] == ["log.key"]
