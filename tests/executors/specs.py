"""Specifications of fake runs."""

from __future__ import annotations

from typing import Any

from executors.fake import FakeConfig
from executors.plans import Resources, RunSpec, canonical_config
from ledger.digest import sha256_digest
from ledger.events import CodeRevision

CODE = CodeRevision(commit="tree", diff=sha256_digest(b"code"), dirty=False)
ENVIRONMENT = sha256_digest(b"environment")


def fake_spec(*, seed: int = 1, **config: Any) -> RunSpec:
    """A run of the fake executor without inputs."""
    return RunSpec(
        stage="sft",
        kind="fake",
        executor="fake",
        config=canonical_config(FakeConfig.model_validate(config)),
        seed=seed,
        resources=Resources(device="cpu"),
        code=CODE,
        environment=ENVIRONMENT,
    )
