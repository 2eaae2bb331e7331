"""Deploy: a stage's live promotion becomes what answers, without a failed request.

Each step looks before it acts and is recorded when it is done, so a deployer that was killed at any point and runs again
goes on where it stood: a deployment that was requested is started (or found running) under the same id, an engine that
belongs to no standing deployment is ended, and one live engine is left. One deployer works on a stage at a time.
"""

from __future__ import annotations

import importlib.util
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass

from executors.launchers.local import LocalLauncher
from executors.serving.engine import EnginePlan
from executors.serving.gateways import GatewayAt, drain, end_gateway, ensure_gateway
from executors.serving.places import Places
from executors.serving.probe import Probe, check_weights, first_completion, wait_for_port, wait_until
from executors.serving.routes import Deployment, RouteTable, read_routes
from executors.serving.weights import directory_digest
from ledger.artifacts.locks import locked
from ledger.digest import sha256_digest, short
from ledger.errors import InfrastructureError, InputError, MissingExtra, PosttrainError, RuleBroken
from ledger.events import DeploymentReady, DeploymentRequested, DeploymentStopped, ModelPromoted, TrafficShifted
from ledger.home import Ledger
from ledger.names import parse_name
from ledger.registry import live, roll_back

RESERVED = ("audit", "stop", "run")  # words of `posttrain serve`
ENGINE = "transformers"
ENGINE_ARGV = (sys.executable, "-m", "executors.serving.engine")
STOP_GRACE_S = 35.0  # longer than an engine gives its last answers
ROUTED_TIMEOUT_S = 30.0
MAX_MOVES = 5

Watch = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Deployed:
    """What answers for the stage now. `endpoint` is the gateway; `reused`: it was live already."""

    deployment_id: str
    served_name: str
    endpoint: str
    model: str
    reused: bool


