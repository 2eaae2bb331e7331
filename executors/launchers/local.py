"""Starts an attempt on this machine, under a supervisor that outlives whoever started it (`supervisor.py`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from executors.launchers import supervisor
from executors.launchers.base import ProcessState
from ledger.errors import InfrastructureError

PASSED_ON = (
    "PATH", "HOME", "USER", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH",
    "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME", "NCCL_DEBUG",
)  # fmt: skip
"""The only variables of this process that a child sees: everything else may hold a secret."""

ALWAYS = {
    "HF_HUB_OFFLINE": "1",  # a child reads what the plan names, never a hub
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "PYTHONSAFEPATH": "1",  # nothing is imported from the directory that the child writes into
}

START_TIMEOUT_S = 60.0
STOP_MARGIN_S = 10.0


class LocalLauncher:
    name: ClassVar[str] = "local"

    def start(
        self, directory: Path, argv: tuple[str, ...], environment: Mapping[str, str], plan: Mapping[str, Any]
    ) -> None:
        directory = directory.resolve()
        (directory / "out").mkdir(parents=True, exist_ok=True)
        launch = {
            "argv": list(argv),
            "environment": child_environment(directory, environment),
            "directory": str(directory / "out"),
            "plan": dict(plan),
        }
        command = [sys.executable, "-I", "-S", supervisor.__file__, str(directory)]
        bare = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        try:
            done = subprocess.run(
                command,
                input=json.dumps(launch),
                capture_output=True,
                text=True,
                timeout=START_TIMEOUT_S,
                env=bare,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfrastructureError(f"attempt {directory} cannot be started: {error}") from error
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise InfrastructureError(f"attempt {directory} cannot be started: {reason}")

    def state(self, directory: Path) -> ProcessState:
        try:
            return self._state(directory.resolve())
        except ValueError as error:
            raise InfrastructureError(f"attempt {directory}: its state files are damaged: {error}") from error

    def _state(self, directory: Path) -> ProcessState:
        process = supervisor.read_file(directory / "pid")
        if process is None:
            return ProcessState("absent")
        alive = is_same_process(process)
        stopped = (directory / "stop").exists()
        ending = supervisor.read_file(directory / "rc")  # read after the liveness, which it overrules
        if ending is not None:
            return ProcessState("ended", int(ending["exit_code"]), float(ending["elapsed_s"]), stopped)
        if alive:
            return ProcessState("running", stopped=stopped)
        return ProcessState("lost", None, self._last_sign(directory, process), stopped)

    def stop(self, directory: Path, grace_s: float) -> None:
        directory = directory.resolve()
        process = supervisor.read_file(directory / "pid")
        if process is None:
            return
        if self.state(directory).kind == "running":
            supervisor.write_file(directory / "stop", {"grace_s": grace_s})
            _send(process["pid"], signal.SIGTERM)
            if not self._wait(directory, grace_s + STOP_MARGIN_S):
                _send(process["pid"], signal.SIGKILL)
                self._wait(directory, STOP_MARGIN_S)
        self.sweep(directory)

    def sweep(self, directory: Path) -> int:
        process = supervisor.read_file(directory / "pid") or {}
        child, start = process.get("child"), process.get("child_start")
        if child is not None and start is not None and supervisor.process_start(child) == start:
            supervisor.signal_group(child, signal.SIGKILL)  # where the kernel does not do it: outside Linux
        return supervisor.sweep(directory.resolve())

    def _wait(self, directory: Path, timeout_s: float) -> bool:
        give_up_at = time.monotonic() + timeout_s
        while self.state(directory).kind == "running":
            if time.monotonic() > give_up_at:
                return False
            time.sleep(0.01)
        return True

    def _last_sign(self, directory: Path, process: Mapping[str, Any]) -> float:
        """Seconds from the start to the last byte that a lost attempt wrote: what is known of how long it ran."""
        signs = [path.stat().st_mtime for name in ("log", "pipe.jsonl") if (path := directory / name).exists()]
        return round(max(0.0, max(signs, default=0.0) - float(process["started_at_s"])), 6)


def child_environment(directory: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The allow-list, what the executor adds, and the three variables of the pipe; in that order, the last one wins."""
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    passed["PYTHONPATH"] = os.pathsep.join(filter(None, (source_tree(), passed.get("PYTHONPATH"))))
    own = {
        "POSTTRAIN_PLAN": str(directory / "plan.json"),
        "POSTTRAIN_PIPE": str(directory / "pipe.jsonl"),
        "POSTTRAIN_OUT": str(directory / "out"),
    }
    merged = {**passed, **ALWAYS, **environment, **own}
    return {name: value for name, value in merged.items() if value or name == "CUDA_VISIBLE_DEVICES"}


def source_tree() -> str | None:
    """Where `executors` was imported from, when that is a source tree that a child would not find by itself."""
    root = Path(__file__).resolve().parents[2]
    return None if root.name in ("site-packages", "dist-packages") else str(root)


def read_process(directory: Path) -> dict[str, Any]:
    """The `pid` file of a started attempt: `pid` (supervisor), `child`, and the start times of both.

    Raises:
        InfrastructureError: nothing was started there.
    """
    process = supervisor.read_file(directory / "pid")
    if process is None:
        raise InfrastructureError(f"attempt {directory} was never started")
    return process


def is_same_process(process: Mapping[str, Any]) -> bool:
    """Whether the supervisor that wrote this record still runs; a process that got its pid later is not it."""
    if process["boot"] != supervisor.boot_id():
        return False
    return bool(supervisor.process_start(int(process["pid"])) == process["start"])


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended by itself
