"""A deployer that is killed with -9 at any point, and two at a time: one live engine is left, and nothing is done twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from executors.serving.audit import audit
from executors.serving.client import complete
from executors.serving.deploy import deploy
from executors.serving.places import Places
from executors.serving.probe import wait_until
from executors.serving.routes import read_routes
from ledger.home import Ledger
from tests.executors.serving.chain import STAGE, promoted, with_policy
from tests.executors.serving.conftest import fake_argv

ROOT = Path(__file__).resolve().parents[3]
CHAT = [{"role": "user", "content": "1+1="}]

DEPLOYER = """
import os, signal, sys
from executors.launchers.local import LocalLauncher
from executors.serving import deploy as deploying
from executors.serving.places import Place
from ledger.home import Ledger

home, point, *argv = sys.argv[1:]
deploying.ENGINE_ARGV = tuple(argv)

def die_around(cls, name, wanted):
    inner = getattr(cls, name)
    seen = [0]
    def outer(self, *given, **named):
        subject = type(given[0]).__name__ if name == "record" else ""
        if name == "start" and given[1] != deploying.ENGINE_ARGV:
            subject = "gateway"
        here = f"{name}{':' + subject if subject else ''}"
        if wanted == f"before {here}":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = inner(self, *given, **named)
        if wanted == f"after {here}":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    setattr(cls, name, outer)

die_around(Ledger, "record", point)
die_around(LocalLauncher, "start", point)
die_around(Place, "end", point)
print(deploying.deploy(Ledger.open(__import__("pathlib").Path(home), actor="ada"), "production", port=0).deployment_id)
"""

POINTS = (
    "before start:gateway",
    "after start:gateway",
    "after record:DeploymentRequested",
    "after start",
    "after record:DeploymentReady",
    "after record:TrafficShifted",
    "after end",
    "after record:DeploymentStopped",
)


def start_deployer(ledger: Ledger, point: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DEPLOYER, str(ledger.home), point, *fake_argv()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def running(ledger: Ledger) -> list[str]:
    return [name for name, place in Places(ledger.home).engines().items() if place.alive()]


def counts(ledger: Ledger) -> Counter[str]:
    types = ("DeploymentRequested", "DeploymentReady", "DeploymentStopped", "TrafficShifted")
    return Counter(event.type for event in ledger.log.read(types=types))


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_deployer_is_finished_by_the_next(
    ledger: Ledger, models: dict[str, Path], fake: Callable[..., None], point: str
) -> None:
    first = promoted(ledger, "first", models["first"], 100, with_policy(ledger))
    replaces = point.endswith(("end", "Stopped"))
    if replaces:  # these points are only reached when there is a predecessor to stop
        deploy(ledger, STAGE, port=0)
        promoted(ledger, "second", models["second"], 150, first)
    killed = start_deployer(ledger, point)
    _, errors = killed.communicate(timeout=60)
    assert killed.returncode == -9, errors

    deployed = deploy(ledger, STAGE)
    assert running(ledger) == [deployed.deployment_id]
    assert [d.deployment_id for d in read_routes(ledger.log).standing()] == [deployed.deployment_id]
    assert complete(deployed.endpoint, STAGE, CHAT).deployment == deployed.deployment_id
    each = 2 if replaces else 1
    assert counts(ledger) == Counter(
        {"DeploymentRequested": each, "DeploymentReady": each, "TrafficShifted": each, "DeploymentStopped": each - 1}
    )
    assert gateways(ledger) == 1
    assert audit(ledger) == []


def gateways(ledger: Ledger) -> int:
    directory = Places(ledger.home).root / "gateways"
    return sum(
        (path / "out" / "listening.json").exists() and not (path / "rc").exists() for path in directory.iterdir()
    )


def test_an_unfinished_deployment_of_an_older_promotion_is_stopped(
    ledger: Ledger, models: dict[str, Path], fake: Callable[..., None]
) -> None:
    first = promoted(ledger, "first", models["first"], 100, with_policy(ledger))
    for point in ("after record:DeploymentRequested", "after record:DeploymentReady"):
        start_deployer(ledger, point).communicate(timeout=60)
    second = promoted(ledger, "second", models["second"], 150, first)
    deployed = deploy(ledger, STAGE)
    assert deployed.model == second
    assert running(ledger) == [deployed.deployment_id]
    assert counts(ledger)["DeploymentStopped"] == 1
    assert audit(ledger) == []


def test_a_launch_that_comes_too_late_starts_nothing(ledger: Ledger, fake: Callable[..., None]) -> None:
    """The directory of a stopped deployment cannot be launched any more, whoever is still about to do it."""
    from executors.launchers.local import LocalLauncher

    places = Places(ledger.home)
    places.make()
    place = places.engine("d-0123456789abcdef")
    place.end(1.0)
    LocalLauncher().start(place.directory, (sys.executable, "-c", "import time; time.sleep(600)"), {}, {})
    assert not place.alive()


def test_deployers_take_turns(ledger: Ledger, models: dict[str, Path], fake: Callable[..., None]) -> None:
    promoted(ledger, "first", models["first"], 100, with_policy(ledger))
    deployers = [start_deployer(ledger, "never") for _ in range(3)]
    answers = {deployer.communicate(timeout=60)[0].strip() for deployer in deployers}
    assert [deployer.returncode for deployer in deployers] == [0, 0, 0]
    assert answers == set(running(ledger))
    assert counts(ledger) == Counter({"DeploymentRequested": 1, "DeploymentReady": 1, "TrafficShifted": 1})
    assert wait_until(lambda: gateways(ledger) == 1, 5)
