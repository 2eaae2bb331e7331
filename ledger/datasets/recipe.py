"""What people write: the recipe of a dataset version, and the file of a held-out suite."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from ledger.canonical import JSON, decimal_string
from ledger.events.base import Name
from ledger.yamlfile import load_yaml

Line = Annotated[str, StringConstraints(min_length=1, max_length=2000, strip_whitespace=True)]
FieldName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
FilePath = Annotated[str, StringConstraints(min_length=1, max_length=4000)]


class SourceFile(BaseModel):
    """A source of a recipe: JSONL, or JSONL under gzip when its name ends in `.gz`. `path` is relative to the recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    path: FilePath
    licence: Line
    generated_by: Line | None = None
    prompt_field: FieldName = "prompt"
    response_field: FieldName = "response"


class Recipe(BaseModel):
    """The build file. A source that would lose more than `removal_cap` of its rows to deduplication stops the build."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    format: Literal["prompt-response"] = "prompt-response"
    sources: tuple[SourceFile, ...] = Field(min_length=1)
    removal_cap: Decimal = Field(default=Decimal("0.9"), gt=0, le=1, decimal_places=6)

    @field_validator("sources")
    @classmethod
    def _named_once(cls, sources: tuple[SourceFile, ...]) -> tuple[SourceFile, ...]:
        names = [source.name for source in sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two sources are called {twice[0]!r}; a row is traced to its source by the name")
        return sources

    def to_json(self) -> dict[str, JSON]:
        """The recipe as it is stored and hashed."""
        return {**self.model_dump(mode="json"), "removal_cap": decimal_string(self.removal_cap)}


class SuiteFile(BaseModel):
    """A suite as it is written; `items` is a JSONL file of questions with answers, relative to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    items: FilePath
    verifier: Name
    verifier_config: dict[str, str] = {}
    licence: Line
    source: Line
    prompt_field: FieldName = "prompt"
    answer_field: FieldName = "answer"


def load_recipe(path: Path) -> Recipe:
    """Raises InputError with file, line and key."""
    return load_yaml(path, Recipe)


def load_suite_file(path: Path) -> SuiteFile:
    """Raises InputError with file, line and key."""
    return load_yaml(path, SuiteFile)
