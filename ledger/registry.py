"""The registry: names for models, and the stage pointers that only a passed gate moves.

`promote` is the one way forward and `roll_back` the one way back; `live` says where a stage points. The log refuses an
invalid promotion by itself; the checks here come first to give the reason and the next command.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ledger.decisions import (
    Decided,
    PolicyInForce,
    decide_gate,
    describe_decision,
    gate_policy,
    set_gate_policy,
)
from ledger.digest import parse_digest, short
from ledger.errors import InputError, RuleBroken, StaleVersion
from ledger.events import CheckpointCommitted, Event, GateDecided, ModelPromoted, ModelRegistered, NewEvent
from ledger.home import Ledger
from ledger.names import parse_name

__all__ = [
    "Decided", "PolicyInForce", "Promoted", "decide_gate", "describe_decision", "gate_policy", "live", "promote", "register",
    "roll_back", "set_gate_policy", "stage_history",
]  # fmt: skip

MAX_TRIES = 8
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Promoted:
    """The stage's ModelPromoted event. `reused`: the model was live already."""

    event: Event
    promotion: ModelPromoted
    reused: bool


def promote(ledger: Ledger, model: str, stage: str, *, reason: str, name: str | None = None) -> Promoted:
    """Point `stage` at the model with this digest, by its newest gate against what the stage serves now.

    Where the stage serves nothing yet, a gate against any incumbent counts. The model is registered under `name` (the
    stage's name when `None`) unless it is by this gate already; registration and promotion are recorded together or not at all.

    Raises:
        RuleBroken: no such gate, it failed (the message holds its interval), it was decided under an older policy, or the
            model is quarantined.
    """
    parse_digest(model), parse_name("stage", stage)
    return _retried(lambda: _promote_once(ledger, model, stage, reason, parse_name("model name", name or stage)))


def roll_back(ledger: Ledger, stage: str, reason: str) -> Event:
    """Point `stage` at the model before the live one, skipping quarantined models; a second call goes one further back.

    Raises:
        RuleBroken: there is no earlier model.
        StaleVersion: somebody moved the stage at the same time; look at `live` before you try again.
    """
    events = ledger.log.stream(f"stage/{stage}")
    history = _history(events)
    if not history:
        raise RuleBroken(f"stage {stage} serves nothing yet; there is nothing to roll back")
    current = _promotion(history[-1])
    for event in reversed(history[:-1]):
        earlier = _promotion(event)
        if earlier.model == current.model or _quarantine(ledger, earlier.model) is not None:
            continue
        payload = ModelPromoted(
            stage=stage,
            model=earlier.model,
            gate_id=earlier.gate_id,
            previous=current.model,
            rollback=True,
            reason=reason,
        )
        return ledger.record(payload, expected_version=events[-1].version)
    raise RuleBroken(f"stage {stage} has no model before {short(current.model)} that is not quarantined")


def live(ledger: Ledger, stage: str) -> Event | None:
    """The promotion that `stage` stands at, `None` when it never had one."""
    return ledger.log.last(f"stage/{stage}", "ModelPromoted")


def stage_history(ledger: Ledger, stage: str) -> list[Event]:
    """The promotions that lead to the live model, oldest first.

    A rollback takes the models that it left out of the history, so the next one goes further back instead of forward. The
    last entry is the promotion that brought the live model, not the rollback to it.
    """
    return _history(ledger.log.stream(f"stage/{stage}"))


def register(ledger: Ledger, name: str, model: str, gate: str) -> Event:
    """Give a model the next number under `name`; the first registration when the model has this name already.

    Raises:
        InputError: `gate` is no recorded gate of this model.
    """
    parse_digest(model), parse_name("model name", name)
    decided = ledger.log.last(f"gate/{gate}", "GateDecided")
    if decided is None or not isinstance(decided.payload, GateDecided) or decided.payload.candidate != model:
        raise InputError(f"gate {gate} is no gate decision about model {short(model)}; run: posttrain gate {model}")

    def attempt() -> Event:
        for event in ledger.log.stream(f"registry/{name}"):
            if isinstance(event.payload, ModelRegistered) and event.payload.model == model:
                return event
        new = _registration(ledger, name, model, gate)
        return ledger.record(new.payload, expected_version=new.expected_version)

    return _retried(attempt)


