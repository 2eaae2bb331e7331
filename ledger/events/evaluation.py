"""Evaluation reports and gate decisions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from ledger.digest import Digest
from ledger.events.base import DecimalText, Edge, Name, Payload, Record, Text, edges
from ledger.events.runs import RunId

GateId = Annotated[str, StringConstraints(pattern=r"^g-[0-9a-f]{16}$")]


class EvaluationReported(Payload):
    """A model answered every item of a suite; the per-item verdicts are the artifact `report`."""

    report: Digest
    run_id: RunId
    model: Digest
    suite: Digest
    verifier: Text
    items: int
    passed: int
    masked: int  # items without a verdict: infrastructure failures, never counted as wrong
    accuracy: DecimalText
    interval: tuple[DecimalText, DecimalText]
    confidence: DecimalText
    method: Text

    def stream(self) -> str:
        return f"run/{self.run_id}"

    def inputs(self) -> tuple[Edge, ...]:
        return edges(
            ("run", "run", self.run_id),
            ("model", "model", self.model),
            ("suite", "suite", self.suite),
            ("verifier", "verifier", self.verifier),
        )

    def outputs(self) -> tuple[Edge, ...]:
        return edges(("report", "report", self.report))


class GatePolicySet(Payload):
    """What a candidate must show before it may be promoted to a stage."""

    stage: Name
    suite: Name
    method: Literal["paired-t"]
    confidence: DecimalText
    min_gain: DecimalText  # the lower bound of the paired gain must exceed this
    min_items: int

    def stream(self) -> str:
        return f"policy/{self.stage}"


class PairedGain(Record):
    """Candidate minus incumbent over the items that both answered."""

    items: int
    wins: int
    losses: int
    candidate_accuracy: DecimalText
    incumbent_accuracy: DecimalText
    estimate: DecimalText
    interval: tuple[DecimalText, DecimalText]
    confidence: DecimalText
    method: Text


class GateDecided(Payload):
    """Whether a candidate may replace an incumbent, and by which numbers."""

    gate_id: GateId
    stage: Name
    candidate: Digest
    incumbent: Digest
    suite: Digest
    candidate_report: Digest
    incumbent_report: Digest
    policy_position: int  # of the GatePolicySet event in force
    decision: Literal["pass", "fail"]
    gain: PairedGain
    reasons: tuple[Text, ...]  # empty when it passed

    def stream(self) -> str:
        return f"gate/{self.gate_id}"

    def inputs(self) -> tuple[Edge, ...]:
        return edges(
            ("model", "model", self.candidate),
            ("parent", "model", self.incumbent),
            ("suite", "suite", self.suite),
            ("report", "report", self.candidate_report),
            ("report", "report", self.incumbent_report),
        )

    def outputs(self) -> tuple[Edge, ...]:
        return edges(("gate", "gate", self.gate_id))
