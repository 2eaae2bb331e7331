"""The child of the fake executor. A trajectory that depends on seed, base, dataset and every random draw before.

    state ← sha256(state, draw, rate)      a step: one draw of the RNG, one row of the loader

Resumed exactly, it ends with the bytes of an uninterrupted run; with any part of a checkpoint left out it would not.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from executors.pipe import FileRecord, Part, PipeWriter, file_record, output_directory, read_plan

PARTS: dict[str, Part] = {
    "model/config.json": "model",
    "model/weights.json": "model",
    "optimizer.json": "optimizer",
    "scheduler.json": "scheduler",
    "rng.json": "rng",
    "loader.json": "loader",
    "trainer.json": "trainer",
    "checkpoint.json": "trainer",
}


@dataclass
class State:
    """All that a checkpoint holds."""

    weights: str
    moment: str
    rng: random.Random
    step: int = 0
    history: list[float] = field(default_factory=list)


def main() -> None:
    plan = read_plan()
    writer = PipeWriter.from_environment()
    world_size = plan["resources"]["processes"]
    writer.started(world_size=world_size, device=plan["resources"]["device"])
    state = restore(Path(plan["resume"]["path"])) if plan["resume"] else begin(plan)
    config = plan["config"]
    while state.step < config["steps"]:
        if plan["attempt"] <= config["fault_attempts"] and state.step + 1 == config["fault_step"]:
            break_down(config["fault"], writer)
        advance(state, config["rate"])
        time.sleep(config["step_seconds"])
        writer.progress(step=state.step, total=config["steps"], metrics={"loss": state.history[-1]})
        if state.step % config["checkpoint_every"] == 0 or state.step == config["steps"]:
            save(state, world_size, writer)
    history = output_directory() / "history.jsonl"
    write_durably(history, "".join(f"{json.dumps({'loss': loss})}\n" for loss in state.history))
    writer.output(name="history.jsonl", path=history)
    writer.completed(step=state.step, summary={"loss": state.history[-1]})


def begin(plan: dict[str, Any]) -> State:
    identity = json.dumps([plan["seed"], plan["identity"]], sort_keys=True)
    return State(hashlib.sha256(identity.encode()).hexdigest(), "0" * 64, random.Random(plan["seed"]))


def advance(state: State, rate: float) -> None:
    draw = state.rng.random()
    state.moment = hashlib.sha256(f"{state.moment} {draw}".encode()).hexdigest()
    state.weights = hashlib.sha256(f"{state.weights} {state.moment} {rate}".encode()).hexdigest()
    state.step += 1
    state.history.append(round(draw / state.step, 6))


def save(state: State, world_size: int, writer: PipeWriter) -> None:
    """A fresh directory, durable under its own name before it is announced."""
    path = output_directory() / f"step-{state.step}"
    partial = path.with_name(f"partial-{os.getpid()}-{state.step}")
    (partial / "model").mkdir(parents=True)
    samples = state.step * world_size
    index = {"step": state.step, "resume": "exact", "world_size": world_size, "samples_seen": samples}
    version, internal, gauss = state.rng.getstate()
    content: dict[str, Any] = {
        "model/config.json": {"model_type": "fake"},
        "model/weights.json": {"weights": state.weights},
        "optimizer.json": {"moment": state.moment},
        "scheduler.json": {"step": state.step},
        "rng.json": [version, list(internal), gauss],
        "loader.json": {"position": state.step},
        "trainer.json": {"history": state.history},
        "checkpoint.json": index,
    }
    records: dict[str, FileRecord] = {}
    for name, part in PARTS.items():
        write_durably(partial / name, json.dumps(content[name]))
        records[name] = file_record(partial / name, part)
    partial.replace(path)
    sync_directory(path.parent)
    writer.checkpoint(
        step=state.step,
        path=path,
        files=records,
        resume="exact",
        world_size=world_size,
        samples_seen=samples,
        model_files=[name for name in PARTS if name.startswith("model/")],
    )


def restore(path: Path) -> State:
    def read(name: str) -> Any:
        return json.loads((path / name).read_text("utf-8"))

    rng = random.Random()
    version, internal, gauss = read("rng.json")
    rng.setstate((version, tuple(internal), gauss))
    weights, moment = read("model/weights.json")["weights"], read("optimizer.json")["moment"]
    return State(weights, moment, rng, read("loader.json")["position"], read("trainer.json")["history"])


def break_down(fault: str, writer: PipeWriter) -> None:
    print(f"fault: {fault}", flush=True)
    if fault == "exit":
        sys.exit(3)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)
    if fault == "fail":
        writer.failed(reason="the fake was told to fail", retryable=False)
        sys.exit(2)
    if fault == "malformed":
        with open(os.environ["POSTTRAIN_PIPE"], "ab") as pipe:
            pipe.write(b"this is no message\n")
        time.sleep(60)


def write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


if __name__ == "__main__":
    main()
