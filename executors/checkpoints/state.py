"""What a checkpoint holds, as one object, and how it gets to the disk and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.tensor import DTensor

from executors.base import CHECKPOINT_INDEX
from executors.checkpoints import layout, random_state
from executors.checkpoints.files import sync_directory, write_json
from executors.checkpoints.model_files import ModelFiles, export_order, write_model
from executors.checkpoints.shards import local_part, read_shards, write_shard
from executors.pipe import FileRecord, PipeWriter
from ledger.errors import InfrastructureError, InputError


class Collective(Protocol):
    """This process among the ranks."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def gather(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, in order; every rank waits for every other."""


class Resumable(Protocol):
    """A loader: where it stands, as JSON."""

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> object: ...


@dataclass(slots=True)
class TrainingState:
    """All that the rest of the training depends on, but for the random generators, which belong to the process.

    `schedule` holds the settings of the learning rate, which is a function of them and `step`.
    """

    model: Any  # FSDP2's module; torch does not type what it adds
    optimizer: torch.optim.Optimizer
    loader: Resumable
    schedule: Mapping[str, Any]
    step: int = 0
    samples_seen: int = 0
    tokens_seen: int = 0

    def parameters(self) -> dict[str, torch.Tensor]:
        """Sharded fp32 weights by name; tied ones once."""
        return dict(self.model.named_parameters())

    def moments(self) -> dict[str, torch.Tensor]:
        """The optimizer's tensors as `PARAMETER.KEY`."""
        found: dict[str, torch.Tensor] = {}
        for name, parameter in self.parameters().items():
            for key, value in self.optimizer.state[parameter].items():
                found[f"{name}.{key}"] = value
        return found


def prepare_moments(optimizer: torch.optim.Optimizer) -> None:
    """Give AdamW the state that its first step would make, so that it can be saved and restored before one."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def save(state: TrainingState, world: Collective, model: ModelFiles, parent: Path, pipe: PipeWriter | None) -> Path:
    """Write a checkpoint into a fresh directory of `parent`, and announce it on rank 0's pipe when it is durable.

    Every rank calls this between two steps. Nothing in the directory depends on time or place: an uninterrupted run and a
    resumed one write the same bytes.

    Raises:
        InfrastructureError: the directory is there already, or the disk fails.
    """
    path = parent / f"step-{state.step:06d}"
    partial = path.with_name(f"{path.name}.partial")
    if world.rank == 0:
        _make_directories(partial, path)
    world.gather(None)  # the directories are there
    own = _write_own(state, world, partial)
    exported = _export(state, world.rank, model, partial)
    records: dict[str, FileRecord] = dict(exported)
    for listed in world.gather({name: asdict(record) for name, record in own.items()}):
        records.update({name: FileRecord(**record) for name, record in listed.items()})
    if world.rank == 0:
        records |= _write_shared(state, partial)
        records |= _write_index(state, world.size, partial, records)
        _publish(partial, path)
    if pipe is not None:
        pipe.checkpoint(
            step=state.step,
            path=path,
            files=records,
            resume="exact",
            world_size=world.size,
            samples_seen=state.samples_seen,
            model_files=sorted(exported),
        )
    return path


def restore(state: TrainingState, world: Collective, directory: Path) -> None:
    """Put `state` and this process's generators where `directory` left them. Call it last before the first step.

    With as many ranks as wrote it the trajectory goes on bit for bit. With another number weights, moments and positions are
    the same, the order of sums is not, and ranks that did not exist keep the generators that they were seeded with.

    Raises:
        InputError: the checkpoint is incomplete, malformed, or of another model, dataset or schedule.
    """
    index = layout.Index.read(directory)
    places = {"rank": world.rank, "size": world.size, "written_by": index.world_size}
    with torch.no_grad():
        read_shards(directory, "model", state.parameters(), **places)
        read_shards(directory, "optimizer", state.moments(), **places)
    schedule = layout.read_json(directory / "scheduler.json")
    if schedule != {**state.schedule, "step": index.step}:
        raise InputError(f"checkpoint {directory} has the schedule {schedule}; this run has {dict(state.schedule)}")
    trainer = layout.read_json(directory / "trainer.json")
    counts: list[Any] = [trainer.get("step"), trainer.get("samples_seen"), trainer.get("tokens_seen")]
    if not all(type(count) is int and count >= 0 for count in counts) or counts[:2] != [index.step, index.samples_seen]:
        raise InputError(f"checkpoint {directory}: trainer.json {counts} disagrees with {CHECKPOINT_INDEX}")
    state.step, state.samples_seen, state.tokens_seen = counts[0], counts[1], counts[2]
    state.loader.restore(layout.read_json(directory / "loader.json"))
    if world.rank < index.world_size:
        random_state.restore(layout.read_json(directory / layout.random_state_name(world.rank)), world.device)


def _make_directories(partial: Path, path: Path) -> None:
    if path.exists():
        raise InfrastructureError(f"{path} is there already; a checkpoint is never written over another one")
    try:
        for name in ("shards", "rng"):
            (partial / name).mkdir(parents=True)
    except OSError as error:
        raise InfrastructureError(f"checkpoint directory {partial} cannot be made: {error.strerror}") from error


def _write_own(state: TrainingState, world: Collective, partial: Path) -> dict[str, FileRecord]:
    """This rank's files: weights, moments, what they are, and its generators."""
    rank = world.rank
    weights, pieces = write_shard(partial, rank, "model", state.parameters())
    moments, moment_pieces = write_shard(partial, rank, "optimizer", state.moments())
    plan = layout.plan_document({"model": pieces, "optimizer": moment_pieces})
    plan_name, random_name = layout.shard_plan_name(rank), layout.random_state_name(rank)
    return {
        layout.shard_name(rank, "model"): weights,
        layout.shard_name(rank, "optimizer"): moments,
        plan_name: write_json(partial / plan_name, plan, "trainer"),
        random_name: write_json(partial / random_name, random_state.capture(world.device), "rng"),
    }


