"""The pipe: what a child writes is what a parent reads, and nothing else is accepted."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from executors import pipe
from executors.pipe import FileRecord, PipeError, PipeWriter, check_order, parse_line, read_messages

FILES = {
    "model/model.safetensors": FileRecord("a" * 64, 7, "model"),
    "rng.json": FileRecord("b" * 64, 3, "rng"),
}


def write_all(path: Path) -> None:
    writer = PipeWriter(path)
    writer.started(world_size=2, device="cpu")
    writer.progress(step=1, total=4, metrics={"loss": 0.5, "bad": math.nan, "up": math.inf, "down": -math.inf})
    writer.checkpoint(
        step=2,
        path="step-2",
        files=FILES,
        resume="exact",
        world_size=2,
        samples_seen=8,
        model_files=["model/model.safetensors"],
    )
    writer.output(name="completions.jsonl", path="completions.jsonl")
    writer.failed(reason="no more", retryable=True)
    writer.completed(step=4, summary={"loss": 0.25})
    writer.close()


def line(**changes: object) -> bytes:
    body: dict[str, object] = {
        "seq": 1,
        "at": "2026-01-01T00:00:00Z",
        "type": "started",
        "world_size": 1,
        "device": "cpu",
    }
    return json.dumps({**body, **changes}).encode()


def checkpoint_line(**changes: object) -> bytes:
    record = {"sha256": "a" * 64, "size_bytes": 7, "part": "model"}
    body = {
        "seq": 1,
        "at": "2026-01-01T00:00:00Z",
        "type": "checkpoint",
        "step": 1,
        "path": "c",
        "files": {"model/w": record},
        "resume": "exact",
        "world_size": 1,
        "samples_seen": 1,
        "model_files": ["model/w"],
    }
    return json.dumps({**body, **changes}).encode()


def test_every_message_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "pipe.jsonl"
    write_all(path)
    messages, cursor = read_messages(path)
    assert [type(message).__name__ for message in messages] == [
        "Started", "Progress", "CheckpointWritten", "OutputWritten", "Failed", "Completed",
    ]  # fmt: skip
    assert [message.seq for message in messages] == [1, 2, 3, 4, 5, 6]
    assert cursor == path.stat().st_size
    started, progress, checkpoint, output, failed, completed = messages
    assert isinstance(started, pipe.Started)
    assert (started.world_size, started.device) == (2, "cpu")
    assert isinstance(progress, pipe.Progress)
    assert math.isnan(progress.metrics["bad"])
    assert (progress.metrics["loss"], progress.metrics["up"], progress.metrics["down"]) == (0.5, math.inf, -math.inf)
    assert isinstance(checkpoint, pipe.CheckpointWritten)
    assert checkpoint.files == FILES
    assert checkpoint.model_files == ("model/model.safetensors",)
    assert isinstance(output, pipe.OutputWritten)
    assert output.name == "completions.jsonl"
    assert isinstance(failed, pipe.Failed)
    assert failed.retryable is True
    assert isinstance(completed, pipe.Completed)
    assert completed.summary == {"loss": 0.25}


def test_numbers_that_are_not_finite_travel_as_strict_json(tmp_path: Path) -> None:
    write_all(tmp_path / "pipe.jsonl")
    second = (tmp_path / "pipe.jsonl").read_bytes().splitlines()[1]

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    assert json.loads(second, parse_constant=refuse)["metrics"] == {
        "loss": 0.5, "bad": "nan", "up": "inf", "down": "-inf",
    }  # fmt: skip


def test_a_missing_file_has_no_messages(tmp_path: Path) -> None:
    assert read_messages(tmp_path / "none", 5) == ([], 5)


def test_reading_byte_by_byte_gives_every_message_once(tmp_path: Path) -> None:
    """A reader that sees the file torn at any byte gets whole messages only, and goes on from its cursor."""
    write_all(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    path = tmp_path / "growing"
    seen: list[int] = []
    cursor = 0
    for size in range(0, len(data) + 1, 7):
        path.write_bytes(data[:size])
        messages, cursor = read_messages(path, cursor)
        seen += [message.seq for message in messages]
        assert data[:cursor].endswith(b"\n") or cursor == 0
    path.write_bytes(data)
    messages, cursor = read_messages(path, cursor)
    assert seen + [message.seq for message in messages] == [1, 2, 3, 4, 5, 6]


def test_a_writer_cuts_the_torn_line_of_its_predecessor_and_counts_on(tmp_path: Path) -> None:
    path = tmp_path / "pipe.jsonl"
    write_all(path)
    path.write_bytes(path.read_bytes()[:-10])
    writer = PipeWriter(path)
    writer.completed(step=4)
    messages, cursor = read_messages(path)
    assert [message.seq for message in messages] == [1, 2, 3, 4, 5, 6]
    assert cursor == path.stat().st_size


def test_a_lost_line_or_a_second_writer_is_noticed() -> None:
    message = parse_line(line(seq=3))
    assert check_order(2, message) == 3
    for before in (0, 1, 3):
        with pytest.raises(
            PipeError, match=f"message 3 where {before + 1} was expected; two writers, or a line was lost"
        ):
            check_order(before, message)


def test_a_line_without_end_is_refused_and_not_collected(tmp_path: Path) -> None:
    path = tmp_path / "pipe.jsonl"
    path.write_bytes(b"x" * (pipe.MAX_LINE_BYTES + 1))
    with pytest.raises(PipeError, match="longer than 1048576 bytes"):
        read_messages(path)


def test_what_stands_before_a_malformed_line_counts_and_the_error_names_file_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "pipe.jsonl"
    path.write_bytes(line() + b"\n{}\n" + line(seq=2) + b"\n")
    messages, cursor = read_messages(path)
    assert [message.seq for message in messages] == [1]
    with pytest.raises(PipeError, match=rf"pipe\.jsonl, byte {len(line()) + 1}: unknown message type None"):
        read_messages(path, cursor)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"\xff\xfe", "not strict JSON"),
        (b"[" * 200_000, "not strict JSON"),
        (b'{"seq": NaN}', "NaN is not strict JSON"),
        (b"[1]", "not a JSON object"),
        (line(type="progressed"), "unknown message type 'progressed'; known: started, progress"),
        (line(extra=1), r"missing fields \[\], unknown fields \['extra'\]"),
        (line(seq=True), "started.seq: True is not a whole number"),
        (line(seq=2**53), "is not a whole number"),
        (line(world_size=-1), "started.world_size: -1"),
        (line(device="a\0b"), "started.device"),
        (checkpoint_line(resume="total"), "checkpoint.resume: 'total' is none of exact, state, weights"),
        (checkpoint_line(files={}), "checkpoint.files"),
        (checkpoint_line(files={"../up": {}}), "'../up' is not a plain relative path"),
        (checkpoint_line(files={"/etc/passwd": {}}), "is not a plain relative path"),
        (checkpoint_line(files={"a": {"sha256": "A" * 64, "size_bytes": 1, "part": "rng"}}), "64 lower-case hex"),
        (
            checkpoint_line(files={"a": {"sha256": "a" * 64, "size_bytes": 1, "part": "soul"}}),
            "part: 'soul' is none of",
        ),
        (checkpoint_line(model_files=["model/other"]), "'model/other' is not among the files"),
        (checkpoint_line(model_files=["model/w", "model/w"]), "distinct names"),
    ],
)
def test_a_malformed_line_is_refused_with_its_reason(bad: bytes, reason: str) -> None:
    with pytest.raises(PipeError, match=reason):
        parse_line(bad)


@pytest.mark.parametrize("metrics", [{"loss": "high"}, {"loss": True}, {"lo ss": 1.0}, {"loss": None}, {"a": 10**400}])
def test_metrics_are_numbers(metrics: object) -> None:
    body = {"seq": 1, "at": "", "type": "progress", "step": 1, "total": 2, "metrics": metrics}
    with pytest.raises(PipeError, match=r"progress\.metrics"):
        parse_line(json.dumps(body).encode())


def test_the_writer_is_told_of_its_own_mistake_and_writes_nothing(tmp_path: Path) -> None:
    writer = PipeWriter(tmp_path / "pipe.jsonl")
    with pytest.raises(PipeError, match="is not a plain relative path"):
        writer.output(name="../x", path="x")
    assert (tmp_path / "pipe.jsonl").read_bytes() == b""


def test_the_pipe_works_alone_in_an_environment_without_this_project(tmp_path: Path) -> None:
    """A copy of the file, run without site-packages and outside the tree, reports and is understood."""
    (tmp_path / "pipe.py").write_text(Path(pipe.__file__).read_text("utf-8"))
    (tmp_path / "plan.json").write_text('{"seed": 7}')
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import pipe\n"
        "writer = pipe.PipeWriter.from_environment()\n"
        "writer.started(world_size=pipe.read_plan()['seed'], device='cpu')\n"
        "(pipe.output_directory() / 'x').write_text('hello')\n"
        "writer.output(name='x', path=pipe.output_directory() / 'x')\n"
    )
    environment = {
        "POSTTRAIN_PLAN": str(tmp_path / "plan.json"),
        "POSTTRAIN_PIPE": str(tmp_path / "pipe.jsonl"),
        "POSTTRAIN_OUT": str(tmp_path / "out"),
    }
    subprocess.run([sys.executable, "-I", "-S", "-c", program, str(tmp_path)], env=environment, check=True, cwd=os.sep)
    messages, _ = read_messages(tmp_path / "pipe.jsonl")
    assert isinstance(messages[0], pipe.Started)
    assert messages[0].world_size == 7
    assert isinstance(messages[1], pipe.OutputWritten)
    assert Path(messages[1].path).read_text() == "hello"


def test_a_child_started_by_hand_is_told_how_it_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTTRAIN_PIPE", raising=False)
    with pytest.raises(PipeError, match="POSTTRAIN_PIPE is not set; this program is started by `posttrain run`"):
        PipeWriter.from_environment()
