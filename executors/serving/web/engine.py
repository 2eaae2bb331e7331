"""The engine's application: three OpenAI routes over transformers' handlers, health, and the read-back of the weights."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from jinja2 import TemplateError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.utils import GenerationState

from executors.serving.engine import PinnedModel
from executors.serving.requests import MAX_BODY_BYTES, ChatRequest, CompletionRequest, Sampling, parse_request
from executors.serving.web.replies import HANDLERS, Refused, error_response, json_body
from ledger.errors import InputError

MAX_WAITING = 256  # requests that one engine holds at a time; the next one is told to come back


class EngineRoutes:
    """The engine's routes over transformers' handlers."""

    def __init__(self, pinned: PinnedModel) -> None:
        state = GenerationState()
        manager: Any = pinned  # stands in for transformers' ModelManager
        self.pinned = pinned
        self.chat_handler = ChatCompletionHandler(model_manager=manager, generation_state=state)
        self.completion_handler = CompletionHandler(model_manager=manager, generation_state=state)
        self.waiting = 0

    async def chat(self, request: Request) -> Response:
        asked = await self._read(request, ChatRequest)
        assert isinstance(asked, ChatRequest)
        messages = [message.for_template() for message in asked.messages]
        if self.pinned.tokenizer.chat_template is None:
            raise InputError("this model has no chat template; use /v1/completions")
        tokens = await asyncio.to_thread(self._chat_tokens, messages)
        body = {"messages": messages, **self._settings(asked, tokens)}
        return await self._answer(request, lambda name: self.chat_handler.handle_request(body, name))

    async def complete(self, request: Request) -> Response:
        asked = await self._read(request, CompletionRequest)
        assert isinstance(asked, CompletionRequest)
        tokens = await asyncio.to_thread(lambda: len(self.pinned.tokenizer(asked.prompt)["input_ids"]))
        body = {"prompt": asked.prompt, **self._settings(asked, tokens)}
        return await self._answer(request, lambda name: self.completion_handler.handle_request(body, name))

    async def models(self, _request: Request) -> Response:
        entry = {"id": self.pinned.force_model, "object": "model", "created": 0, "owned_by": "posttrain"}
        return JSONResponse({"object": "list", "data": [entry]})

    async def health(self, _request: Request) -> Response:
        chat = self.pinned.tokenizer.chat_template is not None
        return JSONResponse({"status": "ok", "deployment_id": self.pinned.deployment_id, "chat": chat})

    async def weights(self, _request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(self.pinned.weights))

    async def _read(self, request: Request, kind: type[ChatRequest] | type[CompletionRequest]) -> Sampling:
        asked = parse_request(kind, await json_body(request, MAX_BODY_BYTES))
        if asked.model != self.pinned.force_model:
            raise Refused(404, f"model {asked.model!r} is not served here", "model_not_found")
        return asked

    def _chat_tokens(self, messages: list[dict[str, Any]]) -> int:
        try:
            encoded = self.pinned.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=True
            )
        except TemplateError as error:  # the template says which conversations it takes
            raise InputError(f"messages: the model's chat template refuses them: {error}") from None
        return len(encoded["input_ids"])

    def _settings(self, asked: Sampling, prompt_tokens: int) -> dict[str, Any]:
        room = self.pinned.context - prompt_tokens
        if prompt_tokens < 1 or room < 1:
            raise InputError(
                f"the prompt has {prompt_tokens} tokens; this model takes from 1 to {self.pinned.context - 1}"
            )
        # The whole of the settings goes in as one, because the handler would otherwise raise max_new_tokens to 1,024 and
        # leave sampling off when a temperature is asked for.
        settings = {
            "model": self.pinned.force_model,
            "stream": asked.stream,
            "generation_config": json.dumps(asked.generation(self.pinned.defaults, room)),
        }
        return settings if asked.seed is None else {**settings, "seed": asked.seed}

    async def _answer(self, request: Request, handle: Callable[[str], Awaitable[Any]]) -> Response:
        if self.waiting >= MAX_WAITING:
            raise Refused(503, f"{self.waiting} requests wait already; try again", "overloaded")
        self.waiting += 1
        streams = False
        try:
            response: Response = await handle(f"cmpl-{os.urandom(12).hex()}")
            if isinstance(response, StreamingResponse):
                response.body_iterator = self._finished(response.body_iterator)
                streams = True
            return response
        finally:
            if not streams:
                self.waiting -= 1

    async def _finished(self, chunks: Any) -> AsyncIterator[Any]:
        """The stream with OpenAI's end mark, which transformers leaves out."""
        try:
            async for chunk in chunks:
                yield chunk
            yield "data: [DONE]\n\n"
        finally:
            self.waiting -= 1
            await chunks.aclose()  # a client that left: generation is called off


def build_app(pinned: PinnedModel) -> Starlette:
    routes = EngineRoutes(pinned)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", routes.chat, methods=["POST"]),
            Route("/v1/completions", routes.complete, methods=["POST"]),
            Route("/v1/models", routes.models, methods=["GET"]),
            Route("/health", routes.health, methods=["GET"]),
            Route("/posttrain/weights", routes.weights, methods=["GET"]),
        ],
        exception_handlers=HANDLERS,
    )


class OnlyWithToken:
    """Lets through what carries the bearer token, on every path and method, known or not."""

    def __init__(self, app: Any, token: str) -> None:
        self.app = app
        self.expected = b"Bearer " + token.encode("ascii")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        given = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        if scope["type"] == "http" and len(given) == 1 and hmac.compare_digest(given[0], self.expected):
            await self.app(scope, receive, send)
            return
        await error_response(401, "this engine answers to its gateway only", "unauthorized")(scope, receive, send)
