"""The gateway: what it refuses, what it passes on, and what happens to requests when the traffic moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from executors.serving.client import DEPLOYMENT_HEADER, MODEL_HEADER, get_json
from executors.serving.deploy import deploy, rollback, stop
from executors.serving.places import Places
from executors.serving.probe import wait_until
from executors.serving.requests import MAX_BODY_BYTES
from executors.serving.web.gateway import Gateway, build_app
from executors.serving.web.replies import Refused
from executors.serving.weights import directory_digest
from ledger.errors import InfrastructureError
from ledger.events import DeploymentReady, DeploymentRequested, TrafficShifted
from ledger.home import Ledger
from tests.executors.serving.chain import STAGE, promoted, with_policy
from tests.executors.serving.hammer import Hammer
from tests.executors.serving.recorded import event

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
BODY = {"model": STAGE, "messages": [{"role": "user", "content": "1+1="}]}
Models = dict[str, Path]
Fake = Callable[..., None]


def ask_all(ledger: Ledger, requests: Sequence[tuple[str, str]], **more: Any) -> list[httpx.Response]:
    """The application's answers, in this process."""

    async def send() -> list[httpx.Response]:
        app = build_app(ledger.log, Places(ledger.home))
        await app.state.gateway.refresh()
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400") as client:
            return [await client.request(method, path, **more) for method, path in requests]

    return asyncio.run(send())


def ask(ledger: Ledger, method: str, path: str, **more: Any) -> httpx.Response:
    return ask_all(ledger, [(method, path)], **more)[0]


def reason(response: httpx.Response) -> tuple[int, str]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return response.status_code, error["code"]


# --- what is refused ---------------------------------------------------------------------------------------------------


def test_only_listed_routes_and_methods_answer(ledger: Ledger) -> None:
    """Generated from the router: a route that is added shows up here."""
    app = build_app(ledger.log, Places(ledger.home))
    listed = {route.path: route.methods for route in app.routes}  # type: ignore[attr-defined]  # all are Routes
    assert listed == {
        "/v1/chat/completions": {"POST"},
        "/v1/completions": {"POST"},
        "/v1/models": {"GET", "HEAD"},
        "/health": {"GET", "HEAD"},
        "/posttrain/deployments": {"GET", "HEAD"},
    }
    requests = [(method, path) for path in listed for method in METHODS]
    for (method, path), answer in zip(requests, ask_all(ledger, requests), strict=True):
        assert (answer.status_code == 405) is (method not in listed[path]), (method, path, answer.status_code)
    unlisted = [
        "/",
        "/docs",
        "/openapi.json",
        "/load_model",
        "/reset",
        "/v1/responses",
        "/posttrain/weights",
        "/v1/models/x",
    ]
    requests = [
        (method, path) for path in [*unlisted, "/v1/../posttrain/weights", "//health"] for method in ("GET", "POST")
    ]
    for asked, answer in zip(requests, ask_all(ledger, requests), strict=True):
        assert reason(answer) == (404, "not_found"), asked


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", (400, "invalid_json")),
        (b"[1]", (400, "invalid_json")),
        (b'{"model": NaN}', (400, "invalid_json")),
        (b'{"model": ' + b"[" * 100_000, (400, "invalid_json")),
        (b'{"model": ' + b"9" * 10_000 + b"}", (400, "invalid_json")),
        (b"\xff", (400, "invalid_json")),
        (b"{}", (400, "invalid_request")),
        (b'{"model": 1}', (400, "invalid_request")),
        (b'{"model": "gpt2"}', (404, "model_not_found")),
        (b'{"model": "../production"}', (404, "model_not_found")),
        (b'{"model": "x", "prompt": "' + b"a" * MAX_BODY_BYTES + b'"}', (413, "body_too_large")),
    ],
)
def test_a_bad_body_is_one_clear_error(ledger: Ledger, content: bytes, expected: tuple[int, str]) -> None:
    headers = {"content-type": "application/json"}
    assert reason(ask(ledger, "POST", "/v1/completions", content=content, headers=headers)) == expected


