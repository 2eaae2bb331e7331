"""Which file names an artifact may hold. Names come from outside and become paths, so everything else is refused."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from ledger.errors import InputError

MAX_NAME_BYTES = 1024
MAX_PART_BYTES = 255  # NAME_MAX of every common file system


def check_name(name: str) -> str:
    """`name` unchanged when it is a relative POSIX path that means the same file on every machine.

    Raises:
        InputError: absolute, empty, with an empty, `.` or `..` part, a backslash, a control or formatting character or a lone
            surrogate, not in Unicode NFC, or too long.
    """
    wrong = _wrong(name)
    if wrong:
        raise InputError(f"file name {name!r} {wrong}; rename the file")
    return name


def _wrong(name: str) -> str | None:
    if not name:
        return "is empty"
    for character in name:
        category = unicodedata.category(character)
        if category == "Cs":
            return "is not valid UTF-8"
        if category in ("Cc", "Cf", "Zl", "Zp"):
            return f"holds the control character U+{ord(character):04X}"
    if "\\" in name:
        return "holds a backslash"
    if name.startswith("/"):
        return "is absolute"
    parts = name.split("/")
    if "" in parts:
        return "holds an empty part"
    if "." in parts or ".." in parts:
        return "holds a `.` or `..` part"
    if not unicodedata.is_normalized("NFC", name):
        return "is not in Unicode normal form C, so another machine may store it under other bytes"
    if len(name.encode()) > MAX_NAME_BYTES or any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        return f"is longer than {MAX_NAME_BYTES} bytes, or than {MAX_PART_BYTES} in one part"
    return None


def check_names(names: Iterable[str]) -> None:
    """All names of one artifact, each by `check_name` and together.

    Raises:
        InputError: also for a name that is there twice, differs from another only in case (they are one file on some
            machines), or is the directory of another.
    """
    seen: dict[str, str] = {}
    for name in names:
        folded = _folded(check_name(name))
        if folded in seen:
            other = seen[folded]
            how = "is there twice" if other == name else f"differs from {other!r} only in case"
            raise InputError(f"file name {name!r} {how}; rename one of them")
        seen[folded] = name
    for folded, name in seen.items():
        parts = folded.split("/")
        for end in range(1, len(parts)):
            if other_name := seen.get("/".join(parts[:end])):
                raise InputError(f"file name {other_name!r} is the directory of {name!r}; rename one of them")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name.casefold())
