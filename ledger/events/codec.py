"""From an event to the bytes that are hashed and stored, and back.

The body holds the whole envelope, so nothing about an event can be changed without changing its leaf hash.
"""

from __future__ import annotations

import json
import secrets
import time
from datetime import UTC, datetime
from typing import Any

from ledger.canonical import canonical_bytes
from ledger.errors import CanonicalError, InputError, TamperFound
from ledger.events import Payload, parse_payload
from ledger.events.envelope import Event
from ledger.merkle import leaf_hash
from ledger.store.base import EdgeRow, Row

ENVELOPE = (
    "position",
    "stream",
    "version",
    "event_id",
    "type",
    "schema_version",
    "recorded_at",
    "actor",
    "idempotency_key",
)


def encode(event: Event) -> bytes:
    """The canonical bytes of an event whose `body` is not made yet."""
    envelope = {name: getattr(event, name) for name in ENVELOPE}
    return canonical_bytes({**envelope, "payload": payload_content(event.payload)})


def payload_content(payload: Payload) -> dict[str, Any]:
    """A payload's fields as they are: what has no canonical form is still there to be refused, and not made null.

    Raises:
        CanonicalError: nested too deeply.
    """
    try:
        return payload.model_dump(mode="python")
    except (ValueError, RecursionError) as error:
        raise CanonicalError(f"{payload.type_name()} has no canonical form: nested too deeply ({error})") from None


def to_row(event: Event) -> Row:
    return Row(**{name: getattr(event, name) for name in ENVELOPE}, body=event.body, leaf=leaf_hash(event.body))


def to_edges(event: Event) -> list[EdgeRow]:
    """The typed references that the payload declares."""
    payload = event.payload
    return [EdgeRow(event.position, "in", edge.role, edge.node) for edge in payload.inputs()] + [
        EdgeRow(event.position, "out", edge.role, edge.node) for edge in payload.outputs()
    ]


def from_row(row: Row) -> Event:
    """The event in a row, taken from its hashed body alone.

    Raises:
        TamperFound: the body does not have the stored leaf hash, or says another position.
        NewerLedger: its type or version is unknown to this release.
    """
    if leaf_hash(row.body) != row.leaf:
        raise TamperFound(
            f"event {row.position} ({row.stream}) was changed: its body does not have the recorded leaf hash"
        )
    return from_body(row.body, row.position)


def from_body(body: bytes, position: int) -> Event:
    """The event in canonical bytes."""
    try:
        content: dict[str, Any] = json.loads(body)
        fields = {name: content[name] for name in ENVELOPE}
        payload = parse_payload(content["type"], content["schema_version"], content["payload"])
    except (ValueError, KeyError, TypeError, RecursionError, InputError) as error:
        if isinstance(error, InputError) and error.__class__ is not InputError:
            raise  # a newer release's event is not a broken one
        raise TamperFound(f"event {position} cannot be read: {error}") from error
    if fields["position"] != position:
        raise TamperFound(f"event {position} says that it is event {fields['position']}: the log was reordered")
    return Event(**fields, payload=payload, body=body)


def new_event_id(now_ms: int | None = None) -> str:
    """A UUIDv7 (RFC 9562 §5.7): 48 bits of milliseconds, then random bits."""
    milliseconds = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    bits = (milliseconds << 80) | (0x7 << 76) | (secrets.randbits(12) << 64) | (0b10 << 62) | secrets.randbits(62)
    text = f"{bits:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def utc_now() -> str:
    """Now, UTC, RFC 3339 with microseconds; sorts as text."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
