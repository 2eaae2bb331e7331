"""Canonical JSON (RFC 8785), the only place where bytes to be hashed are made.

The input is restricted so that sorted `json.dumps` and RFC 8785 agree byte for byte: object keys are ASCII (their UTF-16
order is then their code-point order), numbers are integers within ±(2^53 − 1), and there are no floats: a fraction is a
decimal string.
"""

from __future__ import annotations

import json
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from ledger.digest import sha256_digest
from ledger.errors import CanonicalError

MAX_SAFE_INTEGER = 2**53 - 1  # RFC 8785 §3.2.2.3, RFC 7493 §2.2
MAX_DEPTH = 32
MAX_BYTES = 1 << 20  # an event is a record, not a container: bytes belong into artifacts

_WIDE = Context(prec=60)

JSON = None | bool | int | str | list[Any] | dict[str, Any]


def canonical_bytes(value: Any, max_bytes: int = MAX_BYTES) -> bytes:
    """The RFC 8785 bytes of `value`.

    Raises:
        CanonicalError: a float, an integer beyond 2^53 − 1, a key that is not ASCII, a lone surrogate, nesting deeper than
            32, or more than `max_bytes` bytes. The message holds the path of the value.
    """
    _check(value, "$", 0)
    data = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")
    if len(data) > max_bytes:
        raise CanonicalError(f"{len(data)} bytes is more than a record may hold ({max_bytes}); store it as an artifact")
    return data


def canonical_digest(value: Any) -> str:
    """The digest of the canonical bytes of `value`."""
    return sha256_digest(canonical_bytes(value))


def decimal_string(value: float | int | str | Decimal, places: int = 6) -> str:
    """A fraction as the string that events carry: at most `places` decimals, no exponent, no trailing zeros, never `-0`.

    Raises:
        CanonicalError: not a finite number, or one of more than 60 digits.
    """
    number = Decimal(str(value))
    if not number.is_finite():
        raise CanonicalError(f"{value!r} is not a finite number")
    try:
        text = format(number.quantize(Decimal(1).scaleb(-places), context=_WIDE), "f")
    except InvalidOperation:
        raise CanonicalError(f"{value!r} has more digits than a record holds") from None
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _check(value: Any, path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise CanonicalError(f"{path}: nested deeper than {MAX_DEPTH}")
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int):
        if abs(value) > MAX_SAFE_INTEGER:
            raise CanonicalError(f"{path}: {value} is beyond 2^53 - 1; write it as a string")
    elif isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str) or not key.isascii():
                raise CanonicalError(f"{path}: key {key!r} is not an ASCII string")
            _check(item, f"{path}.{key}", depth + 1)
    else:
        raise CanonicalError(
            f"{path}: {type(value).__name__} {value!r} has no canonical form; write a fraction as a string"
        )


def _check_text(text: str, path: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CanonicalError(f"{path}: lone surrogate at index {error.start}") from None
