"""The plugin protocol: what every trainer, evaluator or engine must answer, on one page.

An executor turns a `RunSpec` into a `LaunchPlan`, and a launcher turns that into a child process that reports through
`executors.pipe`. `ProcessExecutor` does all of it but three things: name the configuration, state the capabilities, and
say which command runs.

    class Mine(ProcessExecutor):
        name = "mine"
        config_model = MineConfig                       # a frozen Pydantic model, `ExecutorConfig` or like it
        def capabilities(self) -> Capabilities: ...
        def command(self, config, resources): return (sys.executable, "-m", "mine.child")

Third parties add theirs through the entry-point group `posttrain.executors`; `executors.testing.check_executor` is the
conformance kit.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from executors.launchers.base import Launcher, ProcessState
from executors.launchers.local import LocalLauncher
from executors.pipe import LEVELS, Message, read_messages
from executors.plans import Device, LaunchPlan, Projection, Resources, ResumePoint, RunSpec
from ledger.errors import InputError, MissingExtra
from ledger.events.runs import ResumeLevel

__all__ = [
    "Attempt", "Batch", "Capabilities", "CheckpointInfo", "Executor", "ExecutorConfig", "LaunchPlan", "ProcessExecutor",
    "Projection", "Resources", "ResumePoint", "RunSpec", "configure",
]  # fmt: skip

CHECKPOINT_INDEX = "checkpoint.json"
MAX_INDEX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an executor can do. `resume` is the level of its checkpoints, `None` when it has none."""

    kinds: frozenset[str]  # run kinds: sft, evaluation, …
    devices: frozenset[Device]
    max_processes: int
    resume: ResumeLevel | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One launch of a run, running or not. All about it is in its directory."""

    run_id: str
    number: int
    directory: Path

    @property
    def pipe(self) -> Path:
        return self.directory / "pipe.jsonl"

    @property
    def out(self) -> Path:
        return self.directory / "out"

    @property
    def log(self) -> Path:
        return self.directory / "log"


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages after a cursor. `state` was looked at *before* they were read: when it is not running and there are no
    messages, there will never be more."""

    messages: tuple[Message, ...]
    cursor: int
    state: ProcessState


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a checkpoint directory says of itself. Digests are checked elsewhere, before anything is loaded."""

    step: int
    resume: Literal["exact", "state", "weights"]
    world_size: int
    samples_seen: int


@runtime_checkable
class Executor(Protocol):
    """`plan` and `resume` are pure. `launch` is idempotent: the same placed plan never starts twice."""

    @property
    def name(self) -> str: ...

    @property
    def config_model(self) -> type[BaseModel]: ...

    @property
    def launcher(self) -> Launcher: ...

    def capabilities(self) -> Capabilities: ...

    def plan(self, spec: RunSpec, resources: Resources) -> LaunchPlan:
        """Raises `InputError` when the configuration is invalid or the resources are not supported."""

    def require_installed(self) -> None:
        """Raises `MissingExtra` when what a launch would need is not installed; asked before anything is recorded."""

    def launch(self, plan: LaunchPlan) -> Attempt:
        """Start, or attach to, the attempt of a placed plan. Raises `InfrastructureError` when nothing starts."""

    def attach(self, run_id: str, number: int, directory: Path) -> Attempt:
        """The attempt in `directory`, whether or not it was started."""

    def state(self, attempt: Attempt) -> ProcessState:
        """Whether it runs, or how it ended. Never blocks."""

    def events(self, attempt: Attempt, cursor: int) -> Batch:
        """Raises `executors.pipe.PipeError` when the child wrote something that is no message."""

    def inspect(self, path: Path) -> CheckpointInfo:
        """Raises `InputError` when `path` is no checkpoint of this executor."""

    def resume(self, plan: LaunchPlan, checkpoint: ResumePoint) -> LaunchPlan:
        """The same plan going on from a checkpoint."""

    def stop(self, attempt: Attempt, grace_s: float) -> None:
        """Ask the attempt to end, and end it after `grace_s`. Returns when it has ended; harmless when it already had."""


class ExecutorConfig(BaseModel):
    """Base of configurations. `projected_step_seconds` replaces the executor's own guess in the cost projection."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    projected_step_seconds: float | None = Field(default=None, gt=0, le=1e6)


