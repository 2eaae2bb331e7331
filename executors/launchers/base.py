"""What a launcher answers: start once, tell the state, stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What is known of an attempt's process.

    `absent`: nothing was ever started in the directory. `running`. `ended`: `exit_code` is known (negative: the signal).
    `lost`: it was started, is gone, and left no exit code (its machine or its supervisor died).

    `elapsed_s` is the wall time of an attempt that is over; the same every time it is asked. `stopped` says that somebody
    asked for the end.
    """

    kind: Literal["absent", "running", "ended", "lost"]
    exit_code: int | None = None
    elapsed_s: float = 0.0
    stopped: bool = False

    @property
    def over(self) -> bool:
        return self.kind in ("ended", "lost")


class Launcher(Protocol):
    @property
    def name(self) -> str: ...

    def start(
        self, directory: Path, argv: tuple[str, ...], environment: Mapping[str, str], plan: Mapping[str, Any]
    ) -> None:
        """Start `argv` with `plan` as its `plan.json`, or do nothing when the directory already has a started attempt.

        The child gets an allow-list of this process's environment, `environment`, and the three variables of
        `executors.pipe`. Returns when the start is durable: from then on `state` is not `absent`.

        Raises:
            InfrastructureError: nothing could be started.
        """

    def state(self, directory: Path) -> ProcessState:
        """Never blocks."""

    def stop(self, directory: Path, grace_s: float) -> None:
        """SIGTERM to all processes of the attempt, SIGKILL after `grace_s`; returns when it is over."""

    def sweep(self, directory: Path) -> int:
        """Kill what an attempt that is over left running; returns how many processes."""
