"""Supervised fine-tuning under FSDP2: shard, restore, step, save."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from executors.checkpoints import random_state
from executors.checkpoints.model_files import ModelFiles
from executors.checkpoints.state import TrainingState, prepare_moments, restore, save
from executors.pipe import PipeWriter
from executors.rollout.chat import padding_token
from executors.trainers.config import Precision, SftConfig
from executors.trainers.data import Example, Loader, collate, encode_rows, micro_batches, read_rows
from executors.trainers.objectives import sft_loss
from executors.trainers.schedule import learning_rate
from executors.trainers.world import World
from ledger.errors import InputError

OWN_SHARD_PARAMETERS = 1_000_000
"""A block smaller than this is gathered with the whole model: one message costs more than its bytes."""


@dataclass(frozen=True, slots=True)
class Job:
    """What the plan says. `start` is the model that training begins with, `resume` a checkpoint to go on from."""

    config: SftConfig
    seed: int
    start: Path
    dataset: Path
    dataset_digest: str
    resume: Path | None
    out: Path

    @classmethod
    def from_plan(cls, plan: dict[str, Any], out: Path) -> Job:
        """Raises `InputError` when the plan lacks a dataset, or a base and a parent."""
        paths = plan["paths"]
        start = paths.get("parent") or paths.get("base")
        if start is None or paths.get("dataset") is None:
            raise InputError("the plan of a fine-tuning run needs a dataset, and a base or a parent")
        resume = plan.get("resume")
        return cls(
            config=SftConfig.model_validate(plan["config"]),
            seed=int(plan["seed"]),
            start=Path(start),
            dataset=Path(paths["dataset"]),
            dataset_digest=str(plan["identity"]["dataset"]),
            resume=Path(resume["path"]) if resume else None,
            out=out,
        )


def train(job: Job, world: World, pipe: PipeWriter | None) -> None:
    """Train from the start or a checkpoint to the last step. Only rank 0 has a `pipe`.

    Raises:
        InputError: dataset, model or checkpoint cannot be used, or the loss is not finite.
        InfrastructureError: the disk fails.
    """
    model_files = ModelFiles(job.start)
    tokenizer = model_files.load_tokenizer()
    examples = encode_rows(tokenizer, read_rows(job.dataset), job.config.max_length)
    trainer = Trainer(job, world, model_files, examples, padding_token(tokenizer))
    state = trainer.state
    random_state.seed_everything(job.seed * 1_000_003 + world.rank)
    if job.resume is not None:
        restore(state, world, job.resume)
    if pipe is not None:
        pipe.started(world_size=world.size, device=world.device.type)
    window = Window(state)
    while state.step < job.config.steps:
        trainer.step(window)
        last = state.step == job.config.steps
        to_save = last or state.step % job.config.checkpoint_every == 0
        if to_save or state.step % job.config.log_every == 0:
            metrics = window.close(world)
            if pipe is not None:
                pipe.progress(step=state.step, total=job.config.steps, metrics=metrics)
        if to_save:
            save(state, world, model_files, job.out, pipe)
            window.begin()  # the time that a checkpoint takes says nothing about training
    if pipe is not None:
        pipe.completed(
            step=state.step, summary=window.last | {"samples": state.samples_seen, "tokens": state.tokens_seen}
        )


class Trainer:
    """One rank's share of an optimizer step."""

    def __init__(self, job: Job, world: World, files: ModelFiles, examples: Sequence[Example], pad: int) -> None:
        self.config, self.world, self.pad = job.config, world, pad
        model = files.load_model(torch.float32)
        _check_context(model, job.config, examples)
        if job.config.activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self.model = shard(model.train(), world, job.config.precision, job.config.reshard_after_forward)
        loader = Loader(examples, batch_size=job.config.batch_size, seed=job.seed, dataset=job.dataset_digest)
        self.loader = loader
        optimizer = make_optimizer(self.model, job.config)
        prepare_moments(optimizer)
        schedule = job.config.model_dump(include={"learning_rate", "warmup_steps", "schedule", "final_ratio", "steps"})
        self.state = TrainingState(self.model, optimizer, loader, schedule)

    def step(self, window: Window) -> None:
        """Take one optimizer step on the next global batch."""
        config, state = self.config, self.state
        batch = self.loader.next_batch()
        targets = sum(example.response_length for example in batch)
        blocks = list(micro_batches(batch, self.world.rank, self.world.size, config.micro_batch_size))
        total = torch.zeros((), device=self.world.device)
        for number, examples in enumerate(blocks):
            self.model.set_requires_gradient_sync(number == len(blocks) - 1)
            loss = self._loss(examples)
            torch.autograd.backward(loss / targets)  # the one division; ranks and micro-batches are only ever summed
            window.loss = window.loss + loss.detach()
        rate = learning_rate(config, state.step)
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm or math.inf)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step += 1
        state.samples_seen += len(batch)
        state.tokens_seen += sum(len(example.tokens) for example in batch)
        window.add(total, targets, rate, norm)

    def _loss(self, examples: Sequence[Example]) -> torch.Tensor:
        block = collate(examples, self.pad)
        tokens, labels = block.tokens.to(self.world.device), block.labels.to(self.world.device)
        kept = labels.shape[1]  # logits of the prompt are never needed
        return sft_loss(self.model(input_ids=tokens, use_cache=False, logits_to_keep=kept).logits, labels)


