"""Deployments. Only a promotion can be deployed; only a ready deployment gets traffic."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

from ledger.digest import Digest
from ledger.events.base import Edge, Name, Payload, Text, edges

DeploymentId = Annotated[str, StringConstraints(pattern=r"^d-[0-9a-f]{16}$")]


class DeploymentRequested(Payload):
    """An engine is about to be started for a promotion."""

    deployment_id: DeploymentId
    stage: Name
    promotion_position: int  # of the ModelPromoted event that this serves
    model: Digest
    served_name: Text  # content-addressed and never reused
    engine: Name

    def stream(self) -> str:
        return f"deployment/{self.deployment_id}"

    def inputs(self) -> tuple[Edge, ...]:
        return edges(("model", "model", self.model))

    def outputs(self) -> tuple[Edge, ...]:
        return edges(("deployment", "deployment", self.deployment_id))


class DeploymentReady(Payload):
    """The engine answered a real completion with the right weights."""

    deployment_id: DeploymentId
    stage: Name
    endpoint: Text
    observed_weights: Digest  # read back from the engine's memory
    probe: Digest  # of the probe completion's text

    def stream(self) -> str:
        return f"deployment/{self.deployment_id}"


class DeploymentStopped(Payload):
    deployment_id: DeploymentId
    stage: Name
    reason: Text

    def stream(self) -> str:
        return f"deployment/{self.deployment_id}"


class TrafficShifted(Payload):
    """From now on the gateway sends the stage's requests to this deployment."""

    stage: Name
    deployment_id: DeploymentId
    previous: DeploymentId | None = None

    def stream(self) -> str:
        return f"traffic/{self.stage}"
