"""From completions to a recorded report: planted completions, planted faults, and once the whole path with a real child."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from executors.cli.evaluate import evaluate as evaluate_command
from executors.evaluation import report, verification
from executors.evaluation.executor import EvaluationConfig, EvaluationExecutor
from executors.evaluation.report import evaluate
from executors.launchers.local import read_process
from executors.pipe import Message, Progress
from executors.runs import RunOutcome
from executors.stage import current_code
from ledger import budget
from ledger.canonical import canonical_digest
from ledger.errors import BudgetExceeded, InfrastructureError, InputError, NotFound
from ledger.events import AttemptEnded, EvaluationReported, LaunchBlocked, RunSubmitted
from ledger.gate import wilson_interval
from ledger.home import Ledger
from ledger.registry import decide_gate, set_gate_policy
from tests.executors.evaluation.conftest import DIGESTS, ITEMS, add_base, add_suite
from tests.executors.rollout.tiny import save_model

Lines = list[dict[str, Any]]
SMALL = EvaluationConfig(max_new_tokens=8)


def planted_lines(right: int) -> Lines:
    """Completions of the suite in reverse order, the first `right` items answered rightly."""
    lines = [
        {"item": digest, "completion": item["answer"] if place < right else "no idea", "finish_reason": "stop"}
        for place, (digest, item) in enumerate(zip(DIGESTS, ITEMS, strict=True))
    ]
    return lines[::-1]


@dataclass
class Planted:
    """Stands for the run: submits it as the real one does and leaves planted completions."""

    path: Path
    text: str
    runs: int = 0
    present: bool = True

    def __call__(self, ledger: Ledger, spec: Any, **_: object) -> RunOutcome:
        known = ledger.log.last(f"run/{spec.run_id}", "RunSubmitted") is not None
        if not known:
            ledger.record(spec.submitted())
            self.runs += 1
            self.path.write_text(self.text)
        outputs: Mapping[str, Path] = {"completions.jsonl": self.path} if self.present or not known else {}
        return RunOutcome(spec.run_id, "hit" if known else "completed", None, None, 60, outputs=outputs)


Plant = Callable[[Lines | str], Planted]


@pytest.fixture(autouse=True)
def _steady_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run pins the code; an edit while the tests run would make the next call another run."""
    found: list[Any] = []

    def once(ledger: Ledger) -> Any:
        found[:] = found or [current_code(ledger)]
        return found[0]

    monkeypatch.setattr(report, "current_code", once)


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    def use(lines: Lines | str) -> Planted:
        text = lines if isinstance(lines, str) else "".join(json.dumps(line) + "\n" for line in lines)
        planted = Planted(tmp_path / "completions.jsonl", text)
        monkeypatch.setattr(report, "materialise_run", planted)
        return planted

    return use


def stored(ledger: Ledger, payload: EvaluationReported) -> tuple[dict[str, Any], Lines]:
    aggregate = json.loads(ledger.artifacts.read(payload.report, "report.json"))
    verdicts = ledger.artifacts.read(payload.report, "verdicts.jsonl").splitlines()
    return aggregate, [json.loads(line) for line in verdicts]


def reports(ledger: Ledger) -> list[EvaluationReported]:
    found = [event.payload for event in ledger.log.read(types=("EvaluationReported",))]
    return [payload for payload in found if isinstance(payload, EvaluationReported)]


def test_a_report_says_what_the_verdicts_say(ledger: Ledger, plant: Plant) -> None:
    plant(planted_lines(45))
    done = evaluate(ledger, "tiny", "sums")
    found = done.report
    assert not done.reused
    assert (found.items, found.passed, found.masked, found.accuracy, found.confidence) == (60, 45, 0, "0.75", "0.95")
    assert found.interval == ("0.627679", "0.842235")  # (46.920729 ± 6.848769) / 63.841459: Wilson 1927 by hand
    assert found.verifier == "exact-answer@1"
    assert "Wilson" in found.method
    aggregate, verdicts = stored(ledger, found)
    assert [line["item"] for line in verdicts] == DIGESTS
    assert [line["status"] for line in verdicts] == ["pass"] * 45 + ["fail"] * 15
    assert verdicts[0] == {"item": DIGESTS[0], "completion": "0", "status": "pass", "reward": "1"}
    assert (aggregate["passed"], aggregate["items"], aggregate["run_id"]) == (45, 60, found.run_id)
    assert aggregate["config"] == {"decoding": "greedy", "max_new_tokens": 64, "batch_size": 128}
    assert aggregate["verifier_digest"].startswith("sha256:")


