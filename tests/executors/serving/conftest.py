"""Two tiny models, made once; ledgers in which they are promoted; and no process left behind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from executors.serving import deploy as deploying
from executors.serving.gateways import end_gateway
from executors.serving.places import Places
from ledger.home import Ledger
from tests.executors.serving import fake_engine
from tests.executors.serving.chain import open_ledger
from tests.executors.serving.tiny import save_tiny_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of two models that differ in their weights only."""
    root = tmp_path_factory.mktemp("models")
    return {name: save_tiny_model(root / name, seed) for seed, name in enumerate(("first", "second"), 1)}


@pytest.fixture
def ledger(home: Path) -> Iterator[Ledger]:
    """An empty ledger with a suite; whatever was served from it ends with the test."""
    yield open_ledger(home)
    places = Places(home.resolve())
    end_gateway(places)
    for place in places.engines().values():
        place.end(1.0)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Deploy fake engines, which start in a moment; call it again to give the next ones other options."""

    def use(*options: str) -> None:
        monkeypatch.setattr(deploying, "ENGINE_ARGV", fake_argv(*options))

    use()
    return use


def fake_argv(*options: str) -> tuple[str, ...]:
    return (sys.executable, str(Path(fake_engine.__file__)), *options)
