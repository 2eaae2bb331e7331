"""Canonical bytes: RFC 8785 where it applies, a clear refusal elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ledger.canonical import canonical_bytes, canonical_digest, decimal_string
from ledger.digest import sha256_digest
from ledger.errors import CanonicalError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, b"null"),
        (True, b"true"),
        (0, b"0"),
        (-(2**53) + 1, b"-9007199254740991"),
        ([], b"[]"),
        ({"b": [1, {"d": None, "c": False}], "a": "x"}, b'{"a":"x","b":[1,{"c":false,"d":null}]}'),
        ({"aa": 1, "a": 2, "A": 3, "_": 4, "1": 5}, b'{"1":5,"A":3,"_":4,"a":2,"aa":1}'),
        # RFC 8785 §3.2.2.2: the short escapes, \u00xx in lower case, everything else as it is.
        ("\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/", '"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'.encode()),
        ("\b\t\n\f\r\x00\x1f\x7f\u2028", b'"\\b\\t\\n\\f\\r\\u0000\\u001f\x7f\xe2\x80\xa8"'),
        ("\U0001f600", '"\U0001f600"'.encode()),
        ((1, 2), b"[1,2]"),
    ],
)
def test_bytes(value: Any, expected: bytes) -> None:
    assert canonical_bytes(value) == expected
    assert canonical_digest(value) == sha256_digest(expected)
    assert canonical_bytes(json.loads(expected)) == expected


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [0, 1.5]}, r"\$\.a\[1\]: float 1.5 has no canonical form"),
        (float("nan"), "float nan"),
        (2**53, r"\$: 9007199254740992 is beyond 2\^53 - 1; write it as a string"),
        ({1: 2}, r"\$: key 1 is not an ASCII string"),
        ({"\u00e9": 2}, "is not an ASCII string"),
        ("a\udc00", r"\$: lone surrogate at index 1"),
        (b"x", "bytes b'x' has no canonical form"),
        ("x" * (1 << 20), "1048578 bytes is more than a record may hold"),
    ],
)
def test_refusals(value: Any, says: str) -> None:
    with pytest.raises(CanonicalError, match=says):
        canonical_bytes(value)


def test_depth() -> None:
    value: Any = []
    for _ in range(31):
        value = [value]
    assert canonical_bytes([value]) == b"[" * 33 + b"]" * 33
    with pytest.raises(CanonicalError, match="nested deeper than 32"):
        canonical_bytes([[value]])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"), (1e-9, "0"), (-1e-9, "0"), (-0.0, "0"), (1e20, "100000000000000000000"), (100, "100"),
        ("1.500000", "1.5"), (1 / 3, "0.333333"), (-2.25, "-2.25"), (0.1 + 0.2, "0.3"),
    ],
)  # fmt: skip
def test_decimals(value: float | str, text: str) -> None:
    assert decimal_string(value) == text


def test_decimals_keep_every_digit_of_large_numbers() -> None:
    assert decimal_string(1e20, places=9) == "100000000000000000000"
    assert decimal_string("12345678901234567890123.123456789", places=9) == "12345678901234567890123.123456789"
    with pytest.raises(CanonicalError, match="more digits than a record holds"):
        decimal_string("1e70")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "-inf"])
def test_no_decimal(value: float | str) -> None:
    with pytest.raises(CanonicalError, match="is not a finite number"):
        decimal_string(value)
