"""The envelope: where an event stands, who recorded it, and the bytes that were hashed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledger.events.base import Payload


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event before it has a place.

    `expected_version` is the version of the stream's last event as the writer saw it (0: no event yet); `None` means that
    any will do. The same `idempotency_key` with the same payload returns the first event; with another one it is an error.
    """

    payload: Payload
    expected_version: int | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """A recorded event. `body` is what the leaf hash covers and is never serialised again."""

    position: int  # in the log, from 1, without gaps
    stream: str
    version: int  # in the stream, from 1
    event_id: str  # UUIDv7
    type: str
    schema_version: int
    recorded_at: str  # UTC, RFC 3339, microseconds
    actor: str
    payload: Payload
    body: bytes
    idempotency_key: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "stream": self.stream,
            "version": self.version,
            "event_id": self.event_id,
            "type": self.type,
            "schema_version": self.schema_version,
            "recorded_at": self.recorded_at,
            "actor": self.actor,
            "payload": self.payload.to_json(),
        }
