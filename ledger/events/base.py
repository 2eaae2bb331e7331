"""What every payload is: a frozen model that names its stream and the nodes that it reads and makes.

Lineage is only ever derived from `inputs()` and `outputs()`. A node is `kind:identity`: `dataset:sha256:…`, `run:r-…`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, StringConstraints

Role = Literal[
    "base", "dataset", "code", "config", "environment", "parent", "verifier", "suite", "approval",
    "run", "model", "checkpoint", "report", "policy", "gate", "promotion", "deployment", "executor",
]  # fmt: skip

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,79}$")]
"""A name that people give: lower-case letters, digits, `.`, `_`, `-`; never a path."""

DecimalText = Annotated[str, StringConstraints(pattern=r"^-?[0-9]{1,30}(\.[0-9]{1,12})?$")]
"""A fraction as `ledger.canonical.decimal_string` writes it."""

Text = Annotated[str, StringConstraints(max_length=2000)]


class Edge(NamedTuple):
    """A typed reference from an event to a node."""

    role: Role
    node: str


class Record(BaseModel):
    """A part of a payload."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Payload(Record):
    """The typed content of an event. Subclasses live one file a family and are listed in `ledger.events`."""

    schema_version: ClassVar[int] = 1

    @classmethod
    def type_name(cls) -> str:
        return cls.__name__

    def stream(self) -> str:
        """The stream that the event belongs to, `family/name`."""
        raise AssertionError(f"{type(self).__name__} names no stream")

    def inputs(self) -> tuple[Edge, ...]:
        """What the event reads."""
        return ()

    def outputs(self) -> tuple[Edge, ...]:
        """What the event makes or speaks of first."""
        return ()

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


def edges(*pairs: tuple[Role, str, str | None]) -> tuple[Edge, ...]:
    """Edges from `(role, kind, identity)`, leaving out what is `None`."""
    return tuple(Edge(role, f"{kind}:{identity}") for role, kind, identity in pairs if identity is not None)
