"""The child of an evaluation: `python -m executors.evaluation.worker`, started by a launcher.

Reads the model and the suite that the plan names and appends one line an item to `completions.jsonl`, a batch at a time:
`{"item": digest, "completion": text, "finish_reason": "stop" | "length"}`. It never sees a verifier.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from executors.evaluation.executor import COMPLETIONS, EvaluationConfig
from executors.evaluation.suites import ITEMS, MAX_ITEMS_BYTES, Item, parse_items
from executors.pipe import PipeWriter, output_directory, read_plan
from executors.rollout.base import Completion, Sampling
from executors.rollout.transformers import load_generator
from ledger.errors import InputError, PosttrainError

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")

Answers = Iterator[list[tuple[int, Completion]]]


def main() -> int:
    """0: every item was answered; otherwise a `failed` message says why."""
    plan, writer = read_plan(), PipeWriter.from_environment()
    writer.started(world_size=1, device=plan["resources"]["device"])
    try:
        work(plan, writer)
    except PosttrainError as error:
        return _give_up(writer, str(error), retryable=not isinstance(error, InputError), exit_code=error.exit_code)
    except (MemoryError, RuntimeError) as error:
        if not any(sign in str(error).lower() for sign in OUT_OF_MEMORY) and not isinstance(error, MemoryError):
            raise  # a bug: its traceback belongs into the log
        reason = f"out of memory with batch_size {plan['config']['batch_size']}; set a smaller one"
        return _give_up(writer, reason, retryable=False, exit_code=InputError.exit_code)
    except OSError as error:
        return _give_up(writer, f"{error.strerror}: {error.filename}", retryable=True, exit_code=4)
    return 0


def work(plan: dict[str, Any], writer: PipeWriter) -> None:
    """Answer the suite.

    Raises:
        InputError: the model cannot be loaded or has no room for a prompt, or the suite is no suite.
        MissingExtra: torch or transformers is not installed.
    """
    config = EvaluationConfig.model_validate(plan["config"])
    items = read_suite(Path(plan["paths"]["suite"]))
    generator = load_generator(Path(plan["paths"]["model"]), plan["resources"]["device"])
    sampling = Sampling(config.max_new_tokens, seed=plan["seed"])
    answers = generator.generate([item.prompt for item in items], sampling, batch_size=config.batch_size)
    started = time.monotonic()
    path = output_directory() / COMPLETIONS

    def report(done: int, tokens: int) -> None:
        elapsed = max(time.monotonic() - started, 1e-6)
        rates = {"items_per_s": round(done / elapsed, 3), "tokens_per_s": round(tokens / elapsed, 3)}
        writer.progress(step=done, total=len(items), metrics=rates)

    tokens, stopped = write_completions(path, items, answers, report)
    writer.output(name=COMPLETIONS, path=path)
    summary = {"items": len(items), "tokens": tokens, "stopped": stopped, "cut_off": len(items) - stopped}
    writer.completed(step=len(items), summary=summary)


def read_suite(directory: Path) -> list[Item]:
    """The items of a suite on disk.

    Raises:
        InputError: the file is missing, too large or damaged.
    """
    path = directory / ITEMS
    if not path.is_file():
        raise InputError(f"{directory} is no suite: it has no {ITEMS}")
    if path.stat().st_size > MAX_ITEMS_BYTES:
        raise InputError(f"{path} has {path.stat().st_size} bytes; a suite has at most {MAX_ITEMS_BYTES}")
    return parse_items(path.read_bytes(), ITEMS)


def write_completions(
    path: Path, items: list[Item], answers: Answers, report: Callable[[int, int], None]
) -> tuple[int, int]:
    """Write every batch as it comes, durable in the end; returns the tokens made and the answers that ended by themselves."""
    done = tokens = stopped = 0
    with path.open("w", encoding="utf-8") as stream:
        report(done, tokens)
        for batch in answers:
            for index, completion in batch:
                line = {
                    "item": items[index].digest,
                    "completion": completion.text,
                    "finish_reason": completion.finish_reason,
                }
                stream.write(json.dumps(line) + "\n")
                tokens += len(completion.token_ids)
                stopped += completion.finish_reason == "stop"
            stream.flush()
            done += len(batch)
            report(done, tokens)
        os.fsync(stream.fileno())
    _sync_directory(path.parent)
    return tokens, stopped


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _give_up(writer: PipeWriter, reason: str, *, retryable: bool, exit_code: int) -> int:
    sys.stderr.write(f"evaluation: {' '.join(reason.split())}\n")
    writer.failed(reason=reason, retryable=retryable)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
