"""`posttrain run`, `resume`, `stop` and `logs`, as a person and as a program use them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from executors import runs, stage
from executors.launchers.local import LocalLauncher
from executors.runs import resume_run
from ledger import budget
from ledger.cli.app import main
from ledger.home import Ledger
from tests.executors.specs import CODE, pin_base

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ledger(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    for module in (runs, stage):
        monkeypatch.setattr(module, "code_revision", lambda _: CODE)
    opened = Ledger.open(home, create=True, actor="tester")
    budget.set_price(opened, "cpu", "3600")
    pin_base(opened)
    yield opened
    for attempt in (home / "runs").glob("r-*/attempt-*"):
        LocalLauncher().stop(attempt, 0.0)


@pytest.fixture
def posttrain(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def invoke(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ending:
            main(words)
        shown = capsys.readouterr()
        return int(ending.value.code or 0), shown.out, shown.err

    return invoke


def stage_file(path: Path, **config: Any) -> str:
    settings = "".join(f"  {name}: {value}\n" for name, value in config.items())
    path.write_text(f"stage: sft\nkind: sft\nexecutor: fake\nbase: tiny\nconfig:\n{settings or '  steps: 6'}\n")
    return str(path)


def test_a_run_prints_its_summary_and_a_second_one_that_nothing_was_run(
    ledger: Ledger, tmp_path: Path, posttrain: Callable[..., tuple[int, str, str]]
) -> None:
    path = stage_file(tmp_path / "sft.yaml")
    code, out, _ = posttrain("run", path, "--json")
    first = json.loads(out)
    assert code == 0
    assert (first["state"], first["step"], first["attempts"], first["stage"]) == ("completed", 6, 1, "sft")
    assert first["model"].startswith("sha256:")
    assert first["cost"] == first["device_seconds"] != "0"
    assert Path(first["outputs"]["history.jsonl"]).exists()
    code, out, _ = posttrain("run", path)
    assert code == 0
    assert f"{first['run_id']}  (complete before, nothing was run)" in out
    assert first["model"] in out
    again = json.loads(posttrain("run", path, "--rerun", "--json")[1])
    assert again["run_id"] != first["run_id"]
    assert again["model"] == first["model"]


def test_a_failed_run_is_one_line_and_its_log_is_shown_without_control_characters(
    ledger: Ledger, tmp_path: Path, posttrain: Callable[..., tuple[int, str, str]]
) -> None:
    path = stage_file(tmp_path / "sft.yaml", steps=6, fault="fail", fault_step=4)
    code, out, err = posttrain("run", path, "--json")
    assert code == 2
    assert json.loads(out)["error"]["kind"] == "InputError"
    assert err.count("\n") == 1
    assert "failed: the fake was told to fail | fault: fail" in err
    run_id = next(stream for stream in ledger.log.streams("run/")).removeprefix("run/")
    with (runs.attempt_directory(ledger, run_id, 1) / "log").open("ab") as log:
        log.write(b"\x1b[2J\xff\nlast")
    assert posttrain("logs", run_id)[1] == "fault: fail\n\\x1b[2J�\nlast\n"
    assert posttrain("logs", run_id[:8], "-f")[1].endswith("last\n")
    assert json.loads(posttrain("logs", run_id, "--json")[1])["lines"][0] == "fault: fail"
    assert posttrain("logs", run_id, "--attempt", "3")[0] == 2
    code, out, _ = posttrain("resume", run_id, "--json")
    assert (code, json.loads(out)["attempts"]) == (0, 2)


def test_wrong_input_and_refusals_have_their_exit_codes(
    ledger: Ledger, tmp_path: Path, posttrain: Callable[..., tuple[int, str, str]]
) -> None:
    path = stage_file(tmp_path / "sft.yaml", steps=6)
    budget.set_budget(ledger, "sft", "1", "tiny")
    code, _, err = posttrain("run", path)
    assert code == 3
    assert "projected to cost 6, but 1 is left" in err
    assert posttrain("run", str(tmp_path / "none.yaml"))[0] == 2
    assert posttrain("resume", "r-0000")[0] == 2
    assert posttrain("stop", "r-0000")[0] == 2
    assert posttrain("logs", "r-0000")[0] == 2


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_leaves_the_run_running_and_says_so(
    ledger: Ledger, tmp_path: Path, number: signal.Signals, exit_code: int
) -> None:
    path = stage_file(tmp_path / "sft.yaml", steps=40, checkpoint_every=10, step_seconds=0.05)
    command = subprocess.Popen(
        [sys.executable, "-m", "ledger.cli", "run", path],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    give_up_at = time.monotonic() + 60
    while not (started := list(ledger.home.glob("runs/r-*/attempt-1/pipe.jsonl"))):
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    os.killpg(command.pid, number)
    _, err = command.communicate(timeout=60)
    run_id = started[0].parents[1].name
    assert command.returncode == exit_code
    assert err == (
        f"posttrain: interrupted; run {run_id} runs on. Follow it again: posttrain resume {run_id} "
        f"Stop it: posttrain stop {run_id}\n"
    )
    assert LocalLauncher().state(started[0].parent).kind == "running"
    assert resume_run(ledger, run_id).state == "attached"


def test_stop_ends_a_run_that_was_left_running(
    ledger: Ledger, tmp_path: Path, posttrain: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stage_file(tmp_path / "sft.yaml", steps=6, fault="hang", fault_step=4)

    def ctrl_c(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs._Run, "follow", ctrl_c)
        code, _, err = posttrain("run", path)
    assert code == 130
    assert "runs on" in err
    run_id = next(stream for stream in ledger.log.streams("run/")).removeprefix("run/")
    while "fault" not in posttrain("logs", run_id)[1]:
        time.sleep(0.02)
    code, out, _ = posttrain("stop", run_id, "--grace", "0.1", "--json")
    assert (code, json.loads(out)) == (0, {"run_id": run_id, "outcome": "canceled", "exit_code": -9, "step": 2})
    assert posttrain("stop", run_id)[0] == 2
    assert json.loads(posttrain("run", path, "--json")[1])["attempts"] == 2
