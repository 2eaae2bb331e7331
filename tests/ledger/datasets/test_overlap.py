"""Overlap: what counts as the same question, and what does not."""

# ruff: noqa: RUF001  # look-alike characters are what this is about

from __future__ import annotations

import random
import time

import pytest

from ledger.datasets.overlap import HeldOut, Hit, normalise

QUESTION = "Janet's ducks lay 16 eggs per day. She eats three and sells the rest at $2 each. How much does she make?"


def index(*prompts: str) -> HeldOut:
    held_out = HeldOut()
    held_out.add("suite", ((str(number), prompt) for number, prompt in enumerate(prompts)))
    return held_out


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Hello,  WORLD!", "hello world"), ("4-1-7=", "4 − 1 – 7 = ?"), ("ﬁve ＦＯＯ", "five foo"), ("ap\u200bple", "apple"),
        ("2×3", "2 * 3"), ("6÷2", "6/2"), ("x^2-1", "x ** 2 - 1"), ("well-known", "well known"), ("a\r\n b", "A b"),
        ("- 4 apples", "4 apples"), ("**bold** word", "bold word"), ("It's $5.", "it s 5"),
        ("Straße", "STRASSE"), ("$1,234,567", "1234567"),
    ],
)  # fmt: skip
def test_the_same_question(left, right):
    assert normalise(left) == normalise(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [("4-1-7=", "4+1-7="), ("12*34", "12/34"), ("x^2-1", "x^2+1"), ("-4+3", "4+3"), ("5>3", "5<3"), ("3 apples", "4 apples"),
     ("4*-3", "4*3"), ("a<=b", "a>=b"), ("(1,2)", "(12)")],
)  # fmt: skip
def test_different_questions(left, right):
    assert normalise(left) != normalise(right)


def test_normalising_twice_changes_nothing():
    for text in (QUESTION, "4-1-7=", "x^2-1 >= -3", "小明有5个苹果？", "ﬁ\u200b−5", "a.b: c; d"):
        assert normalise(normalise(text)) == normalise(text)


@pytest.mark.parametrize(
    ("prompt", "response"),
    [
        (QUESTION, "x"),
        (QUESTION.upper().replace(".", " ...\n"), "x"),
        (f"Solve this step by step.\n\n{QUESTION}\nAnswer:", "x"),
        (f"prefix{'.'}{QUESTION}", "x"),
        ("Write a question about ducks", f"Sure! {QUESTION} She makes 26."),
    ],
)
def test_a_held_out_question_is_found(prompt, response):
    assert index("something else entirely with many words", QUESTION).find(prompt, response) == Hit("suite", "1")


def test_short_questions_are_found_whole_and_as_sentences_and_not_inside_of_longer_ones():
    held_out = index("4-1-7=", "What is 12*34+5?")
    assert held_out.find("4 - 1 - 7 =", "-4") == Hit("suite", "0")
    assert held_out.find("Solve: What is 12*34 + 5? Think first.", "x") == Hit("suite", "1")
    assert held_out.find("Compute.\n4-1-7=\n", "x") == Hit("suite", "0")
    for innocent in ("4-1-7-2=", "14-1-7=", "4+1-7=", "What is 112*34+5?", "What is 12*34+56?"):
        assert held_out.find(innocent, "4-1-7=-4") is None, innocent


def test_a_part_of_a_word_is_not_a_word():
    held_out = index("an art of war is long")
    assert held_out.find("the art an art of war is long gone", "x") is not None
    assert held_out.find("than art of war is longer", "x") is None


def test_items_that_begin_alike_are_told_apart():
    start = "Write a python function to find the largest number in the given list of"
    held_out = index(*(f"{start} type {number} items" for number in range(50)))
    assert held_out.find(f"please: {start} type 37 items now", "") == Hit("suite", "37")
    assert held_out.find(f"please: {start} type 99 items now", "") is None


def test_scripts_without_spaces():
    held_out = index("小明有5个苹果，吃了2个，还剩几个？")
    assert held_out.find("请回答：小明有5个苹果，吃了2个，还剩几个？谢谢", "x") == Hit("suite", "0")
    assert held_out.find("小明有6个苹果，吃了2个，还剩几个？", "x") is None


def test_an_empty_index_finds_nothing():
    assert HeldOut().find("", "") is None
    assert index("???").find("", "!!!") is None


def test_all_planted_items_are_found_and_nothing_else():
    rng = random.Random(5)
    words = [f"w{number}" for number in range(300)]
    items = [" ".join(rng.choices(words, k=rng.randint(5, 40))) for _ in range(300)]
    held_out = index(*items)
    for _ in range(600):
        noise = " ".join(rng.choices(words, k=60))
        expected = next((item for item in items if f" {item} " in f" {noise} "), None)
        assert (held_out.find(noise, "") is None) == (expected is None)
        planted = rng.choice(items)
        at = rng.randint(0, 60)
        pieces = noise.split()
        found = held_out.find(" ".join([*pieces[:at], planted, *pieces[at:]]), "")
        assert found is not None
        assert f" {items[int(found.item)]} " in f" {' '.join([*pieces[:at], planted, *pieces[at:]])} "


def test_cost_does_not_grow_with_the_number_of_items():
    rng = random.Random(3)
    words = [f"w{number}" for number in range(5000)]
    texts = [" ".join(rng.choices(words, k=50)) for _ in range(300)]

    def seconds(items: int) -> float:
        held_out = index(*(" ".join(rng.choices(words, k=30)) for _ in range(items)))
        started = time.process_time()
        for text in texts:
            held_out.find(text, text)
        return time.process_time() - started

    assert min(seconds(5000) for _ in range(3)) < 10 * min(seconds(100) for _ in range(3))
