"""Every rule, broken once from a valid history, beside its neighbour that is accepted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger import events as ev
from ledger import rules
from ledger.digest import short
from ledger.errors import RuleBroken
from ledger.events import NewEvent, Payload
from ledger.home import Ledger
from ledger.testing import DemoHistory, demo_history
from tests.ledger.payloads import digest

NEW = digest(0xEE)


class World:
    """A valid history and, by class, the payloads that it holds."""

    def __init__(self, ledger: Ledger, demo: DemoHistory) -> None:
        self.ledger = ledger
        self.demo = demo
        self.payloads: dict[type[Payload], list[Any]] = {}
        for event in demo.events:
            self.payloads.setdefault(type(event.payload), []).append(event.payload)

    def like(self, cls: type[Payload], number: int = 0, /, **changes: Any) -> Any:
        """A payload of the history with some fields changed."""
        return self.payloads[cls][number].model_copy(update=changes)

    def run(self, spec: str = NEW, **changes: Any) -> Any:
        """A training run that was not submitted yet."""
        return self.like(ev.RunSubmitted, **({"spec": spec, "run_id": "r-" + spec[7:23]} | changes))

    def add(self, *payloads: Payload) -> None:
        for payload in payloads:
            self.ledger.record(payload)

    def refused(self, payload: Payload) -> str:
        """The reason that `payload` is refused with; None when it would be accepted. Nothing is recorded."""
        with self.ledger.log.as_of() as history:
            try:
                rules.check(payload, history)
            except RuleBroken as error:
                return str(error)
        return ""


def erased(artifact: str) -> ev.ArtifactErased:
    return ev.ArtifactErased(artifact=artifact, reason="", size_bytes=1)


def gate(world: World, **changes: Any) -> Any:
    """A second decision like the demo's, under another id; changes of the gain go into it."""
    gain = {name: changes.pop(name) for name in ("interval", "items", "confidence") if name in changes}
    made = world.like(ev.GateDecided, gate_id="g-" + "e" * 16, **changes)
    return made.model_copy(update={"gain": made.gain.model_copy(update=gain)})


def promotion(world: World, **changes: Any) -> Any:
    return world.like(ev.ModelPromoted, **({"previous": world.demo.model} | changes))


