"""Rules live with the events: an append that breaks one is refused with the reason.

`check(payload, history)` is a pure function of the payload and of what was recorded before it, so `fsck` replays every rule
over the whole log. One function a payload class, found by name in `RULES`; a class without a rule is always accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from ledger import events as ev
from ledger.digest import short
from ledger.errors import RuleBroken
from ledger.events import Event, Payload
from ledger.history import History
from ledger.store.base import Reader

_EXACT_PARTS = frozenset({"model", "optimizer", "scheduler", "rng", "loader"})
_STATE_PARTS = frozenset({"model", "optimizer"})


class Draft(History):
    """The history together with the events that are about to be recorded in the same append."""

    def __init__(self, reader: Reader, pending: Sequence[Event]) -> None:
        super().__init__(reader)
        self._pending = pending

    def event(self, position: int) -> Event:
        found = next((event for event in self._pending if event.position == position), None)
        return found or super().event(position)

    def stream(self, stream: str) -> list[Event]:
        return super().stream(stream) + [event for event in self._pending if event.stream == stream]

    def streams(self, prefix: str) -> list[str]:
        drafted = {event.stream for event in self._pending if event.stream.startswith(prefix)}
        return sorted(drafted.union(super().streams(prefix)))

    def last(self, stream: str, type: str | None = None) -> Event | None:
        drafted = (e for e in reversed(self._pending) if e.stream == stream and (type is None or e.type == type))
        return next(drafted, None) or super().last(stream, type)

    def made(self, node: str) -> list[Event]:
        pending = [e for e in self._pending if any(edge.node == node for edge in e.payload.outputs())]
        return super().made(node) + pending

    def used(self, node: str) -> list[Event]:
        pending = [e for e in self._pending if any(edge.node == node for edge in e.payload.inputs())]
        return super().used(node) + pending


def check(payload: Payload, history: History) -> None:
    """Refuse a payload that breaks an invariant.

    Raises:
        RuleBroken: with the reason.
    """
    rule = RULES.get(payload.type_name())
    if rule is not None:
        rule(payload, history)


def _need(condition: object, reason: str) -> None:
    if not condition:
        raise RuleBroken(reason)


def _known(history: History, node: str, reason: str) -> None:
    _need(history.made(node), reason)


# Datasets and runs


def _dataset_sealed(payload: ev.DatasetVersionSealed, history: History) -> None:
    checks = [c for c in history.payloads(payload.stream(), ev.DecontaminationChecked) if c.dataset == payload.dataset]
    _need(checks, f"dataset {short(payload.dataset)} was never compared with the held-out suites")
    _need(checks[-1].outcome == "clean", f"dataset {short(payload.dataset)} overlaps a held-out suite")
    for suite in registered_suites(history):
        _need(
            suite in checks[-1].suites, f"dataset {short(payload.dataset)} was not compared with suite {short(suite)}"
        )


def registered_suites(history: History) -> list[str]:
    """Digests of every registered suite, each name's newest."""
    newest = [history.last(stream, "SuiteRegistered") for stream in history.streams("suite/")]
    return [event.payload.suite for event in newest if event and isinstance(event.payload, ev.SuiteRegistered)]


def usable_dataset(history: History, dataset: str) -> None:
    """Refuse a dataset version that was never sealed or that is known to contain held-out items."""
    sealed = history.made(f"dataset:{dataset}")
    _need(sealed, f"dataset {short(dataset)} is not a sealed dataset version; build it with `posttrain data build`")
    checks = [c for c in history.payloads(sealed[-1].stream, ev.DecontaminationChecked) if c.dataset == dataset]
    leaked = checks and checks[-1].outcome == "leaked"
    _need(not leaked, f"dataset {short(dataset)} failed decontamination and cannot be an input of a run")


