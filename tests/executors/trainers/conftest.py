from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.executors.trainers.runs import Inputs, Zygote, make_inputs


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """A model with dropout, so that training draws random numbers."""
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="session")
def still_inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """A model without dropout, whose gradient is a function of weights and data alone."""
    return make_inputs(tmp_path_factory.mktemp("still"), dropout=0.0)
