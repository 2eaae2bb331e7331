"""Which deployment has a stage's traffic: a fold over events, nothing else.

`serving(stage)` is the deployment of the stage's last `TrafficShifted`, when it is ready and not stopped; any other answer
is `None`. A log that breaks the rules (traffic to something that was never ready) routes nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ledger.events import DeploymentReady, DeploymentRequested, DeploymentStopped, Event, TrafficShifted
from ledger.log import Log

TYPES = ("DeploymentRequested", "DeploymentReady", "DeploymentStopped", "TrafficShifted")


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the ledger says of one deployment. `endpoint` and `observed_weights` are `None` before it was ready."""

    deployment_id: str
    stage: str
    promotion_position: int
    model: str
    served_name: str
    position: int  # of its request
    endpoint: str | None = None
    observed_weights: str | None = None
    stopped: bool = False

    @property
    def ready(self) -> bool:
        return self.endpoint is not None


def read_routes(log: Log) -> RouteTable:
    """The table as of now."""
    table = RouteTable()
    table.advance(*news(log, 0))
    return table


def news(log: Log, after: int) -> tuple[list[Event], int]:
    """The events after a position that matter here, and how far the log was read."""
    size = log.size()  # before the events: what is recorded meanwhile is read now or next time, never missed
    return list(log.read(after, types=TYPES)), size


class RouteTable:
    """The state after the events up to `position`."""

    def __init__(self) -> None:
        self.position = 0
        self.deployments: dict[str, Deployment] = {}
        self.traffic: dict[str, str] = {}  # stage → deployment of its last shift
        self.shifted_promotions: set[int] = set()  # promotions that have had traffic
        self._served_names: dict[str, str] = {}

    def advance(self, events: Sequence[Event], size: int) -> None:
        """Apply what `news` fetched."""
        for event in events:
            self.apply(event)
        self.position = max(self.position, size)

    def apply(self, event: Event) -> None:
        payload = event.payload
        self.position = max(self.position, event.position)
        if isinstance(payload, DeploymentRequested):
            self.deployments[payload.deployment_id] = Deployment(
                payload.deployment_id,
                payload.stage,
                payload.promotion_position,
                payload.model,
                payload.served_name,
                event.position,
            )
            self._served_names[payload.served_name] = payload.deployment_id
            return
        if not isinstance(payload, DeploymentReady | DeploymentStopped | TrafficShifted):
            return
        known = self.deployments.get(payload.deployment_id)
        if known is None or known.stage != payload.stage:
            return
        if isinstance(payload, DeploymentReady):
            known = replace(known, endpoint=payload.endpoint, observed_weights=payload.observed_weights)
        elif isinstance(payload, DeploymentStopped):
            known = replace(known, stopped=True)
        else:
            self.traffic[payload.stage] = payload.deployment_id
            self.shifted_promotions.add(known.promotion_position)
        self.deployments[payload.deployment_id] = known

    def serving(self, stage: str) -> Deployment | None:
        """The deployment that answers for `stage`."""
        found = self.deployments.get(self.traffic.get(stage, ""))
        return found if found is not None and found.ready and not found.stopped else None

    def resolve(self, name: str) -> Deployment | None:
        """The deployment behind a stage's name, or behind a served name that has its stage's traffic."""
        by_name = self.deployments.get(self._served_names.get(name, ""))
        serving = self.serving(by_name.stage if by_name else name)
        return serving if by_name is None or by_name == serving else None

    def standing(self, stage: str | None = None) -> list[Deployment]:
        """Deployments that were not stopped, oldest first: of `stage`, or all."""
        found = [d for d in self.deployments.values() if not d.stopped and stage in (None, d.stage)]
        return sorted(found, key=lambda deployment: deployment.position)

    def stages(self) -> list[str]:
        """Stages that have ever had a deployment."""
        return sorted({deployment.stage for deployment in self.deployments.values()})
