"""Names that people give to stages, suites, models and device kinds, checked before they meet an event."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError

from ledger.errors import InputError
from ledger.events.base import Name

_NAME: TypeAdapter[str] = TypeAdapter(Name)


def parse_name(what: str, text: str) -> str:
    """`text` unchanged when it is a name; `what` says in the message what it was to name.

    Raises:
        InputError: anything but 1 to 80 of `a-z 0-9 . _ -`, beginning with a letter or digit.
    """
    try:
        return _NAME.validate_python(text, strict=True)
    except ValidationError:
        raise InputError(
            f"{what} {text!r} is not a name; use up to 80 lower-case letters, digits, '.', '_' and '-', beginning with a "
            "letter or digit"
        ) from None
