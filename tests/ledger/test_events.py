"""The bytes of every event type, kept in `tests/golden/ledger/events.jsonl`: a release that changes one of them breaks logs.

An added type adds a line: `python -m tests.ledger.test_events` writes the file anew; look at the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from ledger.errors import TamperFound
from ledger.events import PAYLOADS, CodeRevision, Event, Payload, PriceSet
from ledger.events.codec import encode, from_body, new_event_id, to_edges, utc_now
from tests.ledger.payloads import EXAMPLES, digest

GOLDEN = Path(__file__).parents[1] / "golden" / "ledger" / "events.jsonl"


def example(position: int, payload: Payload) -> Event:
    return Event(
        position=position,
        stream=payload.stream(),
        version=1,
        event_id=f"01890000-0000-7000-8000-{position:012x}",
        type=payload.type_name(),
        schema_version=payload.schema_version,
        recorded_at="2026-01-02T03:04:05.000006Z",
        actor="ada@example",
        payload=payload,
        body=b"",
        idempotency_key=f"key {position}" if position % 2 else None,
    )


def bodies() -> list[bytes]:
    return [encode(example(position, payload)) for position, payload in enumerate(EXAMPLES, 1)]


def test_every_type_has_an_example() -> None:
    assert [type(payload).__name__ for payload in EXAMPLES] == list(dict.fromkeys(type(p).__name__ for p in EXAMPLES))
    assert {payload.type_name() for payload in EXAMPLES} == set(PAYLOADS)


def test_every_optional_field_is_set_in_its_example() -> None:
    for payload in EXAMPLES:
        assert payload.model_fields_set == set(type(payload).model_fields), type(payload).__name__


def test_the_bytes_are_those_of_every_release() -> None:
    assert bodies() == GOLDEN.read_bytes().splitlines()


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=lambda i: EXAMPLES[i].type_name())
def test_golden_bytes_are_read_back(number: int) -> None:
    body = GOLDEN.read_bytes().splitlines()[number]
    event = from_body(body, number + 1)
    assert event.payload == EXAMPLES[number]
    assert encode(event) == body == event.body
    assert event.stream == event.payload.stream()
    assert [edge.direction for edge in to_edges(event)] == sorted(edge.direction for edge in to_edges(event))


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"position": 1}', b'{"type": [], "payload": {}}'],
    ids=["empty", "object", "array", "null", "not UTF-8", "deep", "partial", "odd"],
)
def test_a_body_that_is_no_event(body: bytes) -> None:
    with pytest.raises(TamperFound, match="event 1 cannot be read"):
        from_body(body, 1)


def test_a_body_at_another_position() -> None:
    with pytest.raises(TamperFound, match="event 2 says that it is event 1: the log was reordered"):
        from_body(encode(example(1, PriceSet(device_kind="cpu", per_device_hour="1"))), 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"device_kind": "cpu", "per_device_hour": 1.5},
        {"device_kind": "cpu", "per_device_hour": "1e3"},
        {"device_kind": "cpu", "per_device_hour": "NaN"},
        {"device_kind": "cpu", "per_device_hour": "1\n"},
        {"device_kind": "../cpu", "per_device_hour": "1"},
        {"device_kind": "CPU", "per_device_hour": "1"},
        {"device_kind": "cpu\n", "per_device_hour": "1"},
        {"device_kind": "", "per_device_hour": "1"},
        {"device_kind": "cpu", "per_device_hour": "1", "more": 1},
        {"device_kind": "cpu"},
    ],
    ids=str,
)
def test_what_a_field_may_not_be(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PriceSet.model_validate(fields)


def test_a_digest_is_exact() -> None:
    for text in (digest(1).upper(), digest(1)[7:], digest(1) + "\n", digest(1)[:-1], "md5:" + "0" * 32):
        with pytest.raises(ValidationError):
            CodeRevision(commit="c", diff=text, dirty=False)


def test_payloads_are_frozen() -> None:
    for payload in EXAMPLES:
        name = next(iter(type(payload).model_fields))
        with pytest.raises(ValidationError, match="frozen"):
            setattr(payload, name, "x")


def test_event_ids_are_uuid7() -> None:
    assert new_event_id(0x0123456789AB)[:15] == "01234567-89ab-7"
    assert new_event_id()[19] in "89ab"
    assert len({new_event_id() for _ in range(1000)}) == 1000


def test_times_sort_as_text() -> None:
    times = [utc_now() for _ in range(100)]
    assert times == sorted(times)
    assert {len(time) for time in times} == {len("2026-01-02T03:04:05.000006Z")}


if __name__ == "__main__":
    GOLDEN.write_bytes(b"".join(body + b"\n" for body in bodies()))
