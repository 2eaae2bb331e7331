"""What a client may ask of an engine."""

from __future__ import annotations

from typing import Any

import pytest

from executors.serving.requests import ChatRequest, CompletionRequest, parse_request
from ledger.errors import InputError

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "hi"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chat_template", "{{ 1 }}"),
        ("chat_template_kwargs", {}),
        ("generation_config", "{}"),
        ("tools", []),
        ("logprobs", True),
        ("n", 2),
        ("max_tokens", 0),
        ("max_tokens", 10**9),
        ("max_tokens", "8"),
        ("temperature", -1),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("seed", -1),
        ("seed", 2**64),
        ("stop", [""]),
        ("stop", ["a"] * 5),
        ("frequency_penalty", 0.5),
        ("stream", "yes"),
        ("messages", []),
        ("messages", [{"role": "tool", "content": "x"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc"}}]}]),
        ("messages", [{"role": "user", "content": "\ud800"}]),
    ],
)
def test_what_is_not_supported_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        parse_request(ChatRequest, {**CHAT, field: value})


@pytest.mark.parametrize("prompt", ["", ["a"], 1, None, "\ud800"])
def test_a_prompt_is_text(prompt: Any) -> None:
    with pytest.raises(InputError, match="prompt"):
        parse_request(CompletionRequest, {**TEXT, "prompt": prompt})


def test_defaults_of_the_model_hold_until_something_is_asked() -> None:
    defaults = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": 1, "max_length": 20}
    asked = parse_request(CompletionRequest, TEXT)
    assert asked.generation(defaults, room=40) == {
        "do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": 1, "max_new_tokens": 40,
    }  # fmt: skip


def test_temperature_zero_is_greedy_and_any_other_samples() -> None:
    greedy = parse_request(CompletionRequest, {**TEXT, "temperature": 0, "max_tokens": 5})
    assert greedy.generation({"do_sample": True, "temperature": 0.6}, 40) == {"do_sample": False, "max_new_tokens": 5}
    hot = parse_request(CompletionRequest, {**TEXT, "temperature": 1, "stop": "x"})
    assert hot.generation({"max_new_tokens": 7}, 40) == {
        "do_sample": True, "temperature": 1.0, "max_new_tokens": 7, "stop_strings": ["x"],
    }  # fmt: skip


def test_a_chat_takes_the_newer_name_and_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {
        "model": "m",
        "messages": [{"role": "developer", "content": parts}],
        "max_completion_tokens": 3,
        "user": "u",
    }
    asked = parse_request(ChatRequest, body)
    assert isinstance(asked, ChatRequest)
    assert asked.messages[0].for_template() == {"role": "system", "content": "a b"}
    assert asked.generation({}, 40) == {"max_new_tokens": 3}
