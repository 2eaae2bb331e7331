"""What a run pins (`RunSpec`) and what one launch of it needs (`LaunchPlan`).

Both are values: making them reads no disk and starts nothing. `RunSpec.run_id` is derived from everything that the spec
pins, so the same specification is the same run, on every machine and after every crash.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ledger.canonical import canonical_digest
from ledger.digest import Digest
from ledger.errors import InputError
from ledger.events import CodeRevision, RunSubmitted
from ledger.events.base import Name, Text

Device = Literal["cpu", "cuda"]

INPUT_NAMES = ("base", "dataset", "parent", "model", "suite")
"""What a spec pins as artifacts; the plan gives the child a directory for each under the same name."""

RESERVED = ("resources", "repeat")
"""Keys of `RunSubmitted.config` that the spec adds to the executor's own configuration."""

WITHOUT_EFFECT = ("projected_step_seconds",)
"""Settings that change no result and so are no part of a run's identity."""


class Resources(BaseModel):
    """What a run asks for. `auto` takes a GPU when there is one that the installed torch can use."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    processes: Annotated[int, Field(ge=1, le=4096)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def resolved(self) -> Resources:
        """The same with `auto` decided for this machine."""
        return self if self.device != "auto" else Resources(processes=self.processes, device=present_device())


class RunSpec(BaseModel):
    """Everything that decides a run's result. `config` is the executor's resolved configuration without floats
    (`canonical_config`); digests name artifacts. `repeat` makes another run of the same specification (`--rerun`).

    `stage` is where the run was asked for and what budget pays; it does not change the result or the identity.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: Name
    kind: Name
    executor: Name
    config: dict[str, Any]
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    resources: Resources
    base: Digest | None = None
    dataset: Digest | None = None
    parent: Digest | None = None
    model: Digest | None = None
    suite: Digest | None = None
    tokenizer: Digest | None = None
    chat_template: Digest | None = None
    verifier: Text | None = None
    code: CodeRevision
    environment: Digest
    repeat: Annotated[int, Field(ge=0)] = 0

    def model_post_init(self, _context: Any) -> None:
        if self.resources.device == "auto":
            raise InputError("a run spec pins its device; resolve `auto` first (Resources.resolved)")
        if taken := [key for key in RESERVED if key in self.config]:
            raise InputError(f"config.{taken[0]}: the name is reserved; rename the executor's setting")

    @property
    def digest(self) -> str:
        """The canonical digest of what is pinned."""
        pinned = self.model_dump(mode="json", exclude={"stage", "code", "repeat"}, exclude_none=True)
        pinned["config"] = {name: value for name, value in self.config.items() if name not in WITHOUT_EFFECT}
        pinned["code"] = {"commit": self.code.commit, "diff": self.code.diff}
        if self.repeat:
            pinned["repeat"] = self.repeat
        return canonical_digest(pinned)

    @property
    def run_id(self) -> str:
        return "r-" + self.digest.removeprefix("sha256:")[:16]

    def inputs(self) -> dict[str, str]:
        """Name → digest of the artifacts that the child reads."""
        pairs = ((name, getattr(self, name)) for name in INPUT_NAMES)
        return {name: digest for name, digest in pairs if digest is not None}

    def submitted(self) -> RunSubmitted:
        """The event that records this specification; `from_submitted` is its inverse."""
        config = {**self.config, "resources": self.resources.model_dump(mode="json")}
        if self.repeat:
            config["repeat"] = self.repeat
        own = self.model_dump(exclude={"config", "resources", "repeat", "code"})
        return RunSubmitted(run_id=self.run_id, spec=self.digest, config=config, code=self.code, **own)

    @classmethod
    def from_submitted(cls, payload: RunSubmitted) -> RunSpec:
        """The specification of a recorded run.

        Raises:
            InputError: the event's `spec` is not the digest of what it pins.
        """
        config = dict(payload.config)
        extra = {key: config.pop(key) for key in RESERVED if key in config}
        own = payload.model_dump(exclude={"run_id", "spec", "config", "code"})
        spec = cls(config=config, code=payload.code, **extra, **own)
        if spec.digest != payload.spec:
            raise InputError(f"run {payload.run_id}: its specification has digest {spec.digest}, not {payload.spec}")
        return spec


@dataclass(frozen=True, slots=True)
class Projection:
    """What a run is expected to take. `device_seconds` counts every device; `memory_bytes` is per device."""

    device_seconds: Decimal
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A verified checkpoint on this machine's disk that an attempt goes on from."""

    checkpoint: str  # manifest digest
    path: Path
    step: int


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """All that an attempt needs. `executor.plan` leaves the last four fields open; `placed` fills them."""

    run_id: str
    kind: str
    executor: str
    seed: int
    config: Mapping[str, Any]  # as `plan.json` carries it: plain JSON, fractions as numbers
    resources: Resources
    argv: tuple[str, ...]
    environment: Mapping[str, str]  # beside the allow-list of the launcher; never a secret
    inputs: Mapping[str, str]  # name → artifact digest that must be on disk
    expected_outputs: tuple[str, ...]
    projection: Projection
    attempt: int = 0
    directory: Path | None = None
    paths: Mapping[str, Path] = field(default_factory=dict)
    checkpoint: ResumePoint | None = None

    def placed(self, attempt: int, directory: Path, paths: Mapping[str, Path]) -> LaunchPlan:
        """This plan as attempt `attempt` in `directory`, with its inputs at `paths`."""
        return replace(self, attempt=attempt, directory=directory.absolute(), paths=dict(paths))

    def document(self) -> dict[str, Any]:
        """The content of `plan.json`, which is all that the child is told."""
        resume = self.checkpoint and {"path": str(self.checkpoint.path), "step": self.checkpoint.step}
        return {
            "run_id": self.run_id,
            "kind": self.kind,
            "executor": self.executor,
            "attempt": self.attempt,
            "seed": self.seed,
            "config": dict(self.config),
            "paths": {name: str(self.paths[name]) if name in self.paths else None for name in INPUT_NAMES},
            "resources": self.resources.model_dump(mode="json"),
            "resume": resume,
            "identity": dict(self.inputs),
        }


def canonical_config(config: BaseModel) -> dict[str, Any]:
    """A resolved configuration as events carry it: fractions as exact decimal strings, which Pydantic reads back.

    Raises:
        InputError: a fraction that is not finite.
    """
    return {name: _without_floats(name, value) for name, value in config.model_dump(mode="json").items()}


def present_device() -> Device:
    """`cuda` when a GPU is visible and the installed torch was built for it, else `cpu`. Does not import torch."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if hidden or not Path("/dev/nvidia0").exists():
        return "cpu"
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return "cpu"
    version = Path(torch.origin).with_name("version.py")
    built_for = (
        re.search(r"^cuda\b[^=]*=\s*(\S+)", version.read_text("utf-8"), re.MULTILINE) if version.exists() else None
    )
    return "cuda" if built_for and built_for[1] != "None" else "cpu"


def _without_floats(place: str, value: Any) -> Any:
    if isinstance(value, float):
        number = Decimal(repr(value))
        if not number.is_finite():
            raise InputError(f"config.{place}: {value} is not a finite number")
        text = format(number, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    if isinstance(value, dict):
        return {key: _without_floats(f"{place}.{key}", item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_floats(f"{place}[{index}]", item) for index, item in enumerate(value)]
    return value
