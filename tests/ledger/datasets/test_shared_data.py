"""The store against real data: which rows of public sets are flagged, and which planted ones are found."""

from __future__ import annotations

import random

import pytest

from ledger.datasets import build_dataset, register_suite_file
from ledger.datasets.overlap import HeldOut, normalise
from ledger.errors import LeakFound


def index(prompts) -> HeldOut:
    held_out = HeldOut()
    held_out.add("suite", ((str(number), prompt) for number, prompt in enumerate(prompts)))
    return held_out


def test_gsm8k_train_does_not_hold_gsm8k_test(shared):
    held_out = index(row["question"] for row in shared("gsm8k_test.jsonl.gz"))
    train = shared("gsm8k_train.jsonl.gz")
    assert [n for n, row in enumerate(train) if held_out.find(row["question"], row["answer"])] == []


def test_planted_gsm8k_questions_are_found(shared):
    test = [row["question"] for row in shared("gsm8k_test.jsonl.gz")]
    held_out, rng = index(test), random.Random(7)
    train = [row["question"] for row in shared("gsm8k_train.jsonl.gz")]
    for number, question in enumerate(test):
        before, behind = rng.sample(train, 2)
        for planted in (
            question.upper(),
            f"{before} {question}\n{behind}",
            question.replace(",", "").replace("?", " ?"),
        ):
            found = held_out.find(planted, "")
            assert found is not None
            assert normalise(test[int(found.item)]) in normalise(planted), number
        assert held_out.find("Write a question.", f"{before} {question}") is not None


def test_paraphrases_are_beyond_this_check(shared):
    """It says so; what finds them is another method."""
    held_out = index(row["question"] for row in shared("gsm8k_test.jsonl.gz"))
    found = sum(held_out.find(row["text"], "") is not None for row in shared("leak_gsm8k_rephrased.jsonl.gz"))
    assert found < 30


def test_public_sets_against_public_suites(shared):
    """One row of 12,008 is flagged, and rightly: it asks for what an MBPP item asks for, in its words."""
    suites = index(
        [row["prompt"] for row in shared("humaneval.jsonl.gz")]
        + [row["prompt"] for row in shared("mbpp_sanitized.jsonl.gz")]
        + [row["problem"] for row in shared("math500.jsonl.gz")]
    )
    rows = [(row["instruction"], row["response"]) for row in shared("gpteacher_codegen.jsonl.gz")]
    rows += [(row["question"], row["answer"]) for row in shared("gsm8k_train.jsonl.gz")]
    assert [prompt for prompt, response in rows if suites.find(prompt, response)] == [
        "How would you write a Python function to find the first non-repeated character in a given string?"
    ]
    assert len(rows) == 12_008


def test_a_dataset_of_gsm8k_against_its_test_split(project, shared):
    train, test = shared("gsm8k_train.jsonl.gz"), shared("gsm8k_test.jsonl.gz")
    project.rows("test.jsonl", test)
    register_suite_file(project.ledger, project.file("suite.yaml", (
        "name: gsm8k\nitems: test.jsonl\nprompt_field: question\nverifier: exact-answer\nlicence: MIT\nsource: openai\n"
    )))  # fmt: skip
    recipe = project.file("recipe.yaml", (
        "name: gsm8k-train\nsources:\n- {name: train, path: train.jsonl.gz, licence: MIT, prompt_field: question, "
        "response_field: answer}\n"
    ))  # fmt: skip
    project.rows("train.jsonl.gz", [*train[:2000], {**test[3], "answer": "no idea"}])
    with pytest.raises(LeakFound, match="1 row overlaps a held-out suite: train line 2001 holds item"):
        build_dataset(project.ledger, recipe)
    project.rows("train.jsonl.gz", train)
    payload = build_dataset(project.ledger, recipe).event.payload
    assert (payload.rows, payload.duplicates_removed) == (7473, 0)