class Window:
    """What happened since the last progress message. `last` holds the metrics of the window before."""

    def __init__(self, state: TrainingState) -> None:
        self.last: dict[str, float] = {}
        self._state = state
        self._rate = 0.0
        self._norm: Any = None
        self.begin()

    def begin(self) -> None:
        """Forget what was added; the clock starts now."""
        self.loss: torch.Tensor = torch.zeros(())
        self._targets = 0
        self._tokens = self._state.tokens_seen
        self._began_at_s = time.perf_counter()

    def add(self, loss: torch.Tensor, targets: int, rate: float, norm: torch.Tensor) -> None:
        """After a step that learnt `targets` tokens; `loss` is this rank's sum over its share of them."""
        self.loss = self.loss.to(loss.device) + loss
        self._targets += targets
        self._rate, self._norm = rate, norm

    def close(self, world: World) -> dict[str, float]:
        """The window's metrics, the same on every rank but for the speed; a new window begins.

        Raises:
            InputError: loss or gradient is not finite; what would follow is worthless.
        """
        loss = world.sum(self.loss) / self._targets
        norm = float(self._norm.full_tensor() if hasattr(self._norm, "full_tensor") else self._norm)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise InputError(
                f"loss {loss} and gradient norm {norm} at step {self._state.step} are not finite; lower config.learning_rate"
            )
        seconds = max(1e-9, time.perf_counter() - self._began_at_s)
        speed = (self._state.tokens_seen - self._tokens) / seconds
        self.last = {"loss": loss, "grad_norm": norm, "learning_rate": self._rate, "tokens_per_second": speed}
        self.begin()
        return self.last


def shard(model: Any, world: World, precision: Precision, reshard: bool) -> Any:
    """`model` under FSDP2, its large blocks each on their own. Gradients of the ranks are summed, not averaged.

    fp32 weights are sharded; `bf16` gathers and computes in bfloat16 and reduces gradients in fp32.
    """
    mesh = init_device_mesh(world.device.type, (world.size,))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if precision == "bf16" else None, reduce_dtype=torch.float32
    )
    model.to(world.device)
    names = set(getattr(model, "_no_split_modules", None) or ())
    for block in [module for module in model.modules() if type(module).__name__ in names]:
        if sum(parameter.numel() for parameter in block.parameters()) >= OWN_SHARD_PARAMETERS:
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    sharded: Any = fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    for module in sharded.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
    return sharded


def make_optimizer(model: Any, config: SftConfig) -> torch.optim.AdamW:
    """AdamW; matrices decay, norms and biases do not."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [
        {"params": own, "weight_decay": decay}
        for own, decay in ((matrices, config.weight_decay), (vectors, 0.0))
        if own
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True)


def _check_context(model: Any, config: SftConfig, examples: Sequence[Example]) -> None:
    context = getattr(model.config, "max_position_embeddings", None)
    longest = max(len(example.tokens) for example in examples)
    if context is not None and longest > context:
        raise InputError(f"the longest row has {longest} tokens and the model a context of {context}; remove such rows")
