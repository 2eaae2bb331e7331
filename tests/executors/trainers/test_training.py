"""Whole trainings: exact resume, independence of how a batch is split, and what stops one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from executors.base import CHECKPOINT_INDEX
from executors.pipe import CheckpointWritten, Completed, Progress
from executors.trainers.fsdp import FsdpExecutor
from ledger.digest import sha256_digest
from tests.executors.trainers.runs import Inputs, Zygote, make_spec, place, write_dataset


@pytest.mark.parametrize(("processes", "precision"), [(1, "fp32"), (2, "fp32"), (1, "bf16"), (2, "bf16")])
def test_a_killed_and_resumed_run_ends_with_the_bytes_of_an_uninterrupted_one(
    zygote: Zygote, inputs: Inputs, tmp_path: Path, processes: int, precision: str
) -> None:
    spec = make_spec(processes, precision=precision)
    whole = zygote.complete(tmp_path / "whole", spec, inputs.paths())
    killed = zygote.start(place(tmp_path / "killed", spec, inputs.paths()), pause_at=4).kill_after_checkpoint()
    resumed = zygote.complete(tmp_path / "resumed", spec, inputs.paths(), killed.checkpoint(2))
    assert [message.step for message in resumed.messages if isinstance(message, Progress)] == [3, 4, 5, 6]
    assert killed.losses()[:2] + resumed.losses() == whole.losses()
    assert resumed.digests(6) == whole.digests(6)  # every file: weights, moments, generators, loader
    assert whole.digests(6)["model/model.safetensors"] != whole.digests(4)["model/model.safetensors"]


@pytest.mark.parametrize("part", ["rng", "loader", "optimizer"])
def test_each_part_of_a_checkpoint_decides_how_the_run_goes_on(
    zygote: Zygote, inputs: Inputs, tmp_path: Path, part: str
) -> None:
    """With another step's generators, loader or moments the end is another: the test above would see a part left out."""
    spec = make_spec(steps=4)
    whole = zygote.complete(tmp_path / "whole", spec, inputs.paths())
    place_of = {
        "rng": "rng/rank-00000.json",
        "loader": "loader.json",
        "optimizer": "shards/rank-00000-optimizer.safetensors",
    }
    other = zygote.complete(tmp_path / "other", make_spec(steps=4, seed=2 if part == "rng" else 1), inputs.paths())
    mixed = Path(shutil.copytree(whole.checkpoint(2).path, tmp_path / "mixed"))
    shutil.copy(Path(other.checkpoint(2 if part == "rng" else 4).path) / place_of[part], mixed / place_of[part])
    index = json.loads((mixed / CHECKPOINT_INDEX).read_text())
    index["files"][place_of[part]] = (mixed / place_of[part]).stat().st_size
    (mixed / CHECKPOINT_INDEX).write_text(json.dumps(index))
    point = CheckpointWritten(**{**vars(whole.checkpoint(2)), "path": str(mixed)})
    resumed = zygote.complete(tmp_path / "resumed", spec, inputs.paths(), point)
    assert resumed.digests(4)["model/model.safetensors"] != whole.digests(4)["model/model.safetensors"]


def test_the_gradient_does_not_depend_on_how_a_batch_is_split(
    zygote: Zygote, still_inputs: Inputs, tmp_path: Path
) -> None:
    seen = []
    for processes, rows in ((1, 8), (1, 3), (1, 1), (2, 2)):
        spec = make_spec(processes, steps=3, micro_batch_size=rows)
        done = zygote.complete(tmp_path / f"{processes}-{rows}", spec, still_inputs.paths())
        progress = [message.metrics for message in done.messages if isinstance(message, Progress)]
        seen.append([(metrics["loss"], metrics["grad_norm"]) for metrics in progress])
    for other in seen[1:]:
        for (loss, norm), (first_loss, first_norm) in zip(other, seen[0], strict=True):
            assert loss == pytest.approx(first_loss, rel=1e-5)
            assert norm == pytest.approx(first_norm, rel=1e-4)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_another_number_of_processes_goes_on_from_the_same_weights(
    zygote: Zygote, still_inputs: Inputs, tmp_path: Path, before: int, after: int
) -> None:
    first = zygote.complete(tmp_path / "first", make_spec(before), still_inputs.paths())
    second = zygote.complete(tmp_path / "second", make_spec(after), still_inputs.paths(), first.checkpoint(2))
    assert second.losses() == pytest.approx(first.losses()[2:], rel=1e-4)
    assert second.checkpoint(4).world_size == after
    assert second.checkpoint(4).samples_seen == first.checkpoint(4).samples_seen == 32


def test_the_loss_falls_and_the_model_is_loadable(zygote: Zygote, still_inputs: Inputs, tmp_path: Path) -> None:
    done = zygote.complete(tmp_path / "run", make_spec(2, steps=30, checkpoint_every=30), still_inputs.paths())
    losses = done.losses()
    assert losses[-1] < 0.6 * losses[0]
    from executors.rollout.base import Sampling
    from executors.rollout.transformers import load_generator

    model = Path(done.checkpoint(30).path) / "model"
    assert {path.name for path in model.iterdir()} == {path.name for path in still_inputs.base.iterdir()}
    ((_, completion),) = next(load_generator(model).generate(["4+4="], Sampling(max_new_tokens=4)))
    assert set(completion.text) & set("0123456789!")


