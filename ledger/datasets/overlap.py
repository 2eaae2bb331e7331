"""Normalised overlap of training rows with held-out items, by hash: a leaked prompt alone is a leak.

A row leaks when an item's normalised prompt
    is the row's whole prompt,
    or is one of the sentences or lines of the row's prompt (items of three words or more),
    or stands anywhere inside the row's prompt or response (items with five words or more beside numbers and operators).

Containment is found by the first five words of an item, then by its first thirteen, then in full, so the cost is linear in
the rows and does not depend on the number of items. It does not find a paraphrase, edited words, or half of a question.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

METHOD = "normalised-overlap-2"
"""Recorded with every check; raised when other rows would be found."""

PROBE = 5  # words by which a place in a text is looked up
WINDOW = 13  # words that tell items apart that begin alike
SENTENCE = 3  # words below which a sentence proves nothing

# An operator between two operands is a part of the question: `4-1` and `4+1` are two. Other punctuation is not.
_WORDS = {
    "+": " plus ", "-": " minus ", "*": " times ", "/": " over ", "^": " power ", "**": " power ", "=": " equals ",
    "==": " equals ", "<": " below ", ">": " above ", "<=": " at most ", ">=": " at least ",
}  # fmt: skip
_OPERATOR_WORDS = frozenset(" ".join(_WORDS.values()).split())
_OPERATOR = re.compile(r"[-+*/^=<>]+")
_RIGHT = re.compile(r"[ \t]*[-+]?(?:[0-9(\[.]|[a-z](?:[\W_]|$))")
_SIGNED = re.compile(r"-\.?[0-9]")
_THOUSANDS = re.compile(r",(?<=[0-9],)(?=[0-9]{3}(?![0-9]))")  # 1,000 is 1000

_SAME = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),
        **dict.fromkeys("×·⋅\u2217", "*"),
        **dict.fromkeys("÷\u2044", "/"),
        # Format characters are not seen; they must not hide a word either.
        **dict.fromkeys(
            map(chr, [0xAD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2065), 0xFEFF])
        ),
    }
)
_SENTENCE_END = re.compile(r"[.:;](?:\s|$)|[?!。]|[\r\n]+")
_BREAKS = re.compile(r"[\W_]+")
_ASCII_BREAKS = str.maketrans({chr(code): " " for code in range(128) if not chr(code).isalnum()})
# Thai, kana and ideographs: scripts without spaces between words.
_UNSPACED = re.compile(r"([\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff])")


class Hit(NamedTuple):
    """An item of a suite, both by digest."""

    suite: str
    item: str


class Match(NamedTuple):
    """Which row holds which item. `row` is the line in the source, from 1."""

    source: str
    row: int
    suite: str
    item: str


def normalise(text: str) -> str:
    """Words separated by one space: NFKC, case-folded, without punctuation, operators between operands spelt out."""
    return _clean(_fold(text))


@lru_cache(maxsize=2)  # deduplication and comparison fold the same prompt, one after the other
def _fold(text: str) -> str:
    folded = text.casefold()
    if not folded.isascii():
        folded = unicodedata.normalize("NFKC", text.translate(_SAME)).casefold().translate(_SAME)
        folded = _UNSPACED.sub(r" \1 ", folded)
    return _OPERATOR.sub(_spelt_out, _THOUSANDS.sub("", folded))


def _spelt_out(found: re.Match[str]) -> str:
    """The word for an operator that has an operand on both sides, or for a sign; a space for any other."""
    text, start, end = found.string, found.start(), found.end()
    symbols = found.group()
    before = text[max(0, start - 8) : start]
    left = before.rstrip(" \t")
    # An operand ends with a digit or a bracket, or it is a variable of one letter.
    if left[-1:].isdigit() or left.endswith((")", "]")) or (left[-1:].isalpha() and not left[-2:-1].isalnum()):
        if symbols in _WORDS and _RIGHT.match(text, end):
            return _WORDS[symbols]
        if len(symbols) == 2 and symbols[1] == "-" and symbols[0] in _WORDS and _SIGNED.match(text, end - 1):
            return _WORDS[symbols[0]] + " minus "
    elif symbols == "-" and _SIGNED.match(text, start) and before[-1:] in ("", " ", "\t", "(", "["):
        return " minus "
    return " "


def _clean(folded: str) -> str:
    if folded.isascii():
        return " ".join(folded.translate(_ASCII_BREAKS).split())
    return _BREAKS.sub(" ", folded).strip()


class HeldOut:
    """An index over the items of any number of suites."""

    def __init__(self) -> None:
        self._whole: dict[str, Hit] = {}
        self._first: set[str] = set()
        # first PROBE words → number of words that tell apart → those words → items
        self._starts: dict[tuple[str, ...], dict[int, dict[tuple[str, ...], list[tuple[str, Hit]]]]] = {}

    def add(self, suite: str, items: Iterable[tuple[str, str]]) -> None:
        """Index `(item digest, prompt)` pairs of a suite."""
        for digest, prompt in items:
            text = normalise(prompt)
            hit = Hit(suite, digest)
            if not text:
                continue  # registration refuses it; it would be found in everything
            self._whole.setdefault(text, hit)
            words = text.split()
            if sum(not word.isdigit() and word not in _OPERATOR_WORDS for word in words) < PROBE:
                continue
            self._first.add(words[0])
            window = tuple(words[:WINDOW])
            table = self._starts.setdefault(window[:PROBE], {}).setdefault(len(window), {})
            table.setdefault(window, []).append((text, hit))

    def find(self, prompt: str, response: str) -> Hit | None:
        """The item that a row holds, or `None`."""
        if not self._whole:
            return None
        folded = _fold(prompt)
        text = _clean(folded)
        whole = self._whole.get(text)
        if whole is not None:
            return whole
        for sentence in map(_clean, _SENTENCE_END.split(folded)):
            found = self._whole.get(sentence)
            if found is not None and sentence.count(" ") >= SENTENCE - 1:
                return found
        return self._inside(text) or (self._inside(normalise(response)) if response else None)

    def _inside(self, text: str) -> Hit | None:
        words = text.split()
        first, starts = self._first, self._starts
        for at in [index for index, word in enumerate(words) if word in first]:
            lengths = starts.get(tuple(words[at : at + PROBE]))
            if lengths is None:
                continue
            for length, table in lengths.items():
                for item, hit in table.get(tuple(words[at : at + length]), ()):
                    if f" {item} " in f" {text} ":
                        return hit
        return None
