"""From `--at POSITION|TIME` to a log position."""

from __future__ import annotations

from datetime import UTC, datetime

from ledger.errors import InputError
from ledger.home import Ledger


def position_at(ledger: Ledger, text: str | None) -> int | None:
    """The position that `text` means: a number, or the last event recorded at or before an RFC 3339 time (UTC without an
    offset). `None` for `None`: now.

    Raises:
        InputError: neither, or before the first or beyond the last event.
    """
    if text is None:
        return None
    size = ledger.log.size()
    if text.isascii() and text.isdigit():
        position = int(text[:18])
        if not 0 < position <= size:
            raise InputError(f"position {text} is not in the log; it has {size} events")
        return position
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InputError(
            f"{text!r} is neither a log position nor an RFC 3339 time such as 2026-01-31T12:00:00Z"
        ) from None
    wanted = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    low, high = 0, size  # times never run backwards within the log
    while low < high:
        middle = (low + high + 1) // 2
        if ledger.log.event(middle).recorded_at <= wanted:
            low = middle
        else:
            high = middle - 1
    if low == 0:
        raise InputError(f"the log has no event as early as {text}")
    return low
