"""kill -9 of the parent before and after everything that it makes durable, then the same call again: nothing twice, nothing
lost, and the same model.

A first pass counts the operations: appends to the log, artifacts stored or staged, files deleted, children started. Then one
parent for each operation is killed just before it, and one after the last.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executors.launchers.local import LocalLauncher
from executors.recording import RunRecord
from executors.runs import materialise_run
from ledger import budget
from ledger.artifacts import ArtifactStore
from ledger.errors import InfrastructureError
from ledger.home import Ledger
from ledger.log import Log
from tests.executors.specs import fake_spec

OPERATIONS: tuple[tuple[Any, str], ...] = (
    (Log, "append_many"),
    (ArtifactStore, "add_files"),
    (ArtifactStore, "materialise"),
    (LocalLauncher, "start"),
    (shutil, "rmtree"),
)
SPEC = fake_spec(steps=4, checkpoint_every=2, fault="exit", fault_step=3)  # the first attempt ends with code 3

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the parents are forks of this process")


class Count:
    """Counts operations of this process, and kills it before (or after) number `at`."""

    def __init__(self, at: int = 0, *, after: bool = False) -> None:
        self.number, self.at, self.after = 0, at, after

    def install(self) -> None:
        for owner, name in OPERATIONS:
            setattr(owner, name, self.wrap(getattr(owner, name)))

    def wrap(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.number += 1
            mine = self.number == self.at
            if mine and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = operation(*arguments, **options)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counted


def parent(home: Path, count: Count) -> tuple[int, int]:
    """A process that runs SPEC; its wait status and how many operations it did."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            count.install()
            ledger = Ledger.open(home, actor="tester")
            materialise_run(ledger, SPEC)
        except BaseException:  # the first attempt fails; the parent's story ends there
            pass
        finally:
            os.write(write, str(count.number).encode())
            os._exit(0)
    os.close(write)
    status = os.waitpid(process, 0)[1]
    number = int(os.read(read, 20) or b"0")
    os.close(read)
    return os.waitstatus_to_exitcode(status), number


def fresh(home: Path) -> Ledger:
    ledger = Ledger.open(home, create=True, actor="tester")
    budget.set_price(ledger, "cpu", "3600")
    return ledger


def finish(ledger: Ledger) -> str:
    """Call until it is complete, as a user would: at most once more for the failing attempt."""
    for _ in range(2):
        try:
            return str(materialise_run(ledger, SPEC).model)
        except InfrastructureError as error:
            reason = str(error)
        assert "exit code 3" in reason
    raise AssertionError("it does not finish")


def check_story(ledger: Ledger, where: str) -> None:
    count = Counter(event.type for event in ledger.log.stream(f"run/{SPEC.run_id}"))
    assert count == {
        "RunSubmitted": 1, "AttemptStarted": 2, "CheckpointCommitted": 2, "AttemptEnded": 2, "RunFailed": 1, "RunCompleted": 1,
    }, where  # fmt: skip
    record = RunRecord.read(ledger, SPEC.run_id)
    assert [saved.step for saved in record.checkpoints] == [2, 4], where
    assert [ended.outcome for ended in record.ended.values()] == ["failed", "completed"], where
    assert record.attempts[1].from_step == 2, where
    money = Counter(event.type for event in ledger.log.stream("budget/sft"))
    assert money == {"CostReserved": 2, "CostSettled": 2}, where
    assert budget.status(ledger, "sft").reserved == "0", where


def test_a_parent_killed_anywhere_and_started_again_records_nothing_twice(tmp_path: Path) -> None:
    whole = fresh(tmp_path / "whole")
    first = parent(whole.home, Count())[1]
    second = parent(whole.home, Count())[1]
    model = finish(whole)
    check_story(whole, "without a kill")
    assert first >= 9
    assert second >= 9

    # What is killed just after one operation has done the same as what is killed just before the next.
    points = [(at, False, later) for later, last in ((False, first), (True, second)) for at in range(1, last + 1)]
    points += [(first, True, False), (second, True, True)]
    untouched, failed_once = fresh(tmp_path / "untouched").home, fresh(tmp_path / "failed once").home
    assert parent(failed_once, Count())[0] == 0
    kills = 0
    for at, after, later in points:
        where = f"killed {'after' if after else 'before'} operation {at} of the {'second' if later else 'first'} call"
        home = shutil.copytree(failed_once if later else untouched, tmp_path / f"{at}-{after}-{later}")
        ledger = Ledger.open(home, actor="tester")
        code, _ = parent(ledger.home, Count(at, after=after))
        kills += code == -signal.SIGKILL
        assert finish(ledger) == model, where
        check_story(ledger, where)
    assert kills >= len(points) - 2, "the kills did not happen"
