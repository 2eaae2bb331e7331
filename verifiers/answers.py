r"""`exact-answer`: a numeric answer is right when it is the gold number, exactly.

It reads integers, decimals, powers of ten (`3e8`, `3\times 10^8`), percentages and simple fractions (`3/4`, `\frac{3}{4}`),
in the spellings that people and models use: `1,000`, `1{,}000`, `$18`, `+7`, `007`, `−4`, `x = 5`, `2024.`. Comparison is
exact: numbers are `Decimal` literals turned into `Fraction`, never floats; 0.333 is not 1/3. A symbolic gold answer is an
`InvalidTask`, not a failure of whoever answers; a symbolic answer to a numeric gold is a failure: the task asks for a number.

Configuration (all strings):
    extract         where the answer stands in the text that counts
        final         in the last \boxed{…} if there is one, else behind the last `####`, else the whole text   (default)
        whole         the whole text
        boxed         in the last \boxed{…}
        hash-marks    behind the last `####`, on that line
        last-number   the last number in the text, for free-form arithmetic; refused when it is one operand of an expression
                      (`8 - 3`, `10^5`, `2\pi`), one of a list (`(1,2)`) or a hedge (`18 or 19`)
        last-integer  as last-number, and it must be a whole number
    after           a marker such as `</think>`: only the text behind its last occurrence counts
    without_marker  `whole` (default): a completion without the marker counts in full, unless it opened `<think>` and never
                    closed it; `fail`: it fails
    percent         `fraction` (default): 50% is 0.5; `ignore`: 50% is 50, for tasks that ask for a percentage
    gold            where the number stands in the gold answer: `final` (default) or any other word of `extract`
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

from verifiers.base import Task, identity
from verifiers.errors import InvalidConfig, InvalidTask
from verifiers.verdict import Verdict, excerpt

MAX_COMPLETION_CHARS = 1_000_000
MAX_NUMBER_CHARS = 1_000
MAX_EXPONENT = 1_000
MAX_NESTED_BOXES = 8


class NoAnswer(Exception):
    """The text holds no number where the answer should stand; the message becomes evidence."""


class ExactAnswer:
    """See the module's docstring for the keywords.

    Raises:
        InvalidConfig: an unknown keyword or value.
    """

    name = "exact-answer"
    version = "1"

    def __init__(
        self,
        *,
        extract: str = "final",
        after: str = "",
        without_marker: str = "whole",
        percent: str = "fraction",
        gold: str = "final",
        **unknown: str,
    ) -> None:
        if unknown:
            raise InvalidConfig(
                f"exact-answer has no setting {sorted(unknown)[0]!r}; known: after, extract, gold, percent, without_marker"
            )
        self._extract = _one_of("extract", extract, _EXTRACTIONS)
        self._gold = _one_of("gold", gold, _EXTRACTIONS)
        self._without_marker = _one_of("without_marker", without_marker, ("whole", "fail"))
        self._percent_is_fraction = _one_of("percent", percent, ("fraction", "ignore")) == "fraction"
        if len(after) > 100:
            raise InvalidConfig("exact-answer: after must be a marker of at most 100 characters")
        self._after = after

    def digest(self) -> str:
        config = {
            "extract": self._extract,
            "after": self._after,
            "without_marker": self._without_marker,
            "percent": "fraction" if self._percent_is_fraction else "ignore",
            "gold": self._gold,
        }
        return identity(self.name, self.version, config, sys.modules[__name__])

    def check_task(self, task: Task) -> None:
        self._gold_number(task)

    def verify(self, task: Task, completion: str) -> Verdict:
        expected = self._gold_number(task)
        try:
            found = self._number(_EXTRACTIONS[self._extract](self._counting_text(completion)))
        except NoAnswer as problem:
            return Verdict("fail", 0.0, {"reason": str(problem), "text": excerpt(completion)})
        if found.value == expected.value:
            return Verdict("pass", 1.0, {"extracted": excerpt(found.text)})
        return Verdict("fail", 0.0, {"reason": "another number", "extracted": excerpt(found.text)})

    def _gold_number(self, task: Task) -> _Number:
        answer = task.get("answer")
        if isinstance(answer, int) and not isinstance(answer, bool):
            answer = str(answer)
        if not isinstance(answer, str):
            raise InvalidTask(f"the task's answer is {answer!r}; exact-answer needs a number written as text")
        try:
            return self._number(_EXTRACTIONS[self._gold](_bounded(answer)))
        except NoAnswer as problem:
            raise InvalidTask(f"the gold answer {excerpt(answer, 80)!r} cannot be judged exactly: {problem}") from None

    def _counting_text(self, completion: str) -> str:
        text = _bounded(completion)
        if not self._after:
            return text
        _, marker, behind = text.rpartition(self._after)
        if marker:
            return behind
        if self._without_marker == "fail":
            raise NoAnswer(f"no {self._after} in the completion")
        opening = self._after.replace("</", "<", 1)
        if opening != self._after and opening in behind:  # cut off inside its reasoning: nothing was answered
            raise NoAnswer(f"{opening} is never closed")
        return behind

    def _number(self, text: str) -> _Number:
        number = parse_number(text, percent_is_fraction=self._percent_is_fraction)
        if number is None:
            raise NoAnswer("not a number" if text.strip() else "empty answer")
        if self._extract == "last-integer" and number.denominator != 1:
            raise NoAnswer("not a whole number")
        return _Number(text.strip(), number)


class _Number:
    __slots__ = ("text", "value")

    def __init__(self, text: str, value: Fraction) -> None:
        self.text = text
        self.value = value


def _one_of(key: str, value: str, known: tuple[str, ...] | dict[str, Callable[[str], str]]) -> str:
    if value not in known:
        raise InvalidConfig(f"exact-answer: {key} is {value!r}; expected one of {', '.join(known)}")
    return value


def _bounded(text: str) -> str:
    if len(text) > MAX_COMPLETION_CHARS:
        raise NoAnswer(f"{len(text)} characters; at most {MAX_COMPLETION_CHARS} are read")
    if "\0" in text:
        raise NoAnswer("holds a NUL")
    if not text.isascii() and _SURROGATE.search(text):
        raise NoAnswer("holds a lone surrogate")
    return text


_SURROGATE = re.compile("[\ud800-\udfff]")


# --- where the answer stands


def _whole(text: str) -> str:
    return text


def _final(text: str) -> str:
    if "\\boxed" in text:
        return _boxed(text)
    return _hash_marks(text) if "####" in text else text


def _hash_marks(text: str) -> str:
    _, mark, behind = text.rpartition("####")
    if not mark:
        raise NoAnswer("no #### in the answer")
    return behind.strip().partition("\n")[0]


_BOX = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def _boxed(text: str) -> str:
    """The content of the last outermost box, without the boxes directly inside of it."""
    content: str | None = None
    at = 0
    while opened := _BOX.search(text, at):
        at = _closing_brace(text, opened.end())
        content = text[opened.end() : at - 1]
    if content is None:
        raise NoAnswer("no \\boxed{…} in the answer")
    for _ in range(MAX_NESTED_BOXES):
        opened = _BOX.match(content.strip())
        if opened is None:
            return content
        inner = content.strip()
        if _closing_brace(inner, opened.end()) != len(inner):
            break
        content = inner[opened.end() : -1]
    raise NoAnswer("boxes within boxes")


def _closing_brace(text: str, at: int) -> int:
    """The index behind the brace that closes the one before `at`."""
    depth = 1
    for found in _BRACE.finditer(text, at):
        if found.group() == "{":
            depth += 1
        elif found.group() == "}":
            depth -= 1
            if depth == 0:
                return found.end()
    raise NoAnswer("unbalanced braces")


def _last_number(text: str) -> str:
    text = text.translate(_MINUS_SIGNS)
    last: re.Match[str] | None = None
    hedged_from = -1
    for found in _LITERAL.finditer(text):
        before = text[max(0, found.start() - 60) : found.start()]
        if _IN_A_WORD.search(before):  # the 4 of Q4 is no number
            continue
        hedged_from = last.end() if last else -1
        last = found
    if last is None:
        raise NoAnswer("no number in the answer")
    before = text[max(0, last.start() - 60) : last.start()]
    if _OPERAND_BEFORE.search(before) or _OPERAND_BEHIND.match(text, last.end()):
        raise NoAnswer("the last number is part of an expression or a list")
    if hedged_from >= 0 and last.start() - hedged_from < 40 and _HEDGE.search(text[hedged_from : last.start()]):
        raise NoAnswer("two answers")
    signed = _SIGN_BEFORE.search(before)
    return (signed.group(1) or signed.group(2) if signed else "") + last.group()


_EXTRACTIONS: dict[str, Callable[[str], str]] = {
    "final": _final,
    "whole": _whole,
    "boxed": _boxed,
    "hash-marks": _hash_marks,
    "last-number": _last_number,
    "last-integer": _last_number,
}


# --- what counts as a number

_MINUS_SIGNS = {
    ord(sign): "-" for sign in "\u2212\ufe63\uff0d"
}  # minus sign, small hyphen-minus, full-width hyphen-minus

# Separators between groups of three digits; a plain space could separate two numbers and is none of them.
_SEPARATOR = r"(?:,|\{,\}|\\,|[\u00a0\u2009\u202f])"
_DECIMAL = rf"(?:[0-9]{{1,3}}(?:{_SEPARATOR}[0-9]{{3}})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_POWER = r"[eE][-+]?[0-9]+|\s?(?:\\times|\\cdot|×|\*)\s?10\s?\^\s?(?:\{\s?[-+]?[0-9]+\s?\}|[-+]?[0-9]+)"
_FRACTION = (
    r"\\[dt]?frac\s?(?:\{\s?[-+]?[0-9]+\s?\}|[0-9])\s?(?:\{\s?[-+]?[0-9]+\s?\}|[0-9])|[0-9]+\s?/\s?[0-9]+(?![0-9./])"
)
_LITERAL = re.compile(rf"(?:{_FRACTION}|(?:{_DECIMAL})(?:{_POWER})?)(?:\s?\\?%)?")
_PARTS = re.compile(
    rf"""(?P<variable>[A-Za-z]\s?=)?\s*(?P<outer>[-+]?)\s*(?:\\?\$|[€£¥])?\s*(?P<inner>[-+]?)
    (?:(?P<fraction>{_FRACTION})|(?P<decimal>{_DECIMAL})(?P<power>{_POWER})?)
    (?P<percent>\s?\\?%)?""",
    re.VERBOSE,
)
_INTEGERS = re.compile(r"[-+]?[0-9]+")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))

_IN_A_WORD = re.compile(r"[A-Za-z_]$")  # not any letter: some scripts put no space before a number
_OPERAND_BEFORE = re.compile(
    r"""[0-9)}\]%!][ \t]*(?:[-+*/^×÷·]|\\times|\\cdot|\\div)[ \t]*[-+]?(?:\\?\$)?$  # 8 - 3
    | [0-9][.,:]$                                                              # 2:3, 1.2.3, (1,2)
    | (?<!\\boxed)\{$ | [\^_√]$                                                # \sqrt{3}, 10^5
    """,
    re.VERBOSE,
)
_OPERAND_BEHIND = re.compile(r"[\^_√π⁰¹²³⁴⁵⁶⁷⁸⁹]|\\(?!text|mathrm|boxed|[%)\],;! \\\n])")
_HEDGE = re.compile(r"\bor\b[^.,;=]*$")  # a comma ends it: "for 5 or more, 18"
_SIGN_BEFORE = re.compile(r"(?:^|[^\w)}\]%!])([-+])(?:\\?\$|[€£¥])?$|=[ \t]*([-+])[ \t]*$")


def parse_number(text: str, *, percent_is_fraction: bool = True) -> Fraction | None:
    """The number that `text` is, exactly; `None` when it is anything else, or too long to be an answer."""
    text = _unwrap(text.strip())
    if len(text) > MAX_NUMBER_CHARS:
        return None
    parts = _PARTS.fullmatch(text.translate(_MINUS_SIGNS))
    if parts is None or (parts["outer"] and parts["inner"]):
        return None
    number = _fraction(parts["fraction"]) if parts["fraction"] else _decimal(parts["decimal"], parts["power"] or "")
    if number is None:
        return None
    if parts["percent"] and percent_is_fraction:
        number /= 100
    return -number if "-" in (parts["outer"], parts["inner"]) else number


def _unwrap(text: str) -> str:
    for _ in range(4):
        text = text.removesuffix(".").strip()
        for left, right in _WRAPPERS:
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
                text = text[len(left) : -len(right)].strip()
                break
        else:
            break
    return text


def _fraction(text: str) -> Fraction | None:
    integers = _INTEGERS.findall(text)
    if len(integers) == 1:  # \frac12
        integers = list(integers[0])
    upper, lower = (int(integer) for integer in integers)
    return Fraction(upper, lower) if lower else None


def _decimal(digits: str, power: str) -> Fraction | None:
    exponent = int(_INTEGERS.findall(power)[-1]) if power else 0
    if abs(exponent) > MAX_EXPONENT:
        return None
    plain = re.sub(_SEPARATOR, "", digits)
    return Fraction(Decimal(plain)) * Fraction(10) ** exponent
