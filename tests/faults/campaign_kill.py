"""Kill -9 of the demo at random moments, again and again, then once to the end: it finishes, and no step is recorded twice.

    python tests/faults/campaign_kill.py --kills 20 --seed 1
    make campaign-kill

Every other kill takes the demo's whole process group and its running attempts; the rest take the demo alone, so that its
child runs on and is attached to. The last line is JSON: `{"campaign": "kill", "kills": …, "problems": […]}`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from executors.launchers.local import LocalLauncher
from ledger.fsck import fsck
from ledger.home import Ledger

ONCE = (
    "BaseRevisionPinned", "DatasetVersionSealed", "SuiteRegistered", "RunSubmitted", "RunCompleted", "EvaluationReported",
    "GateDecided", "GatePolicySet", "ModelRegistered", "ModelPromoted", "BudgetSet",
)  # fmt: skip
"""Types of which a stream of the demo holds one event at most."""


def recorded_twice(ledger: Ledger) -> list[str]:
    """Steps that the ledger holds more than once; empty when all is well."""
    events = list(ledger.log.read())
    counts = Counter((event.stream, event.type) for event in events if event.type in ONCE)
    problems = [f"{stream}: {kind} {count} times" for (stream, kind), count in counts.items() if count > 1]
    steps = Counter((e.stream, e.payload.step) for e in events if e.type == "CheckpointCommitted")  # type: ignore[attr-defined]
    problems += [f"{stream}: step {step} saved {count} times" for (stream, step), count in steps.items() if count > 1]
    started, ended = (
        Counter(event.stream for event in events if event.type == kind) for kind in ("AttemptStarted", "AttemptEnded")
    )
    problems += [
        f"{stream}: {count} attempts, {ended[stream]} ended"
        for stream, count in started.items()
        if count != ended[stream]
    ]
    return problems


def start_demo(home: Path) -> subprocess.Popen[bytes]:
    environment = {"MODEL": "micro", **os.environ, "POSTTRAIN_HOME": str(home)}
    log = (home.parent / "demo.log").open("ab")
    command = [sys.executable, "-m", "assets.demo"]
    return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def kill(process: subprocess.Popen[bytes], home: Path, everything: bool) -> None:
    """SIGKILL to the demo, and with `everything` to the attempts that it started as well."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if everything:
        for directory in sorted((home / "runs").glob("*/attempt-*")):
            if LocalLauncher().state(directory).kind == "running":
                pid = json.loads((directory / "pid").read_text())
                for number in (pid["pid"], pid.get("child")):
                    if number:
                        _kill_quietly(int(number))


def _kill_quietly(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended meanwhile


def campaign(kills: int, seed: int, longest_s: float) -> dict[str, object]:
    """Run the campaign in a fresh home and return its result."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="posttrain-kill-") as place:
        home = Path(place) / "home"
        done = 0
        for number in range(kills):
            process = start_demo(home)
            lives_s = rng.uniform(0.3, longest_s)
            try:
                process.wait(lives_s)
                continue  # it finished before it could be killed
            except subprocess.TimeoutExpired:
                kill(process, home, everything=number % 2 == 1)
                done += 1
                print(f"kill {done} after {lives_s:.1f} s", flush=True)
        began = time.monotonic()
        code = start_demo(home).wait(1800)
        ledger = Ledger.open(home)
        problems = recorded_twice(ledger) + [f"{f.position} {f.place}: {f.what}" for f in fsck(ledger)]
        if code != 0:
            problems.append(
                f"the last demo ended with exit code {code}: {(Path(place) / 'demo.log').read_text()[-2000:]}"
            )
        _stop_serving(home)
        return {"campaign": "kill", "kills": done, "last_s": round(time.monotonic() - began, 1), "problems": problems}


def _stop_serving(home: Path) -> None:
    command = [sys.executable, "-m", "ledger.cli", "serve", "stop", "production"]
    subprocess.run(command, env={**os.environ, "POSTTRAIN_HOME": str(home)}, check=False, stdout=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest-s", type=float, default=30.0, help="a demo lives at most this long before its kill")
    options = parser.parse_args()
    result = campaign(options.kills, options.seed, options.longest_s)
    print(json.dumps(result))
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
