"""The local launcher: started once, outlives its parent, ends with a known code or is known to be lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from executors.launchers import supervisor
from executors.launchers.base import ProcessState
from executors.launchers.local import LocalLauncher, child_environment, read_process
from ledger.errors import InfrastructureError

PYTHON = (sys.executable, "-I", "-S", "-c")
SLEEP = (*PYTHON, "import time; print('up', flush=True); time.sleep(60)")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """An attempt directory; whatever runs in it is gone afterwards."""
    yield tmp_path / "attempt-1"
    LocalLauncher().stop(tmp_path / "attempt-1", 0.0)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up_at, f"waited for: {what}"
        time.sleep(0.01)


def start(directory: Path, *argv: str, **environment: str) -> None:
    LocalLauncher().start(directory, argv, environment, {"seed": 7})


def ending(directory: Path) -> ProcessState:
    wait_for(lambda: LocalLauncher().state(directory).over, "the attempt to end")
    return LocalLauncher().state(directory)


def alive(pid: int) -> bool:
    return supervisor.process_start(pid) is not None


def test_a_child_ends_with_its_code_log_and_plan(directory: Path) -> None:
    assert LocalLauncher().state(directory) == ProcessState("absent")
    program = (
        "import sys, json, os; plan = json.load(open(os.environ['POSTTRAIN_PLAN']))\n"
        "print(plan['seed'], flush=True); sys.exit('to stderr')"
    )
    start(directory, *PYTHON, program)
    state = ending(directory)
    assert (state.kind, state.exit_code, state.stopped) == ("ended", 1, False)
    assert state.elapsed_s > 0
    assert (directory / "log").read_text() == "7\nto stderr\n"


def test_a_second_start_attaches(directory: Path) -> None:
    start(directory, *SLEEP)
    first = read_process(directory)
    start(directory, *PYTHON, "print('never')")
    assert read_process(directory) == first
    LocalLauncher().stop(directory, 5.0)
    start(directory, *PYTHON, "print('never')")
    assert LocalLauncher().state(directory).kind == "ended"
    assert (directory / "log").read_text() == "up\n"


def test_many_launchers_at_once_start_one_child(directory: Path) -> None:
    program = "import os, time; os.write(1, b'one\\n'); time.sleep(0.3)"
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: start(directory, *PYTHON, program), range(6)))
    assert ending(directory).exit_code == 0
    assert (directory / "log").read_text() == "one\n"


def test_a_program_that_does_not_exist_is_the_childs_failure(directory: Path) -> None:
    start(directory, "/no/such/program")
    assert ending(directory).exit_code == 127
    assert "cannot start /no/such/program: [Errno 2]" in (directory / "log").read_text()


def test_the_child_outlives_its_parent_and_a_closed_terminal(directory: Path) -> None:
    """The parent is killed with its whole process group and session; the child finishes all the same."""
    program = (
        "import sys; from pathlib import Path; from executors.launchers.local import LocalLauncher as L\n"
        "child = \"import time, os; time.sleep(0.4); print(os.getppid())\"\n"
        "L().start(Path(sys.argv[1]), (sys.executable, '-I', '-S', '-c', child), {}, {})\n"
        "print('started', flush=True); import time; time.sleep(60)\n"
    )  # fmt: skip
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(directory)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "started\n"
    os.killpg(parent.pid, signal.SIGHUP)
    os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    state = ending(directory)
    assert (state.kind, state.exit_code) == ("ended", 0)
    assert (directory / "log").read_text() == f"{read_process(directory)['pid']}\n"


def test_a_killed_child_ends_with_its_signal(directory: Path) -> None:
    start(directory, *SLEEP)
    os.kill(read_process(directory)["child"], signal.SIGKILL)
    state = ending(directory)
    assert (state.kind, state.exit_code, state.stopped) == ("ended", -9, False)


def test_a_killed_supervisor_takes_the_child_with_it_and_is_lost(directory: Path) -> None:
    start(directory, *SLEEP)
    process = read_process(directory)
    wait_for(lambda: (directory / "log").read_text() == "up\n", "the child to be up")
    os.kill(process["pid"], signal.SIGKILL)
    wait_for(lambda: not alive(process["child"]), "the child to die with its supervisor")
    state = ending(directory)
    assert (state.kind, state.exit_code) == ("lost", None)
    assert state == LocalLauncher().state(directory)
    assert 0 <= state.elapsed_s < 30


@pytest.mark.skipif(sys.platform != "linux", reason="descendants are found through /proc")
def test_descendants_in_sessions_of_their_own_are_swept(directory: Path) -> None:
    """What torchrun does to its workers. They die when the child ends, and when a launcher finds the attempt lost."""
    program = (
        "import subprocess, sys, time\n"
        "worker = subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    start(directory, *PYTHON, program)
    wait_for(lambda: (directory / "log").read_text().endswith("\n"), "the worker to be up")
    worker = int((directory / "log").read_text())
    os.kill(read_process(directory)["pid"], signal.SIGKILL)
    assert ending(directory).kind == "lost"
    assert LocalLauncher().sweep(directory) >= 1
    wait_for(lambda: not alive(worker), "the worker to be swept")

    second = directory.with_name("attempt-2")
    start(second, *PYTHON, program)
    wait_for(lambda: (second / "log").read_text().endswith("\n"), "the second worker to be up")
    worker = int((second / "log").read_text())
    os.kill(read_process(second)["child"], signal.SIGKILL)
    assert ending(second).exit_code == -9
    wait_for(lambda: not alive(worker), "the second worker to be swept")


def test_a_pid_that_was_given_to_another_process_is_not_the_attempt(directory: Path) -> None:
    """A supervisor of an earlier boot, or of an earlier owner of the pid, is gone however alive the pid looks."""
    start(directory, *SLEEP)
    process = read_process(directory)
    LocalLauncher().stop(directory, 5.0)
    (directory / "rc").unlink()
    own = {"pid": os.getpid(), "start": supervisor.process_start(os.getpid()), "boot": supervisor.boot_id()}
    supervisor.write_file(directory / "pid", {**process, **own})
    assert LocalLauncher().state(directory).kind == "running"
    for stale in ({"start": "1"}, {"boot": "another"}):
        supervisor.write_file(directory / "pid", {**process, **own, **stale})
        assert LocalLauncher().state(directory).kind == "lost"
    (directory / "pid").unlink()


def test_a_supervisor_that_died_before_it_wrote_anything_does_not_block_the_next(directory: Path) -> None:
    directory.mkdir()
    (directory / "lock").touch()
    start(directory, *PYTHON, "print('up')")
    assert ending(directory).exit_code == 0


def test_stop_lets_the_child_say_goodbye(directory: Path) -> None:
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('saved'))\n"
        "print('up', flush=True); time.sleep(60)"
    )
    start(directory, *PYTHON, program)
    wait_for(lambda: (directory / "log").read_text() == "up\n", "the child to be up")
    LocalLauncher().stop(directory, 30.0)
    state = LocalLauncher().state(directory)
    assert (state.kind, state.exit_code, state.stopped) == ("ended", 1, True)
    assert (directory / "log").read_text() == "up\nsaved\n"


def test_stop_kills_a_child_that_does_not_listen(directory: Path) -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    start(directory, *PYTHON, program)
    wait_for(lambda: (directory / "log").read_text() == "up\n", "the child to be up")
    LocalLauncher().stop(directory, 0.1)
    state = LocalLauncher().state(directory)
    assert (state.kind, state.exit_code, state.stopped) == ("ended", -9, True)
    LocalLauncher().stop(directory, 0.1)
    assert LocalLauncher().state(directory) == state


def test_stop_of_nothing_does_nothing(directory: Path) -> None:
    LocalLauncher().stop(directory, 1.0)
    assert LocalLauncher().state(directory).kind == "absent"


def test_the_child_sees_an_allow_list_and_no_secret(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    start(directory, *PYTHON, "import json, os; print(json.dumps(dict(os.environ)))", OWN="yes")
    ending(directory)
    seen = json.loads((directory / "log").read_text())
    assert "hunter2" not in seen.values()
    assert (seen["OWN"], seen["OMP_NUM_THREADS"], seen["HF_HUB_OFFLINE"]) == ("yes", "3", "1")
    assert seen["POSTTRAIN_OUT"] == str(directory / "out")
    assert b"hunter2" not in b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


def test_an_executor_cannot_redirect_the_pipe(tmp_path: Path) -> None:
    environment = child_environment(tmp_path, {"POSTTRAIN_PIPE": "/elsewhere", "HF_HUB_OFFLINE": "0"})
    assert environment["POSTTRAIN_PIPE"] == str(tmp_path / "pipe.jsonl")
    assert environment["HF_HUB_OFFLINE"] == "0"


def test_a_directory_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "attempt-1").mkdir()
    (tmp_path / "attempt-1" / "lock").mkdir()
    with pytest.raises(InfrastructureError, match=r"attempt-1 cannot be started: .*Is a directory"):
        start(tmp_path / "attempt-1", *SLEEP)


def test_damaged_state_files_are_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text("[]")
    with pytest.raises(InfrastructureError, match=r"its state files are damaged: .*pid does not hold a JSON object"):
        LocalLauncher().state(tmp_path)
