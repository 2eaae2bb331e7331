"""The stage file: what somebody asks for by name, and how it becomes a specification that pins digests.

stage: sft
kind: sft
executor: fsdp
base: demo-base              # or parent: RUN, NAME@VERSION, a stage: the model that training goes on from
dataset: arithmetic
seed: 1
resources: {processes: 2, device: cpu}
config:                      # the executor's own settings
  steps: 400
  learning_rate: 3e-3
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from executors.base import configure
from executors.environment import code_revision, environment_lock, own_code
from executors.plans import Resources, RunSpec, canonical_config
from executors.registry import load_executor
from ledger.events import BaseRevisionPinned, CodeRevision
from ledger.events.base import Name
from ledger.home import Ledger
from ledger.references import resolve_base, resolve_dataset, resolve_model
from ledger.yamlfile import load_yaml


class Stage(BaseModel):
    """A stage as it was written. `config` belongs to the executor; `budget_stage` is who pays, the stage itself if unset."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: Name
    kind: Name
    executor: Name
    base: str | None = None
    parent: str | None = None
    dataset: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    resources: Resources = Resources()
    config: dict[str, Any]
    budget_stage: Name | None = None

    @model_validator(mode="after")
    def _one_beginning(self) -> Self:
        if (self.base is None) == (self.parent is None):
            raise ValueError("name either a base or a parent: the model that the run begins with")
        return self

    @property
    def payer(self) -> str:
        return self.budget_stage or self.stage


def load_stage(path: Path) -> Stage:
    """The stage in a YAML file. The executor's settings are checked as well, so a wrong key has its line.

    Raises:
        InputError: `FILE:LINE: KEY: what is wrong`, or an executor that is not known.
    """
    stage = load_yaml(path, Stage)
    settings = load_executor(stage.executor).config_model
    load_yaml(path, create_model("StageFile", __base__=Stage, config=(settings, ...)))
    return stage


def resolve_stage(ledger: Ledger, stage: Stage) -> RunSpec:
    """The specification: every name as a digest, every setting with its value, this code and this environment.

    Stores the environment lock as an artifact.

    Raises:
        NotFound: a name that the ledger does not know.
        InputError: settings that the executor refuses.
    """
    executor = load_executor(stage.executor)
    config = canonical_config(configure(executor, stage.config))
    base = resolve_base(ledger, stage.base) if stage.base is not None else None
    parent = resolve_model(ledger, stage.parent) if stage.parent is not None else None
    tokenizer, chat_template = _tokenizer_of(ledger, base or parent or "")
    code, environment = current_code(ledger)
    return RunSpec(
        stage=stage.stage,
        kind=stage.kind,
        executor=stage.executor,
        config=config,
        seed=stage.seed,
        resources=stage.resources.resolved(),
        base=base,
        parent=parent,
        dataset=resolve_dataset(ledger, stage.dataset) if stage.dataset is not None else None,
        tokenizer=tokenizer,
        chat_template=chat_template,
        code=code,
        environment=environment,
    )


def current_code(ledger: Ledger) -> tuple[CodeRevision, str]:
    """The revision of this project's code, and the digest of the environment lock, which is stored as an artifact."""
    return code_revision(own_code()), ledger.artifacts.put_json(_lock()).digest


@cache
def _lock() -> dict[str, Any]:
    """Once a process: what is imported does not change while it runs."""
    return environment_lock()


def _tokenizer_of(ledger: Ledger, model: str) -> tuple[str | None, str | None]:
    """Digests of a model's tokenizer and chat template; `None` for what it has none of."""
    for event in ledger.log.made(f"base:{model}"):
        if isinstance(event.payload, BaseRevisionPinned):
            return event.payload.tokenizer, event.payload.chat_template
    files = ledger.artifacts.manifest(model).files  # a file's digest is that of its text
    tokenizer, template = (files.get(name) for name in ("tokenizer.json", "chat_template.jinja"))
    return tokenizer.digest if tokenizer else None, template.digest if template else None