def _run_submitted(payload: ev.RunSubmitted, history: History) -> None:
    digits = payload.spec.removeprefix("sha256:")[:16]
    _need(payload.run_id == f"r-{digits}", f"run id {payload.run_id} is not derived from its specification ({digits})")
    _need(not history.last(payload.stream(), "RunSubmitted"), f"run {payload.run_id} was submitted before")
    if payload.base is not None:
        _known(history, f"base:{payload.base}", f"base {short(payload.base)} is not pinned; run `posttrain base pin`")
    if payload.dataset is not None:
        usable_dataset(history, payload.dataset)
    for model in (payload.parent, payload.model):
        if model is not None:
            _known(history, f"model:{model}", f"model {short(model)} is not in the ledger")
    if payload.suite is not None:
        _known(history, f"suite:{payload.suite}", f"suite {short(payload.suite)} is not registered")


def _submitted(history: History, run_id: str) -> ev.RunSubmitted:
    event = history.last(f"run/{run_id}", "RunSubmitted")
    if event is None or not isinstance(event.payload, ev.RunSubmitted):
        raise RuleBroken(f"run {run_id} was never submitted")
    return event.payload


def _unfinished(history: History, run_id: str) -> None:
    _submitted(history, run_id)
    _need(not history.last(f"run/{run_id}", "RunCompleted"), f"run {run_id} is completed; nothing can be added to it")


def open_attempt(history: History, run_id: str) -> int | None:
    """The number of the attempt that started and has not ended."""
    started = [p.attempt for p in history.payloads(f"run/{run_id}", ev.AttemptStarted)]
    ended = {p.attempt for p in history.payloads(f"run/{run_id}", ev.AttemptEnded)}
    return next((number for number in reversed(started) if number not in ended), None)


def _attempt_started(payload: ev.AttemptStarted, history: History) -> None:
    _unfinished(history, payload.run_id)
    still_open = open_attempt(history, payload.run_id)
    _need(still_open is None, f"attempt {still_open} of run {payload.run_id} has not ended")
    count = len(history.payloads(payload.stream(), ev.AttemptStarted))
    _need(
        payload.attempt == count + 1, f"the next attempt of run {payload.run_id} is {count + 1}, not {payload.attempt}"
    )
    if payload.resumed_from is not None:
        saved = {c.checkpoint: c for c in history.payloads(payload.stream(), ev.CheckpointCommitted)}
        checkpoint = saved.get(payload.resumed_from)
        _need(checkpoint, f"checkpoint {short(payload.resumed_from)} is not one of run {payload.run_id}")
        _need(checkpoint and checkpoint.step == payload.from_step, "an attempt begins at the step of its checkpoint")


def _attempt_ended(payload: ev.AttemptEnded, history: History) -> None:
    current = open_attempt(history, payload.run_id)
    _need(
        current == payload.attempt,
        f"attempt {payload.attempt} of run {payload.run_id} is not running (running: {current})",
    )


def _checkpoint_committed(payload: ev.CheckpointCommitted, history: History) -> None:
    _unfinished(history, payload.run_id)
    current = open_attempt(history, payload.run_id)
    _need(current == payload.attempt, f"attempt {payload.attempt} of run {payload.run_id} is not running")
    steps = [c.step for c in history.payloads(payload.stream(), ev.CheckpointCommitted)]
    _need(
        not steps or payload.step > steps[-1],
        f"run {payload.run_id} has a checkpoint at step {max(steps, default=0)} already",
    )
    parts = {part.part for part in payload.parts}
    needed = {"exact": _EXACT_PARTS, "state": _STATE_PARTS, "weights": frozenset({"model"})}[payload.resume]
    missing = sorted(needed - parts)
    _need(not missing, f"a checkpoint without {', '.join(missing)} cannot be declared resumable as {payload.resume!r}")


def _run_completed(payload: ev.RunCompleted, history: History) -> None:
    _unfinished(history, payload.run_id)
    _need(payload.model is None or payload.checkpoint is not None, "a run's model is that of a committed checkpoint")
    if payload.checkpoint is not None:
        committed = history.payloads(payload.stream(), ev.CheckpointCommitted)
        last = committed[-1] if committed else None
        same = last and (last.checkpoint, last.model, last.step) == (payload.checkpoint, payload.model, payload.step)
        _need(same, f"run {payload.run_id} completes with a checkpoint that is not its last committed one")