class ProcessExecutor:
    """An executor whose work is one child process (that may start more) under a launcher."""

    name: ClassVar[str]
    config_model: ClassVar[type[BaseModel]]
    default_step_seconds: ClassVar[float] = 1.0  # used when the configuration does not state it
    needs: ClassVar[tuple[str, ...]] = ()  # modules that its child imports beside the core, and
    extra: ClassVar[str] = ""  # the extra that installs them

    def __init__(self, launcher: Launcher | None = None) -> None:
        self._launcher: Launcher = launcher or LocalLauncher()

    @property
    def launcher(self) -> Launcher:
        return self._launcher

    # ------------------------------------------------------------------------------------------ what a subclass says

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Kinds, devices, processes and resume level."""

    @abstractmethod
    def command(self, config: Any, resources: Resources) -> tuple[str, ...]:
        """argv of the child. `config` is an instance of `config_model`."""

    def environment(self, config: Any, resources: Resources) -> Mapping[str, str]:
        """Variables for the child beside the launcher's allow-list."""
        return {}

    def steps(self, config: Any) -> int:
        """Steps that the whole run takes, for the projection."""
        return int(getattr(config, "steps", 1))

    def memory_bytes(self, config: Any, resources: Resources) -> int | None:
        """Memory per device, `None` when nothing is known."""
        return None

    def expected_outputs(self, config: Any) -> tuple[str, ...]:
        """Names that the child announces with `output` before it completes."""
        return ()

    # ------------------------------------------------------------------------------------------------- the protocol

    def plan(self, spec: RunSpec, resources: Resources) -> LaunchPlan:
        config = configure(self, spec.config)
        self._check_resources(spec.kind, resources)
        return LaunchPlan(
            run_id=spec.run_id,
            kind=spec.kind,
            executor=self.name,
            seed=spec.seed,
            config=config.model_dump(mode="json"),
            resources=resources,
            argv=self.command(config, resources),
            environment=dict(self.environment(config, resources)),
            inputs=spec.inputs(),
            expected_outputs=self.expected_outputs(config),
            projection=self._project(config, resources),
        )

    def launch(self, plan: LaunchPlan) -> Attempt:
        if plan.directory is None:
            raise InputError(f"the plan of run {plan.run_id} has no directory yet; place it first (LaunchPlan.placed)")
        self.launcher.start(plan.directory, plan.argv, plan.environment, plan.document())
        return self.attach(plan.run_id, plan.attempt, plan.directory)

    def require_installed(self) -> None:
        missing = [module for module in self.needs if find_spec(module) is None]
        if missing:
            raise MissingExtra(f"executor {self.name} ({missing[0]})", self.extra)

    def attach(self, run_id: str, number: int, directory: Path) -> Attempt:
        return Attempt(run_id, number, directory)

    def state(self, attempt: Attempt) -> ProcessState:
        return self.launcher.state(attempt.directory)

    def events(self, attempt: Attempt, cursor: int) -> Batch:
        state = self.state(attempt)
        messages, after = read_messages(attempt.pipe, cursor)
        return Batch(tuple(messages), after, state)

    def inspect(self, path: Path) -> CheckpointInfo:
        index = path / CHECKPOINT_INDEX
        try:
            with index.open("rb") as stream:
                body = json.loads(stream.read(MAX_INDEX_BYTES))
            info = CheckpointInfo(body["step"], body["resume"], body["world_size"], body["samples_seen"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is no checkpoint of executor {self.name}: {CHECKPOINT_INDEX}: {error}") from None
        counts = (info.step, info.world_size, info.samples_seen)
        if info.resume not in LEVELS or not all(type(count) is int and count >= 0 for count in counts):
            raise InputError(f"{path} is no checkpoint of executor {self.name}: {CHECKPOINT_INDEX}: {info}")
        return info

    def resume(self, plan: LaunchPlan, checkpoint: ResumePoint) -> LaunchPlan:
        if self.capabilities().resume is None:
            raise InputError(f"executor {self.name} makes no checkpoints; its runs start from the beginning")
        return replace(plan, checkpoint=checkpoint)

    def stop(self, attempt: Attempt, grace_s: float) -> None:
        self.launcher.stop(attempt.directory, grace_s)

    # ------------------------------------------------------------------------------------------------------ details

    def _check_resources(self, kind: str, resources: Resources) -> None:
        able = self.capabilities()
        if kind not in able.kinds:
            raise InputError(f"executor {self.name} cannot do kind {kind!r}; it does {', '.join(sorted(able.kinds))}")
        if resources.device not in able.devices:
            raise InputError(f"resources.device: {self.name} runs on {' or '.join(sorted(able.devices))} only")
        if resources.processes > able.max_processes:
            raise InputError(
                f"resources.processes: {resources.processes}; {self.name} takes {able.max_processes} at most"
            )

    def _project(self, config: BaseModel, resources: Resources) -> Projection:
        stated = getattr(config, "projected_step_seconds", None)
        step_seconds = Decimal(str(self.default_step_seconds if stated is None else stated))
        device_seconds = self.steps(config) * step_seconds * resources.processes
        return Projection(device_seconds, self.memory_bytes(config, resources))


def configure(executor: Executor, config: Mapping[str, Any]) -> BaseModel:
    """`config` as the executor's model, defaults filled in.

    Raises:
        InputError: it does not fit; the message names the key.
    """
    try:
        return executor.config_model.model_validate(dict(config))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(("config", *map(str, first["loc"])))
        raise InputError(f"{place}: {first['msg']} (executor {executor.name})") from None
