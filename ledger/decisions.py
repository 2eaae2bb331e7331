"""Gate policies and gate decisions: the statistics of `ledger.gate`, asked of the ledger and recorded in it.

`decide_gate` reads the policy in force, both models' newest reports on its suite, and records what the numbers say, pass or
fail. The same question (same models, same reports, same policy) has one decision, however often it is asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from ledger import gate
from ledger.canonical import canonical_digest, decimal_string
from ledger.digest import parse_digest, short
from ledger.errors import InputError, NotFound, TamperFound
from ledger.events import EvaluationReported, Event, GateDecided, GatePolicySet, PairedGain, SuiteRegistered
from ledger.home import Ledger
from ledger.names import parse_name

MAX_VERDICTS_BYTES = 1 << 30
_STATUSES = {"pass": True, "fail": False, "error": None}


@dataclass(frozen=True, slots=True)
class Decided:
    """A recorded decision. `reused`: it was there already."""

    event: Event
    decision: GateDecided
    reused: bool

    @property
    def passed(self) -> bool:
        return self.decision.decision == "pass"


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    position: int
    policy: GatePolicySet


def set_gate_policy(
    ledger: Ledger, stage: str, suite: str, confidence: str = "0.95", min_gain: str = "0", min_items: int = 100
) -> Event:
    """Record what a candidate must show for `stage`; the policy in force when it already says exactly this.

    `confidence` is that of the two-sided paired interval, `min_gain` a difference of accuracies (0.02 is two points) that
    its lower bound must exceed. A changed policy asks for a new gate: decisions under the old one promote nothing.

    Raises:
        InputError: a name that is none, or a number out of range.
        NotFound: no such suite is registered.
    """
    payload = GatePolicySet(
        stage=parse_name("stage", stage),
        suite=parse_name("suite", suite),
        method="paired-t",
        confidence=_fraction("confidence", confidence, "0.5", "1"),
        min_gain=_fraction("min_gain", min_gain, "-1", "1"),
        min_items=min_items,
    )
    if min_items < 2:
        raise InputError(f"min_items is {min_items}; an interval needs at least 2 items, and 100 is a sensible minimum")
    _suite(ledger, suite)
    last = ledger.log.last(payload.stream(), "GatePolicySet")
    if last is not None and last.payload == payload:
        return last
    return ledger.record(payload, expected_version=last.version if last else 0)


def gate_policy(ledger: Ledger, stage: str) -> PolicyInForce | None:
    """The policy in force for `stage`, `None` when none was set."""
    last = ledger.log.last(f"policy/{stage}", "GatePolicySet")
    if last is None or not isinstance(last.payload, GatePolicySet):
        return None
    return PolicyInForce(last.position, last.payload)


def decide_gate(ledger: Ledger, candidate: str, incumbent: str, stage: str) -> Decided:
    """Decide and record whether the model `candidate` may replace `incumbent` on `stage`. Both are digests.

    A failed gate is a recorded answer, not an error: look at `.passed`.

    Raises:
        InputError: no policy, no evaluation of a model on its suite, or different verifiers.
        TamperFound: a report disagrees with the event that recorded it.
    """
    parse_digest(candidate), parse_digest(incumbent)
    force = gate_policy(ledger, stage)
    if force is None:
        raise InputError(f"stage {stage} has no gate policy; set one: posttrain gate policy {stage} --suite SUITE")
    suite = _suite(ledger, force.policy.suite)
    report = _report(ledger, candidate, suite)
    other = report if incumbent == candidate else _report(ledger, incumbent, suite, verifier=report.verifier)
    gate_id = _gate_id(candidate, incumbent, report, other, force.position)
    known = ledger.log.last(f"gate/{gate_id}", "GateDecided")
    if known is not None and isinstance(known.payload, GateDecided):
        return Decided(known, known.payload, reused=True)
    decision = gate.decide(_outcomes(ledger, report), _outcomes(ledger, other), _policy(force.policy), suite.items)
    payload = GateDecided(
        gate_id=gate_id,
        stage=stage,
        candidate=candidate,
        incumbent=incumbent,
        suite=suite.suite,
        candidate_report=report.report,
        incumbent_report=other.report,
        policy_position=force.position,
        decision="fail" if candidate == incumbent else decision.outcome,
        gain=_recorded(decision, force.policy.confidence),
        reasons=(*(("the candidate is the incumbent itself",) if candidate == incumbent else ()), *decision.reasons),
    )
    # Two who ask at once write the same bytes: the key gives both the one event.
    return Decided(ledger.record(payload, idempotency_key=f"gate/{gate_id}"), payload, reused=False)


def describe_decision(decision: GateDecided) -> str:
    """One line for people: the gate, its outcome and why."""
    gain = decision.gain
    numbers = (
        f"gain {_points(gain.estimate)} points, {100 * float(gain.confidence):g} % interval "
        f"[{_points(gain.interval[0])}, {_points(gain.interval[1])}], {gain.items} items"
    )
    if decision.decision == "pass":
        return f"gate {decision.gate_id} passed: {numbers}"
    return f"gate {decision.gate_id} failed: " + "; ".join(decision.reasons or (numbers,))


def _points(fraction: str) -> str:
    return f"{100 * float(fraction):+.1f}"


def _policy(policy: GatePolicySet) -> gate.Policy:
    return gate.Policy(Decimal(policy.confidence), Decimal(policy.min_gain), policy.min_items)


def _recorded(decision: gate.Decision, confidence: str) -> PairedGain:
    pairs, gain = decision.pairs, decision.gain
    n = max(1, pairs.items)
    return PairedGain(
        items=pairs.items,
        wins=pairs.wins,
        losses=pairs.losses,
        candidate_accuracy=decimal_string((pairs.both + pairs.wins) / n),
        incumbent_accuracy=decimal_string((pairs.both + pairs.losses) / n),
        estimate=decimal_string(gain.estimate),
        interval=(decimal_string(gain.low), decimal_string(gain.high)),
        confidence=confidence,
        method=gain.method,
    )


def _gate_id(
    candidate: str, incumbent: str, report: EvaluationReported, other: EvaluationReported, policy_position: int
) -> str:
    question = {
        "candidate": candidate,
        "incumbent": incumbent,
        "candidate_report": report.report,
        "incumbent_report": other.report,
        "policy_position": policy_position,
    }
    return "g-" + canonical_digest(question).removeprefix("sha256:")[:16]


def _suite(ledger: Ledger, name: str) -> SuiteRegistered:
    last = ledger.log.last(f"suite/{name}", "SuiteRegistered")
    if last is None or not isinstance(last.payload, SuiteRegistered):
        known = ", ".join(stream.removeprefix("suite/") for stream in ledger.log.streams("suite/"))
        raise NotFound(f"suite {name} is not registered; registered suites: {known or 'none yet'}")
    return last.payload


def _report(ledger: Ledger, model: str, suite: SuiteRegistered, verifier: str | None = None) -> EvaluationReported:
    """The model's newest report on exactly these items, judged by `verifier` when one is given."""
    reports = [
        event.payload
        for event in ledger.log.used(f"model:{model}")
        if isinstance(event.payload, EvaluationReported)
        and event.payload.model == model
        and event.payload.suite == suite.suite
    ]
    command = f"run: posttrain eval {model} --suite {suite.name}"
    if not reports:
        raise InputError(
            f"model {short(model)} has no evaluation on suite {suite.name} ({short(suite.suite)}); {command}"
        )
    same = [report for report in reports if verifier is None or report.verifier == verifier]
    if not same:
        raise InputError(
            f"model {short(model)} was evaluated on suite {suite.name} by verifier {reports[-1].verifier}, the candidate by "
            f"{verifier}; verdicts of different verifiers are not comparable; {command}"
        )
    return same[-1]


