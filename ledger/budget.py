"""Budgets: what a run is projected to cost, what is held back for it, and what it did cost.

A run's money lives in one stream, `budget/<stage>`: `reserve` before each launch, `settle` after each attempt. The check and
the reservation are one append at the version that was checked, so two launches cannot both take the last of a budget.
Amounts are exact decimals in the ledger's one currency; an unknown price refuses the launch, it is never zero. A stage
without a budget has no limit, but is priced, reserved and charged all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal, InvalidOperation

from ledger.canonical import decimal_string
from ledger.errors import BudgetExceeded, InputError, KeyReused, RefusedError, StaleVersion
from ledger.events import (
    AttemptStarted,
    BudgetSet,
    CostReserved,
    CostSettled,
    Event,
    LaunchBlocked,
    PriceSet,
)
from ledger.home import Ledger
from ledger.names import parse_name

PLACES = 9  # of an amount: a second of a cheap device costs some 0.00001
MAX_AMOUNT = Decimal("1e15")  # with 12 decimals still exact
MAX_TRIES = 200

Amount = Decimal | str | int
"""A decimal number as a caller has it. No float: 0.1 has no exact one."""

_EXACT = Context(prec=60)


# --- formulas ----------------------------------------------------------------------------------------------------------


def cost(device_seconds: Amount, per_device_hour: Amount, rounding: str = ROUND_HALF_EVEN) -> Decimal:
    """Device seconds (seconds times devices) times the price of a device for an hour, to 9 decimals.

    Raises:
        InputError: a negative number, no number, or a cost beyond what an event can carry.
    """
    seconds, price = parse_amount("device_seconds", device_seconds), parse_amount("per_device_hour", per_device_hour)
    exact = _EXACT.divide(_EXACT.multiply(seconds, price), Decimal(3600))
    if exact >= MAX_AMOUNT:
        raise InputError(f"{device_seconds} device seconds at {per_device_hour} an hour cost more than {MAX_AMOUNT:f}")
    return exact.quantize(Decimal(1).scaleb(-PLACES), rounding=rounding, context=_EXACT)


def project_device_seconds(
    step_seconds: float,
    steps: int,
    devices: int,
    *,
    save_cost_s: float = 0.0,
    save_interval_s: float | None = None,
    mtbf_s: float | None = None,
    other_s: float = 0.0,
) -> Decimal:
    """Projected device seconds: q * steps * devices * (1 + C/tau + tau/2M) + other * devices.

    q is an upper quantile of the seconds of a step (not the mean: a budget is exceeded by the slow ones), C the blocking
    seconds of a save, tau the seconds between saves, M the mean seconds between failures of the whole allocation, other the
    seconds of evaluation and start-up. Without `save_interval_s` nothing is saved; without `mtbf_s` nothing fails.

    Raises:
        InputError: a negative number, or an interval or MTBF that is not positive.
    """
    if min(step_seconds, steps, save_cost_s, other_s) < 0 or devices < 1:
        raise InputError("a projection needs non-negative seconds and steps, and at least one device")
    if (save_interval_s is not None and save_interval_s <= 0) or (mtbf_s is not None and mtbf_s <= 0):
        raise InputError("the save interval and the mean time between failures must be positive seconds")
    overhead = 1.0
    if save_interval_s is not None:
        overhead += save_cost_s / save_interval_s
        overhead += save_interval_s / (2 * mtbf_s) if mtbf_s is not None else 0.0
    return Decimal(decimal_string((step_seconds * steps * overhead + other_s) * devices))


def parse_amount(what: str, amount: Amount) -> Decimal:
    """A finite, non-negative decimal.

    Raises:
        InputError: it is none; `what` names it in the message.
    """
    try:
        number = Decimal(amount)
    except (InvalidOperation, ValueError, TypeError):
        raise InputError(f"{what} {amount!r} is not a decimal number") from None
    if isinstance(amount, float):
        raise InputError(f"{what} {amount!r} is a float; give a decimal string")
    if not number.is_finite() or not 0 <= number < MAX_AMOUNT:
        raise InputError(f"{what} is {amount}; it must be zero or more and below {MAX_AMOUNT:f}")
    return number


# --- accounts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """A stage's money as decimal strings. `cap` and `remaining` are `None` where no budget is set: there is no limit.

    `remaining` = cap - spent - reserved; it is negative when runs cost more than they were projected to.
    """

    stage: str
    cap: str | None
    spent: str
    reserved: str
    remaining: str | None


@dataclass(frozen=True, slots=True)
class CostRow:
    """What a run cost so far and what is still held back for it, as decimal strings."""

    stage: str
    run_id: str
    device_kind: str
    attempts: int  # settled
    device_seconds: str  # of the settled attempts
    spent: str
    reserved: str


@dataclass(slots=True)
class _RunAccount:
    open: Event | None = None  # the reservation that no settlement has replaced yet
    last: CostReserved | None = None
    reserved: Decimal = Decimal(0)
    spent: Decimal = Decimal(0)
    device_seconds: Decimal = Decimal(0)
    device_kind: str = ""
    settled: list[Event] = field(default_factory=list)


@dataclass(slots=True)
class _Account:
    """A budget stream, added up."""

    cap: Decimal | None = None
    version: int = 0
    last: Event | None = None
    runs: dict[str, _RunAccount] = field(default_factory=dict)

    @property
    def spent(self) -> Decimal:
        return _sum(run.spent for run in self.runs.values())

    @property
    def reserved(self) -> Decimal:
        return _sum(run.reserved for run in self.runs.values())

    @property
    def committed(self) -> Decimal:
        return _EXACT.add(self.spent, self.reserved)

    @property
    def remaining(self) -> Decimal | None:
        return None if self.cap is None else _EXACT.subtract(self.cap, self.committed)


def _account(events: Iterable[Event]) -> _Account:
    account = _Account()
    for event in events:
        account.version, account.last = event.version, event
        payload = event.payload
        if isinstance(payload, BudgetSet):
            account.cap = Decimal(payload.cap)
        elif isinstance(payload, CostReserved):
            run = account.runs.setdefault(payload.run_id, _RunAccount())
            run.open, run.last, run.reserved, run.device_kind = (
                event,
                payload,
                Decimal(payload.amount),
                payload.device_kind,
            )
        elif isinstance(payload, CostSettled):
            run = account.runs.setdefault(payload.run_id, _RunAccount())
            run.open, run.reserved, run.device_kind = None, Decimal(0), payload.device_kind
            run.spent = _EXACT.add(run.spent, Decimal(payload.amount))
            run.device_seconds = _EXACT.add(run.device_seconds, Decimal(payload.device_seconds))
            run.settled.append(event)
    return account


def status(ledger: Ledger, stage: str) -> BudgetStatus:
    """What the stage may spend, has spent and has reserved."""
    account = _account(ledger.log.stream(f"budget/{parse_name('stage', stage)}"))
    cap, remaining = account.cap, account.remaining
    return BudgetStatus(
        stage=stage,
        cap=None if cap is None else _text(cap),
        spent=_text(account.spent),
        reserved=_text(account.reserved),
        remaining=None if remaining is None else _text(remaining),
    )


def cost_report(ledger: Ledger) -> list[CostRow]:
    """Every run that ever reserved or cost something, by stage, then in the order of its first event."""
    return [
        CostRow(
            stage=stream.removeprefix("budget/"),
            run_id=run_id,
            device_kind=run.device_kind,
            attempts=len(run.settled),
            device_seconds=_text(run.device_seconds),
            spent=_text(run.spent),
            reserved=_text(run.reserved),
        )
        for stream in ledger.log.streams("budget/")
        for run_id, run in _account(ledger.log.stream(stream)).runs.items()
    ]


# --- prices and budgets ------------------------------------------------------------------------------------------------


def set_price(ledger: Ledger, device_kind: str, per_device_hour: Amount) -> Event:
    """Set the price of a device for an hour; the event in force when it says the same. Zero must be said, never assumed.

    Raises:
        InputError: a price that is negative or no number.
    """
    text = _text(parse_amount("price", per_device_hour))
    payload = PriceSet(device_kind=parse_name("device kind", device_kind), per_device_hour=text)
    last = ledger.log.last(payload.stream(), "PriceSet")
    return last if last is not None and last.payload == payload else ledger.record(payload)


def price(ledger: Ledger, device_kind: str) -> str:
    """The price of a device of this kind for an hour.

    Raises:
        RefusedError: none is set.
    """
    last = ledger.log.last(f"price/{device_kind}", "PriceSet")
    if last is None or not isinstance(last.payload, PriceSet):
        raise RefusedError(
            f"device kind {device_kind} has no price, so its cost cannot be projected; set one (0 if it is free): "
            f"posttrain budget price {device_kind} PER_DEVICE_HOUR"
        )
    return last.payload.per_device_hour


def set_budget(ledger: Ledger, stage: str, cap: Amount, reason: str) -> Event:
    """Set what the stage may spend in all, past spending included; the event in force when it says the same cap.

    Raises:
        InputError: a cap that is negative or no number.
    """
    text = _text(parse_amount("cap", cap))
    payload = BudgetSet(stage=parse_name("stage", stage), cap=text, reason=reason)
    last = ledger.log.last(payload.stream(), "BudgetSet")
    if last is not None and isinstance(last.payload, BudgetSet) and last.payload.cap == text:
        return last
    return ledger.record(payload)


# --- the two sides of a launch -----------------------------------------------------------------------------------------


def reserve(
    ledger: Ledger, *, stage: str, run_id: str, spec: str, device_kind: str, devices: int, device_seconds: Amount
) -> Event:
    """Hold the projected cost of the run's next attempt back; the open reservation when there is one.

    `device_seconds` is seconds times devices. A refusal is recorded as well.

    Raises:
        RefusedError: the device kind has no price.
        BudgetExceeded: more than the budget has left.
    """
    parse_name("stage", stage)
    seconds = Decimal(_text(parse_amount("device_seconds", device_seconds)))
    for _ in range(MAX_TRIES):
        account = _account(ledger.log.stream(f"budget/{stage}"))
        run = account.runs.get(run_id)
        if run is not None and run.open is not None:
            return run.open
        per_device_hour = price(ledger, device_kind)
        projected = cost(seconds, per_device_hour, ROUND_CEILING)
        remaining = account.remaining
        try:
            if remaining is not None and projected > remaining:
                _block(
                    ledger,
                    account,
                    LaunchBlocked(stage=stage, spec=spec, projected=_text(projected), remaining=_text(remaining)),
                )
            payload = CostReserved(
                stage=stage,
                run_id=run_id,
                amount=_text(projected),
                device_kind=device_kind,
                devices=devices,
                device_seconds=_text(seconds),
                per_device_hour=per_device_hour,
            )
            return ledger.record(payload, expected_version=account.version)
        except StaleVersion:
            continue  # somebody else's reservation came first; add up again with it
    raise StaleVersion(
        f"the budget of stage {stage} changed {MAX_TRIES} times while a reservation was tried; try again"
    )


def settle(
    ledger: Ledger,
    *,
    stage: str,
    run_id: str,
    device_kind: str,
    device_seconds: Amount,
    attempt: int | None = None,
) -> Event:
    """Charge what an attempt did use and free the run's reservation; attempts add up, one attempt is charged once.

    `attempt` is the number of the attempt; `None`: the newest that the run's stream has (1 when it has none). The price is
    that of the run's reservation, or the one in force for another device kind. Zero device seconds only free the reservation.

    Raises:
        RefusedError: nothing was reserved and the device kind has no price.
    """
    parse_name("stage", stage)
    seconds = Decimal(_text(parse_amount("device_seconds", device_seconds)))
    number = attempt if attempt is not None else _newest_attempt(ledger, run_id)
    key = f"settle/{run_id}/{number}"
    for _ in range(MAX_TRIES):
        account = _account(ledger.log.stream(f"budget/{stage}"))
        run = account.runs.get(run_id, _RunAccount())
        for event in run.settled:
            if event.idempotency_key == key:
                return event
        reserved = run.last
        per_device_hour = (
            reserved.per_device_hour
            if reserved is not None and reserved.device_kind == device_kind
            else price(ledger, device_kind)
        )
        payload = CostSettled(
            stage=stage,
            run_id=run_id,
            amount=_text(cost(seconds, per_device_hour)),
            device_kind=device_kind,
            device_seconds=_text(seconds),
            per_device_hour=per_device_hour,
        )
        try:
            return ledger.record(payload, expected_version=account.version, idempotency_key=key)
        except (StaleVersion, KeyReused):
            continue  # the stream moved on: by another run, or by another process that charged this very attempt
    raise StaleVersion(
        f"the budget of stage {stage} changed {MAX_TRIES} times while run {run_id} was charged; try again"
    )


def _block(ledger: Ledger, account: _Account, blocked: LaunchBlocked) -> None:
    """Record the refusal (once, however often it is tried again) and raise it."""
    if account.last is None or account.last.payload != blocked:
        ledger.record(blocked, expected_version=account.version)
    needed = _text(_EXACT.add(account.committed, Decimal(blocked.projected)))
    raise BudgetExceeded(
        f"stage {blocked.stage}: the run is projected to cost {blocked.projected}, but {blocked.remaining} is left of the "
        f"budget of {_text(account.cap or Decimal(0))} (spent {_text(account.spent)}, reserved {_text(account.reserved)}); "
        f"make the run smaller or raise the budget: posttrain budget set {blocked.stage} {needed}"
    )


def _newest_attempt(ledger: Ledger, run_id: str) -> int:
    last = ledger.log.last(f"run/{run_id}", "AttemptStarted")
    return last.payload.attempt if last is not None and isinstance(last.payload, AttemptStarted) else 1


def _text(number: Decimal) -> str:
    """At most 12 decimals, which is what an event can carry; amounts have 9, so nothing is lost."""
    return decimal_string(number, places=12)


def _sum(numbers: Iterable[Decimal]) -> Decimal:
    total = Decimal(0)
    for number in numbers:
        total = _EXACT.add(total, number)
    return total
