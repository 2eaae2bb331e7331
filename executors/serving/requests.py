"""What a client may ask of an engine: an allow-list of OpenAI's fields, each bounded.

Fields that would change what is computed and that are not supported are refused, never ignored. Fields that could carry
code or files (`chat_template`, `chat_template_kwargs`, `generation_config`) do not exist here.

`temperature` 0 is greedy; without it the model's own generation settings hold. `seed` is best effort, as with OpenAI: it
seeds the process, so requests that are sampled at the same time share it. Text that `stop` matched is part of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ledger.errors import InputError

MAX_BODY_BYTES = 1 << 20
MAX_NEW_TOKENS = 32_768
DEFAULT_NEW_TOKENS = 512


def _encodable(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"lone surrogate at index {error.start}") from None
    return text


Words = Annotated[str, AfterValidator(_encodable)]
Stop = Annotated[str, AfterValidator(_encodable), Field(min_length=1, max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TextPart(_Strict):
    type: Literal["text"]
    text: Words


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Words | list[TextPart]
    name: Words | None = None

    def for_template(self) -> dict[str, Any]:
        text = self.content if isinstance(self.content, str) else " ".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(_Strict):
    include_usage: bool = False  # usage is always in the last chunk


class Sampling(_Strict):
    """The fields that both routes share."""

    model: Annotated[str, Field(min_length=1, max_length=200)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    n: Literal[1] = 1
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    user: str | None = None  # not kept

    def new_tokens(self) -> int | None:
        return self.max_tokens

    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def generation(self, defaults: Mapping[str, Any], room: int) -> dict[str, Any]:
        """The generation settings: the model's `defaults` under what was asked, at most `room` new tokens."""
        wanted = self.new_tokens() or defaults.get("max_new_tokens") or DEFAULT_NEW_TOKENS
        settings = {**defaults, "max_new_tokens": min(wanted, room)}
        settings.pop("max_length", None)  # it would compete with max_new_tokens
        if self.temperature is not None:
            settings["do_sample"] = self.temperature > 0
            settings.pop("temperature", None)
            if self.temperature > 0:
                settings["temperature"] = self.temperature
        if self.top_p is not None:
            settings["top_p"] = self.top_p
        if stops := self.stops():
            settings["stop_strings"] = stops
        return settings


class ChatRequest(Sampling):
    messages: Annotated[list[Message], Field(min_length=1, max_length=1000)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)] | None = None

    def new_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(Sampling):
    prompt: Annotated[Words, Field(min_length=1)]


def parse_request(kind: type[ChatRequest] | type[CompletionRequest], body: Any) -> ChatRequest | CompletionRequest:
    """The request that a JSON body holds.

    Raises:
        InputError: a field that is missing, unknown or out of bounds; the message names it.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "body"
        raise InputError(f"{place}: {first['msg']}") from None