def _run_failed(payload: ev.RunFailed | ev.RunCanceled, history: History) -> None:
    _unfinished(history, payload.run_id)


# Evaluation, gate, registry


def _evaluation_reported(payload: ev.EvaluationReported, history: History) -> None:
    run = _submitted(history, payload.run_id)
    _need(
        (run.model, run.suite) == (payload.model, payload.suite),
        f"run {payload.run_id} evaluated another model or suite",
    )
    _need(payload.items > 0, "an evaluation of no items is no evaluation")
    _need(0 <= payload.passed <= payload.items - payload.masked, "more items passed than were answered")


def _gate_policy_set(payload: ev.GatePolicySet, history: History) -> None:
    _need(history.last(f"suite/{payload.suite}", "SuiteRegistered"), f"suite {payload.suite!r} is not registered")
    _need(Decimal("0.5") < Decimal(payload.confidence) < 1, f"confidence {payload.confidence} is not between 0.5 and 1")
    _need(payload.min_items >= 2, "a paired interval needs at least 2 items")


def _gate_decided(payload: ev.GateDecided, history: History) -> None:
    policy = history.last(f"policy/{payload.stage}", "GatePolicySet")
    in_force = policy and policy.position == payload.policy_position
    _need(in_force, f"event {payload.policy_position} is not the gate policy in force for {payload.stage}")
    assert policy is not None and isinstance(policy.payload, ev.GatePolicySet)
    suite = history.last(f"suite/{policy.payload.suite}", "SuiteRegistered")
    asked = suite and isinstance(suite.payload, ev.SuiteRegistered) and suite.payload.suite == payload.suite
    _need(
        asked, f"the gate policy of {payload.stage} asks for suite {policy.payload.suite}, not {short(payload.suite)}"
    )
    _need(not history.stream(payload.stream()), f"gate {payload.gate_id} was decided before")
    _need_report(history, payload.candidate_report, payload.candidate, payload.suite)
    _need_report(history, payload.incumbent_report, payload.incumbent, payload.suite)
    lower = Decimal(payload.gain.interval[0])
    enough = payload.gain.items >= policy.payload.min_items
    confident = Decimal(payload.gain.confidence) >= Decimal(policy.payload.confidence)
    supported = (
        confident
        and payload.candidate != payload.incumbent
        and lower > Decimal(policy.payload.min_gain)
        and enough
        and not payload.reasons
    )
    _need(
        payload.decision == "fail" or supported,
        "a gate passes only when another model's interval, at the policy's confidence and with enough items, lies above the "
        "minimum gain",
    )
    _need(payload.decision == "pass" or payload.reasons, "a gate that fails gives its reasons")


def _need_report(history: History, report: str, model: str, suite: str) -> None:
    reports = [e.payload for e in history.made(f"report:{report}") if isinstance(e.payload, ev.EvaluationReported)]
    fitting = any((r.model, r.suite) == (model, suite) for r in reports)
    _need(fitting, f"report {short(report)} is no evaluation of model {short(model)} on suite {short(suite)}")


def passing_gate(history: History, gate_id: str, model: str) -> ev.GateDecided:
    """The decision that lets this very model digest through.

    Raises:
        RuleBroken: there is none, it failed, or it was about another model.
    """
    event = history.last(f"gate/{gate_id}", "GateDecided")
    if event is None or not isinstance(event.payload, ev.GateDecided):
        raise RuleBroken(f"there is no gate decision {gate_id}")
    gate = event.payload
    _need(gate.candidate == model, f"gate {gate_id} decided on model {short(gate.candidate)}, not on {short(model)}")
    _need(gate.decision == "pass", f"gate {gate_id} failed: {'; '.join(gate.reasons)}")
    return gate


def quarantined(history: History, model: str) -> bool:
    return history.last(f"model/{model.removeprefix('sha256:')}", "ModelQuarantined") is not None


def _model_registered(payload: ev.ModelRegistered, history: History) -> None:
    passing_gate(history, payload.gate_id, payload.model)
    numbers = [p.number for p in history.payloads(payload.stream(), ev.ModelRegistered)]
    _need(
        payload.number == len(numbers) + 1,
        f"the next version of {payload.name} is {len(numbers) + 1}, not {payload.number}",
    )


