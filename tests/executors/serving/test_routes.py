"""The route table: every history of a stage leads to the right deployment or to none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from executors.serving.routes import RouteTable
from ledger.events import DeploymentReady, DeploymentRequested, DeploymentStopped, Payload, TrafficShifted
from tests.executors.serving.recorded import event

MODEL = "sha256:" + "a" * 64


def deployment_id(number: int) -> str:
    return f"d-{number:016x}"


def payload(kind: str, number: int, stage: str) -> Payload:
    name = deployment_id(number)
    if kind == "requested":
        return DeploymentRequested(
            deployment_id=name, stage=stage, promotion_position=number + 1, model=MODEL, served_name=f"served-{number}",
            engine="transformers",
        )  # fmt: skip
    if kind == "ready":
        return DeploymentReady(
            deployment_id=name, stage=stage, endpoint="http://127.0.0.1:1", observed_weights=MODEL, probe=MODEL
        )
    if kind == "stopped":
        return DeploymentStopped(deployment_id=name, stage=stage, reason="over")
    return TrafficShifted(stage=stage, deployment_id=name)


STAGES = ("production", "staging")
happenings = st.tuples(st.sampled_from(["requested", "ready", "stopped", "shifted"]), st.integers(0, 3))


@given(st.lists(happenings, max_size=30))
def test_traffic_goes_to_the_last_shift_if_it_is_ready_and_not_stopped(history: list[tuple[str, int]]) -> None:
    """Also in histories that the ledger would refuse."""
    table = RouteTable()
    seen: list[tuple[str, int]] = []
    for position, (kind, number) in enumerate(history, 1):
        if kind == "requested" and ("requested", number) in seen:
            continue  # a deployment id is given once
        table.apply(event(position, payload(kind, number, STAGES[number % 2])))
        if kind == "requested" or ("requested", number) in seen:
            seen.append((kind, number))
    for index, stage in enumerate(STAGES):
        shifts = [number for kind, number in seen if kind == "shifted" and number % 2 == index]
        last = shifts[-1] if shifts else -1
        live = ("ready", last) in seen and ("stopped", last) not in seen
        serving = table.serving(stage)
        assert (serving.deployment_id if serving else None) == (deployment_id(last) if live else None)
        for number in range(index, 4, 2):
            found = table.resolve(f"served-{number}")
            expected = serving if live and number == last else None
            assert found == (expected if ("requested", number) in seen else None)


def test_an_event_of_another_stage_changes_nothing() -> None:
    table = RouteTable()
    for position, content in enumerate(
        [payload("requested", 1, "production"), payload("ready", 1, "production"), payload("shifted", 1, "staging")], 1
    ):
        table.apply(event(position, content))
    assert table.serving("production") is None
    assert table.serving("staging") is None
    assert table.position == 3


def test_a_stage_is_not_reached_by_an_unknown_name() -> None:
    table = RouteTable()
    assert table.resolve("") is None
    assert table.resolve("production") is None
