"""One process a rank on this machine. Standard library only, so the ranks start before anything heavy is imported.

The launcher's child is rank 0 and starts the others as copies of itself. None of them outlives it: the kernel kills them
with it (Linux), they belong to its process group, and they carry the variable that the launcher sweeps by. When another
rank dies first, rank 0 ends too instead of waiting in a collective that will never complete.

A cluster launcher that starts the ranks itself sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun does; then
nothing is started here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

LOST_RANK_EXIT = 75  # EX_TEMPFAIL: the same run may succeed on another attempt
KILLED_S, FAILED_S = 5.0, 60.0
"""How long rank 0 may go on after another rank was killed, or failed by an error that rank 0 is about to meet as well."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Rank:
    """Which rank this process is. `rendezvous` is the file where ranks meet, `None` under a cluster launcher."""

    number: int
    size: int
    local: int
    rendezvous: Path | None

    @classmethod
    def from_environment(cls, processes: int, meeting_place: Path) -> Rank:
        """Rank 0 when nobody said otherwise; it decides where the ranks meet, a place that no other run uses."""
        if "POSTTRAIN_RANK" in os.environ:
            number = int(os.environ["POSTTRAIN_RANK"])
            return cls(number, processes, number, Path(os.environ["POSTTRAIN_RENDEZVOUS"]))
        if "RANK" in os.environ and "MASTER_ADDR" in os.environ:
            number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            return cls(number, size, int(os.environ.get("LOCAL_RANK", number)), None)
        return cls(0, processes, 0, meeting_place / f".rendezvous-{os.getpid()}")


@dataclass(slots=True)
class Peers:
    """The ranks that rank 0 started; empty for every other one. Use it as a context: at its end they are gone."""

    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    finishing: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def start(cls, rank: Rank, module: str) -> Peers:
        """Start `python -m module` for each other rank."""
        peers = cls()
        if rank.number != 0 or rank.rendezvous is None:
            return peers
        rank.rendezvous.unlink(missing_ok=True)
        for number in range(1, rank.size):
            own = {"POSTTRAIN_RANK": str(number), "POSTTRAIN_RENDEZVOUS": str(rank.rendezvous)}
            process = subprocess.Popen(
                [sys.executable, "-m", module], env={**os.environ, **own}, stdin=subprocess.DEVNULL
            )
            peers.processes.append(process)
            threading.Thread(target=peers._watch, args=(number, process), daemon=True).start()
        return peers

    def __enter__(self) -> Peers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.finishing.set()
        for process in self.processes:
            if kind is not None:
                process.kill()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def lost(self, wait_s: float) -> str | None:
        """Which rank died, when one does within `wait_s`: an error in a collective comes before its cause is known."""
        give_up_at = time.monotonic() + wait_s
        while True:
            for number, process in enumerate(self.processes, start=1):
                if process.poll() not in (None, 0):
                    return f"rank {number} ended with {_how(process.returncode)}"
            if time.monotonic() > give_up_at or not self.processes:
                return None
            time.sleep(0.02)

    def _watch(self, number: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if code == 0 or self.finishing.wait(timeout=KILLED_S if code < 0 else FAILED_S):
            return
        sys.stderr.write(f"rank {number} ended with {_how(code)}; the attempt ends with it\n")
        sys.stderr.flush()
        os._exit(LOST_RANK_EXIT)  # the main thread hangs in a collective that the lost rank will never join


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def end_with_parent() -> None:
    """Make the kernel kill this process when the one that started it dies."""
    if sys.platform != "linux":
        return  # there the launcher's sweep does it
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was told
        os._exit(LOST_RANK_EXIT)
