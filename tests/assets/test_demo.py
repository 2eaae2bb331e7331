"""The whole chain, as `make demo` runs it, in its smallest variant: killed, finished, repeated, questioned, damaged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from assets.chain import Chain
from assets.definitions import definitions
from assets.steps import trained_model
from ledger import registry
from ledger.errors import RuleBroken
from ledger.home import Ledger
from tests.faults.campaign_kill import recorded_twice

pytest.importorskip("dagster", reason="the extra dagster is not installed")
pytest.importorskip("torch", reason="the extra train is not installed")

TIMEOUT_S = 420
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Demo:
    home: Path
    interrupted: tuple[int, str]  # exit code and output
    first: subprocess.CompletedProcess[str]
    second: subprocess.CompletedProcess[str]
    size_after_first: int

    def cli(self, *words: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
        return run(home or self.home, "ledger.cli", *words)


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "POSTTRAIN_HOME": str(home), "MODEL": "micro", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}


def run(home: Path, module: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(
        command, env=environment(home), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def start_and_signal_while_training(home: Path, number: signal.Signals) -> tuple[int, str]:
    """Start the demo, wait until its first attempt runs, and signal its process group; the attempt runs on."""
    with (home.parent / "killed.log").open("wb") as log:
        command = [sys.executable, "-m", "assets.demo"]
        process = subprocess.Popen(
            command, env=environment(home), cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
    give_up_at = time.monotonic() + TIMEOUT_S
    while time.monotonic() < give_up_at and process.poll() is None:
        if (home / "ledger.db").exists() and list((home / "runs").glob("*/attempt-1/pid")):
            break
        time.sleep(0.1)
    assert process.poll() is None, (home.parent / "killed.log").read_text()
    time.sleep(5)  # into the step, which Dagster runs
    os.killpg(process.pid, number)
    return process.wait(30), (home.parent / "killed.log").read_text()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    home = tmp_path_factory.mktemp("demo") / "home"
    interrupted = start_and_signal_while_training(home, signal.SIGINT)
    start_and_signal_while_training(home, signal.SIGKILL)
    first = run(home, "assets.demo")
    size = Ledger.open(home).log.size()
    yield Demo(home, interrupted, first, run(home, "assets.demo"), size)
    run(home, "ledger.cli", "serve", "stop", "production")


@pytest.fixture
def copy(demo: Demo, tmp_path: Path) -> Path:
    """The demo's ledger and artifacts, to be damaged."""
    ignored = shutil.ignore_patterns("runs", "serving", "cache", "dagster", "demo")
    return Path(shutil.copytree(demo.home, tmp_path / "home", ignore=ignored))


def test_it_finishes_after_a_kill_and_records_nothing_twice(demo: Demo) -> None:
    assert demo.first.returncode == 0, demo.first.stdout + demo.first.stderr
    assert recorded_twice(Ledger.open(demo.home)) == []


def test_ctrl_c_ends_it_at_once_with_one_line(demo: Demo) -> None:
    code, printed = demo.interrupted
    assert code == 130
    assert printed.count("interrupted") == 1
    assert "Traceback" not in printed


def test_it_shows_what_it_promises(demo: Demo) -> None:
    shown = demo.first.stdout
    assert "kill -9 of the training process" in shown
    assert "identical weights" in shown
    assert "gate passes" in shown
    assert "gate fails" in shown
    assert "promotion refused" in shown
    assert "includes 0" in shown
    assert "A: " in shown


def test_a_second_run_reuses_everything_and_records_nothing(demo: Demo) -> None:
    assert demo.second.returncode == 0, demo.second.stdout + demo.second.stderr
    assert Ledger.open(demo.home).log.size() == demo.size_after_first
    made = [line.split()[1] for line in demo.second.stdout.splitlines() if line.strip().startswith("made ")]
    assert made == ["prepare"]


def test_which_names_every_item_with_its_digest(demo: Demo) -> None:
    answer = json.loads(demo.cli("which", "production", "--json").stdout)
    items = (
        "base",
        "dataset",
        "code",
        "config",
        "environment",
        "run",
        "checkpoint",
        "evaluation",
        "gate",
        "promotion",
        "deployment",
    )
    assert [item for item in items if not answer[item]] == []
    digests = [
        answer["model"], answer["base"]["digest"], answer["dataset"]["digest"], answer["code"]["diff"],
        answer["config"]["digest"], answer["environment"], answer["checkpoint"]["digest"], answer["evaluation"]["report"],
        answer["deployment"]["observed_weights"],
    ]  # fmt: skip
    assert all(digest.startswith("sha256:") for digest in digests)
    assert answer["seed"] == 1
    assert answer["checkpoint"]["step"] == 60
    assert answer["deployment"]["model"] == answer["model"]
    assert float(answer["gate"]["interval"][0]) > 0
    assert answer["log"]["head"].split("\n")[1] == str(answer["log"]["position"])


@pytest.mark.parametrize(("form", "begins"), [("tree", "promotion"), ("json", "{"), ("dot", "digraph")])
def test_lineage_reaches_base_and_dataset(demo: Demo, form: str, begins: str) -> None:
    shown = demo.cli("lineage", "production", "--format", form)
    assert shown.returncode == 0
    assert shown.stdout.startswith(begins)
    assert "demo-micro" in shown.stdout
    assert "word-problems-micro" in shown.stdout


def test_log_verify_and_fsck_find_nothing(demo: Demo) -> None:
    for words in (("log", "verify"), ("fsck",)):
        done = demo.cli(*words)
        assert done.returncode == 0, done.stdout


def test_one_changed_byte_of_an_event_is_named(demo: Demo, copy: Path) -> None:
    with sqlite3.connect(copy / "ledger.db") as database:
        position, body = database.execute(
            "SELECT position, body FROM events WHERE type = 'EvaluationReported'"
        ).fetchone()
        database.execute("DROP TRIGGER events_no_update")
        changed = body.replace(b'"accuracy":"0', b'"accuracy":"1', 1)
        assert changed != body
        database.execute("UPDATE events SET body = ? WHERE position = ?", (changed, position))
    for words in (("log", "verify"), ("fsck",)):
        done = demo.cli(*words, home=copy)
        assert done.returncode == 1
        assert f"position {position}" in done.stdout


def test_one_changed_byte_of_an_artifact_is_named(demo: Demo, copy: Path) -> None:
    model = json.loads(demo.cli("which", "--json").stdout)["model"]
    blob = Ledger.open(copy).artifacts.manifest(model).files["model.safetensors"].digest.removeprefix("sha256:")
    path = copy / "artifacts" / "blobs" / "sha256" / blob
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    done = demo.cli("fsck", home=copy)
    assert done.returncode == 1
    assert "model.safetensors" in done.stdout
    assert blob in done.stdout


def test_a_model_without_a_passing_gate_is_refused_everywhere(demo: Demo) -> None:
    ledger = Ledger.open(demo.home)
    chain = Chain(demo.home / "demo" / "micro" / "chain.yaml")
    short = trained_model(ledger, chain, "sft-short")
    before = ledger.log.size()

    by_command = demo.cli("promote", short, "--to", "production")
    assert by_command.returncode == 3
    assert "includes 0" in by_command.stderr

    with pytest.raises(RuleBroken, match="includes 0"):
        registry.promote(ledger, short, "production", reason="please")

    defs = definitions(chain, demo.home)
    job = defs.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(
        asset_selection=[
            key for key in job.asset_layer.executable_asset_keys if key.path[-2:] == ["sft_short", "promotion"]
        ],
        raise_on_error=False,
    )
    assert not result.success
    assert ledger.log.size() == before
