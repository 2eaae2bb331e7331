r"""The exact-answer checker: what counts as the answer, what as a number, and what as the same number."""

from __future__ import annotations

import csv
import gzip
import json
import time
from fractions import Fraction
from pathlib import Path

import pytest

from verifiers.answers import ExactAnswer, parse_number
from verifiers.base import Verifier
from verifiers.errors import InvalidConfig, InvalidTask
from verifiers.testing import VerifierConformance

SHARED = Path(__file__).resolve().parents[2].parent / "shared"


class TestFinal(VerifierConformance):
    task = {"prompt": "How many?", "answer": "1234"}
    passing = (
        "1234",
        " 1,234.\n",
        "It is \\boxed{1{,}234}",
        "so\n#### 1234",
        "+01234.0",
        "\\$1,234",
        "x = 1234",
        "1.234e3",
    )
    failing = (
        "1235",
        "-1234",
        "1,23,4",
        "1234 or 1235",
        "the answer is 1234",
        "\\boxed{1234",
        "\\boxed{1234} \\boxed{1}",
    )
    unjudgeable = ({"prompt": "?"}, {"prompt": "?", "answer": ""}, {"prompt": "?", "answer": None},
                   {"prompt": "?", "answer": "\\pi"}, {"prompt": "?", "answer": True}, {"prompt": "?",
        "answer": 1234.0},
                   {"prompt": "?", "answer": "1/0"}, {"prompt": "?", "answer": "1e99999"})  # fmt: skip

    def make(self) -> Verifier:
        return ExactAnswer()


class TestLastNumberBehindReasoning(VerifierConformance):
    task = {"prompt": "4-1-7=", "answer": "-4"}
    passing = ("<think>4-1=3\n3-7</think>-4", "-4", "</think> The answer is −4.", "x</think>5 or so... no: 4-1-7=-4")
    failing = ("4", "<think>-4", "<think>-4</think>", "-4</think>5", "- 4 - -4", "-4 or -5", "-5 or -4", "10^-4")
    unjudgeable = ({"prompt": "4-1-7="}, {"prompt": "4-1-7=", "answer": "minus four"})

    def make(self) -> Verifier:
        return ExactAnswer(extract="last-number", after="</think>")


def judge(gold: str, completion: str, **config: str) -> str:
    return ExactAnswer(**config).verify({"answer": gold}, completion).status


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("18", 18), ("-18", -18), ("−18", -18), ("- 18", -18), ("+7", 7), ("007", 7), ("-0", 0),
        ("18.", 18), ("18.50", "18.5"),
        (".5", "0.5"), ("1,000", 1000), ("1{,}234{,}567", 1234567), ("1\\,000", 1000), ("1\u202f000", 1000),
        ("$18", 18),
        ("$18$", 18), ("\\$18", 18), ("-$5", -5), ("$-5", -5), ("\\(18\\)", 18), ("**18**", 18), ("**18.**", 18),
        ("$\\frac{3}{4}$", "3/4"), ("\\dfrac12", "1/2"), ("-\\frac{3}{4}", "-3/4"),
        ("\\frac{-3}{4}", "-3/4"), ("6/8", "3/4"),
        ("50%", "1/2"), ("12.5\\%", "1/8"), ("3e8", 300000000), ("1E2", 100),
        ("2.5\\times 10^{-3}", "1/400"), ("4×10^2", 400),
        ("x=5", 5), ("n = -5", -5),
    ],
)  # fmt: skip
def test_spellings_of_numbers(text, number):
    assert parse_number(text) == Fraction(number)


@pytest.mark.parametrize(
    "text",
    [
        "", "-", ".", "$", "--5", "-$-5", "1,00", "1,0000", "12,34", "1 000", "1_000", "0x10", "1.2.3",
        "1e", "1e1001", "1e-1001",
        "1/0", "1/2/3", "1.5/2", "\\frac{1}{0}", "\\frac{1}{2", "10^5", "2^3", "5!", "18 dollars",
        "eighteen", "١٨", "\uff11\uff18", "10²",
        "nan", "inf", "Infinity", "1" * 1001, "18 or 19", "(1,2)", "2:3", "\\pi", "2\\pi", "\\minus 1", "5%%", "True",
    ],
)  # fmt: skip
def test_what_is_no_number(text):
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        ("3*6=18", "18"), ("He has 18 apples.", "18"), ("18kg", "18"), ("It costs $18.", "18"),
        ("**18**", "18"), ("18!", "18"),
        ('{"answer": 18}', "18"), ("\\boxed{18}", "18"), ("In 2024, 18", "18"), ("Steps:\n- 5\n- 18", "18"),
        ("18 for Q4", "18"),
        ("答案是18", "18"), ("that is 1/2", "0.5"), ("1,234 of them", "1234"), ("= - 4", "-4"),
        ("about -$5", "-5"), ("0.5.", "0.5"),
        ("16-3-4=9 eggs, 9*2=18", "18"), ("16 or 17? No: 18", "18"), ("For 5 or more, 18", "18"),
        ("$18\\text{ cm}$", "18"),
    ],
)  # fmt: skip
def test_the_last_number_of_free_text(completion, gold):
    assert judge(gold, completion, extract="last-number") == "pass"


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        ("8 - 3", "3"), ("5-3", "3"), ("10^5", "5"), ("10^{5}", "5"), ("2\\pi", "2"), ("2π", "2"),
        ("\\sqrt{3}", "3"), ("√3", "3"),
        ("(1,2)", "2"), ("2:3", "3"), ("1.2.3", "3"), ("1/2", "2"), ("1/2/3", "3"), ("18 or 19", "19"),
        ("18 apples or 19", "19"),
        ("3\\cdot 5", "5"), ("3 × 5", "5"), ("(2+3)*5", "5"), ("x12", "12"), ("10²", "10"), ("5^2", "5"),
        ("1,00", "100"),
        ("50%", "50"), ("3.5", "5"), ("no number", "0"), ("-5", "5"), ("3\\times 10^5", "5"),
    ],
)  # fmt: skip
def test_a_last_number_that_is_not_the_answer_does_not_pay(completion, gold):
    assert judge(gold, completion, extract="last-number") == "fail"


