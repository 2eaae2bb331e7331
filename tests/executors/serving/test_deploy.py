"""Deploying: what is recorded, what is refused, and what is left running. The engines are fake; processes are real."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from executors.launchers import supervisor
from executors.serving.audit import audit
from executors.serving.client import HttpRefused, complete, get_json
from executors.serving.deploy import deploy, rollback, stop
from executors.serving.gateways import DEFAULT_PORT, find_gateway, usual_port
from executors.serving.places import Place, Places
from executors.serving.probe import wait_until
from executors.serving.routes import read_routes
from executors.serving.weights import directory_digest
from ledger.digest import sha256_digest, short
from ledger.errors import CheckFailed, InfrastructureError, InputError, RuleBroken, TamperFound
from ledger.events import DeploymentReady, DeploymentStopped, ModelPromoted, ModelQuarantined
from ledger.home import Ledger
from ledger.registry import live
from tests.executors.serving.chain import STAGE, promoted, with_policy

Models = dict[str, Path]
Fake = Callable[..., None]
CHAT = [{"role": "user", "content": "1+1="}]


def kinds(ledger: Ledger) -> list[str]:
    types = ("DeploymentRequested", "DeploymentReady", "DeploymentStopped", "TrafficShifted")
    return [event.type for event in ledger.log.read(types=types)]


def running(ledger: Ledger) -> list[str]:
    """Ids of the engines that live."""
    return [name for name, place in Places(ledger.home).engines().items() if place.alive()]


def kill(place: Place) -> None:
    """SIGKILL to a launched process, as the kernel does it when memory runs out."""
    child = supervisor.read_file(place.directory / "pid")
    assert child is not None
    os.kill(child["child"], signal.SIGKILL)
    assert wait_until(lambda: not place.alive(), 10)


@pytest.fixture
def first(ledger: Ledger, models: Models, fake: Fake) -> str:
    """The digest of a model that is promoted and not yet deployed."""
    return promoted(ledger, "first", models["first"], 100, with_policy(ledger))


def test_a_promotion_becomes_what_answers(ledger: Ledger, models: Models, first: str) -> None:
    steps: list[str] = []
    deployed = deploy(ledger, STAGE, port=0, watch=steps.append)
    assert kinds(ledger) == ["DeploymentRequested", "DeploymentReady", "TrafficShifted"]
    assert deployed.served_name == f"{STAGE}-{short(first)}-{deployed.deployment_id[2:10]}"
    assert (deployed.model, deployed.reused) == (first, False)

    answer = complete(deployed.endpoint, STAGE, CHAT)
    weights = directory_digest(models["first"])
    assert (answer.text, answer.model, answer.deployment) == (weights[7:15], first, deployed.deployment_id)
    assert complete(deployed.endpoint, deployed.served_name, CHAT).model == first

    (ready,) = (event.payload for event in ledger.log.read(types=["DeploymentReady"]))
    assert isinstance(ready, DeploymentReady)
    assert (ready.observed_weights, ready.probe) == (weights, sha256_digest(weights[7:15].encode()))
    assert any("weights" in step for step in steps)
    assert audit(ledger) == []


def test_what_is_live_is_used_again(ledger: Ledger, first: str) -> None:
    before = deploy(ledger, STAGE, port=0)
    size = ledger.log.size()
    after = deploy(ledger, STAGE)
    assert after.reused
    assert (after.deployment_id, after.endpoint) == (before.deployment_id, before.endpoint)
    assert ledger.log.size() == size


@pytest.mark.parametrize(
    ("option", "error", "reason"),
    [
        ("wrong-weights", CheckFailed, "the engine holds weights sha256:0000"),
        ("empty", InfrastructureError, "every answer was empty"),
        ("crash", InfrastructureError, "the model is too large for this machine"),
    ],
)
def test_an_engine_that_is_not_right_gets_no_traffic(
    ledger: Ledger, first: str, fake: Fake, option: str, error: type[Exception], reason: str
) -> None:
    fake(option)
    with pytest.raises(error, match=reason):
        deploy(ledger, STAGE, port=0)
    assert kinds(ledger) == ["DeploymentRequested", "DeploymentStopped"]
    (stopped,) = (event.payload for event in ledger.log.read(types=["DeploymentStopped"]))
    assert isinstance(stopped, DeploymentStopped)
    assert reason in stopped.reason
    assert running(ledger) == []
    fake()
    assert not deploy(ledger, STAGE).reused


def test_a_failed_deployment_leaves_the_live_one_alone(ledger: Ledger, models: Models, first: str, fake: Fake) -> None:
    before = deploy(ledger, STAGE, port=0)
    promoted(ledger, "second", models["second"], 150, first)
    fake("wrong-weights")
    with pytest.raises(CheckFailed):
        deploy(ledger, STAGE)
    assert complete(before.endpoint, STAGE, CHAT).deployment == before.deployment_id
    assert running(ledger) == [before.deployment_id]
    assert [finding.kind for finding in audit(ledger)] == ["not-promoted"]


def test_staged_files_that_changed_are_not_served(ledger: Ledger, first: str) -> None:
    deploy(ledger, STAGE, port=0)
    stop(ledger, STAGE, "over")
    path = Places(ledger.home).model(first) / "model.safetensors"
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(TamperFound, match=r"model\.safetensors is changed"):
        deploy(ledger, STAGE)
    assert running(ledger) == []


def test_only_a_promotion_is_served(ledger: Ledger, fake: Fake) -> None:
    with_policy(ledger)
    with pytest.raises(RuleBroken, match="stage production has no promotion"):
        deploy(ledger, STAGE)
    with pytest.raises(InputError, match="'audit' is a word of the serve command"):
        deploy(ledger, "audit")
    with pytest.raises(InputError, match="is not a name"):
        deploy(ledger, "../../etc")
    assert kinds(ledger) == []


def test_a_quarantined_model_is_not_deployed(ledger: Ledger, first: str) -> None:
    ledger.record(ModelQuarantined(model=first, reason="it leaks"))
    with pytest.raises(RuleBroken, match="quarantined"):
        deploy(ledger, STAGE, port=0)
    assert running(ledger) == []


def test_a_taken_port_is_named_before_anything_is_recorded(ledger: Ledger, first: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InfrastructureError, match=f"port {port} cannot be used .* name another with --port"):
            deploy(ledger, STAGE, port=port)
        assert kinds(ledger) == []
    deployed = deploy(ledger, STAGE, port=port)
    assert deployed.endpoint == f"http://127.0.0.1:{port}"
    with pytest.raises(InputError, match=f"listens on port {port} already"):
        deploy(ledger, STAGE, port=port + 1)


def test_where_nobody_asks_for_a_port_a_taken_one_is_left_alone() -> None:
    said: list[str] = []
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", DEFAULT_PORT))
            other.listen()
        except OSError:
            pass  # another gateway on this machine has it, which is as good
        assert usual_port(said.append) == 0
    assert said == [f"port {DEFAULT_PORT} is taken by another process; taking a free one"]


def test_a_stage_may_be_called_gateway(ledger: Ledger) -> None:
    places = Places(ledger.home)
    assert places.stage_lock("gateway") != places.lock("gateway")


def test_an_engine_that_died_is_replaced(ledger: Ledger, first: str) -> None:
    before = deploy(ledger, STAGE, port=0)
    kill(Places(ledger.home).engine(before.deployment_id))
    with pytest.raises(HttpRefused, match="the engine of stage production is gone") as refused:
        complete(before.endpoint, STAGE, CHAT)
    assert refused.value.status == 503
    assert [finding.kind for finding in audit(ledger)] == ["not-running"]

    after = deploy(ledger, STAGE)
    assert after.deployment_id != before.deployment_id
    assert complete(after.endpoint, STAGE, CHAT).deployment == after.deployment_id
    table = read_routes(ledger.log)
    assert [d.deployment_id for d in table.standing()] == [after.deployment_id]
    assert {d.promotion_position for d in table.deployments.values()} == {live_position(ledger)}
    assert audit(ledger) == []


def live_position(ledger: Ledger) -> int:
    event = live(ledger, STAGE)
    assert event is not None
    return event.position


def test_a_gateway_that_died_comes_back_at_its_port(ledger: Ledger, first: str) -> None:
    before = deploy(ledger, STAGE, port=0)
    gateway = find_gateway(Places(ledger.home))
    assert gateway is not None
    kill(gateway.place)
    assert [finding.kind for finding in audit(ledger)] == ["gateway-down"]
    after = deploy(ledger, STAGE)
    assert (after.reused, after.endpoint) == (True, before.endpoint)
    assert complete(after.endpoint, STAGE, CHAT).model == first


def test_stopping_the_last_stage_stops_the_gateway(ledger: Ledger, models: Models, first: str) -> None:
    promoted(ledger, "other", models["second"], 100, with_policy(ledger, "staging"), "staging")
    one, two = deploy(ledger, STAGE, port=0), deploy(ledger, "staging")
    assert one.endpoint == two.endpoint
    assert stop(ledger, STAGE, "maintenance") == [one.deployment_id]
    with pytest.raises(HttpRefused, match="no live deployment; run: posttrain serve production"):
        complete(one.endpoint, STAGE, CHAT)
    assert complete(two.endpoint, "staging", CHAT).model == two.model
    assert stop(ledger, "staging", "maintenance") == [two.deployment_id]
    assert find_gateway(Places(ledger.home)) is None
    assert stop(ledger, "staging", "maintenance") == []
    assert (running(ledger), audit(ledger)) == ([], [])


def test_a_rollback_is_finished_and_not_repeated(ledger: Ledger, models: Models, first: str, fake: Fake) -> None:
    """Killed between the event and the traffic, it does not go one model further back when it is called again."""
    deploy(ledger, STAGE, port=0)
    promoted(ledger, "second", models["second"], 150, first)
    deploy(ledger, STAGE)
    fake("crash")
    with pytest.raises(InfrastructureError):
        rollback(ledger, STAGE, reason="worse")
    fake()
    deployed = rollback(ledger, STAGE, reason="worse")
    assert deployed.model == first
    promotions = [event.payload for event in ledger.log.stream(f"stage/{STAGE}")]
    assert [p.rollback for p in promotions if isinstance(p, ModelPromoted)] == [False, False, True]
    with pytest.raises(RuleBroken, match="no model before"):
        rollback(ledger, STAGE, reason="worse")
    assert Counter(kinds(ledger))["TrafficShifted"] == 3


def test_tokens_are_for_the_owner_only_and_in_no_event(ledger: Ledger, first: str) -> None:
    deployed = deploy(ledger, STAGE, port=0)
    place = Places(ledger.home).engine(deployed.deployment_id)
    assert (place.directory / "token").stat().st_mode & 0o777 == 0o600
    assert place.directory.stat().st_mode & 0o077 == 0
    token = place.token()
    assert all(token.encode() not in event.body for event in ledger.log.read())
    state = get_json(f"{deployed.endpoint}/posttrain/deployments")
    assert token not in str(state)
    stop(ledger, STAGE, "over")
    assert not (place.directory / "token").exists()
