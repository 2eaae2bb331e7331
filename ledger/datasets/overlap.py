"""Normalised overlap of training rows with held-out items, by hash: a leaked prompt alone is a leak.

A row leaks when an item's normalised prompt is the row's, or stands whole inside the row's prompt or response. Containment
is found by the item's first words: every run of that many words in a row is looked up, and a hit is compared in full, so
the cost is linear in the rows.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

WINDOW = 13  # words that index an item; items with fewer are indexed by all of theirs
SHORTEST_CONTAINED = 5  # items with fewer words leak only as a whole prompt: they stand inside innocent text
METHOD = "normalised-overlap-1"

_BREAKS = re.compile(r"[\W_]+")


def normalise(text: str) -> str:
    """NFKC, case-folded; every run of white space and punctuation is one space."""
    return _BREAKS.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()


@dataclass(frozen=True, slots=True)
class Match:
    """Which row holds which item of which suite."""

    source: str
    row: int
    suite: str  # digest
    item: str  # digest


class HeldOut:
    """An index over the items of any number of suites."""

    def __init__(self) -> None:
        self._whole: dict[str, tuple[str, str]] = {}
        self._by_start: dict[int, dict[tuple[str, ...], list[tuple[str, str, str]]]] = defaultdict(dict)

    def add(self, suite: str, items: Iterable[tuple[str, str]]) -> None:
        """Index `(item digest, prompt)` pairs of a suite."""
        for digest, prompt in items:
            text = normalise(prompt)
            self._whole.setdefault(text, (suite, digest))
            words = text.split()
            if len(words) >= SHORTEST_CONTAINED:
                start = tuple(words[:WINDOW])
                self._by_start[len(start)].setdefault(start, []).append((text, suite, digest))

    def find(self, prompt: str, response: str) -> tuple[str, str] | None:
        """The suite and item that a row holds, or `None`."""
        text = normalise(prompt)
        whole = self._whole.get(text)
        return whole or self._contained(text) or self._contained(normalise(response))

    def _contained(self, text: str) -> tuple[str, str] | None:
        words = text.split()
        padded = f" {text} "
        for length, starts in self._by_start.items():
            for i in range(len(words) - length + 1):
                for item_text, suite, digest in starts.get(tuple(words[i : i + length]), ()):
                    if f" {item_text} " in padded:
                        return suite, digest
        return None