def _promote_once(ledger: Ledger, model: str, stage: str, reason: str, name: str) -> Promoted:
    current = live(ledger, stage)
    version = current.version if current else 0
    if current is not None and _promotion(current).model == model:
        return Promoted(current, _promotion(current), reused=True)
    if (quarantine := _quarantine(ledger, model)) is not None:
        raise RuleBroken(f"model {short(model)} is quarantined (event {quarantine.position}) and cannot be promoted")
    serving = _promotion(current).model if current else None
    decision = _passing_gate(ledger, model, stage, serving)
    payload = ModelPromoted(stage=stage, model=model, gate_id=decision.gate_id, previous=serving, reason=reason)
    new = [NewEvent(payload, expected_version=version)]
    if not any(registered.gate_id == decision.gate_id for registered in _registrations(ledger, model)):
        new.insert(0, _registration(ledger, name, model, decision.gate_id))
    return Promoted(ledger.log.append_many(new)[-1], payload, reused=False)


def _passing_gate(ledger: Ledger, model: str, stage: str, serving: str | None) -> GateDecided:
    """The newest gate of the model for the stage against what it serves, if it passed under the policy in force."""
    command = f"run: posttrain gate {model} --against {serving or 'INCUMBENT'} --stage {stage}"
    decisions = [
        event.payload
        for event in ledger.log.used(f"model:{model}")
        if isinstance(event.payload, GateDecided) and event.payload.candidate == model and event.payload.stage == stage
    ]
    if not decisions:
        raise RuleBroken(f"no gate decision for model {short(model)} on stage {stage}; {command}")
    if serving is not None:
        against = [decision for decision in decisions if decision.incumbent == serving]
        if not against:
            raise RuleBroken(
                f"gate {decisions[-1].gate_id} compares model {short(model)} with {short(decisions[-1].incumbent)}, but stage "
                f"{stage} serves {short(serving)} now; {command}"
            )
        decisions = against
    # For each pair only the newest decision counts: a failed repetition takes back an earlier pass.
    newest = {decision.incumbent: decision for decision in decisions}
    passed = [
        decision for decision in decisions if decision.decision == "pass" and decision is newest[decision.incumbent]
    ]
    if not passed:
        raise RuleBroken(f"model {short(model)} is not promoted to {stage}: {describe_decision(decisions[-1])}")
    force = gate_policy(ledger, stage)
    if force is None or passed[-1].policy_position != force.position:
        raise RuleBroken(
            f"gate {passed[-1].gate_id} passed under a policy of stage {stage} that was replaced since; {command}"
        )
    return passed[-1]


def _history(events: list[Event]) -> list[Event]:
    history: list[Event] = []
    for event in events:
        if not isinstance(event.payload, ModelPromoted):
            continue
        if event.payload.rollback:
            while history and _promotion(history[-1]).model != event.payload.model:
                history.pop()
        if not event.payload.rollback or not history:
            history.append(event)
    return history


def _registrations(ledger: Ledger, model: str) -> list[ModelRegistered]:
    return [e.payload for e in ledger.log.used(f"model:{model}") if isinstance(e.payload, ModelRegistered)]


def _registration(ledger: Ledger, name: str, model: str, gate: str) -> NewEvent:
    last = ledger.log.last(f"registry/{name}", "ModelRegistered")
    number = last.payload.number + 1 if last is not None and isinstance(last.payload, ModelRegistered) else 1
    made = [e.payload for e in ledger.log.made(f"model:{model}") if isinstance(e.payload, CheckpointCommitted)]
    checkpoint = made[0].checkpoint if made else None
    payload = ModelRegistered(name=name, number=number, model=model, checkpoint=checkpoint, gate_id=gate)
    return NewEvent(payload, expected_version=last.version if last else 0)


def _quarantine(ledger: Ledger, model: str) -> Event | None:
    return ledger.log.last(f"model/{model.removeprefix('sha256:')}", "ModelQuarantined")


def _promotion(event: Event) -> ModelPromoted:
    if not isinstance(event.payload, ModelPromoted):
        raise AssertionError(f"event {event.position} of {event.stream} is a {event.type}")
    return event.payload


def _retried(attempt: Callable[[], T]) -> T:
    """Read, check and append again when another writer was first: the checks then see what it wrote."""
    for _ in range(MAX_TRIES - 1):
        try:
            return attempt()
        except StaleVersion:
            continue  # nothing was recorded; the next attempt reads the newer state
    return attempt()
