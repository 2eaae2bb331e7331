"""Readiness: a real completion by the right weights. A port that answers proves neither."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from executors.serving.client import Completion, HttpRefused, complete, get_json
from executors.serving.places import Place
from ledger.errors import CheckFailed, InfrastructureError

START_TIMEOUT_S = 600.0  # a large model is read from a slow disk
POLL_S = 0.05
TRIES: tuple[tuple[str, dict[str, Any]], ...] = (
    *((prompt, {"temperature": 0}) for prompt in ("1+1=", "Hello", "a", "The capital of France is")),
    *((prompt, {"temperature": 1, "seed": seed}) for seed in range(4) for prompt in ("1+1=", "Hello")),
)
"""A model may answer some prompt with nothing but its end token; one that answers all of them so does not serve."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A request that the engine answered with text."""

    prompt: str
    chat: bool
    sampling: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    def repeat(self, endpoint: str, model: str, **more: Any) -> Completion:
        messages: Any = [{"role": "user", "content": self.prompt}] if self.chat else self.prompt
        return complete(endpoint, model, messages, **{"max_tokens": 8, **self.sampling, **more})


def wait_for_port(place: Place, what: str, timeout_s: float = START_TIMEOUT_S) -> int:
    """The port on which a launched process listens.

    Raises:
        InfrastructureError: it ended (with the last line of its log), or it does not listen in time.
    """
    give_up_at = time.monotonic() + timeout_s
    while (port := place.port()) is None:
        if not place.alive():
            raise InfrastructureError(f"{what} did not start: {place.last_words()} (log: {place.directory / 'log'})")
        if time.monotonic() > give_up_at:
            raise InfrastructureError(f"{what} does not listen after {timeout_s:g} s; see {place.directory / 'log'}")
        time.sleep(POLL_S)
    return port


def first_completion(endpoint: str, served_name: str, token: str) -> Probe:
    """Ask until the engine answers with text.

    Raises:
        InfrastructureError: it answers none of the prompts with text; the message holds the last reason.
    """
    chat = bool(get_json(f"{endpoint}/health", token=token).get("chat"))
    reason = "every answer was empty"
    for prompt, sampling in TRIES:
        try:
            text = Probe(prompt, chat, sampling).repeat(endpoint, served_name, token=token).text
        except HttpRefused as error:  # a prompt that this vocabulary or template does not take
            reason = str(error)
            continue
        if text.strip():
            return Probe(prompt, chat, sampling, text)
    raise InfrastructureError(f"the engine gave no completion: {reason}")


def read_back(endpoint: str, token: str) -> str:
    """The digest of the weights in the engine's memory, read now."""
    answer = get_json(f"{endpoint}/posttrain/weights", token=token, timeout_s=START_TIMEOUT_S)
    return str(answer.get("weights"))


def check_weights(endpoint: str, token: str, expected: str) -> str:
    """The weights digest in memory, which is `expected`.

    Raises:
        CheckFailed: the engine holds other weights.
    """
    observed = read_back(endpoint, token)
    if observed != expected:
        raise CheckFailed(f"the engine holds weights {observed}, but the files of the model are {expected}")
    return observed


def wait_until(done: Callable[[], bool], timeout_s: float) -> bool:
    """Whether `done` became true in time."""
    give_up_at = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(POLL_S)
    return True
