"""The gateway's application; see `executors.serving.gateway`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from executors.serving.client import DEPLOYMENT_HEADER, MODEL_HEADER
from executors.serving.places import Places
from executors.serving.requests import MAX_BODY_BYTES
from executors.serving.routes import Deployment, RouteTable, news
from executors.serving.web.replies import HANDLERS, Refused, error_response, json_body
from ledger.errors import PosttrainError
from ledger.log import Log

POLL_S = 0.15
MAX_IN_FLIGHT = 256
HOSTS = ("127.0.0.1", "localhost", "[::1]")
ENGINE = re.compile(r"http://127\.0\.0\.1:[0-9]{1,5}")
PASSED_BACK = ("content-type", "content-length", "cache-control")
"""The engine's headers that a client sees. An allow-list: hop-by-hop headers (RFC 9110 §7.6.1) are not on it."""

log = logging.getLogger("posttrain.gateway")


class Gateway:
    """Routes, and counts what is in flight for each deployment."""

    def __init__(self, ledger_log: Log, places: Places, client: httpx.AsyncClient) -> None:
        self.log, self.places, self.client = ledger_log, places, client
        self.table = RouteTable()
        self.in_flight: dict[str, int] = {}
        self._reading = asyncio.Lock()

    # ---- following the ledger ----

    async def follow(self) -> None:
        """Read the ledger for ever. While it cannot be read, the routes stay as they are."""
        while True:
            try:
                await self.refresh()
            except PosttrainError as error:
                log.error("the ledger cannot be read: %s", error)
            await asyncio.sleep(POLL_S)

    async def refresh(self) -> None:
        async with self._reading:
            events, size = await asyncio.to_thread(news, self.log, self.table.position)
            # Here and not in the thread: routes change between two requests, never within one.
            self.table.advance(events, size)

    # ---- routes ----

    async def complete(self, request: Request) -> Response:
        body = await json_body(request, MAX_BODY_BYTES)
        name = body.get("model")
        if not isinstance(name, str):
            raise Refused(400, "model: name a stage, such as production", "invalid_request")
        return await self.forward(request.url.path, name, body)

    async def models(self, _request: Request) -> Response:
        serving = [found for stage in self.table.stages() if (found := self.table.serving(stage)) is not None]
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": "posttrain", "model": found.model}
            for found in serving
            for name in (found.stage, found.served_name)
        ]
        return JSONResponse({"object": "list", "data": data})

    async def health(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok", "position": self.table.position})

    async def deployments(self, _request: Request) -> Response:
        """What a deployer needs to know: how far the ledger was read, where stages lead, what is still in flight."""
        stages = {stage: found.deployment_id for stage in self.table.stages() if (found := self.table.serving(stage))}
        return JSONResponse(
            {"position": self.table.position, "stages": stages, "in_flight": dict(self.in_flight), "pid": os.getpid()}
        )

    # ---- forwarding ----

    async def forward(self, path: str, name: str, body: dict[str, Any]) -> Response:
        """Send the request to the current engine; when it hangs up before it answers, once more to the then current."""
        for last in (False, True):
            target = self.route(name)
            self._count(target, +1)
            try:
                answer = await self.client.send(self._request(target, path, body), stream=True)
            except BaseException as error:
                self._count(target, -1)
                if not isinstance(error, httpx.TransportError):
                    raise
                log.warning("deployment %s: %s: %s", target.deployment_id, type(error).__name__, error)
                if last or isinstance(error, httpx.TimeoutException):
                    raise Refused(502, f"the engine of {target.stage} does not answer", "engine_failed") from None
                await self.refresh()
                continue
            return Passing(self, target, answer)
        raise AssertionError("the second attempt returns or raises")

    def route(self, name: str) -> Deployment:
        """The deployment that answers for `name` at this moment.

        Raises:
            Refused: 404 for a name that the ledger never served, 503 when what it names does not run.
        """
        target = self.table.resolve(name)
        if target is None and name not in self.table.stages():
            raise Refused(404, f"model {name[:200]!r} is not served here; name a stage", "model_not_found")
        if target is None:
            raise Refused(503, f"stage {name} has no live deployment; run: posttrain serve {name}", "not_deployed")
        if target.endpoint is None or ENGINE.fullmatch(target.endpoint) is None:
            raise Refused(503, f"deployment {target.deployment_id} has an endpoint that is not local", "not_deployed")
        if not self.places.engine(target.deployment_id).alive():
            stage = target.stage
            raise Refused(503, f"the engine of stage {stage} is gone; run: posttrain serve {stage}", "engine_gone")
        if sum(self.in_flight.values()) >= MAX_IN_FLIGHT:
            raise Refused(503, f"{MAX_IN_FLIGHT} requests are in flight already; try again", "overloaded")
        return target

    def release(self, target: Deployment) -> None:
        self._count(target, -1)

    def _count(self, target: Deployment, change: int) -> None:
        left = self.in_flight.get(target.deployment_id, 0) + change
        self.in_flight[target.deployment_id] = left
        if left == 0:
            del self.in_flight[target.deployment_id]

    def _request(self, target: Deployment, path: str, body: dict[str, Any]) -> httpx.Request:
        # Nothing of the client's headers goes on: not its credentials, not its idea of a connection.
        headers = {
            "authorization": f"Bearer {self.places.engine(target.deployment_id).token()}",
            "content-type": "application/json",
            "accept-encoding": "identity",
        }
        content = json.dumps({**body, "model": target.served_name}).encode()
        return self.client.build_request("POST", f"{target.endpoint}{path}", headers=headers, content=content)


class Passing(StreamingResponse):
    """The engine's answer, passed on as it comes; the request counts as in flight until its last byte."""

    def __init__(self, gateway: Gateway, target: Deployment, answer: httpx.Response) -> None:
        headers = {name: answer.headers[name] for name in PASSED_BACK if name in answer.headers}
        headers |= {MODEL_HEADER: target.model, DEPLOYMENT_HEADER: target.deployment_id}
        super().__init__(answer.aiter_raw(), status_code=answer.status_code, headers=headers)
        self._gateway, self._target, self._answer = gateway, target, answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._gateway.release(self._target)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(self._answer.aclose())


class OnlyLocalHosts:
    """Answers only to this machine's own names, so that no page that resolves its name here gets in."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if len(given) != 1 or re.sub(r":[0-9]*$", "", given[0]) not in HOSTS:
                response = error_response(421, "this gateway answers as localhost only", "misdirected_request")
                await response(scope, receive, send)
                return
        await self.app(scope, receive, send)


def build_app(ledger_log: Log, places: Places) -> Starlette:
    """The application: what is not listed here does not exist."""
    client = httpx.AsyncClient(
        trust_env=False,  # no proxy, no netrc
        follow_redirects=False,
        timeout=httpx.Timeout(600.0, connect=10.0, pool=None),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=60.0),
    )
    gateway = Gateway(ledger_log, places, client)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await gateway.refresh()
        following = asyncio.create_task(gateway.follow())
        yield
        following.cancel()
        await client.aclose()

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", gateway.complete, methods=["POST"]),
            Route("/v1/completions", gateway.complete, methods=["POST"]),
            Route("/v1/models", gateway.models, methods=["GET"]),
            Route("/health", gateway.health, methods=["GET"]),
            Route("/posttrain/deployments", gateway.deployments, methods=["GET"]),
        ],
        exception_handlers=HANDLERS,
        lifespan=lifespan,
    )
    app.add_middleware(OnlyLocalHosts)
    app.state.gateway = gateway
    return app
