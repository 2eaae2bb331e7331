"""The items of a suite artifact: `items.jsonl`, one `{"prompt", "answer"}` a line."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ledger.canonical import canonical_digest
from ledger.errors import InputError

ITEMS = "items.jsonl"
MAX_ITEMS_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Item:
    """One question. `digest` is its identity in completions and reports."""

    digest: str
    prompt: str
    answer: str


def parse_items(data: bytes, place: str) -> list[Item]:
    """The items in the order of the file.

    Raises:
        InputError: a line that is no item, the same item twice, or no item at all; the message begins with `place`.
    """
    items: dict[str, Item] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        item = _item(line, f"{place}, line {number}")
        if item.digest in items:
            raise InputError(f"{place}, line {number}: the item stands there twice")
        items[item.digest] = item
    if not items:
        raise InputError(f"{place} holds no item")
    return list(items.values())


def _item(line: bytes, place: str) -> Item:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is not JSON: {error}") from None
    prompt, answer = (content.get("prompt"), content.get("answer")) if isinstance(content, dict) else (None, None)
    if not isinstance(prompt, str) or not isinstance(answer, str) or not prompt:
        raise InputError(f"{place} is no item; expected the texts prompt and answer")
    return Item(canonical_digest({"prompt": prompt, "answer": answer}), prompt, answer)