def test_the_run_pins_what_was_evaluated_and_how(ledger: Ledger, plant: Plant) -> None:
    plant(planted_lines(1))
    found = evaluate(ledger, "tiny", "sums", config=EvaluationConfig(max_new_tokens=5)).report
    submitted = ledger.log.stream(f"run/{found.run_id}")[0].payload
    assert isinstance(submitted, RunSubmitted)
    assert (submitted.kind, submitted.executor, submitted.seed) == ("evaluation", "evaluate", 0)
    assert (submitted.model, submitted.suite, submitted.verifier) == (found.model, found.suite, "exact-answer@1")
    assert submitted.config["max_new_tokens"] == 5


def test_the_same_question_is_answered_from_the_ledger(ledger: Ledger, plant: Plant) -> None:
    planted = plant(planted_lines(30))
    first, second = evaluate(ledger, "tiny", "sums"), evaluate(ledger, "tiny", "sums")
    assert second.reused and second.event.position == first.event.position
    assert planted.runs == 1
    other = evaluate(ledger, "tiny", "sums", config=SMALL)
    assert not other.reused and other.report.run_id != first.report.run_id


def test_a_crash_before_the_report_loses_nothing(ledger: Ledger, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = plant(planted_lines(30))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(report, "judge", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate(ledger, "tiny", "sums")
    assert reports(ledger) == []
    assert evaluate(ledger, "tiny", "sums").report.passed == 30
    assert planted.runs == 1  # nothing was generated again


def test_completions_that_are_gone_before_they_were_reported_are_made_again(ledger: Ledger, plant: Plant) -> None:
    planted = plant(planted_lines(30)[1:])
    with pytest.raises(InfrastructureError, match="no completion"):
        evaluate(ledger, "tiny", "sums")
    planted.present, planted.text = False, "".join(json.dumps(line) + "\n" for line in planted_lines(30))
    done = evaluate(ledger, "tiny", "sums")
    assert planted.runs == 2
    assert not done.reused
    submitted = ledger.log.stream(f"run/{done.report.run_id}")[0].payload
    assert isinstance(submitted, RunSubmitted)
    assert submitted.config["repeat"] == 1
    assert evaluate(ledger, "tiny", "sums").event.position == done.event.position
    assert planted.runs == 2


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (planted_lines(9)[1:], "1 of 60 items have no completion"),
        (planted_lines(9) + planted_lines(9)[-1:], f"line 61: item {DIGESTS[0]} has a second completion"),
        ([*planted_lines(9), {"item": "sha256:" + "0" * 64, "completion": "1"}], "is no item of the suite"),
        ("nonsense\n", "line 1 is not JSON"),
        ('{"item": 1}\n', "line 1 is no completion"),
        ([{"item": DIGESTS[0], "completion": "\ud800"}], "line 1: the completion holds a lone surrogate"),
        ("[" * 100_000 + "\n", "line 1 is not JSON"),
        ("", "60 of 60 items have no completion"),
    ],
)
def test_completions_that_do_not_fit_the_suite_make_no_report(
    lines: Lines | str, message: str, ledger: Ledger, plant: Plant
) -> None:
    plant(lines)
    with pytest.raises(InfrastructureError, match=message):
        evaluate(ledger, "tiny", "sums")
    assert reports(ledger) == []


@dataclass
class Outcome:
    status: str
    reward: float | None
    reason: str = "the sandbox died"
    retryable: bool = True


