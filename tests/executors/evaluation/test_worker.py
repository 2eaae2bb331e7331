"""The child: every item answered once, progress on the pipe, and readable reasons when it gives up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executors.base import configure
from executors.evaluation import worker
from executors.evaluation.executor import EvaluationConfig, EvaluationExecutor
from executors.evaluation.suites import parse_items
from executors.pipe import Completed, Failed, Message, OutputWritten, Progress, Started, read_messages
from executors.plans import Resources
from ledger.errors import InputError
from tests.executors.evaluation.conftest import DIGESTS, suite_bytes


class Place:
    """A directory as a launcher makes it, and the child run in this process or in its own."""

    def __init__(self, directory: Path, model: Path, suite: Path, config: dict[str, Any]) -> None:
        directory.mkdir()
        self.directory = directory
        self.pipe = directory / "pipe.jsonl"
        self.out = directory / "out"
        plan = {
            "config": configure(EvaluationExecutor(), config).model_dump(mode="json"),
            "paths": {"model": str(model), "suite": str(suite)},
            "resources": {"processes": 1, "device": "cpu"},
            "seed": 0,
        }
        (directory / "plan.json").write_text(json.dumps(plan))
        self.environment = {
            "POSTTRAIN_PLAN": str(directory / "plan.json"),
            "POSTTRAIN_PIPE": str(self.pipe),
            "POSTTRAIN_OUT": str(self.out),
        }

    def run(self, monkeypatch: pytest.MonkeyPatch) -> int:
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        return worker.main()

    @property
    def messages(self) -> list[Message]:
        return read_messages(self.pipe)[0]

    @property
    def completions(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in (self.out / "completions.jsonl").read_text().splitlines()]


@pytest.fixture
def place(tmp_path: Path, model_directory: Path, suite_directory: Path) -> Place:
    return Place(tmp_path / "attempt", model_directory, suite_directory, {"max_new_tokens": 12, "batch_size": 16})


def test_a_real_child_answers_every_item_once(place: Place) -> None:
    argv = EvaluationExecutor().command(EvaluationConfig(), Resources(device="cpu"))
    assert argv[0] == sys.executable
    root = Path(worker.__file__).resolve().parents[2]
    environment = {**os.environ, **place.environment, "PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    messages = place.messages
    assert isinstance(messages[0], Started)
    steps = [(m.step, m.total) for m in messages if isinstance(m, Progress)]
    assert steps == [(0, 60), (16, 60), (32, 60), (48, 60), (60, 60)]
    assert isinstance(messages[-2], OutputWritten)
    assert (messages[-2].name, messages[-2].path) == ("completions.jsonl", str(place.out / "completions.jsonl"))
    last = messages[-1]
    assert isinstance(last, Completed)
    assert last.step == 60
    assert sorted(line["item"] for line in place.completions) == sorted(DIGESTS)
    reasons = [line["finish_reason"] for line in place.completions]
    assert last.summary["items"] == 60
    assert last.summary["stopped"] == reasons.count("stop")
    assert last.summary["cut_off"] == reasons.count("length") > 0


def test_the_same_plan_gives_the_same_bytes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.run(monkeypatch) == 0
    first = (place.out / "completions.jsonl").read_bytes()
    place.pipe.unlink()
    assert place.run(monkeypatch) == 0
    assert (place.out / "completions.jsonl").read_bytes() == first


@pytest.mark.parametrize(
    ("suite", "reason"),
    [
        (None, "is no suite: it has no items.jsonl"),
        (b"", "items.jsonl holds no item"),
        (b'{"prompt": "1+1=", "answer": "2"}\nnonsense\n', "items.jsonl, line 2 is not JSON"),
        (b'{"prompt": "1+1=", "answer": 2}\n', "line 1 is no item; expected the texts prompt and answer"),
        (suite_bytes([{"prompt": "1" * 100, "answer": "2"}]), "prompt 1 has 103 tokens and the model's context 64"),
    ],
)
def test_a_suite_that_is_none_is_a_failure_with_its_reason(
    suite: bytes | None, reason: str, place: Place, suite_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (suite_directory / "items.jsonl").unlink()
    if suite is not None:
        (suite_directory / "items.jsonl").write_bytes(suite)
    assert place.run(monkeypatch) == 2
    last = place.messages[-1]
    assert isinstance(last, Failed)
    assert reason in last.reason
    assert not last.retryable


def test_a_model_that_is_none_is_a_failure_with_its_reason(
    tmp_path: Path, suite_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nothing").mkdir()
    place = Place(tmp_path / "attempt", tmp_path / "nothing", suite_directory, {})
    assert place.run(monkeypatch) == 2
    last = place.messages[-1]
    assert isinstance(last, Failed)
    assert (last.reason, last.retryable) == (
        f"{tmp_path / 'nothing'} is no model directory: it has no config.json",
        False,
    )


def test_too_little_memory_names_the_setting(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")

    monkeypatch.setattr(worker, "work", exhausted)
    assert place.run(monkeypatch) == 2
    last = place.messages[-1]
    assert isinstance(last, Failed)
    assert last.reason == "out of memory with batch_size 16; set a smaller one"


def test_a_bug_keeps_its_traceback(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(worker, "work", broken)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        place.run(monkeypatch)


def test_a_full_disk_is_worth_another_try(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "completions.jsonl")

    monkeypatch.setattr(worker, "write_completions", full)
    assert place.run(monkeypatch) == 4
    last = place.messages[-1]
    assert isinstance(last, Failed)
    assert (last.reason, last.retryable) == ("No space left on device: completions.jsonl", True)


def test_an_item_that_stands_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"items\.jsonl, line 2: the item stands there twice"):
        parse_items(suite_bytes([{"prompt": "1+1=", "answer": "2"}] * 2), "items.jsonl")


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"max_new_tokens": 0}, "config.max_new_tokens"),
        ({"decoding": "sampled"}, "config.decoding"),
        ({"temperature": 1}, "config.temperature"),
    ],
)
def test_settings_that_do_not_fit_name_their_key(config: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError, match=key):
        configure(EvaluationExecutor(), config)