def test_whole_numbers_only():
    assert judge("5", "so 5.0", extract="last-integer") == "pass"
    assert judge("5", "so 5.5", extract="last-integer") == "fail"
    with pytest.raises(InvalidTask, match="not a whole number"):
        judge("5.5", "5.5", extract="last-integer")


def test_each_extraction_looks_in_its_own_place():
    assert judge("7", "\\boxed{7} then 8", extract="boxed") == "pass"
    assert judge("8", "\\boxed{7} then 8", extract="boxed") == "fail"
    assert judge("7", "7", extract="boxed") == "fail"
    assert judge("7", "#### 7\nmore 8", extract="hash-marks") == "pass"
    assert judge("7", "7", extract="hash-marks") == "fail"
    assert judge("7", "is 7", extract="whole") == "fail"
    assert judge("2", "\\boxed{\\boxed{2}}", extract="boxed") == "pass"
    assert judge("2", "\\boxed{\\boxed{2}", extract="boxed") == "fail"
    assert judge("2", "\\boxed{\\{2\\}}", extract="boxed") == "fail"


def test_the_marker_says_what_counts():
    think = {"after": "</think>"}
    assert judge("5", "<think>4</think>5", **think) == "pass"
    assert judge("4", "<think>4</think>5", **think) == "fail"
    assert judge("5", "</think>4</think>5", **think) == "pass"
    assert judge("5", "5", **think) == "pass"
    assert judge("5", "5", **think, without_marker="fail") == "fail"
    assert judge("4", "<think>4", **think, extract="last-number") == "fail"


def test_percentages_are_a_choice_of_the_suite():
    assert judge("50", "50%", extract="last-number", percent="ignore") == "pass"
    assert judge("0.5", "50%", extract="last-number") == "pass"


def test_comparison_is_exact():
    assert judge("0.1", "0.1000000000000000055511151231257827") == "fail"
    assert judge("9007199254740993", "9007199254740992") == "fail"
    assert judge("0.3", "3e-1") == "pass"
    assert judge("1/3", "0." + "3" * 300) == "fail"
    assert judge("1" + "0" * 300, "1e300") == "pass"


def test_evidence_says_why_and_is_short():
    verdict = ExactAnswer().verify({"answer": "5"}, "x" * 100_000)
    assert verdict.evidence["reason"] == "not a number"
    assert len(verdict.evidence["text"]) == 200
    assert ExactAnswer().verify({"answer": "5"}, "6").evidence == {"reason": "another number", "extracted": "6"}


def test_settings_are_checked():
    with pytest.raises(InvalidConfig, match=r"no setting 'extrct'; known: after, extract"):
        ExactAnswer(extrct="boxed")
    with pytest.raises(InvalidConfig, match=r"extract is 'box'; expected one of final, whole, boxed"):
        ExactAnswer(extract="box")
    assert ExactAnswer(extract="boxed").digest() != ExactAnswer(extract="whole").digest()
    assert ExactAnswer(extract="final").digest() == ExactAnswer().digest()


def test_cost_grows_with_the_length_and_not_faster():
    def seconds(text: str) -> float:
        started = time.process_time()
        for extract in ("last-number", "boxed", "final"):
            judge("5", text, extract=extract)
        return time.process_time() - started

    for piece in ("1,", "1 ", "9", "\\boxed{", "\\frac{", "1/", "-", "1e", "111,", "= - ", "\\boxed{}"):
        small, large = (min(seconds(piece * count) for _ in range(3)) for count in (2_000, 32_000))
        assert large < 80 * small + 0.01, piece


CLAIMED = {
    "1/2", "\\frac{1}{2}", "0.5", "1000", "1234567", "3", "x=5", "5", "\\$18", "18", "2", "7", "1", "\\frac{3}{4}",
    "-\\frac{3}{4}", "-1", "0", "\\frac{1}{3}", "2024", "3\\times 10^5", "100", "50", "42", "3\\times 10^8",
}  # fmt: skip
"""The gold answers of the table that are numbers. The others are refused as tasks, never judged."""


@pytest.mark.skipif(not (SHARED / "cases").is_dir(), reason="the shared cases are not beside the repository")
def test_the_table_of_answers():
    with (SHARED / "cases" / "math_answers.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    judged = 0
    for row in rows:
        if row["gold"] not in CLAIMED:
            with pytest.raises(InvalidTask):
                judge(row["gold"], row["answer"])
            continue
        judged += 1
        verdict = {"pass": "yes", "fail": "no"}[judge(row["gold"], row["answer"])]
        assert verdict in row["equivalent"].split(" or "), row
    assert (judged, len(rows)) == (32, 58)


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="the shared data are not beside the repository")
def test_every_gsm8k_solution_passes_its_own_task_and_no_other_number_does():
    with gzip.open(SHARED / "data" / "gsm8k_test.jsonl.gz", "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    final, last = ExactAnswer(), ExactAnswer(extract="last-number")
    for row in rows:
        gold = row["answer"].rpartition("####")[2].strip()
        assert final.verify(row, row["answer"]).passed
        assert last.verify(row, f"So the answer is {gold}.").passed
        assert not last.verify(row, f"So the answer is {gold}1.").passed