def deployment(world: World, **changes: Any) -> Any:
    name = f"demo-{short(changes.get('model', world.demo.model))}-eeeeeeee"
    fields = {"deployment_id": "d-" + "e" * 16, "served_name": name} | changes
    return world.like(ev.DeploymentRequested, **fields)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Shared by what only asks."""
    ledger = Ledger.open(tmp_path_factory.mktemp("world"), create=True, actor="ada")
    return World(ledger, demo_history(ledger))


@pytest.fixture
def own(world: World, tmp_path: Path) -> World:
    """A copy for who records something."""
    home = Path(shutil.copytree(world.ledger.home, tmp_path / "own"))
    return World(Ledger.open(home, actor="ada"), world.demo)


Ask = Callable[[World], Payload]
OTHER_RUN = "r-" + "0" * 16

REFUSALS: dict[str, tuple[Ask, str]] = {
    "dataset unchecked": (lambda w: w.like(ev.DatasetVersionSealed, dataset=NEW), "was never compared with the held-out"),
    "run id": (lambda w: w.run(run_id=OTHER_RUN), "is not derived from its specification"),
    "run twice": (lambda w: w.like(ev.RunSubmitted), "was submitted before"),
    "run, base": (lambda w: w.run(base=NEW), "is not pinned; run `posttrain base pin`"),
    "run, dataset": (lambda w: w.run(dataset=NEW), "is not a sealed dataset version"),
    "run, parent": (lambda w: w.run(parent=NEW), "is not in the ledger"),
    "run, model": (lambda w: w.run(model=NEW), "is not in the ledger"),
    "run, suite": (lambda w: w.run(suite=NEW), "is not registered"),
    "attempt of no run": (lambda w: w.like(ev.AttemptStarted, run_id=OTHER_RUN), "was never submitted"),
    "attempt of a completed run": (lambda w: w.like(ev.AttemptStarted, attempt=2), "is completed"),
    "end of nothing": (lambda w: w.like(ev.AttemptEnded), "is not running"),
    "checkpoint of a completed run": (lambda w: w.like(ev.CheckpointCommitted, step=21), "is completed"),
    "completed twice": (lambda w: w.like(ev.RunCompleted), "is completed"),
    "failed after completion": (
        lambda w: ev.RunFailed(run_id=w.demo.run_id, reason="", retryable=True), "is completed",
    ),
    "canceled after completion": (lambda w: ev.RunCanceled(run_id=w.demo.run_id, reason=""), "is completed"),
    "report of no run": (lambda w: w.like(ev.EvaluationReported, run_id=OTHER_RUN), "was never submitted"),
    "report of another model": (lambda w: w.like(ev.EvaluationReported, model=w.demo.model), "another model or suite"),
    "report of no items": (lambda w: w.like(ev.EvaluationReported, items=0, passed=0), "evaluation of no items"),
    "report with too many passed": (lambda w: w.like(ev.EvaluationReported, passed=41), "more items passed"),
    "report with masked passed": (lambda w: w.like(ev.EvaluationReported, masked=31), "more items passed"),
    "policy, suite": (lambda w: w.like(ev.GatePolicySet, suite="other"), "suite 'other' is not registered"),
    "policy, confidence": (lambda w: w.like(ev.GatePolicySet, confidence="0.5"), "is not between 0.5 and 1"),
    "policy, items": (lambda w: w.like(ev.GatePolicySet, min_items=1), "at least 2 items"),
    "gate, policy": (lambda w: gate(w, policy_position=1), "is not the gate policy in force"),
    "gate, stage": (lambda w: gate(w, stage="canary"), "is not the gate policy in force for canary"),
    "gate, suite": (lambda w: gate(w, suite=NEW), "asks for suite held-out, not"),
    "gate, candidate's report": (lambda w: gate(w, candidate_report=w.demo.base_report), "is no evaluation of model"),
    "gate, incumbent's report": (lambda w: gate(w, incumbent_report=NEW), "is no evaluation of model"),
    "gate twice": (lambda w: w.like(ev.GateDecided), "was decided before"),
    "gate, pass at zero": (lambda w: gate(w, interval=("0", "0.5")), "a gate passes only when"),
    "gate, few items": (lambda w: gate(w, items=19), "a gate passes only when"),
    "gate, pass with reasons": (lambda w: gate(w, reasons=("but",)), "a gate passes only when"),
    "gate, less confidence": (lambda w: gate(w, confidence="0.9"), "a gate passes only when"),
    "gate against itself": (
        lambda w: gate(w, incumbent=w.demo.model, incumbent_report=w.demo.report), "a gate passes only when",
    ),
    "gate, fail without reasons": (lambda w: gate(w, decision="fail"), "a gate that fails gives its reasons"),
    "registered, gate": (lambda w: w.like(ev.ModelRegistered, gate_id="g-" + "0" * 16), "there is no gate decision"),
    "registered, model": (lambda w: w.like(ev.ModelRegistered, model=w.demo.base), "decided on model"),
    "registered, number": (lambda w: w.like(ev.ModelRegistered, number=3), "the next version of arithmetic is 2, not 3"),
    "promoted, gate": (lambda w: promotion(w, gate_id="g-" + "0" * 16), "there is no gate decision"),
    "promoted, model": (lambda w: promotion(w, model=w.demo.base), "decided on model"),
    "promoted, stage": (lambda w: promotion(w, stage="canary", previous=None), "was about stage production, not canary"),
    "promoted, previous": (lambda w: promotion(w, previous=None), "serves .*, not nothing"),
    "promoted, incumbent": (promotion, "compared with .*, but production serves .* now"),
    "quarantined, model": (lambda w: ev.ModelQuarantined(model=NEW, reason=""), "is not in the ledger"),
    "deployment, promotion": (lambda w: deployment(w, promotion_position=1), "is not the live promotion of stage"),
    "deployment, model": (lambda w: deployment(w, model=w.demo.base), "the promoted model and nothing else"),
    "deployment, name": (lambda w: deployment(w, served_name="latest"), "does not hold the model's"),
    "deployment twice": (lambda w: w.like(ev.DeploymentRequested), "exists already"),
    "ready, unknown": (lambda w: w.like(ev.DeploymentReady, deployment_id="d-" + "0" * 16), "was never requested"),
    "ready, stage": (lambda w: w.like(ev.DeploymentReady, stage="canary"), "is of stage production"),
    "stopped, unknown": (
        lambda w: ev.DeploymentStopped(deployment_id="d-" + "0" * 16, stage="production", reason=""), "never requested",
    ),
    "traffic, unknown": (lambda w: w.like(ev.TrafficShifted, deployment_id="d-" + "0" * 16), "was never requested"),
    "traffic, stage": (lambda w: w.like(ev.TrafficShifted, stage="canary"), "is of stage production"),
    "reserved, price": (lambda w: w.like(ev.CostReserved, device_kind="tpu"), "has no price"),
    "reserved, budget": (lambda w: w.like(ev.CostReserved, run_id=OTHER_RUN, amount="9.996"), r"has left \(9.995\)"),
    "reserved, negative": (lambda w: w.like(ev.CostReserved, run_id=OTHER_RUN, amount="-1"), "amount is -1"),
    "settled, negative": (lambda w: w.like(ev.CostSettled, amount="-1000"), "amount is -1000"),
    "price, negative": (lambda w: w.like(ev.PriceSet, per_device_hour="-0.01"), "per_device_hour is -0.01"),
    "budget, negative": (lambda w: w.like(ev.BudgetSet, cap="-5"), "cap is -5"),
    "erased, live": (lambda w: erased(w.demo.model), "is what production serves"),
}  # fmt: skip

ACCEPTED: dict[str, Ask] = {
    "dataset": lambda w: w.like(ev.DatasetVersionSealed, rows=39),
    "run": lambda w: w.run(parent=w.demo.model, model=w.demo.base, suite=w.demo.suite),
    "report": lambda w: w.like(ev.EvaluationReported, passed=30, masked=10),
    "policy": lambda w: w.like(ev.GatePolicySet, min_items=2, confidence="0.999"),
    "gate": lambda w: gate(w, interval=("0.000001", "0.5"), items=20),
    "gate, failing": lambda w: gate(w, decision="fail", interval=("0", "0.5"), reasons=("the interval includes 0",)),
    "registered": lambda w: w.like(ev.ModelRegistered, number=2),
    "registered, other name": lambda w: w.like(ev.ModelRegistered, name="other", number=1),
    "rollback": lambda w: promotion(w, rollback=True),
    "quarantined": lambda w: ev.ModelQuarantined(model=w.demo.base, reason=""),
    "deployment": deployment,
    "ready": lambda w: w.like(ev.DeploymentReady),
    "traffic": lambda w: w.like(ev.TrafficShifted),
    "reserved": lambda w: w.like(ev.CostReserved, run_id=OTHER_RUN, amount="9.995"),
    "reserved without a budget": lambda w: w.like(ev.CostReserved, stage="evaluation", amount="1000000"),
    "erased": lambda w: erased(w.demo.dataset),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused(world: World, case: str) -> None:
    ask, reason = REFUSALS[case]
    payload = ask(world)
    size = world.ledger.log.size()
    with pytest.raises(RuleBroken, match=reason):
        world.ledger.record(payload)
    assert world.ledger.log.size() == size


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(world: World, case: str) -> None:
    assert world.refused(ACCEPTED[case](world)) == ""


def test_every_rule_refuses_something(world: World) -> None:
    assert {ask(world).type_name() for ask, _ in REFUSALS.values()} == set(rules.RULES)


def test_a_run_completes_with_no_model_but_a_checkpoints(own: World) -> None:
    run = own.run()
    own.add(run)
    invented = own.like(ev.RunCompleted, run_id=run.run_id, checkpoint=None, model=NEW)
    assert "model is that of a committed checkpoint" in own.refused(invented)


def test_the_life_of_a_run(own: World) -> None:
    run = own.run()
    started = own.like(ev.AttemptStarted, run_id=run.run_id)
    ended = own.like(ev.AttemptEnded, run_id=run.run_id)
    saved = own.like(ev.CheckpointCommitted, run_id=run.run_id, step=10, checkpoint=digest(0xE1), model=digest(0xE2))
    own.add(run)
    assert "the next attempt" in own.refused(started.model_copy(update={"attempt": 2}))
    assert "is not running" in own.refused(saved)
    own.add(started)
    assert "attempt 1 of run" in own.refused(started.model_copy(update={"attempt": 2}))
    assert "is not running (running: 1)" in own.refused(ended.model_copy(update={"attempt": 2}))
    own.add(saved)
    assert "has a checkpoint at step 10 already" in own.refused(saved)
    assert own.refused(saved.model_copy(update={"step": 11})) == ""
    own.add(ended, ev.RunFailed(run_id=run.run_id, reason="lost", retryable=True))
    again = started.model_copy(update={"attempt": 2, "resumed_from": saved.checkpoint, "from_step": 10})
    assert "is not one of run" in own.refused(again.model_copy(update={"resumed_from": own.demo.checkpoint}))
    assert "begins at the step of its checkpoint" in own.refused(again.model_copy(update={"from_step": 9}))
    own.add(again, ended.model_copy(update={"attempt": 2}))
    done = ev.RunCompleted(run_id=run.run_id, step=10, checkpoint=saved.checkpoint, model=saved.model, summary={})
    for wrong in ({"step": 11}, {"checkpoint": own.demo.checkpoint}, {"model": own.demo.model}):
        assert "is not its last committed one" in own.refused(done.model_copy(update=wrong))
    own.add(done)


@pytest.mark.parametrize(
    ("resume", "parts", "missing"),
    [
        ("exact", {"model", "optimizer", "scheduler", "rng", "loader"}, ""),
        ("exact", {"model", "optimizer", "scheduler", "loader"}, "without rng"),
        ("exact", {"model"}, "without loader, optimizer, rng, scheduler"),
        ("state", {"model", "optimizer"}, ""),
        ("state", {"model", "rng"}, "without optimizer"),
        ("weights", {"model"}, ""),
        ("weights", {"optimizer"}, "without model"),
    ],
)
def test_what_a_checkpoint_may_call_itself(own: World, resume: str, parts: set[str], missing: str) -> None:
    run = own.run()
    own.add(run, own.like(ev.AttemptStarted, run_id=run.run_id))
    listed = [part for part in own.payloads[ev.CheckpointCommitted][0].parts if part.part in parts]
    saved = own.like(ev.CheckpointCommitted, run_id=run.run_id, resume=resume, parts=tuple(listed))
    refused = own.refused(saved)
    assert (f"{missing} cannot be declared resumable as {resume!r}" in refused) if missing else refused == ""


def test_a_dataset_that_leaked(own: World) -> None:
    own.add(own.like(ev.DecontaminationChecked, outcome="leaked", matches=1))
    assert "overlaps a held-out suite" in own.refused(own.like(ev.DatasetVersionSealed))
    assert "failed decontamination and cannot be an input" in own.refused(own.run())
    own.add(own.like(ev.DecontaminationChecked))
    assert own.refused(own.run()) == ""


def test_a_suite_registered_later_must_be_checked(own: World) -> None:
    own.add(own.like(ev.SuiteRegistered, name="later", suite=NEW))
    assert f"was not compared with suite {short(NEW)}" in own.refused(own.like(ev.DatasetVersionSealed))
    own.add(own.like(ev.DecontaminationChecked, suites=(own.demo.suite, NEW)))
    assert own.refused(own.like(ev.DatasetVersionSealed)) == ""


def test_a_failed_gate_promotes_nothing(own: World) -> None:
    failed = gate(own, decision="fail", reasons=("the interval includes 0",))
    own.add(failed)
    reason = f"gate {failed.gate_id} failed: the interval includes 0"
    assert own.refused(promotion(own, gate_id=failed.gate_id)) == reason
    assert own.refused(own.like(ev.ModelRegistered, number=2, gate_id=failed.gate_id)) == reason


def test_a_model_must_be_registered_under_its_gate(own: World) -> None:
    own.add(gate(own))
    again = promotion(own, gate_id="g-" + "e" * 16)
    assert "is not registered" in own.refused(again)
    own.ledger.log.append_many([NewEvent(own.like(ev.ModelRegistered, number=2, gate_id="g-" + "e" * 16))])
    assert "but production serves" in own.refused(again)


def test_quarantine(own: World) -> None:
    own.add(ev.ModelQuarantined(model=own.demo.model, reason="leaks"))
    assert "is quarantined" in own.refused(promotion(own, rollback=True))
    assert "is quarantined" in own.refused(deployment(own))
    assert "is quarantined" in own.refused(own.like(ev.TrafficShifted))


def test_a_rollback_goes_to_what_served(own: World) -> None:
    base = own.like(ev.BaseRevisionPinned, name="other", base=NEW)
    run = own.like(ev.RunSubmitted, 2, spec=NEW, run_id="r-" + NEW[7:23], model=NEW)
    report = own.like(ev.EvaluationReported, 1, run_id=run.run_id, model=NEW, report=digest(0xED))
    decided = gate(own, candidate=NEW, candidate_report=report.report)
    own.add(base, run, report, decided)
    back = promotion(own, model=NEW, gate_id=decided.gate_id, rollback=True)
    assert f"model {short(NEW)} is none that production can go back to" in own.refused(back)


def test_deployments(own: World) -> None:
    requested = deployment(own)
    own.add(requested)
    shift = own.like(ev.TrafficShifted, deployment_id=requested.deployment_id)
    stopped = ev.DeploymentStopped(deployment_id=requested.deployment_id, stage="production", reason="")
    assert "is not ready and gets no traffic" in own.refused(shift)
    own.add(own.like(ev.DeploymentReady, deployment_id=requested.deployment_id))
    own.add(shift)
    assert "is of stage production" in own.refused(stopped.model_copy(update={"stage": "canary"}))
    own.add(stopped)
    for late in (shift, stopped, own.like(ev.DeploymentReady, deployment_id=requested.deployment_id)):
        assert "was stopped" in own.refused(late)


def test_what_a_budget_has_left(own: World) -> None:
    def left() -> str:
        with own.ledger.log.as_of() as history:
            return str(rules.budget_left(history, "sft"))

    assert left() == "9.995"
    own.add(own.like(ev.CostReserved, run_id=OTHER_RUN, amount="2"))
    assert left() == "7.995"
    own.add(own.like(ev.CostSettled, run_id=OTHER_RUN, amount="1.5"))
    assert left() == "8.495"
    own.add(own.like(ev.BudgetSet, cap="5"))
    assert left() == "3.495"
    with own.ledger.log.as_of() as history:
        assert rules.budget_left(history, "evaluation") is None


def test_a_rollback_does_not_bring_back_what_a_rollback_withdrew() -> None:
    first, second = ({"stage": "production", "gate_id": f"g-{n * 16}", "reason": ""} for n in ("1", "2"))
    a = ev.ModelPromoted(model=digest(1), **first)
    b = ev.ModelPromoted(model=digest(2), previous=digest(1), **second)
    back = ev.ModelPromoted(model=digest(1), previous=digest(2), rollback=True, **first)
    assert rules.standing_promotions([a, b]) == [a, b]
    assert rules.standing_promotions([a, b, back]) == [a]
