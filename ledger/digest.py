"""Digests: `sha256:` and 64 lower-case hex digits, the only keys that bytes have."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from pydantic import StringConstraints

from ledger.errors import InputError

PATTERN = r"^sha256:[0-9a-f]{64}$"

Digest = Annotated[str, StringConstraints(pattern=PATTERN)]
"""A digest as events and manifests carry it."""

_MATCH = re.compile(PATTERN)


def sha256_digest(data: bytes) -> str:
    """The digest of `data`."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    return _MATCH.fullmatch(text) is not None


def parse_digest(text: str) -> str:
    """`text` unchanged when it is a digest.

    Raises:
        InputError: it is not `sha256:` and 64 lower-case hex digits.
    """
    if not is_digest(text):
        raise InputError(f"{text!r} is not a digest; expected sha256: and 64 lower-case hex digits")
    return text


def short(digest: str) -> str:
    """The first 12 hex digits, for people; never used as a key."""
    return digest.removeprefix("sha256:")[:12]
