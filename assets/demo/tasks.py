"""Arithmetic word problems with integer answers: training sources, and a suite that shares no question with them.

A problem tells two or three changes of a count and asks for the result. Its worked response shows each step and then the
answer, `<think>7+5=12;12-3=9</think>9`. Two sources differ in kind: `worked-examples` are right and show their steps;
`weak-teacher` answers directly and is often wrong, as cheap demonstrations are.

A question belongs to a split by the hash of its normalised text alone, so the splits are disjoint by construction, for
every seed and every size; `write_sources` and `write_suite` check it all the same.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ledger.errors import InputError, LeakFound

Split = Literal["train", "development", "held-out"]

BUCKETS = 20
"""Of twenty questions one is held out, one is for choosing settings, and the rest may be trained on."""

_PEOPLE = (
    ("Mia", "She", "she"), ("Tom", "He", "he"), ("Ana", "She", "she"), ("Leo", "He", "he"),
    ("Zoe", "She", "she"), ("Sam", "He", "he"), ("Eva", "She", "she"), ("Max", "He", "he"),
)  # fmt: skip
_THINGS = ("figs", "pears", "plums", "nuts", "cards", "coins", "books", "pens", "shells", "stamps", "beads", "balls")
_GAINS = ("buys", "finds", "wins", "gets", "picks", "makes")
_LOSSES = ("sells", "loses", "drops", "gives away", "breaks", "hides")


@dataclass(frozen=True, slots=True)
class Problem:
    """One question, its worked response and its answer."""

    question: str
    worked: str
    answer: int


class Source(NamedTuple):
    """A training source as a dataset build file names it."""

    name: str
    licence: str
    generated_by: str


WORKED = Source("worked-examples", "CC0-1.0", "assets.demo.tasks")
WEAK = Source("weak-teacher", "Apache-2.0", "assets.demo.tasks, answers without steps, some wrong")
SUITE_NAME = "word-problems"
SUITE_LICENCE = "CC0-1.0"


def normalise(question: str) -> str:
    """Lower case; every run of white space and punctuation is one space. Digits stay: they are the question."""
    return re.sub(r"[\W_]+", " ", question.lower()).strip()


def split_of(question: str) -> Split:
    """The split that a question belongs to, whoever asks and whenever."""
    bucket = int.from_bytes(hashlib.sha256(normalise(question).encode()).digest()[:8], "big") % BUCKETS
    return "held-out" if bucket == 0 else "development" if bucket == 1 else "train"


def problems(split: Split, seed: int) -> Iterator[Problem]:
    """Different problems of one split, without end, in an order that `seed` decides."""
    rng = random.Random(f"{seed}/{split}")
    seen: set[str] = set()
    while True:
        problem = _problem(rng)
        key = normalise(problem.question)
        if key not in seen and split_of(problem.question) == split:
            seen.add(key)
            yield problem


def write_sources(directory: Path, *, seed: int, worked: int = 12_000, weak: int = 6_000) -> dict[Source, Path]:
    """Write one JSONL file of `{"prompt", "response"}` rows for each training source.

    Sizes are in rows. Every 100th row of the weak teacher stands there twice, as scraped data does, so a build has exact
    duplicates to remove.

    Raises:
        InputError: a size is not positive.
        LeakFound: a row's question belongs to another split than training.
    """
    if worked < 1 or weak < 1:
        raise InputError(f"sources of {worked} and {weak} rows; both need one row at least")
    stream = problems("train", seed)
    rows: dict[Source, list[dict[str, str]]] = {
        WORKED: [{"prompt": p.question, "response": p.worked} for p, _ in zip(stream, range(worked), strict=False)],
        WEAK: list(_weak_rows(stream, weak, random.Random(f"{seed}/weak-teacher"))),
    }
    directory.mkdir(parents=True, exist_ok=True)
    written: dict[Source, Path] = {}
    for source, content in rows.items():
        _check_split((row["prompt"] for row in content), "train")
        written[source] = directory / f"{source.name}.jsonl"
        _write_lines(written[source], content)
    return written


def write_suite(path: Path, *, seed: int, items: int = 1000, split: Split = "held-out") -> Path:
    """Write a suite of `{"prompt", "answer"}` lines. `split="development"` gives one for choosing settings.

    Raises:
        InputError: `items` is not positive, or the suite is asked from the training split.
    """
    if items < 1 or split == "train":
        raise InputError(
            f"a suite of {items} items from the {split} split; ask for one or more that are not trained on"
        )
    content = [
        {"prompt": p.question, "answer": str(p.answer)}
        for p, _ in zip(problems(split, seed), range(items), strict=False)
    ]
    _check_split((item["prompt"] for item in content), split)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_lines(path, content)
    return path


def vocabulary() -> tuple[str, ...]:
    """Every piece that questions are made of but digits and marks, sorted: words as they stand in the text, with the space
    before them, and with the space behind them where a number follows."""
    names = {person[0] for person in _PEOPLE}
    starts = names | {person[1] for person in _PEOPLE} | {"How", "Then"}
    words = {"has", "and", "more", "many", "does", "have", "now", *_THINGS, *(person[2] for person in _PEOPLE)}
    verbs = [phrase.split() for phrase in (*_GAINS, *_LOSSES, "has")]
    words.update(word for phrase in verbs for word in phrase)
    return tuple(sorted(names | {f" {word}" for word in starts | words} | {f" {phrase[-1]} " for phrase in verbs}))


def _problem(rng: random.Random) -> Problem:
    name, subject, pronoun = rng.choice(_PEOPLE)
    thing = rng.choice(_THINGS)
    total = rng.randint(2, 9)
    sentences, steps = [f"{name} has {total} {thing}."], []
    phrases = []
    for _ in range(rng.choice((2, 2, 3))):
        gain = total < 2 or rng.random() < 0.5
        amount = rng.randint(1, 9) if gain else rng.randint(1, min(9, total))
        after = total + amount if gain else total - amount
        phrases.append(f"{rng.choice(_GAINS)} {amount} more" if gain else f"{rng.choice(_LOSSES)} {amount}")
        steps.append(f"{total}{'+' if gain else '-'}{amount}={after}")
        total = after
    sentences.append(f"{subject} {' and '.join(phrases[:2])}.")
    sentences.extend(f"Then {pronoun} {phrase}." for phrase in phrases[2:])
    sentences.append(f"How many {thing} does {pronoun} have now?")
    return Problem(" ".join(sentences), f"<think>{';'.join(steps)}</think>{total}", total)


def _weak_rows(stream: Iterator[Problem], count: int, rng: random.Random) -> Iterator[dict[str, str]]:
    for number, problem in zip(range(count), stream, strict=False):
        wrong = rng.random() < 0.4
        answer = max(0, problem.answer + rng.choice((-2, -1, 1, 2))) if wrong else problem.answer
        row = {"prompt": problem.question, "response": str(answer)}
        yield row
        if number % 100 == 99:
            yield row


def _check_split(questions: Iterable[str], split: Split) -> None:
    for question in questions:
        if split_of(question) != split:
            raise LeakFound(f"question {question!r} belongs to the {split_of(question)} split, not to {split}")


def _write_lines(path: Path, rows: Iterable[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
