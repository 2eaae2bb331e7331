"""The audit: each way in which what runs can differ from what the ledger says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from executors.launchers.local import LocalLauncher
from executors.serving.audit import audit
from executors.serving.deploy import deploy, stop
from executors.serving.engine import EnginePlan
from executors.serving.places import Places
from executors.serving.probe import wait_for_port
from ledger.events import DeploymentStopped, ModelQuarantined
from ledger.home import Ledger
from tests.executors.serving.chain import STAGE, promoted, with_policy
from tests.executors.serving.conftest import fake_argv


def kinds(ledger: Ledger) -> list[str]:
    return sorted(finding.kind for finding in audit(ledger))


def test_weights_that_changed_in_memory_are_found(
    ledger: Ledger, models: dict[str, Path], fake: Callable[..., None]
) -> None:
    fake("drifts")
    model = promoted(ledger, "first", models["first"], 100, with_policy(ledger))
    deployed = deploy(ledger, STAGE, port=0)
    (finding,) = audit(ledger)
    assert (finding.kind, finding.subject) == ("wrong-weights", deployed.deployment_id)
    assert "weights in memory are sha256:0000" in finding.detail

    ledger.record(ModelQuarantined(model=model, reason="it leaks"))
    assert kinds(ledger) == ["quarantined", "wrong-weights"]


def test_an_engine_that_the_ledger_does_not_have_is_found_and_ended(
    ledger: Ledger, models: dict[str, Path], fake: Callable[..., None]
) -> None:
    promoted(ledger, "first", models["first"], 100, with_policy(ledger))
    deployed = deploy(ledger, STAGE, port=0)
    places = Places(ledger.home)
    stranger = places.engine("d-00000000deadbeef")
    plan = EnginePlan("d-00000000deadbeef", "x", models["first"], stranger.make_token())
    LocalLauncher().start(stranger.directory, fake_argv(), {}, plan.document())
    wait_for_port(stranger, "the engine", 30)
    (finding,) = audit(ledger)
    assert (finding.kind, finding.subject) == ("unrecorded", "d-00000000deadbeef")
    stranger.end(1)

    # As when the process of `serve stop` is killed between the event and the end of the engine.
    ledger.record(DeploymentStopped(deployment_id=deployed.deployment_id, stage=STAGE, reason="over"))
    assert kinds(ledger) == ["unrecorded"]
    stop(ledger, STAGE, "over")
    assert audit(ledger) == []
    assert not places.engine(deployed.deployment_id).alive()


def test_nothing_served_is_no_disagreement(ledger: Ledger) -> None:
    assert audit(ledger) == []
