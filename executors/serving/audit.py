"""What runs, compared with what the ledger says: processes, and the weights that are in their memory now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from executors.serving.gateways import find_gateway
from executors.serving.places import Places
from executors.serving.probe import first_completion, read_back
from executors.serving.routes import Deployment, RouteTable, read_routes
from ledger.digest import short
from ledger.errors import InfrastructureError
from ledger.home import Ledger
from ledger.registry import live

Kind = Literal[
    "not-running", "not-answering", "wrong-weights", "unrecorded", "unfinished", "replaced", "not-promoted",
    "quarantined", "not-deployed", "gateway-down", "gateway-differs",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One disagreement. `subject` is a deployment id or a stage; `action` is what to do."""

    kind: Kind
    subject: str
    detail: str
    action: str


def audit(ledger: Ledger) -> list[Finding]:
    """Every disagreement between the processes of this home and its ledger; [] when there is none.

    Reads the weights of every running engine back, which takes about as long as reading its files.
    """
    table, places = read_routes(ledger.log), Places(ledger.home)
    findings: list[Finding] = []
    for deployment in table.standing():
        findings += _standing(table, places, deployment)
    findings += _strays(table, places)
    for stage in _stages(ledger, table):
        findings += _stage(ledger, table, stage)
    return [*findings, *_gateway(table, places)]


def _standing(table: RouteTable, places: Places, deployment: Deployment) -> Iterator[Finding]:
    subject, serve = deployment.deployment_id, f"run: posttrain serve {deployment.stage}"
    place = places.engine(subject)
    has_traffic = table.traffic.get(deployment.stage) == subject
    if not has_traffic:
        kind: Kind = "replaced" if deployment.promotion_position in table.shifted_promotions else "unfinished"
        yield Finding(kind, subject, f"{deployment.served_name} has no traffic and was not stopped", serve)
    if not place.alive():
        if has_traffic:
            yield Finding(
                "not-running", subject, f"the ledger has {deployment.served_name} live, it does not run", serve
            )
        return
    if deployment.endpoint is None:
        return
    try:
        token = place.token()
        observed = read_back(deployment.endpoint, token)
        first_completion(deployment.endpoint, deployment.served_name, token)
    except InfrastructureError as error:
        yield Finding("not-answering", subject, str(error), serve)
        return
    if observed != deployment.observed_weights:
        detail = f"weights in memory are {observed}, recorded are {deployment.observed_weights}"
        stop = f"run: posttrain serve stop {deployment.stage}, then posttrain serve {deployment.stage}"
        yield Finding("wrong-weights", subject, detail, stop)


def _strays(table: RouteTable, places: Places) -> Iterator[Finding]:
    for deployment_id, place in places.engines().items():
        known = table.deployments.get(deployment_id)
        if not place.alive() or (known is not None and not known.stopped):
            continue
        what = "that the ledger has as stopped" if known else "that the ledger does not know"
        action = f"run: posttrain serve stop {known.stage}" if known else "end the process in its pid file"
        yield Finding("unrecorded", deployment_id, f"an engine runs {what} ({place.directory})", action)


def _stages(ledger: Ledger, table: RouteTable) -> list[str]:
    promoted = {stream.removeprefix("stage/") for stream in ledger.log.streams("stage/")}
    return sorted(promoted | set(table.stages()))


def _stage(ledger: Ledger, table: RouteTable, stage: str) -> Iterator[Finding]:
    promotion, serving = live(ledger, stage), table.serving(stage)
    action = f"run: posttrain serve {stage}"
    if serving is None:
        # Stopping a stage is a decision, and so is not serving it yet; only traffic that leads nowhere is a fault.
        if stage in table.traffic and table.standing(stage):
            yield Finding("not-deployed", stage, "its traffic leads to a deployment that was stopped", action)
        return
    if ledger.log.last(f"model/{serving.model.removeprefix('sha256:')}", "ModelQuarantined") is not None:
        yield Finding("quarantined", stage, f"model {short(serving.model)} is quarantined and serves", action)
    if promotion is None or promotion.position != serving.promotion_position:
        detail = f"serves promotion {serving.promotion_position}, promoted is {promotion.position if promotion else 'nothing'}"
        yield Finding("not-promoted", stage, detail, action)


def _gateway(table: RouteTable, places: Places) -> Iterator[Finding]:
    serving = {stage: found.deployment_id for stage in table.stages() if (found := table.serving(stage))}
    if not serving:
        return
    gateway = find_gateway(places)
    action = f"run: posttrain serve {next(iter(serving))}"
    if gateway is None:
        yield Finding("gateway-down", "gateway", "stages have live deployments, but no gateway runs", action)
        return
    try:
        state = gateway.state()
    except InfrastructureError as error:
        yield Finding("gateway-down", "gateway", str(error), action)
        return
    if state["stages"] != serving and state["position"] >= table.position:
        yield Finding("gateway-differs", "gateway", f"routes {state['stages']}, the ledger says {serving}", action)
