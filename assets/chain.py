"""The chain file: what becomes of a base model on its way to serving, with paths relative to the file.

name: demo
base: {name: tiny, path: base, source: "generated:assets.demo.base", licence: Apache-2.0}
suite: suite.yaml
dataset: dataset.yaml
stage: production
gate: {confidence: "0.95", min_gain: "0", min_items: 500}
candidates:
  - {name: sft, run: sft.yaml}
budget: {stage: demo, cap: "5"}
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ledger.errors import InputError
from ledger.events.base import DecimalText, Name
from ledger.yamlfile import load_yaml


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BaseSource(_Part):
    """A directory in Hugging Face layout, and what is said of it."""

    name: Name
    path: str
    source: str | None = None
    licence: str | None = None


class GateSettings(_Part):
    """The policy that the chain sets for its stage."""

    confidence: DecimalText = "0.95"
    min_gain: DecimalText = "0"
    min_items: int = Field(default=100, ge=2)


class Candidate(_Part):
    """A run whose model may be promoted. `repeat` counts further runs of the same specification; `after` is the candidate
    whose promotion has to come first, for a run that goes on from what the stage serves."""

    name: Name
    run: str
    after: Name | None = None
    repeat: int = Field(default=0, ge=0)


class BudgetSettings(_Part):
    stage: Name
    cap: DecimalText


class ChainFile(_Part):
    """The file as it is written. `port` is where the gateway listens when it has to be started; 0 takes any free one."""

    name: Name
    base: BaseSource
    suite: str
    dataset: str
    stage: Name = "production"
    gate: GateSettings = GateSettings()
    candidates: list[Candidate] = Field(min_length=1)
    budget: BudgetSettings | None = None
    port: int | None = Field(default=None, ge=0, le=65535)


class Chain:
    """A chain file with its paths resolved."""

    def __init__(self, path: Path) -> None:
        """Read and check the file.

        Raises:
            InputError: it is missing or malformed, or two candidates have one name.
        """
        self.path = path.resolve()
        self.file = load_yaml(path, ChainFile)
        names = [candidate.name for candidate in self.file.candidates]
        if len(set(names)) != len(names):
            raise InputError(f"{path}: candidates: two have one name among {', '.join(names)}")

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def stage(self) -> str:
        return self.file.stage

    def at(self, relative: str) -> Path:
        """A path of the file."""
        return self.path.parent / relative

    def candidate(self, name: str) -> Candidate:
        found = next((candidate for candidate in self.file.candidates if candidate.name == name), None)
        if found is None:
            raise InputError(f"{self.path}: no candidate {name!r}")
        return found
