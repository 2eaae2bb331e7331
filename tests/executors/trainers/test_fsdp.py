"""The executor under the launcher: conformance, and that nothing outlives an attempt."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from executors.base import Attempt
from executors.launchers import supervisor
from executors.pipe import Completed
from executors.testing import check_executor, follow, wait_for_checkpoint
from executors.trainers.fsdp import FsdpExecutor
from executors.trainers.ranks import LOST_RANK_EXIT
from tests.executors.trainers.runs import Inputs, make_spec, place

SLOW = {"steps": 600, "checkpoint_every": 200, "log_every": 100}


@pytest.mark.slow
def test_conformance(inputs: Inputs, tmp_path: Path) -> None:
    check_executor(FsdpExecutor(), make_spec, tmp_path, paths=inputs.paths(), slow=SLOW)


def processes_of(attempt: Attempt) -> list[int]:
    """Every live process of an attempt, by the variable that all of them carry."""
    mark = b"POSTTRAIN_PIPE=" + os.fsencode(attempt.pipe.resolve())
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0") and supervisor.process_start(int(entry.name)):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_until_gone(attempt: Attempt) -> None:
    give_up_at = time.monotonic() + 30
    while left := processes_of(attempt):
        assert time.monotonic() < give_up_at, f"processes {left} outlive the attempt"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("victim", ["supervisor", "rank 1"])
def test_no_rank_outlives_another(inputs: Inputs, tmp_path: Path, victim: str) -> None:
    executor = FsdpExecutor()
    spec = make_spec(2, steps=1_000_000, checkpoint_every=5, log_every=1_000_000)
    attempt = executor.launch(place(tmp_path / "run", spec, inputs.paths()))
    wait_for_checkpoint(executor, attempt)
    process = json.loads((attempt.directory / "pid").read_text())
    alive = processes_of(attempt)
    ranks = sorted(pid for pid in alive if pid != process["pid"])
    assert len(ranks) == 2
    assert process["child"] in ranks
    (other,) = (pid for pid in ranks if pid != process["child"])
    os.kill({"supervisor": process["pid"], "rank 1": other}[victim], signal.SIGKILL)
    wait_until_gone(attempt)
    messages = follow(executor, attempt)
    assert not any(isinstance(message, Completed) for message in messages)
    state = executor.state(attempt)
    if victim == "supervisor":  # the kernel kills rank 0 with it, and rank 1 with rank 0
        assert state.kind == "lost"
    else:
        assert state.exit_code == LOST_RANK_EXIT
        assert "rank 1 ended with signal SIGKILL" in attempt.log.read_text()
