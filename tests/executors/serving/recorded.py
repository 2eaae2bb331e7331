"""Events as a log would give them back, without a log."""

from __future__ import annotations

from ledger.events import Event, Payload


def event(position: int, content: Payload) -> Event:
    return Event(
        position,
        content.stream(),
        1,
        f"e{position}",
        content.type_name(),
        1,
        "2026-01-01T00:00:00Z",
        "ada",
        content,
        b"",
    )
