"""From what people write to a digest: a full digest, its first digits, a name, a stage, a run, a run's step.

sha256:4f0c…   4f0c9a12   production   demo-base   r-0123456789abcdef   r-0123456789abcdef:40
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ledger import events as ev
from ledger.digest import is_digest
from ledger.errors import InputError, NotFound
from ledger.history import History
from ledger.home import Ledger

MIN_PREFIX = 8
_PREFIX = re.compile(rf"^[0-9a-f]{{{MIN_PREFIX},63}}$")
_RUN_STEP = re.compile(r"^(r-[0-9a-f]{4,16})(?::([0-9]+))?$")


def resolve_model(ledger: Ledger, text: str) -> str:
    """The digest of a model: a digest or its first 8 digits or more, a stage (its live model), `NAME@VERSION` in the
    registry, a base's name, a run (its last checkpoint) or `RUN:STEP`.

    Raises:
        NotFound: nothing in the ledger fits; the message says what was looked for.
        InputError: the first digits fit more than one.
    """
    with ledger.log.as_of() as history:
        run = _RUN_STEP.match(text)
        if run:
            return _checkpoint_of(history, _run(history, run[1]), run[2]).model
        if is_digest(text) or _PREFIX.match(text):
            return _by_digits(text, "model", _models(history))
        found = (
            _last_field(history, f"stage/{text}", "ModelPromoted", "model")
            or _registered(history, text)
            or _last_field(history, f"base/{text}", "BaseRevisionPinned", "base")
        )
        return found or _unknown("model", text, ("stage/", "base/"), history)


def resolve_checkpoint(ledger: Ledger, text: str) -> ev.CheckpointCommitted:
    """A committed checkpoint by its digest, first digits, run (the last one) or `RUN:STEP`. Raises as `resolve_model`."""
    with ledger.log.as_of() as history:
        run = _RUN_STEP.match(text)
        if run:
            return _checkpoint_of(history, _run(history, run[1]), run[2])
        saved = {
            e.payload.checkpoint: e.payload
            for e in history.read(types=("CheckpointCommitted",))
            if isinstance(e.payload, ev.CheckpointCommitted)
        }
        return saved[_by_digits(text, "checkpoint", saved)]


def resolve_base(ledger: Ledger, text: str) -> str:
    """The digest of a pinned base by name (its newest revision), digest or first digits."""
    return _resolve_named(ledger, text, "base", "BaseRevisionPinned", "base")


def resolve_dataset(ledger: Ledger, text: str) -> str:
    """The digest of a sealed dataset version by name (its newest), digest or first digits."""
    return _resolve_named(ledger, text, "dataset", "DatasetVersionSealed", "dataset")


def resolve_suite(ledger: Ledger, text: str) -> str:
    """The digest of a registered suite by name (its newest), digest or first digits."""
    return _resolve_named(ledger, text, "suite", "SuiteRegistered", "suite")


def resolve_run(ledger: Ledger, text: str) -> str:
    """A run id, from itself or its first digits (`r-0123`)."""
    with ledger.log.as_of() as history:
        return _run(history, text)


def resolve_node(ledger: Ledger, text: str) -> str:
    """The lineage node that a reference means: `kind:identity` as it is, else a stage's live promotion, a run, a model,
    a dataset, a suite, a gate, a deployment or a base.

    Raises:
        NotFound: none of them.
    """
    with ledger.log.as_of() as history:
        kind = text.partition(":")[0]
        if kind != "sha256" and (history.made(text) or history.used(text)):
            return text
        promoted = history.last(f"stage/{text}", "ModelPromoted")
        if promoted is not None:
            return promoted.payload.outputs()[0].node
        pinned = history.last(f"base/{text}", "BaseRevisionPinned")
        if pinned is not None:  # as a base, not as the model that it is too: that is what runs name
            return pinned.payload.outputs()[0].node
        for prefix in ("g-", "d-"):
            node = f"{'gate' if prefix == 'g-' else 'deployment'}:{text}"
            if text.startswith(prefix) and history.made(node):
                return node
    if text.startswith("r-") and ":" not in text:
        return f"run:{resolve_run(ledger, text)}"
    for kind, resolve in (("model", resolve_model), ("dataset", resolve_dataset), ("suite", resolve_suite)):
        try:
            return f"{kind}:{resolve(ledger, text)}"
        except NotFound:
            continue
    raise NotFound(
        f"nothing in the ledger is called {text!r}; try `posttrain runs`, `posttrain data list`, `posttrain base list`"
    )


def _resolve_named(ledger: Ledger, text: str, kind: str, type_name: str, field: str) -> str:
    with ledger.log.as_of() as history:
        if is_digest(text) or _PREFIX.match(text):
            known = [getattr(e.payload, field) for e in history.read(types=(type_name,))]
            return _by_digits(text, kind, known)
        found = _last_field(history, f"{kind}/{text}", type_name, field)
        return found or _unknown(kind, text, (f"{kind}/",), history)


def _models(history: History) -> list[str]:
    known = []
    for event in history.read(types=("BaseRevisionPinned", "CheckpointCommitted")):
        payload = event.payload
        known.append(payload.base if isinstance(payload, ev.BaseRevisionPinned) else getattr(payload, "model", ""))
    return known


def _by_digits(text: str, kind: str, known: Iterable[str]) -> str:
    wanted = text if text.startswith("sha256:") else f"sha256:{text}"
    found = sorted({digest for digest in known if digest.startswith(wanted)})
    if not found:
        raise NotFound(f"no {kind} in the ledger has digest {text}")
    if len(found) > 1:
        raise InputError(f"{text} is the beginning of {len(found)} {kind} digests; give more digits")
    return found[0]


def _last_field(history: History, stream: str, type_name: str, field: str) -> str | None:
    event = history.last(stream, type_name)
    return None if event is None else str(getattr(event.payload, field))


def _registered(history: History, text: str) -> str | None:
    name, _, number = text.partition("@")
    versions = history.payloads(f"registry/{name}", ev.ModelRegistered)
    if not versions or (number and not (number.isdigit() and 0 < int(number) <= len(versions))):
        return None
    return versions[int(number) - 1 if number else -1].model


def _run(history: History, text: str) -> str:
    found = [name.removeprefix("run/") for name in history.streams(f"run/{text}")] if text.startswith("r-") else []
    if len(found) > 1:
        raise InputError(f"{text} is the beginning of {len(found)} run ids; give more digits")
    return found[0] if found else _unknown("run", text, ("run/",), history)


def _checkpoint_of(history: History, run_id: str, step: str | None) -> ev.CheckpointCommitted:
    saved = history.payloads(f"run/{run_id}", ev.CheckpointCommitted)
    fitting = [c for c in saved if step is None or c.step == int(step)]
    if not fitting:
        steps = ", ".join(str(c.step) for c in saved) or "none"
        raise NotFound(f"run {run_id} has no checkpoint{f' at step {step}' if step else ''}; steps saved: {steps}")
    return fitting[-1]


def _unknown(kind: str, text: str, prefixes: tuple[str, ...], history: History) -> str:
    names = [name.partition("/")[2] for prefix in prefixes for name in history.streams(prefix)]
    known = f"known: {', '.join(names[-8:])}" if names else f"the ledger has no {kind} yet"
    raise NotFound(f"no {kind} called {text!r}; {known}")
