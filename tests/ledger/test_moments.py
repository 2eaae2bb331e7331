"""From `--at` to a position."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.errors import InputError
from ledger.home import Ledger
from ledger.moments import position_at
from ledger.testing import demo_history


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    ledger = Ledger.open(Path(tmp_path_factory.mktemp("moments")), create=True, actor="ada")
    demo_history(ledger)
    return ledger


def test_a_position_or_a_time_with_any_offset(ledger: Ledger) -> None:
    assert position_at(ledger, None) is None
    assert position_at(ledger, "3") == 3
    last = ledger.log.event(ledger.log.size())
    assert position_at(ledger, last.recorded_at) == last.position
    assert position_at(ledger, "9998-01-01T00:00:00+05:00") == last.position


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0", "is not in the log"),
        ("999999", "is not in the log"),
        ("yesterday", "neither a log position nor"),
        ("0001-01-01T00:00:00+14:00", "neither a log position nor"),  # in UTC before the first year that there is
        ("1999-01-01", "no event as early as"),
    ],
)
def test_what_is_no_moment_of_the_log(ledger: Ledger, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        position_at(ledger, text)
