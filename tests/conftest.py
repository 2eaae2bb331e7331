"""What every test gets: a home of its own, one thread a process, and reproducible properties."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Deadlines measure the machine and not the code; a failing example is printed so that it can be repeated anywhere.
settings.register_profile("posttrain", deadline=None, print_blob=True)
settings.load_profile("posttrain")

# Tiny models: threads that spin for each other cost more than they compute. Child processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test may reach a hub or report what it does.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["DAGSTER_DISABLE_TELEMETRY"] = "1"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of this test; nothing is created yet, and no test sees the developer's own."""
    place = tmp_path / "home"
    monkeypatch.setenv("POSTTRAIN_HOME", str(place))
    for name in ("POSTTRAIN_LEDGER", "POSTTRAIN_ARTIFACTS", "POSTTRAIN_ACTOR"):
        monkeypatch.delenv(name, raising=False)
    return place