class Unsteady:
    """Judges by a script: what each completion does at each try."""

    name = "unsteady"
    version = "7"

    def __init__(self, script: Mapping[str, list[Any]]) -> None:
        self.script = {completion: list(tries) for completion, tries in script.items()}
        self.calls = 0

    def digest(self) -> str:
        return "sha256:" + "1" * 64

    def verify(self, task: Mapping[str, object], completion: str) -> Outcome:
        self.calls += 1
        tries = self.script.get(completion)
        outcome = tries.pop(0) if tries else Outcome("pass", 1.0)
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, Outcome)
        return outcome


DEAD = Outcome("error", None)


def with_verifier(monkeypatch: pytest.MonkeyPatch, script: Mapping[str, list[Any]]) -> Unsteady:
    verifier = Unsteady(script)
    monkeypatch.setattr(report, "load_verifier", lambda _name, _config: verifier)
    return verifier


def big_suite(ledger: Ledger) -> Lines:
    items = [{"prompt": f"{place}=", "answer": str(place)} for place in range(200)]
    add_suite(ledger, "big", items)
    digests = [canonical_digest(item) for item in items]
    return [{"item": digest, "completion": str(place)} for place, digest in enumerate(digests)]


def test_items_without_a_verdict_are_masked_and_not_wrong(
    ledger: Ledger, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(big_suite(ledger))
    wrong = {str(place): [Outcome("fail", 0.25)] for place in range(50)}
    with_verifier(monkeypatch, {**wrong, "100": [DEAD] * 3, "101": [ZeroDivisionError("a bug")]})
    found = evaluate(ledger, "tiny", "big").report
    assert (found.items, found.passed, found.masked) == (200, 148, 2)
    assert found.accuracy == "0.747475"  # 148 of the 198 that have a verdict
    expected = wilson_interval(148, 198, 0.95)
    assert [float(bound) for bound in found.interval] == pytest.approx([expected.low, expected.high], abs=1e-6)
    _, verdicts = stored(ledger, found)
    assert [line["reward"] for line in verdicts[98:103]] == ["1", "1", None, None, "1"]
    assert [line["status"] for line in verdicts[98:103]] == ["pass", "pass", "error", "error", "pass"]
    assert verdicts[0]["reward"] == "0.25"


def test_more_than_one_in_a_hundred_without_a_verdict_is_no_report(
    ledger: Ledger, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = plant(big_suite(ledger))
    with_verifier(monkeypatch, {str(place): [DEAD] * 3 for place in range(3)})
    with pytest.raises(InfrastructureError, match=r"unsteady@7 gave no verdict on 3 of 200 items.*the sandbox died"):
        evaluate(ledger, "tiny", "big")
    assert reports(ledger) == []
    with_verifier(monkeypatch, {})  # mended
    assert evaluate(ledger, "tiny", "big").report.passed == 200
    assert planted.runs == 1


def test_a_machine_that_failed_is_tried_again(ledger: Ledger, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(big_suite(ledger))
    verifier = with_verifier(monkeypatch, {"0": [DEAD, DEAD], "1": [Outcome("error", None, retryable=False)]})
    found = evaluate(ledger, "tiny", "big").report
    assert (found.passed, found.masked) == (199, 1)
    assert verifier.calls == 200 + 2


def test_a_suite_that_cannot_be_judged_is_the_suites_fault(ledger: Ledger, plant: Plant) -> None:
    items = [{"prompt": "1+1=", "answer": "two"}]
    add_suite(ledger, "words", items)
    plant([{"item": canonical_digest(items[0]), "completion": "2"}])
    with pytest.raises(InputError, match=r"item sha256:.*cannot be judged exactly"):
        evaluate(ledger, "tiny", "words")


def test_names_that_are_unknown_are_said(ledger: Ledger) -> None:
    with pytest.raises(NotFound, match="no suite called 'sum'; known: sums"):
        evaluate(ledger, "tiny", "sum")
    with pytest.raises(NotFound, match="no model called 'tin'"):
        evaluate(ledger, "tin", "sums")
    with pytest.raises(NotFound, match="no verifier is called 'guess'; known: exact-answer"):
        verification.load_verifier("guess", {})
    with pytest.raises(InputError, match="no setting 'speed'"):
        verification.load_verifier("exact-answer", {"speed": "fast"})


def test_a_real_child_from_the_model_to_the_report(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is killed once on its way; the next call makes one report of it."""

    def kill(message: Message) -> None:
        if isinstance(message, Progress):
            run_id = ledger.log.streams("run/")[0].removeprefix("run/")
            os.kill(int(read_process(ledger.home / "runs" / run_id / "attempt-1")["child"]), signal.SIGKILL)

    many = EvaluationConfig(max_new_tokens=8, batch_size=1)  # so many small steps that the first is not the last
    with pytest.raises(InfrastructureError, match="was killed by signal 9"):
        evaluate(ledger, "tiny", "sums", config=many, watch=kill)
    assert reports(ledger) == []
    seen: list[Message] = []
    done = evaluate(ledger, "tiny", "sums", config=many, watch=seen.append)
    assert [m.step for m in seen if isinstance(m, Progress)] == list(range(61))
    again = evaluate(ledger, "tiny", "sums", config=many)
    assert again.reused and again.event.position == done.event.position
    types = [event.type for event in ledger.log.stream(f"run/{done.report.run_id}")]
    attempt = ["AttemptStarted", "AttemptEnded"]
    assert types == ["RunSubmitted", *attempt, *attempt, "RunCompleted", "EvaluationReported"]
    _, verdicts = stored(ledger, done.report)
    assert [line["item"] for line in verdicts] == DIGESTS
    assert sum(line["status"] == "pass" for line in verdicts) == done.report.passed < 60
    # The next evaluation of the suite is expected to take what this one took.
    taken = [event.payload for event in ledger.log.stream(f"run/{done.report.run_id}") if event.type == "AttemptEnded"]
    monkeypatch.setattr(EvaluationExecutor, "default_step_seconds", 0.001)
    budget.set_budget(ledger, "evaluation", "0.000001", "a test")
    with pytest.raises(BudgetExceeded):
        evaluate(ledger, "tiny", "sums", config=SMALL)
    blocked = [event.payload for event in ledger.log.read(types=("LaunchBlocked",))][-1]
    assert isinstance(blocked, LaunchBlocked) and isinstance(taken[-1], AttemptEnded)
    price_s = Decimal("0.05") / 3600
    assert Decimal(blocked.projected) == pytest.approx(Decimal(taken[-1].device_seconds) * price_s, abs=Decimal("1e-8"))


def test_the_gate_reads_the_reports(ledger: Ledger, plant: Plant, tmp_path: Path) -> None:
    plant(planted_lines(20))
    incumbent = evaluate(ledger, "tiny", "sums").report
    add_base(ledger, "other", save_model(tmp_path / "other", seed=1))
    plant(planted_lines(45))
    candidate = evaluate(ledger, "other", "sums").report
    set_gate_policy(ledger, "production", "sums", min_items=10)
    decision = decide_gate(ledger, candidate.model, incumbent.model, "production").decision
    assert (decision.decision, decision.gain.items, decision.gain.wins, decision.gain.losses) == ("pass", 60, 25, 0)


def test_the_command_prints_a_report_for_people_and_for_programs(ledger: Ledger, plant: Plant) -> None:
    plant(planted_lines(45))
    app = typer.Typer()
    app.command()(evaluate_command)
    runner = CliRunner()
    first = runner.invoke(app, ["tiny", "--suite", "sums", "--json"], catch_exceptions=False)
    shown = json.loads(first.stdout)
    assert (shown["accuracy"], shown["interval"], shown["reused"]) == ("0.75", ["0.627679", "0.842235"], False)
    assert (shown["model"], shown["position"]) == (reports(ledger)[0].model, ledger.log.size())
    second = runner.invoke(app, ["tiny", "--suite", "sums"], catch_exceptions=False)
    assert "75.0 %  [62.8, 84.2]" in second.stdout
    assert "45 passed of 60, 0 without a verdict" in second.stdout
    assert "(recorded before)" in second.stdout


def test_a_budget_that_does_not_suffice_starts_nothing(ledger: Ledger) -> None:
    budget.set_budget(ledger, "evaluation", "0.0001", "a test")
    with pytest.raises(BudgetExceeded):
        evaluate(ledger, "tiny", "sums")
    assert not (ledger.home / "runs").exists()