def test_training_goes_on_over_the_end_of_an_epoch(zygote: Zygote, still_inputs: Inputs, tmp_path: Path) -> None:
    """21 rows, 8 a step: the third step reaches into the second epoch."""
    done = zygote.complete(tmp_path / "run", make_spec(steps=4), still_inputs.paths())
    loader = json.loads((Path(done.checkpoint(4).path) / "loader.json").read_text())
    assert (loader["epoch"], loader["position"]) == (1, 32 - 21)
    assert isinstance(done.last, Completed)
    assert done.last.summary["samples"] == 32


def test_two_runs_at_once_do_not_meet(zygote: Zygote, still_inputs: Inputs, tmp_path: Path) -> None:
    spec = make_spec(2, steps=4)
    started = [zygote.start(place(tmp_path / name, spec, still_inputs.paths())) for name in ("one", "two")]
    first, second = (ranks.wait() for ranks in started)
    assert first.digests(4) == second.digests(4)


def no_rows(paths: dict[str, Path], place: Path) -> None:
    paths["dataset"] = write_dataset(place, [])


def long_row(paths: dict[str, Path], place: Path) -> None:
    paths["dataset"] = write_dataset(place, [("1+1=", "2"), ("1" * 40, "2")])


def row_beyond_context(paths: dict[str, Path], place: Path) -> None:
    paths["dataset"] = write_dataset(place, [("1+1=", "2"), ("1" * 70, "2")])


def torn_row(paths: dict[str, Path], place: Path) -> None:
    paths["dataset"] = write_dataset(place, [("1+1=", "2")])
    with (place / "rows.jsonl").open("a") as rows:
        rows.write('{"prompt": "1+')


def no_weights(paths: dict[str, Path], place: Path) -> None:
    paths["base"] = Path(shutil.copytree(paths["base"], place))
    (place / "model.safetensors").unlink()


def remote_code(paths: dict[str, Path], place: Path) -> None:
    paths["base"] = Path(shutil.copytree(paths["base"], place))
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModelForCausalLM": "evil.Model"}}))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (no_rows, ["rows.jsonl has no rows"]),
        (long_row, ["row 2 has", "max_length 32", "raise max_length"]),
        (row_beyond_context, ["has 75 tokens", "context of 64"]),
        (torn_row, ["rows.jsonl, line 2", "not JSON"]),
        (no_weights, ["no .safetensors file"]),
        (remote_code, ["auto_map"]),
    ],
)
def test_bad_input_ends_in_one_readable_message(
    zygote: Zygote, inputs: Inputs, tmp_path: Path, spoil: Callable[[dict[str, Path], Path], None], words: list[str]
) -> None:
    paths = inputs.paths()
    spoil(paths, tmp_path / "spoilt")
    setting = {"max_length": 128} if spoil is row_beyond_context else {}
    failed = zygote.fail(tmp_path / "run", make_spec(2, **setting), paths)
    assert not failed.retryable
    for word in words:
        assert word in failed.reason
    assert "\n" not in failed.reason


def test_a_loss_that_is_not_finite_stops_the_run(zygote: Zygote, still_inputs: Inputs, tmp_path: Path) -> None:
    spec = make_spec(learning_rate=10, max_grad_norm=0, warmup_steps=0, schedule="constant", steps=2000, checkpoint_every=2000,
                     precision="bf16", weight_decay=1)  # fmt: skip
    ranks = zygote.start(place(tmp_path / "run", spec, still_inputs.paths()))
    done = ranks.wait()
    if isinstance(done.last, Completed):
        pytest.skip("this machine's arithmetic survived a learning rate of 10")
    assert "not finite" in done.words() and "lower config.learning_rate" in done.words()


def test_another_dataset_makes_the_loader_position_invalid(zygote: Zygote, inputs: Inputs, tmp_path: Path) -> None:
    first = zygote.complete(tmp_path / "first", make_spec(steps=4), inputs.paths())
    other = make_spec(steps=4, dataset=sha256_digest(b"another dataset"))
    failed = zygote.fail(tmp_path / "second", other, inputs.paths(), first.checkpoint(2))
    assert "loader position belongs to dataset" in failed.reason
    assert not failed.retryable


def test_another_schedule_is_refused(zygote: Zygote, inputs: Inputs, tmp_path: Path) -> None:
    first = zygote.complete(tmp_path / "first", make_spec(steps=4), inputs.paths())
    failed = zygote.fail(tmp_path / "second", make_spec(steps=5), inputs.paths(), first.checkpoint(2))
    assert "schedule" in failed.reason


def test_a_plan_names_what_is_missing() -> None:
    executor, spec = FsdpExecutor(), make_spec(2)
    for change, words in (
        ({"dataset": None}, "dataset"),
        ({"base": None}, "base or a parent"),
        ({"config": {**spec.config, "batch_size": 7}}, "batch_size"),
        ({"config": {**spec.config, "learning_rate": 0}}, "learning_rate"),
        ({"config": {**spec.config, "warmup_steps": 6}}, "warmup_steps"),
    ):
        with pytest.raises(Exception, match=words):
            executor.plan(spec.model_copy(update=change), spec.resources)
