"""What both servers share: errors in OpenAI's form, bounded JSON bodies, and no route that is not listed."""

from __future__ import annotations

import json
import logging
from typing import Any, NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ledger.errors import InputError

log = logging.getLogger("posttrain.serving")


class Refused(Exception):
    """An answer other than 200, with the reason as the client reads it."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


def error_response(status: int, message: str, code: str, headers: dict[str, str] | None = None) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    content = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return JSONResponse(content, status_code=status, headers=headers)


async def on_refused(_request: Request, error: Exception) -> Response:
    if not isinstance(error, Refused):
        raise error
    return error_response(
        error.status, error.message, error.code, {"retry-after": "1"} if error.status == 503 else None
    )


async def on_http_error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "refused")
    return error_response(error.status_code, str(error.detail), code)


async def on_input_error(_request: Request, error: Exception) -> Response:
    return error_response(400, str(error), "invalid_request")


async def on_bug(_request: Request, error: Exception) -> Response:
    """The client learns that it failed; the reason is in the log, never in the answer."""
    return error_response(500, f"the server failed ({type(error).__name__}); its log has the reason", "internal_error")


HANDLERS: dict[Any, Any] = {
    Refused: on_refused,
    HTTPException: on_http_error,
    InputError: on_input_error,
    Exception: on_bug,
}


async def json_body(request: Request, max_bytes: int) -> dict[str, Any]:
    """The request's JSON object; never holds more than `max_bytes` of it.

    Raises:
        Refused: 413, 415 or 400.
    """
    # A web page may post `text/plain` to this address without asking first; `application/json` it may not.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "send the body as content-type: application/json", "unsupported_media_type")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > max_bytes:
            raise Refused(413, f"the body is larger than {max_bytes} bytes", "body_too_large")
    try:
        content = json.loads(bytes(data), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {str(error)[:200]}", "invalid_json") from None
    if not isinstance(content, dict):
        raise Refused(400, "the body must be a JSON object", "invalid_json")
    return content


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
