"""`fsdp`: supervised fine-tuning with PyTorch's FSDP2, on CPU processes and on GPUs with the same code."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import ClassVar

from executors.base import Capabilities, LaunchPlan, ProcessExecutor
from executors.plans import Resources, RunSpec
from executors.trainers.config import SftConfig
from ledger.errors import InputError


class FsdpExecutor(ProcessExecutor):
    """Needs a base or parent and a dataset; leaves resumable checkpoints, each with a loadable model."""

    name: ClassVar[str] = "fsdp"
    config_model: ClassVar[type[SftConfig]] = SftConfig
    needs: ClassVar[tuple[str, ...]] = ("torch", "transformers", "safetensors", "numpy")
    extra: ClassVar[str] = "train"

    def capabilities(self) -> Capabilities:
        return Capabilities(frozenset({"sft"}), frozenset({"cpu", "cuda"}), max_processes=64, resume="exact")

    def command(self, config: SftConfig, resources: Resources) -> tuple[str, ...]:
        return (sys.executable, "-m", "executors.trainers.worker")

    def environment(self, config: SftConfig, resources: Resources) -> Mapping[str, str]:
        threads = str(config.threads)
        own = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        if resources.device == "cuda":
            own["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS is deterministic only with it
        return own

    def plan(self, spec: RunSpec, resources: Resources) -> LaunchPlan:
        plan = super().plan(spec, resources)
        if spec.dataset is None:
            raise InputError(f"stage {spec.stage}: executor fsdp trains on a dataset; name one (dataset: NAME)")
        if spec.base is None and spec.parent is None:
            raise InputError(f"stage {spec.stage}: executor fsdp begins with a model; name a base or a parent")
        batch = int(plan.config["batch_size"])
        if batch % resources.processes:
            raise InputError(
                f"config.batch_size: {batch} rows cannot be dealt to {resources.processes} processes evenly"
            )
        return plan
