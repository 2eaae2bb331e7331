"""Budgets: exact amounts, a refusal that says how much is missing, and two launches that cannot take the same money."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.budget import (
    BudgetStatus,
    CostRow,
    cost,
    cost_report,
    parse_amount,
    price,
    project_device_seconds,
    reserve,
    set_budget,
    set_price,
    settle,
    status,
)
from ledger.digest import sha256_digest
from ledger.errors import BudgetExceeded, InputError, RefusedError
from ledger.events import (
    AttemptEnded,
    AttemptStarted,
    CodeRevision,
    CostReserved,
    CostSettled,
    Event,
    LaunchBlocked,
    RunSubmitted,
)
from ledger.home import Ledger

ROOT = Path(__file__).resolve().parents[2]


def spec(number: int) -> str:
    return f"sha256:{number:016x}" + "0" * 48


def run_id(number: int) -> str:
    return f"r-{number:016x}"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger.open(tmp_path / "home", create=True, actor="ada")
    set_price(ledger, "cpu", "3.6")  # a device second costs 0.001
    return ledger


def submit(ledger: Ledger, number: int) -> str:
    """A submitted run; its identity is made of `number`."""
    ledger.record(
        RunSubmitted(
            run_id=run_id(number),
            kind="sft",
            stage="sft",
            executor="fake",
            spec=spec(number),
            config={},
            seed=number,
            code=CodeRevision(commit="tree", diff=sha256_digest(b""), dirty=False),
            environment=sha256_digest(b"lock"),
        )
    )
    return run_id(number)


def start(ledger: Ledger, number: int, attempt: int) -> None:
    ledger.record(
        AttemptStarted(
            run_id=run_id(number), attempt=attempt, launcher="local", host="here", devices=1, device_kind="cpu"
        )
    )


def end(ledger: Ledger, number: int, attempt: int, seconds: str) -> None:
    ledger.record(
        AttemptEnded(run_id=run_id(number), attempt=attempt, outcome="killed", exit_code=-9, device_seconds=seconds)
    )


def hold(ledger: Ledger, number: int, seconds: str) -> Event:
    return reserve(
        ledger,
        stage="sft",
        run_id=run_id(number),
        spec=spec(number),
        device_kind="cpu",
        devices=1,
        device_seconds=seconds,
    )


def charge(ledger: Ledger, number: int, seconds: str, attempt: int | None = None) -> Event:
    return settle(
        ledger, stage="sft", run_id=run_id(number), device_kind="cpu", device_seconds=seconds, attempt=attempt
    )


# --- formulas ----------------------------------------------------------------------------------------------------------


def test_cost_is_device_hours_times_price() -> None:
    assert cost("7200", "0.05") == Decimal("0.1")
    assert cost(Decimal("1"), "0.05") == Decimal("0.000013889")
    assert cost(1, "0.05", "ROUND_CEILING") == Decimal("0.000013889")
    assert cost("0.5", "0.05") == Decimal("0.000006944")
    assert cost("0.5", "0.05", "ROUND_CEILING") == Decimal("0.000006945")
    assert cost(0, "12.5") == 0


@given(st.decimals(0, 10**9, places=6), st.decimals(0, 10**4, places=6))
def test_cost_is_the_nearest_nano_unit(seconds: Decimal, per_hour: Decimal) -> None:
    exact = Decimal(str(seconds)).as_integer_ratio(), Decimal(str(per_hour)).as_integer_ratio()
    numerator = exact[0][0] * exact[1][0]
    denominator = exact[0][1] * exact[1][1] * 3600
    units = int(cost(seconds, per_hour).scaleb(9))
    assert abs(2 * (units * denominator - numerator * 10**9)) <= denominator


@pytest.mark.parametrize("amount", ["-1", "nan", "inf", "1e15", "ten", ""])
def test_an_amount_is_a_finite_number_that_is_not_negative(amount: str) -> None:
    with pytest.raises(InputError, match="price"):
        parse_amount("price", amount)


def test_a_float_is_not_an_exact_amount() -> None:
    with pytest.raises(InputError, match="float"):
        parse_amount("price", 0.1)  # type: ignore[arg-type]


def test_projection_counts_saves_and_expected_loss() -> None:
    assert project_device_seconds(2.0, 100, 4) == 800
    # C/tau = 60/1610, tau/2M = 1610/43200.
    with_saves = project_device_seconds(
        1.0, 10_000, 2, save_cost_s=60, save_interval_s=1610, mtbf_s=21_600, other_s=100
    )
    assert float(with_saves) == pytest.approx(2 * (10_000 * (1 + 60 / 1610 + 1610 / 43_200) + 100), abs=1e-5)


@pytest.mark.parametrize("bad", [{"save_interval_s": 0.0}, {"mtbf_s": -1.0}, {"other_s": -1.0}])
def test_a_projection_from_nonsense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InputError):
        project_device_seconds(1.0, 10, 1, **bad)


# --- prices and budgets ------------------------------------------------------------------------------------------------


def test_an_unknown_price_blocks_and_is_not_zero(ledger: Ledger) -> None:
    with pytest.raises(RefusedError, match="device kind h200 has no price"):
        price(ledger, "h200")
    with pytest.raises(RefusedError, match="posttrain budget price h200"):
        reserve(ledger, stage="sft", run_id=run_id(1), spec=spec(1), device_kind="h200", devices=1, device_seconds="1")
    assert ledger.log.streams("budget/") == []
    set_price(ledger, "h200", "0")
    assert price(ledger, "h200") == "0"


def test_the_same_price_and_the_same_budget_are_recorded_once(ledger: Ledger) -> None:
    assert set_price(ledger, "cpu", "3.60") == set_price(ledger, "cpu", "3.6")
    first = set_budget(ledger, "sft", "10", "the quarter")
    assert set_budget(ledger, "sft", "10.0", "said again") == first
    assert set_budget(ledger, "sft", "11", "more").position > first.position
    assert price(ledger, "cpu") == "3.6"


@pytest.mark.parametrize("cap", ["-1", "lots"])
def test_a_budget_that_is_no_amount_is_refused(ledger: Ledger, cap: str) -> None:
    with pytest.raises(InputError, match="cap"):
        set_budget(ledger, "sft", cap, "wrong")


def test_a_stage_without_a_budget_has_no_limit_but_is_charged(ledger: Ledger) -> None:
    submit(ledger, 1)
    hold(ledger, 1, "1000000")
    assert status(ledger, "sft") == BudgetStatus("sft", None, "0", "1000", None)
    charge(ledger, 1, "500")
    assert status(ledger, "sft") == BudgetStatus("sft", None, "0.5", "0", None)


# --- reservation and settlement ----------------------------------------------------------------------------------------


def test_a_reservation_is_priced_and_replaced_by_what_it_did_cost(ledger: Ledger) -> None:
    set_budget(ledger, "sft", "1", "small")
    submit(ledger, 1)
    event = hold(ledger, 1, "400")
    assert isinstance(event.payload, CostReserved)
    assert (event.payload.amount, event.payload.per_device_hour) == ("0.4", "3.6")
    assert status(ledger, "sft") == BudgetStatus("sft", "1", "0", "0.4", "0.6")
    charge(ledger, 1, "250")
    assert status(ledger, "sft") == BudgetStatus("sft", "1", "0.25", "0", "0.75")


def test_reserving_again_for_a_run_returns_its_reservation(ledger: Ledger) -> None:
    set_budget(ledger, "sft", "1", "small")
    submit(ledger, 1)
    assert hold(ledger, 1, "900") == hold(ledger, 1, "900")
    assert status(ledger, "sft").reserved == "0.9"


def test_a_budget_may_be_used_up_exactly(ledger: Ledger) -> None:
    set_budget(ledger, "sft", "1", "small")
    submit(ledger, 1)
    hold(ledger, 1, "1000")
    assert status(ledger, "sft").remaining == "0"


def test_a_projection_above_the_budget_is_blocked_recorded_once_and_says_how_much(ledger: Ledger) -> None:
    set_budget(ledger, "sft", "1", "small")
    submit(ledger, 1), submit(ledger, 2)
    hold(ledger, 1, "700")
    for _ in range(2):
        with pytest.raises(BudgetExceeded) as refused:
            hold(ledger, 2, "301")
    assert str(refused.value) == (
        "stage sft: the run is projected to cost 0.301, but 0.3 is left of the budget of 1 (spent 0, reserved 0.7); make the "
        "run smaller or raise the budget: posttrain budget set sft 1.001"
    )
    assert refused.value.exit_code == 3
    blocked = [e.payload for e in ledger.log.stream("budget/sft") if isinstance(e.payload, LaunchBlocked)]
    assert blocked == [LaunchBlocked(stage="sft", spec=spec(2), projected="0.301", remaining="0.3")]
    assert status(ledger, "sft").reserved == "0.7"
    set_budget(ledger, "sft", "1.001", "as it said")
    hold(ledger, 2, "301")
    assert status(ledger, "sft").remaining == "0"


def test_attempts_add_up_and_each_is_charged_once(ledger: Ledger) -> None:
    set_budget(ledger, "sft", "1", "small")
    submit(ledger, 1)
    hold(ledger, 1, "600")
    start(ledger, 1, 1)
    end(ledger, 1, 1, "200")
    first = charge(ledger, 1, "200")
    assert charge(ledger, 1, "201") == first  # another process that saw the same end a little later
    hold(ledger, 1, "400")
    assert status(ledger, "sft") == BudgetStatus("sft", "1", "0.2", "0.4", "0.4")
    start(ledger, 1, 2)
    second = charge(ledger, 1, "200")  # the same seconds, but another attempt
    assert second.position > first.position
    assert status(ledger, "sft") == BudgetStatus("sft", "1", "0.4", "0", "0.6")
    assert charge(ledger, 1, "200", attempt=1) == first


def test_nothing_used_frees_the_reservation(ledger: Ledger) -> None:
    set_budget(ledger, "sft", "1", "small")
    submit(ledger, 1)
    hold(ledger, 1, "1000")
    charge(ledger, 1, "0")
    assert status(ledger, "sft") == BudgetStatus("sft", "1", "0", "0", "1")


def test_a_run_may_cost_more_than_was_projected_and_the_next_is_blocked(ledger: Ledger) -> None:
    set_budget(ledger, "sft", "1", "small")
    submit(ledger, 1), submit(ledger, 2)
    hold(ledger, 1, "900")
    charge(ledger, 1, "1500")
    assert status(ledger, "sft").remaining == "-0.5"
    with pytest.raises(BudgetExceeded):
        hold(ledger, 2, "1")


def test_a_settlement_keeps_the_price_of_its_reservation(ledger: Ledger) -> None:
    submit(ledger, 1), submit(ledger, 2)
    hold(ledger, 1, "100")
    set_price(ledger, "cpu", "7.2")
    hold(ledger, 2, "100")
    first, second = charge(ledger, 1, "100"), charge(ledger, 2, "100")
    assert [e.payload.amount for e in (first, second) if isinstance(e.payload, CostSettled)] == ["0.1", "0.2"]


def test_many_small_amounts_add_up_exactly(ledger: Ledger) -> None:
    set_price(ledger, "cpu", "0.05")
    for number in range(30):
        submit(ledger, number)
        hold(ledger, number, "0.5")
    assert status(ledger, "sft").reserved == "0.00020835"  # 30 times 0.000006945, each rounded up


def test_the_cost_report_has_a_row_for_each_run(ledger: Ledger) -> None:
    submit(ledger, 1), submit(ledger, 2)
    hold(ledger, 1, "100"), hold(ledger, 2, "200")
    charge(ledger, 1, "50", attempt=1), charge(ledger, 1, "25", attempt=2)
    assert cost_report(ledger) == [
        CostRow("sft", run_id(1), "cpu", attempts=2, device_seconds="75", spent="0.075", reserved="0"),
        CostRow("sft", run_id(2), "cpu", attempts=0, device_seconds="0", spent="0", reserved="0.2"),
    ]


# --- two processes -----------------------------------------------------------------------------------------------------

CONTENDER = """
import sys
from pathlib import Path
from ledger.budget import reserve, settle
from ledger.errors import BudgetExceeded
from ledger.home import Ledger