def _outcomes(ledger: Ledger, report: EvaluationReported) -> dict[str, bool | None]:
    """Item digest to outcome, read from the report artifact (verified by its digest) and held against the event."""
    outcomes: dict[str, bool | None] = {}
    for place, item, status in _verdicts(ledger, report):
        if item in outcomes:
            raise TamperFound(f"{place}: item {item} has a second verdict; run the evaluation again")
        outcomes[item] = _STATUSES[status]
    passed = sum(outcome is True for outcome in outcomes.values())
    masked = sum(outcome is None for outcome in outcomes.values())
    if (passed, masked) != (report.passed, report.masked):
        raise TamperFound(
            f"report {report.report}: {passed} passed and {masked} masked verdicts, but its event says {report.passed} and "
            f"{report.masked}"
        )
    return outcomes


def _verdicts(ledger: Ledger, report: EvaluationReported) -> Iterator[tuple[str, str, str]]:
    data = ledger.artifacts.read(report.report, "verdicts.jsonl", max_bytes=MAX_VERDICTS_BYTES)
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line:
            continue
        place = f"report {report.report}, verdicts.jsonl line {number}"
        try:
            verdict = json.loads(line)
        except (ValueError, RecursionError):
            raise TamperFound(f"{place} is not JSON") from None
        item, status = (verdict.get("item"), verdict.get("status")) if isinstance(verdict, dict) else (None, None)
        if not isinstance(item, str) or not isinstance(status, str) or status not in _STATUSES:
            raise TamperFound(f"{place} is no verdict; expected item (a digest) and status (pass, fail or error)")
        yield place, item, status


def _fraction(what: str, text: str, low: str, high: str) -> str:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise InputError(f"{what} {text!r} is not a decimal number") from None
    if not number.is_finite() or not Decimal(low) < number < Decimal(high):
        raise InputError(f"{what} is {text}; it must lie between {low} and {high}")
    return decimal_string(number)
