"""The registry: which model may serve, and who said so."""

from __future__ import annotations

from ledger.digest import Digest
from ledger.events.base import Edge, Name, Payload, Text, edges
from ledger.events.evaluation import GateId


class ModelRegistered(Payload):
    """A model has a name and a version in the registry."""

    name: Name
    number: int  # 1, 2, … within the name
    model: Digest
    checkpoint: Digest | None = None
    gate_id: GateId

    def stream(self) -> str:
        return f"registry/{self.name}"

    def inputs(self) -> tuple[Edge, ...]:
        return edges(
            ("model", "model", self.model),
            ("checkpoint", "checkpoint", self.checkpoint),
            ("gate", "gate", self.gate_id),
        )


class ModelPromoted(Payload):
    """The stage's pointer moves to a model. A rollback is a promotion of the predecessor and says so."""

    stage: Name
    model: Digest
    gate_id: GateId
    previous: Digest | None = None
    rollback: bool = False
    reason: Text

    def stream(self) -> str:
        return f"stage/{self.stage}"

    def inputs(self) -> tuple[Edge, ...]:
        return edges(("model", "model", self.model), ("gate", "gate", self.gate_id))

    def outputs(self) -> tuple[Edge, ...]:
        return edges(("promotion", "promotion", f"{self.stage}/{self.gate_id}"))


class ModelQuarantined(Payload):
    """A model may not be promoted or deployed any more."""

    model: Digest
    reason: Text

    def stream(self) -> str:
        return f"model/{self.model.removeprefix('sha256:')}"

    def inputs(self) -> tuple[Edge, ...]:
        return edges(("model", "model", self.model))
