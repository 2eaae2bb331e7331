"""Forks ranks from a process that has loaded everything already, so that a test's attempt costs no imports.

Every rank is a process of its own and ends, or is killed, as one. Requests are JSON lines on stdin:

    {"attempt": DIRECTORY, "processes": N, "pause_at": STEP or null}  →  {"pids": […]}
    {"wait": [pid, …]}                                                 →  {"codes": […]}

Rank 0 reports to DIRECTORY/pipe.jsonl and writes to DIRECTORY/out, as it does under a launcher. With `pause_at`, every rank
sleeps for ever before that step: it can only be killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from executors.pipe import PipeWriter
from executors.trainers import training
from executors.trainers.ranks import Rank
from executors.trainers.worker import report, work
from ledger.errors import PosttrainError


def main() -> None:
    import transformers.models.auto.modeling_auto
    import transformers.models.auto.tokenization_auto
    import transformers.models.llama.modeling_llama  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = {"codes": [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in request["wait"]]}
        else:
            answer = {"pids": [fork(request, number) for number in range(request["processes"])]}
        print(json.dumps(answer), flush=True)


def fork(request: dict[str, Any], number: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = child(request, number)
    finally:
        sys.stderr.flush()
        os._exit(code)


def child(request: dict[str, Any], number: int) -> int:
    attempt = Path(request["attempt"])
    log = os.open(attempt / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(POSTTRAIN_OUT=str(attempt / "out"), OMP_NUM_THREADS="1")
    rank = Rank(number, request["processes"], number, attempt / "rendezvous")
    pipe = PipeWriter(attempt / "pipe.jsonl") if number == 0 else None
    if request["pause_at"] is not None:
        pause_before(request["pause_at"])
    try:
        work(json.loads((attempt / "plan.json").read_text()), rank, pipe)
    except PosttrainError as error:
        return report(error, pipe)
    return 0


def pause_before(step: int) -> None:
    whole: Any = training.Trainer.step

    def paused(self: Any, window: Any) -> None:
        if self.state.step + 1 == step:
            time.sleep(3600)
        whole(self, window)

    training.Trainer.step = paused  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
