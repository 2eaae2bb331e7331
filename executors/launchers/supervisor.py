"""The process that stands between a parent that may die and a child that must not notice. Standard library only.

Run as a program, `python -I -S supervisor.py DIRECTORY`, with the launch as JSON on stdin. It leaves the truth about the
attempt in the directory:

    lock          held (flock) by the supervisor as long as it lives; taken by whoever starts first
    plan.json     what the child is told;  launch.json  argv and environment as they were
    pid           supervisor and child with the start times of both, before the child runs
    log           stdout and stderr of the child
    stop          somebody asked for the end (written by the launcher)
    rc            exit code and elapsed time, written once, atomically and durably

The program returns when `pid` is durable; from then on a daemon in a session of its own goes on, so that a closed terminal
or a dead parent does not reach it. When the supervisor itself is killed, the kernel kills the child (PR_SET_PDEATHSIG; Linux
only). Descendants of the child carry POSTTRAIN_PIPE in their environment: what is left of them when the child has ended,
or when a launcher finds the attempt lost, is killed by that mark (`sweep`).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

DEFAULT_GRACE_S = 10.0
LOCK_PATIENCE_S = 30.0
MAX_FILE_BYTES = 8 << 20
PR_SET_PDEATHSIG = 1
IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # they are for whoever sits at a terminal


def main(directory: Path) -> int:
    """0: an attempt is started in the directory, by this call or before. Anything else: the reason is on stderr."""
    launch = json.load(sys.stdin)
    if not take_lock(directory):
        return 0
    write_file(directory / "plan.json", launch["plan"])
    write_file(directory / "launch.json", {"argv": launch["argv"], "environment": launch["environment"]})
    ready, word = os.pipe()
    if os.fork():
        os.close(word)
        return 0 if os.read(ready, 1) == b"1" else _say(f"the supervisor died at once; see {directory / 'log'}")
    os.close(ready)
    _detach(directory)
    Supervisor(directory, launch).run(word)
    os._exit(0)


class Supervisor:
    """Starts the child, waits for it, and writes how it ended."""

    def __init__(self, directory: Path, launch: dict[str, Any]) -> None:
        self.directory = directory
        self.launch = launch
        self.child: int | None = None
        self.stopping = False

    def run(self, word: int) -> None:
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGALRM, self._on_grace_over)
        own = os.getpid()
        record = {"pid": own, "start": process_start(own), "boot": boot_id(), "started_at_s": time.time()}
        write_file(self.directory / "pid", record)
        began = time.monotonic()
        self.child = self._spawn()
        write_file(self.directory / "pid", {**record, "child": self.child, "child_start": process_start(self.child)})
        os.write(word, b"1")
        os.close(word)
        if self.stopping:
            self._on_terminate()
        status = os.waitpid(self.child, 0)[1]
        elapsed = time.monotonic() - began
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal_group(self.child, signal.SIGKILL)
        sweep(self.directory)
        ended_at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        ending = {"exit_code": os.waitstatus_to_exitcode(status), "elapsed_s": round(elapsed, 6), "ended_at": ended_at}
        write_file(self.directory / "rc", ending)

    def _spawn(self) -> int:
        """Fork and exec the child. An argv that cannot run is the child's failure: 127, and a line in the log."""
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        parent = os.getpid()
        child = os.fork()
        if child:
            return child
        try:
            os.setsid()
            for number in (*IGNORED, signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            if libc is not None:
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it died before the kernel was told
                os._exit(1)
            os.chdir(self.launch["directory"])
            os.execvpe(self.launch["argv"][0], self.launch["argv"], self.launch["environment"])
        except BaseException as error:  # the fork must never return into the supervisor's code
            _say(f"cannot start {self.launch['argv'][0]}: {error}")
        os._exit(127)

    def _on_terminate(self, *_signal: object) -> None:
        self.stopping = True
        if self.child is None:
            return
        signal_group(self.child, signal.SIGTERM)
        request = read_file(self.directory / "stop") or {}
        signal.setitimer(signal.ITIMER_REAL, max(0.001, float(request.get("grace_s", DEFAULT_GRACE_S))))

    def _on_grace_over(self, *_signal: object) -> None:
        if self.child is not None:
            signal_group(self.child, signal.SIGKILL)


def take_lock(directory: Path) -> bool:
    """True when this process is the one that starts the attempt; the lock is then held until it, and its fork, end.

    False when the attempt was started before, or by another process meanwhile.
    """
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    give_up_at = time.monotonic() + LOCK_PATIENCE_S
    while not (directory / "pid").exists():
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                raise SystemExit(_say(f"{directory / 'lock'} is held and nothing starts")) from None
            time.sleep(0.01)
        else:
            return not (directory / "pid").exists()
    return False


def sweep(directory: Path) -> int:
    """Kill every process, except this one, that was started for the attempt in `directory`; returns how many."""
    mark = b"POSTTRAIN_PIPE=" + os.fsencode(directory / "pipe.jsonl")
    killed = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                killed += 1
        except OSError:  # it ended meanwhile, or belongs to somebody else
            continue
    return killed


def signal_group(leader: int, number: int) -> None:
    for send in (os.killpg, os.kill):  # the group is missing for a moment, before the child made it
        try:
            return send(leader, number)
        except (ProcessLookupError, PermissionError):
            continue


def process_start(pid: int) -> str | None:
    """When the process started, in a form that tells two processes with one pid apart; `None` when it is gone."""
    if not Path("/proc/self/stat").exists():
        command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
        state, _, start = shown.stdout.strip().partition(" ")
        return start.strip() if start and not state.startswith("Z") else None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("latin-1").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]  # proc(5): state, then starttime as field 22


def boot_id() -> str:
    """Changes with every boot: pids and start times of an earlier boot mean nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def write_file(path: Path, content: dict[str, Any]) -> None:
    """Write JSON so that a reader sees all of it or nothing, also after a power failure."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(content, stream)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    fd = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_file(path: Path) -> dict[str, Any] | None:
    """What `write_file` wrote; `None` when there is no such file.

    Raises:
        ValueError: the file is there and is not a JSON object.
    """
    try:
        with path.open("rb") as stream:
            content = json.loads(stream.read(MAX_FILE_BYTES))
    except FileNotFoundError:
        return None
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content


def _detach(directory: Path) -> None:
    """A session of its own, no terminal, and the log in place of stdout and stderr."""
    os.setsid()
    log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.closerange(max(null, log), max(null, log) + 1)


def _say(message: str) -> int:
    os.write(2, f"posttrain supervisor: {message}\n".encode(errors="replace"))
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