def _export(state: TrainingState, rank: int, model: ModelFiles, partial: Path) -> dict[str, FileRecord]:
    """The full weights, assembled tensor by tensor; every rank takes part and rank 0 writes."""
    parameters = state.parameters()
    shapes = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    order = export_order(model, shapes)
    full = (_full(parameters[name]) for name in order)
    if rank == 0:
        return write_model(partial, model, {name: shapes[name] for name in order}, full)
    for _ in full:
        pass
    return {}


def _full(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return tensor.full_tensor() if isinstance(tensor, DTensor) else local_part(tensor)[0]


def _write_shared(state: TrainingState, partial: Path) -> dict[str, FileRecord]:
    trainer = {"step": state.step, "samples_seen": state.samples_seen, "tokens_seen": state.tokens_seen}
    schedule = {**state.schedule, "step": state.step}
    return {
        "scheduler.json": write_json(partial / "scheduler.json", schedule, "scheduler"),
        "loader.json": write_json(partial / "loader.json", state.loader.state(), "loader"),
        "trainer.json": write_json(partial / "trainer.json", trainer, "trainer"),
    }


def _write_index(
    state: TrainingState, size: int, partial: Path, records: Mapping[str, FileRecord]
) -> dict[str, FileRecord]:
    sizes = {name: records[name].size_bytes for name in sorted(records)}
    index = layout.Index(state.step, "exact", size, state.samples_seen, sizes)
    return {CHECKPOINT_INDEX: write_json(partial / CHECKPOINT_INDEX, index.document(), "trainer")}


def _publish(partial: Path, path: Path) -> None:
    """Make every directory entry durable, then give the checkpoint its name."""
    for directory in (*(entry for entry in partial.rglob("*") if entry.is_dir()), partial):
        sync_directory(directory)
    partial.rename(path)
    sync_directory(path.parent)