home, what, numbers = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
ledger = Ledger.open(home)
print("ready", flush=True)
sys.stdin.readline()
for number in map(int, numbers):
    run_id, spec = f"r-{number:016x}", f"sha256:{number:016x}" + "0" * 48
    try:
        if what == "reserve":
            reserve(ledger, stage="sft", run_id=run_id, spec=spec, device_kind="cpu", devices=1, device_seconds="1000")
        else:
            settle(ledger, stage="sft", run_id=run_id, device_kind="cpu", device_seconds=f"{100 + len(numbers)}", attempt=1)
        print("ok", flush=True)
    except BudgetExceeded:
        print("blocked", flush=True)
"""


def contend(home: Path, what: str, numbers: list[list[int]]) -> list[list[str]]:
    """What processes said that did this at the same time, each for its runs."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CONTENDER, str(home), what, *map(str, mine)],
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for mine in numbers
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return answers


def test_of_processes_that_reserve_at_once_only_as_many_pass_as_the_budget_fits(ledger: Ledger) -> None:
    set_budget(ledger, "sft", "3", "three runs")
    for number in range(8):
        submit(ledger, number)
    answers = contend(ledger.home, "reserve", [[0, 1], [2, 3], [4, 5], [6, 7]])
    said = [word for words in answers for word in words]
    assert (said.count("ok"), said.count("blocked")) == (3, 5)
    assert status(ledger, "sft") == BudgetStatus("sft", "3", "0", "3", "0")


def test_processes_that_launch_one_run_at_once_hold_its_cost_once(ledger: Ledger) -> None:
    set_budget(ledger, "sft", "1", "one run")
    submit(ledger, 1)
    assert contend(ledger.home, "reserve", [[1], [1], [1]]) == [["ok"]] * 3
    assert status(ledger, "sft").reserved == "1"


def test_processes_that_settle_one_attempt_at_once_charge_it_once(ledger: Ledger) -> None:
    submit(ledger, 1), submit(ledger, 2)
    hold(ledger, 1, "1000"), hold(ledger, 2, "1000")
    assert contend(ledger.home, "settle", [[1], [1, 2]]) == [["ok"], ["ok", "ok"]]
    settled = [e.payload.run_id for e in ledger.log.stream("budget/sft") if isinstance(e.payload, CostSettled)]
    assert sorted(settled) == [run_id(1), run_id(2)]
