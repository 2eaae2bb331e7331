"""The gateway as others see it: find it, start it, ask it, end it."""

from __future__ import annotations

import secrets
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from executors.launchers.local import LocalLauncher
from executors.serving.client import get_json
from executors.serving.places import Place, Places
from executors.serving.probe import wait_for_port, wait_until
from ledger.artifacts.locks import locked
from ledger.errors import InfrastructureError, InputError
from ledger.home import Ledger

DEFAULT_PORT = 8400
START_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 120.0
STOP_GRACE_S = 35.0


@dataclass(frozen=True, slots=True)
class GatewayAt:
    """A living gateway."""

    place: Place
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def state(self) -> dict[str, Any]:
        """`position`, `stages` and `in_flight` as the gateway has them now."""
        return get_json(f"{self.url}/posttrain/deployments")


def find_gateway(places: Places) -> GatewayAt | None:
    found = places.gateway()
    return None if found is None else GatewayAt(*found)


def ensure_gateway(ledger: Ledger, places: Places, port: int | None, say: Callable[[str], None]) -> GatewayAt:
    """The home's gateway, started when none lives: at `port` (0: any that is free), at its last port, at 8400, or where that is
    taken at any that is free.

    Raises:
        InputError: one lives at another port than `port`.
        InfrastructureError: the port is taken, or it does not start.
    """
    with locked(places.lock("gateway")):
        found = find_gateway(places)
        if found is None:
            return _start(ledger, places, port, say)
    if port not in (None, 0, found.port):
        raise InputError(
            f"this home's gateway listens on port {found.port} already; leave --port out, or stop it first"
        )
    return found


def _start(ledger: Ledger, places: Places, port: int | None, say: Callable[[str], None]) -> GatewayAt:
    recorded = places.recorded_gateway()
    if recorded is not None:
        # One that was starting, or that hangs, when its deployer was killed.
        places.gateway_place(recorded).end(STOP_GRACE_S)
    last = int(recorded["port"]) if recorded is not None else usual_port(say)
    wanted = last if port is None else port
    place = Place(places.root / "gateways" / secrets.token_hex(8))
    say(f"starting the gateway on port {wanted}")
    places.record_gateway(wanted, place)  # before the launch, so that whoever comes next finds what was launched
    plan = {"home": str(ledger.home), "port": wanted}
    try:
        LocalLauncher().start(place.directory, (sys.executable, "-m", "executors.serving.gateway"), {}, plan)
        found = GatewayAt(place, wait_for_port(place, "the gateway", START_TIMEOUT_S))
    except InfrastructureError:
        place.end(STOP_GRACE_S)
        places.record_gateway(last, place)  # a port that could not be used is not the one to try next time
        raise
    places.record_gateway(found.port, place)
    return found


def usual_port(say: Callable[[str], None]) -> int:
    """8400, or 0 (any that is free) when another process, such as another home's gateway, has it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does; a listener still refuses it
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            say(f"port {DEFAULT_PORT} is taken by another process; taking a free one")
            return 0
    return DEFAULT_PORT


def end_gateway(places: Places) -> bool:
    """Whether one was running."""
    found = find_gateway(places)
    if found is None:
        return False
    found.place.end(STOP_GRACE_S)
    return True


def drain(places: Places, deployment_id: str) -> bool:
    """Wait until the gateway has no request in flight at the deployment; whether it came to that in time."""

    def is_idle() -> bool:
        gateway = find_gateway(places)
        if gateway is None:
            return True
        try:
            state = gateway.state()
        except InfrastructureError:
            return find_gateway(places) is None
        routed = deployment_id in state["stages"].values()
        return not routed and deployment_id not in state["in_flight"]

    return wait_until(is_idle, DRAIN_TIMEOUT_S)
