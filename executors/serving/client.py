"""A completion over HTTP with nothing but the standard library: for the readiness probe, and for people.

complete("http://127.0.0.1:8400", "production", [{"role": "user", "content": "2+2="}]).text
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.errors import InfrastructureError

MAX_ANSWER_BYTES = 16 << 20
MODEL_HEADER = "x-posttrain-model"
DEPLOYMENT_HEADER = "x-posttrain-deployment"

# Never through a proxy of the environment: the addresses are this machine's, the tokens too.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HttpRefused(InfrastructureError):
    """The server answered, and not with 200."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Completion:
    """`model` and `deployment` are what the gateway says answered; `None` from an engine itself."""

    text: str
    model: str | None
    deployment: str | None


def complete(
    endpoint: str,
    model: str,
    messages: Sequence[Mapping[str, str]] | str,
    *,
    token: str | None = None,
    timeout_s: float = 120.0,
    **sampling: Any,
) -> Completion:
    """Ask `model` at `endpoint`: a chat for messages, a plain completion for a text. `sampling`: `max_tokens`, `seed`, …

    Raises:
        HttpRefused: the server answered with an error.
        InfrastructureError: nobody answers, or not with a completion.
    """
    if isinstance(messages, str):
        path, body = "/v1/completions", {"model": model, "prompt": messages, **sampling}
    else:
        path, body = "/v1/chat/completions", {"model": model, "messages": list(messages), **sampling}
    content, headers = _exchange(endpoint + path, body, token, timeout_s)
    try:
        choice = content["choices"][0]
        text = choice["text"] if isinstance(messages, str) else choice["message"].get("content") or ""
    except (KeyError, IndexError, TypeError, AttributeError):
        raise InfrastructureError(f"{endpoint}{path} answered without a completion") from None
    return Completion(str(text), headers.get(MODEL_HEADER), headers.get(DEPLOYMENT_HEADER))


def get_json(url: str, *, token: str | None = None, timeout_s: float = 10.0) -> dict[str, Any]:
    """The JSON object at `url`. Raises as `complete` does."""
    return _exchange(url, None, token, timeout_s)[0]


def _exchange(
    url: str, body: Mapping[str, Any] | None, token: str | None, timeout_s: float
) -> tuple[dict[str, Any], Mapping[str, str]]:
    headers = {} if body is None else {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    try:
        with _OPENER.open(request, timeout=timeout_s) as response:
            content = json.loads(response.read(MAX_ANSWER_BYTES))
            answered = {name.lower(): value for name, value in response.headers.items()}
    except urllib.error.HTTPError as error:
        with error:
            raise HttpRefused(f"{url} answered {error.code}: {_reason(error)}", error.code) from None
    except (OSError, ValueError) as error:  # refused, reset, timed out, cut off; or not JSON
        reason = getattr(error, "reason", error)
        raise InfrastructureError(f"{url} does not answer: {reason}") from None
    if not isinstance(content, dict):
        raise InfrastructureError(f"{url} answered with JSON that is no object")
    return content, answered


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(65536))["error"]["message"])[:500]
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)