def deploy(ledger: Ledger, stage: str, *, port: int | None = None, watch: Watch | None = None) -> Deployed:
    """Make the gateway answer for `stage` with its live promotion; nothing is done when it does already.

    `port` is where the gateway listens when it has to be started (the home's last port, or 8400, without it); `watch`
    gets a line for each step.

    Raises:
        RuleBroken: the stage has no promotion, or the ledger refuses the deployment.
        CheckFailed: staged files or the weights in memory are not the promoted model's.
        InfrastructureError: the engine or the gateway does not start, or the port is taken.
        MissingExtra: what serving needs is not installed.
    """
    if parse_name("stage", stage) in RESERVED:
        raise InputError(f"{stage!r} is a word of the serve command and cannot be served as a stage's name")
    for module in ("transformers", "uvicorn", "httpx", "starlette", "openai"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(f"serving ({module})", "serve")
    places = Places(ledger.home)
    places.make()
    deployer = Deployer(ledger, stage, port, watch or (lambda _line: None))
    with locked(places.stage_lock(stage)):
        for _ in range(MAX_MOVES):
            deployed = deployer.run()
            if deployed is not None:
                return deployed
    raise InfrastructureError(f"stage {stage} was promoted again and again while it was deployed; try again")


def rollback(ledger: Ledger, stage: str, *, reason: str, watch: Watch | None = None) -> Deployed:
    """Move the stage back to its predecessor, in the ledger and then in traffic.

    Called again after it was killed on the way, it finishes that rollback instead of going one model further back.

    Raises:
        RuleBroken: there is no predecessor. Otherwise as `deploy`.
    """
    event = live(ledger, parse_name("stage", stage))
    begun = event is not None and isinstance(event.payload, ModelPromoted) and event.payload.rollback
    finished = event is not None and event.position in read_routes(ledger.log).shifted_promotions
    if not begun or finished:
        roll_back(ledger, stage, reason)
    return deploy(ledger, stage, watch=watch)


def stop(ledger: Ledger, stage: str, reason: str) -> list[str]:
    """End the stage's engines, and the gateway when no other stage needs it; returns the ids that were stopped."""
    parse_name("stage", stage)
    places = Places(ledger.home)
    places.make()
    with locked(places.stage_lock(stage)):
        stopped = []
        for deployment in read_routes(ledger.log).standing(stage):
            # Recorded first: the gateway must not send requests to an engine that is ending.
            record_stopped(ledger, deployment, reason)
            drain(places, deployment.deployment_id)
            places.engine(deployment.deployment_id).end(STOP_GRACE_S)
            stopped.append(deployment.deployment_id)
        end_strays(places, read_routes(ledger.log))
    with locked(places.lock("gateway")):
        if not read_routes(ledger.log).standing():
            end_gateway(places)
    return stopped


class Deployer:
    """One attempt to bring a stage's traffic to its live promotion."""

    def __init__(self, ledger: Ledger, stage: str, port: int | None, say: Watch) -> None:
        self.ledger, self.stage, self.port, self.say = ledger, stage, port, say
        self.places = Places(ledger.home)
        self.launcher = LocalLauncher()

    def run(self) -> Deployed | None:
        """Go to the end; `None` when the stage was promoted to something else on the way."""
        position, promotion = self.promotion()
        gateway = ensure_gateway(self.ledger, self.places, self.port, self.say)  # a taken port is known before the wait
        table = read_routes(self.ledger.log)
        current = table.serving(self.stage)
        probe = self.answers(current) if current and current.promotion_position == position else None
        reused = current is not None and probe is not None
        if current is not None and probe is not None:
            self.say(f"{current.served_name} is live already")
            deployment = current
        else:
            deployment = self.unfinished(table, position) or self.request(position, promotion)
            deployment, probe = self.bring_up(deployment)
            if self.promotion()[0] != position:
                self.retire(deployment, f"stage {self.stage} moved to another promotion meanwhile")
                return None
            self.shift(deployment, current)
        self.wait_until_routed(gateway, deployment, probe)
        self.retire_others(deployment)
        return Deployed(deployment.deployment_id, deployment.served_name, gateway.url, deployment.model, reused)

    def promotion(self) -> tuple[int, ModelPromoted]:
        event = live(self.ledger, self.stage)
        if event is None or not isinstance(event.payload, ModelPromoted):
            raise RuleBroken(
                f"stage {self.stage} has no promotion, and only a promotion is served; run: "
                f"posttrain promote MODEL --to {self.stage}"
            )
        return event.position, event.payload

    # ---- what an earlier deployer left ----

    def alive(self, deployment: Deployment) -> bool:
        return self.places.engine(deployment.deployment_id).alive()

    def answers(self, deployment: Deployment) -> Probe | None:
        """The completion that a live deployment still gives; `None` when its engine is gone or hangs."""
        if deployment.endpoint is None or not self.alive(deployment):
            return None
        try:
            token = self.places.engine(deployment.deployment_id).token()
            return first_completion(deployment.endpoint, deployment.served_name, token)
        except InfrastructureError as error:
            self.say(f"{deployment.served_name} does not answer ({error}); starting another")
            return None

    def unfinished(self, table: RouteTable, promotion: int) -> Deployment | None:
        """A deployment of this promotion that has had no traffic yet and can still be finished."""
        for deployment in reversed(table.standing(self.stage)):
            place = self.places.engine(deployment.deployment_id)
            had_traffic = table.traffic.get(self.stage) == deployment.deployment_id
            if deployment.promotion_position != promotion or had_traffic:
                continue
            if self.launcher.state(place.directory).kind in ("absent", "running"):
                self.say(f"going on with {deployment.served_name}")
                return deployment
        return None

    # ---- the steps ----

    def request(self, position: int, promotion: ModelPromoted) -> Deployment:
        digits = secrets.token_hex(8)
        payload = DeploymentRequested(
            deployment_id=f"d-{digits}",
            stage=self.stage,
            promotion_position=position,
            model=promotion.model,
            served_name=f"{self.stage}-{short(promotion.model)}-{digits[:8]}",
            engine=ENGINE,
        )
        self.ledger.record(payload, expected_version=0)
        return read_routes(self.ledger.log).deployments[payload.deployment_id]

    def bring_up(self, deployment: Deployment) -> tuple[Deployment, Probe]:
        """Start the engine and prove it. What fails is stopped, and recorded as stopped with the reason."""
        try:
            return self.prove(deployment)
        except PosttrainError as error:
            self.retire(deployment, f"not ready: {error}"[:2000])
            raise

    def prove(self, deployment: Deployment) -> tuple[Deployment, Probe]:
        directory = self.places.model(deployment.model)
        place = self.places.engine(deployment.deployment_id)
        self.say(f"staging model {short(deployment.model)}")
        self.ledger.artifacts.materialise(deployment.model, directory)
        plan = EnginePlan(deployment.deployment_id, deployment.served_name, directory, place.make_token())
        self.say(f"starting engine {deployment.served_name}")
        self.launcher.start(place.directory, ENGINE_ARGV, {}, plan.document())
        expected = directory_digest(directory)
        endpoint = f"http://127.0.0.1:{wait_for_port(place, 'the engine')}"
        self.say("asking for a completion and reading the weights back")
        probe = first_completion(endpoint, deployment.served_name, place.token())
        observed = check_weights(endpoint, place.token(), expected)
        if not deployment.ready:
            payload = DeploymentReady(
                deployment_id=deployment.deployment_id,
                stage=self.stage,
                endpoint=endpoint,
                observed_weights=observed,
                probe=sha256_digest(probe.text.encode()),
            )
            self.ledger.record(payload)
        return read_routes(self.ledger.log).deployments[deployment.deployment_id], probe

    def shift(self, deployment: Deployment, current: Deployment | None) -> None:
        self.say(f"moving the traffic of {self.stage} to {deployment.served_name}")
        payload = TrafficShifted(
            stage=self.stage,
            deployment_id=deployment.deployment_id,
            previous=current.deployment_id if current else None,
        )
        self.ledger.record(payload)

    def wait_until_routed(self, gateway: GatewayAt, deployment: Deployment, probe: Probe) -> None:
        """Return when a completion through the gateway came from this deployment's model."""

        def leads_here() -> bool:
            return bool(gateway.state()["stages"].get(self.stage) == deployment.deployment_id)

        if not wait_until(leads_here, ROUTED_TIMEOUT_S):
            raise InfrastructureError(f"the gateway at {gateway.url} does not route to {deployment.served_name}")
        answer = probe.repeat(gateway.url, self.stage)
        if (answer.model, answer.deployment) != (deployment.model, deployment.deployment_id):
            raise InfrastructureError(
                f"the gateway at {gateway.url} answered with model {answer.model}, not {deployment.model}"
            )

    # ---- what is not needed any more ----

    def retire_others(self, deployment: Deployment) -> None:
        table = read_routes(self.ledger.log)
        end_strays(self.places, table)
        for other in table.standing(self.stage):
            if other.deployment_id == deployment.deployment_id:
                continue
            if self.alive(other):
                reason = f"replaced by {deployment.deployment_id}"
            else:
                reason = f"its process ended; replaced by {deployment.deployment_id}"
            self.retire(other, reason)

    def retire(self, deployment: Deployment, reason: str) -> None:
        """End the engine after its last answer, then record it."""
        if self.alive(deployment):
            self.say(f"stopping {deployment.served_name}")
            drain(self.places, deployment.deployment_id)
        self.places.engine(deployment.deployment_id).end(STOP_GRACE_S)
        record_stopped(self.ledger, deployment, reason)


def record_stopped(ledger: Ledger, deployment: Deployment, reason: str) -> None:
    payload = DeploymentStopped(deployment_id=deployment.deployment_id, stage=deployment.stage, reason=reason)
    ledger.record(payload)


def end_strays(places: Places, table: RouteTable) -> list[str]:
    """End engines whose deployments the ledger has as stopped: whoever recorded it was killed before it ended them."""
    strays = []
    for deployment_id, place in places.engines().items():
        deployment = table.deployments.get(deployment_id)
        if deployment is not None and deployment.stopped and place.alive():
            place.end(STOP_GRACE_S)
            strays.append(deployment_id)
    return strays
