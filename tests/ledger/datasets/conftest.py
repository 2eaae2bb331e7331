"""A project directory with a ledger: files are written by name, suites and recipes take their defaults."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from ledger.datasets import Registered, Sealed, build_dataset, register_suite_file
from ledger.home import Ledger

SHARED_DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"


class Project:
    def __init__(self, place: Path) -> None:
        self.place = place
        self.ledger = Ledger.open(place / "home", actor="tester", create=True)

    def rows(self, name: str, rows: Iterable[dict[str, object]]) -> Path:
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        return self.file(name, gzip.compress(data, mtime=0) if name.endswith(".gz") else data)

    def file(self, name: str, content: str | bytes) -> Path:
        path = self.place / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def suite(self, name: str, *prompts: str, **settings: str) -> Registered:
        self.rows(f"{name}.jsonl", ({"prompt": prompt, "answer": "7"} for prompt in prompts))
        more = "".join(f"{key}: {value}\n" for key, value in settings.items())
        text = f"name: {name}\nitems: {name}.jsonl\nverifier: exact-answer\nlicence: MIT\nsource: here\n{more}"
        return register_suite_file(self.ledger, self.file(f"{name}.yaml", text))

    def recipe(self, *sources: str, name: str = "train", more: str = "") -> Path:
        lines = "".join(
            f"- {{name: {Path(source).stem.split('.')[0]}, path: {source}, licence: MIT}}\n" for source in sources
        )
        return self.file("recipe.yaml", f"name: {name}\n{more}sources:\n{lines}")

    def build(self, *prompts: str, name: str = "train") -> Sealed:
        self.rows("source.jsonl", ({"prompt": prompt, "response": "7"} for prompt in prompts))
        return build_dataset(self.ledger, self.recipe("source.jsonl", name=name))

    def types(self) -> list[str]:
        return [event.type for event in self.ledger.log.read()]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def shared():
    """Reads a file of the data that lie beside the repository."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the shared data are not beside the repository")

    def read(name: str) -> list[dict[str, str]]:
        with gzip.open(SHARED_DATA / name, "rt", encoding="utf-8") as stream:
            return [json.loads(line) for line in stream]

    return read
