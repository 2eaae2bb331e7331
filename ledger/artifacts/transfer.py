"""Doing the same to many files: a few threads, one progress, and a stop that every thread hears.

Hashing and reading release the interpreter lock, so threads are enough.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from ledger.artifacts.storage import Tick

Progress = Callable[[int], None]
"""Called with the number of bytes handled since the last call; never from two threads at once."""

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_WORKERS = 4  # beyond this the disk is the limit


class _Stopped(Exception):
    """Another file failed, or the user interrupted."""


def for_each(
    work: Callable[[Item, Tick], Result], items: Sequence[Item], progress: Progress | None = None
) -> list[Result]:
    """`work(item, tick)` for every item, in the order of the items.

    The first failure stops the others at their next chunk and is raised; so does Ctrl-C.
    """
    stop = threading.Event()
    turn = threading.Lock()

    def tick(count: int) -> None:
        if stop.is_set():
            raise _Stopped
        if progress is not None and count:
            with turn:
                progress(count)

    workers = min(MAX_WORKERS, os.cpu_count() or 1, len(items))
    if workers < 2:
        return [work(item, tick) for item in items]
    with ThreadPoolExecutor(workers, thread_name_prefix="artifact") as pool:
        futures = [pool.submit(work, item, tick) for item in items]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            if not all(future.done() for future in futures):
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
    _raise_first(futures)
    return [future.result() for future in futures]


def _raise_first(futures: Sequence[Future[Result]]) -> None:
    for future in futures:
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, _Stopped):
            raise error
