"""Running a piece of a test in a process of its own, to kill it or to limit it."""

from __future__ import annotations

import itertools
import os
import signal
import traceback
from collections.abc import Callable

KILLED = -signal.SIGKILL
CRASH_POINTS = [(name, after) for name in ("rename", "fsync", "write") for after in (False, True)]
"""Arguments of `die_at_call`: what makes a file durable, before and after it."""


def start(work: Callable[[], object]) -> int:
    """Run `work` in a forked process; its pid. It ends with 0, or with 1 and a traceback on stderr."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def finish(pid: int) -> int:
    """Wait for a process; its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(work: Callable[[], object]) -> int:
    return finish(start(work))


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def killer(after_bytes: int) -> Callable[[int], None]:
    """A progress callback that ends this process once so many bytes were reported."""
    seen = 0

    def progress(count: int) -> None:
        nonlocal seen
        seen += count
        if seen >= after_bytes:
            die()

    return progress


def die_at_call(name: str, number: int, *, after: bool) -> None:
    """From now on the `number`-th call (from 1) of `os.<name>` in this process is its last act."""
    original = getattr(os, name)
    calls = itertools.count(1)  # several threads may call at once

    def wrapped(*arguments: object, **keywords: object) -> object:
        call = next(calls)
        if call == number and not after:
            die()
        answer = original(*arguments, **keywords)
        if call == number:
            die()
        return answer

    setattr(os, name, wrapped)
