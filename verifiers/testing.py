"""The conformance kit of verifiers. A verifier's test class inherits it and says what passes and what fails:

    class TestMyVerifier(VerifierConformance):
        def make(self) -> Verifier:
            return MyVerifier(strict="yes")

        task = {"prompt": "1+1=", "answer": "2"}
        passing = ("2", "2.0")
        failing = ("3", "two")
        unjudgeable = ({"prompt": "1+1="},)

pytest collects the inherited tests; nothing here imports pytest.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from ledger.digest import is_digest
from verifiers.base import Task, Verifier
from verifiers.errors import InvalidTask
from verifiers.verdict import NoVerdict, Verdict

TEN_MB = 10_000_000


def hostile_completions() -> Iterator[tuple[str, str]]:
    """`(what it is, text)`: none of them answers anything."""
    yield "nothing", ""
    yield "white space", " \t\r\n" * 1000
    yield "10 MB of letters", "a" * TEN_MB
    yield "10 MB of digits", "9" * TEN_MB
    yield "10 MB of braces", "{" * TEN_MB
    yield "just under a million digits", "9" * 999_999
    yield "a NUL", "\0"
    yield "a lone surrogate", "\ud800"
    yield "a reversed surrogate pair", "\udc00\ud800"
    yield "deep parentheses", "(" * 100_000 + ")" * 100_000
    yield "deep boxes", "\\boxed{" * 50_000 + "}" * 50_000
    yield "unclosed boxes", "\\boxed{" * 100_000
    yield "unbalanced fractions", "\\frac{" * 100_000
    yield "deep JSON", "[" * 100_000 + "]" * 100_000
    yield "a tower of powers", "9^{9^{9^{9^{9}}}}"
    yield "an exponent beyond memory", "1e999999999999"
    yield "a repeated separator", "1," * 400_000
    yield "many small numbers", "1 2 " * 200_000 + "x"
    yield "not a number", "nan"
    yield "infinity", "Infinity"
    yield "escape sequences", "\x1b[2J\x1b[31m"
    yield "combining marks", "e" + "\u0301" * 100_000
    yield "bidirectional overrides", "\u202e\u2066" * 1000


class VerifierConformance:
    """Override `make` and the class attributes."""

    task: Task
    passing: tuple[str, ...]
    failing: tuple[str, ...]
    unjudgeable: tuple[Task, ...]

    def make(self) -> Verifier:
        raise NotImplementedError("make() returns the verifier under test")

    def test_it_follows_the_protocol(self) -> None:
        verifier = self.make()
        assert isinstance(verifier, Verifier)
        assert verifier.name == verifier.name.lower()
        assert verifier.version
        assert is_digest(verifier.digest())

    def test_its_digest_is_of_what_it_is_and_not_of_when_it_was_made(self) -> None:
        assert self.make().digest() == self.make().digest()

    def test_right_answers_pass_and_wrong_ones_fail(self) -> None:
        verifier = self.make()
        verifier.check_task(self.task)
        assert self.passing
        assert self.failing
        for text in self.passing:
            assert self._judge(verifier, text).status == "pass", text
        for text in self.failing:
            assert self._judge(verifier, text).status == "fail", text

    def test_verdicts_are_deterministic_also_among_threads(self) -> None:
        verifier = self.make()
        texts = [*self.passing, *self.failing] * 8
        once = [self._judge(verifier, text) for text in texts]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda text: self._judge(verifier, text), texts)) == once
        assert [self._judge(self.make(), text) for text in texts] == once

    def test_verdicts_are_plain_data(self) -> None:
        verifier = self.make()
        for text in (*self.passing, *self.failing):
            verdict = self._judge(verifier, text)
            written = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
            assert written == {"status": verdict.status, "reward": verdict.reward, "evidence": dict(verdict.evidence)}

    def test_the_task_is_left_alone(self) -> None:
        task = copy.deepcopy(dict(self.task))
        self.make().verify(task, self.passing[0])
        assert task == dict(self.task)

    def test_hostile_completions_neither_raise_nor_pass(self) -> None:
        verifier = self.make()
        for what, text in hostile_completions():
            assert self._judge(verifier, text).status == "fail", what

    def test_an_answer_that_is_not_text_does_not_pass(self) -> None:
        verifier = self.make()
        for text in self.passing:
            for wrapped in (text + "\0", text + "\ud800", "\ud800" + text):
                assert self._judge(verifier, wrapped).status == "fail", ascii(wrapped)

    def test_a_task_without_a_gold_answer_is_invalid_and_nobody_passes(self) -> None:
        verifier = self.make()
        assert self.unjudgeable
        for task in self.unjudgeable:
            for text in ("", *self.passing):
                assert _is_invalid(verifier, task, text), f"{dict(task)!r} was judged"

    def _judge(self, verifier: Verifier, text: str) -> Verdict:
        verdict = verifier.verify(self.task, text)
        assert not isinstance(verdict, NoVerdict), f"the machinery failed: {verdict}"
        return verdict


def _is_invalid(verifier: Verifier, task: Task, text: str) -> bool:
    try:
        verifier.check_task(task)
    except InvalidTask:
        try:
            verifier.verify(task, text)
        except InvalidTask:
            return True
    return False