def _model_promoted(payload: ev.ModelPromoted, history: History) -> None:
    gate = passing_gate(history, payload.gate_id, payload.model)
    _need(not quarantined(history, payload.model), f"model {short(payload.model)} is quarantined")
    _need(gate.stage == payload.stage, f"gate {payload.gate_id} was about stage {gate.stage}, not {payload.stage}")
    promoted = history.payloads(payload.stream(), ev.ModelPromoted)
    live = promoted[-1].model if promoted else None
    _need(
        payload.previous == live,
        f"stage {payload.stage} serves {short(live or 'nothing')}, not {short(payload.previous or 'nothing')}",
    )
    if payload.rollback:
        _need(
            any(p.model == payload.model for p in standing_promotions(promoted)),
            f"model {short(payload.model)} is none that {payload.stage} can go back to",
        )
        return
    registered = [
        e.payload for e in history.used(f"gate:{payload.gate_id}") if isinstance(e.payload, ev.ModelRegistered)
    ]
    _need(any(r.model == payload.model for r in registered), f"model {short(payload.model)} is not registered")
    against_live = live is None or gate.incumbent == live
    _need(
        against_live,
        f"gate {payload.gate_id} compared with {short(gate.incumbent)}, but {payload.stage} serves {short(live or '')} now",
    )


def standing_promotions(promoted: list[ev.ModelPromoted]) -> list[ev.ModelPromoted]:
    """The promotions that lead to the live model, oldest first. A rollback takes away what it left, so that nothing comes
    back by a rollback that was withdrawn by one."""
    standing: list[ev.ModelPromoted] = []
    for promotion in promoted:
        if promotion.rollback:
            while standing and standing[-1].model != promotion.model:
                standing.pop()
        if not promotion.rollback or not standing:
            standing.append(promotion)
    return standing


def _model_quarantined(payload: ev.ModelQuarantined, history: History) -> None:
    _known(history, f"model:{payload.model}", f"model {short(payload.model)} is not in the ledger")


# Serving


def _deployment_requested(payload: ev.DeploymentRequested, history: History) -> None:
    promotion = history.last(f"stage/{payload.stage}", "ModelPromoted")
    live = promotion and promotion.position == payload.promotion_position
    _need(live, f"event {payload.promotion_position} is not the live promotion of stage {payload.stage}")
    assert promotion is not None and isinstance(promotion.payload, ev.ModelPromoted)
    _need(promotion.payload.model == payload.model, "a deployment serves the promoted model and nothing else")
    _need(not quarantined(history, payload.model), f"model {short(payload.model)} is quarantined")
    addressed = short(payload.model) in payload.served_name and payload.deployment_id[2:10] in payload.served_name
    _need(addressed, f"served name {payload.served_name!r} does not hold the model's and the deployment's digits")
    _need(not history.stream(payload.stream()), f"deployment {payload.deployment_id} exists already")


def live_deployment(history: History, deployment_id: str) -> ev.DeploymentRequested:
    """The request of a deployment that has not been stopped.

    Raises:
        RuleBroken: it was never requested, or it was stopped.
    """
    requested = history.last(f"deployment/{deployment_id}", "DeploymentRequested")
    if requested is None or not isinstance(requested.payload, ev.DeploymentRequested):
        raise RuleBroken(f"deployment {deployment_id} was never requested")
    stopped = history.last(f"deployment/{deployment_id}", "DeploymentStopped")
    _need(stopped is None, f"deployment {deployment_id} was stopped")
    return requested.payload


def _deployment_ready(payload: ev.DeploymentReady | ev.DeploymentStopped, history: History) -> None:
    requested = live_deployment(history, payload.deployment_id)
    _need(requested.stage == payload.stage, f"deployment {payload.deployment_id} is of stage {requested.stage}")