def test_pages_of_a_browser_do_not_get_in(ledger: Ledger) -> None:
    simple = ask(ledger, "POST", "/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert reason(simple) == (415, "unsupported_media_type")
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:8400", ""):
        assert reason(ask(ledger, "GET", "/health", headers={"host": host})) == (421, "misdirected_request")
    for host in ("localhost:8400", "127.0.0.1", "[::1]:8400"):
        assert ask(ledger, "GET", "/health", headers={"host": host}).status_code == 200


# --- one request, two engines ------------------------------------------------------------------------------------------


class Engines:
    """Two deployments in a route table, and engines that answer as told."""

    def __init__(self, answers: dict[str, Callable[[], httpx.Response]]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.after_first: Callable[[], None] = lambda: None
        client = httpx.AsyncClient(transport=httpx.MockTransport(self.handle))
        log: Any = self
        self.gateway = Gateway(log, _Alive(), client)  # type: ignore[arg-type]  # stands in for Places
        for number in (1, 2):
            self.record(number, "requested")
            self.record(number, "ready")

    def handle(self, request: httpx.Request) -> httpx.Response:
        name = {"1001": "one", "1002": "two"}[str(request.url.port)]
        self.asked.append(name)
        try:
            return self.answers[name]()
        finally:
            self.after_first()

    def record(self, number: int, kind: str) -> None:
        name, digest = f"d-{number:016x}", "sha256:" + str(number) * 64
        payloads = {
            "requested": DeploymentRequested(
                deployment_id=name, stage=STAGE, promotion_position=number, model=digest, served_name=f"served-{number}",
                engine="transformers",
            ),
            "ready": DeploymentReady(
                deployment_id=name, stage=STAGE, endpoint=f"http://127.0.0.1:100{number}", observed_weights=digest,
                probe=digest,
            ),
            "shifted": TrafficShifted(stage=STAGE, deployment_id=name),
        }  # fmt: skip
        self.gateway.table.apply(event(self.gateway.table.position + 1, payloads[kind]))

    def size(self) -> int:
        return self.gateway.table.position

    def read(self, after: int, types: object = ()) -> Iterator[Any]:
        return iter(())

    def forward(self) -> Any:
        return asyncio.run(self.gateway.forward("/v1/completions", STAGE, {"prompt": "x"}))


class _Alive:
    def engine(self, _deployment_id: str) -> _Alive:
        return self

    def alive(self) -> bool:
        return True

    def token(self) -> str:
        return "t" * 64


def refuse() -> httpx.Response:
    raise httpx.ConnectError("connection refused")


def hang_up() -> httpx.Response:
    raise httpx.RemoteProtocolError("server disconnected without sending a response")


def answer() -> httpx.Response:
    return httpx.Response(200, json={})


@pytest.mark.parametrize("failure", [refuse, hang_up])
def test_a_request_that_meets_a_stopping_engine_goes_to_the_next(failure: Callable[[], httpx.Response]) -> None:
    engines = Engines({"one": failure, "two": answer})
    engines.record(1, "shifted")
    engines.after_first = lambda: engines.record(2, "shifted")
    response = engines.forward()
    assert engines.asked == ["one", "two"]
    assert (response.status_code, response.headers[MODEL_HEADER]) == (200, "sha256:" + "2" * 64)
    assert engines.gateway.in_flight == {"d-0000000000000002": 1}


def test_it_is_tried_once_more_and_not_for_ever() -> None:
    engines = Engines({"one": refuse})
    engines.record(1, "shifted")
    with pytest.raises(Refused) as refused:
        engines.forward()
    assert (refused.value.status, engines.asked, engines.gateway.in_flight) == (502, ["one", "one"], {})


def test_an_error_of_the_engine_is_passed_on_and_not_repeated() -> None:
    engines = Engines({"one": lambda: httpx.Response(500, json={"error": {}})})
    engines.record(1, "shifted")
    assert (engines.forward().status_code, engines.asked) == (500, ["one"])


def test_an_endpoint_that_is_not_on_this_machine_gets_nothing() -> None:
    engines = Engines({})
    engines.record(1, "shifted")
    table = engines.gateway.table
    for endpoint in ("http://10.0.0.1:1001", "http://127.0.0.1:1001@evil.example", "file:///etc/passwd"):
        table.deployments["d-0000000000000001"] = replace(table.deployments["d-0000000000000001"], endpoint=endpoint)
        with pytest.raises(Refused, match="not local"):
            engines.forward()
    assert engines.asked == []


# --- with processes ----------------------------------------------------------------------------------------------------


def test_nothing_of_a_connection_passes_the_gateway(ledger: Ledger, models: Models, fake: Fake) -> None:
    promoted(ledger, "first", models["first"], 100, with_policy(ledger))
    url = deploy(ledger, STAGE, port=0).endpoint
    headers = {"authorization": "Bearer mine", "cookie": "session=1", "x-forwarded-for": "1.2.3.4", "te": "trailers"}
    response = httpx.post(f"{url}/v1/chat/completions", json=BODY, headers=headers)
    arrived = {name.lower() for name in response.json()["headers"]}
    assert arrived == {
        "host",
        "accept",
        "accept-encoding",
        "connection",
        "user-agent",
        "authorization",
        "content-type",
        "content-length",
    }
    assert set(response.headers) == {"content-type", "content-length", "date", MODEL_HEADER, DEPLOYMENT_HEADER}
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == STAGE


def test_a_stream_ends_where_it_began_while_the_traffic_moves(ledger: Ledger, models: Models, fake: Fake) -> None:
    first = promoted(ledger, "first", models["first"], 100, with_policy(ledger))
    fake("slow")
    before = deploy(ledger, STAGE, port=0)
    second = promoted(ledger, "second", models["second"], 150, first)
    fake()
    place = Places(ledger.home).engine(before.deployment_id)
    deploying = threading.Thread(target=deploy, args=(ledger, STAGE))
    url = f"{before.endpoint}/v1/chat/completions"
    with httpx.stream("POST", url, json={**BODY, "stream": True}) as response:
        assert (response.headers[MODEL_HEADER], response.headers["content-type"]) == (first, "text/event-stream")
        lines = response.iter_lines()
        received = [next(lines)]
        assert get_json(f"{before.endpoint}/posttrain/deployments")["in_flight"] == {before.deployment_id: 1}
        deploying.start()
        assert wait_until(lambda: httpx.post(url, json=BODY).headers[MODEL_HEADER] == second, 30)
        received += [line for line in lines if line]
    deploying.join()
    text = directory_digest(models["first"])[7:15]
    assert received == [f"data: {text}"] * 5 + ["data: [DONE]"]
    assert wait_until(lambda: not place.alive(), 10)
    assert get_json(f"{before.endpoint}/posttrain/deployments")["in_flight"] == {}


def test_a_client_that_leaves_is_not_counted_for_ever(ledger: Ledger, models: Models, fake: Fake) -> None:
    promoted(ledger, "first", models["first"], 100, with_policy(ledger))
    fake("slow")
    deployed = deploy(ledger, STAGE, port=0)
    with httpx.stream("POST", f"{deployed.endpoint}/v1/chat/completions", json={**BODY, "stream": True}) as response:
        next(response.iter_lines())
    assert wait_until(lambda: get_json(f"{deployed.endpoint}/posttrain/deployments")["in_flight"] == {}, 10)


def test_no_request_fails_while_models_come_and_go(ledger: Ledger, models: Models, fake: Fake) -> None:
    first = promoted(ledger, "first", models["first"], 100, with_policy(ledger))
    url = deploy(ledger, STAGE, port=0).endpoint
    second = promoted(ledger, "second", models["second"], 150, first)
    with Hammer(url, STAGE) as hammer:
        deploy(ledger, STAGE)
        hammer.wait_for(second)
        rollback(ledger, STAGE, reason="worse")
        hammer.wait_for(first)
    assert hammer.failures == []
    assert (hammer.models[0], set(hammer.models), hammer.models[-1]) == (first, {first, second}, first)
    assert stop(ledger, STAGE, "over")
    with pytest.raises(InfrastructureError, match="does not answer"):
        get_json(f"{url}/health")