def _traffic_shifted(payload: ev.TrafficShifted, history: History) -> None:
    requested = live_deployment(history, payload.deployment_id)
    _need(requested.stage == payload.stage, f"deployment {payload.deployment_id} is of stage {requested.stage}")
    ready = history.last(f"deployment/{payload.deployment_id}", "DeploymentReady")
    _need(ready, f"deployment {payload.deployment_id} is not ready and gets no traffic")
    _need(not quarantined(history, requested.model), f"model {short(requested.model)} is quarantined")


# Cost


def _not_negative(**amounts: str) -> None:
    for name, amount in amounts.items():
        _need(Decimal(amount) >= 0, f"{name} is {amount}; money and time are never negative")


def _price_set(payload: ev.PriceSet, history: History) -> None:
    _not_negative(per_device_hour=payload.per_device_hour)


def _budget_set(payload: ev.BudgetSet, history: History) -> None:
    _not_negative(cap=payload.cap)


def _cost_settled(payload: ev.CostSettled, history: History) -> None:
    _not_negative(amount=payload.amount, device_seconds=payload.device_seconds, per_device_hour=payload.per_device_hour)


def _cost_reserved(payload: ev.CostReserved, history: History) -> None:
    _not_negative(amount=payload.amount, device_seconds=payload.device_seconds, per_device_hour=payload.per_device_hour)
    price = history.last(f"price/{payload.device_kind}", "PriceSet")
    _need(price, f"device kind {payload.device_kind!r} has no price; set one with `posttrain budget price`")
    spent = budget_left(history, payload.stage)
    fits = spent is None or Decimal(payload.amount) <= spent
    _need(
        fits,
        f"reserving {payload.amount} for run {payload.run_id} exceeds what budget {payload.stage} has left ({spent})",
    )


def budget_left(history: History, stage: str) -> Decimal | None:
    """What the stage may still spend; `None` when no budget was set."""
    caps = history.payloads(f"budget/{stage}", ev.BudgetSet)
    if not caps:
        return None
    open_or_spent: dict[str, Decimal] = {}
    settled: dict[str, Decimal] = {}
    for event in history.stream(f"budget/{stage}"):
        payload = event.payload
        if isinstance(payload, ev.CostReserved):
            open_or_spent[payload.run_id] = Decimal(payload.amount)
        elif isinstance(payload, ev.CostSettled):
            settled[payload.run_id] = settled.get(payload.run_id, Decimal(0)) + Decimal(payload.amount)
            open_or_spent[payload.run_id] = Decimal(0)
    return Decimal(caps[-1].cap) - sum(open_or_spent.values(), Decimal(0)) - sum(settled.values(), Decimal(0))


def _artifact_erased(payload: ev.ArtifactErased, history: History) -> None:
    for stream in history.streams("stage/"):
        live = history.last(stream, "ModelPromoted")
        serves = live and isinstance(live.payload, ev.ModelPromoted) and live.payload.model == payload.artifact
        _need(not serves, f"artifact {short(payload.artifact)} is what {stream.removeprefix('stage/')} serves")


Rule = Callable[[Any, History], None]

RULES: dict[str, Rule] = {
    "DatasetVersionSealed": _dataset_sealed,
    "RunSubmitted": _run_submitted,
    "AttemptStarted": _attempt_started,
    "AttemptEnded": _attempt_ended,
    "CheckpointCommitted": _checkpoint_committed,
    "RunCompleted": _run_completed,
    "RunFailed": _run_failed,
    "RunCanceled": _run_failed,
    "EvaluationReported": _evaluation_reported,
    "GatePolicySet": _gate_policy_set,
    "GateDecided": _gate_decided,
    "ModelRegistered": _model_registered,
    "ModelPromoted": _model_promoted,
    "ModelQuarantined": _model_quarantined,
    "DeploymentRequested": _deployment_requested,
    "DeploymentReady": _deployment_ready,
    "DeploymentStopped": _deployment_ready,
    "TrafficShifted": _traffic_shifted,
    "PriceSet": _price_set,
    "BudgetSet": _budget_set,
    "CostReserved": _cost_reserved,
    "CostSettled": _cost_settled,
    "ArtifactErased": _artifact_erased,
}
