"""`make demo`: from a base model to a served one, every step an event in the ledger.

    prepare → base, suite, dataset → train (killed once, resumed) → twin (compared) → evaluate, gate, promote
            → a candidate that fails its gate and is refused → serve, ask, which

Each step is a Dagster asset; what the ledger holds already is reflected and said so. Interrupt or kill it at any moment:
the next call goes on.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

from rich.console import Console
from rich.markup import escape

from assets.chain import Chain
from assets.demo.narration import Narration, safe_lines
from assets.demo.project import prepare
from assets.demo.run import Assets, KillOnce
from assets.steps import serve, set_budget, trained_model
from executors.evaluation.verification import load_verifier
from executors.serving.client import complete
from ledger import registry
from ledger.budget import set_price
from ledger.cli.output import stdout
from ledger.cli.which import show_which
from ledger.digest import short
from ledger.errors import CheckFailed, PosttrainError
from ledger.home import Ledger, default_home
from ledger.which import which

ANSWER = "9"
QUESTION = "Mia has 7 figs. She buys 5 more. Then she sells 3. How many figs does Mia have now?"


def demo(model: str) -> None:
    """Run the whole chain for `model` (see `project.MODELS`)."""
    say = Narration(Console())
    ledger = Ledger.open(default_home(), create=True)
    say.title(f"posttrain demo ({model})", f"ledger {ledger.home}")
    if ledger.log.last("price/cpu") is None:
        set_price(ledger, "cpu", "0.05")
    chain = say.step("prepare", lambda: prepare(ledger.home / "demo" / model, model))
    set_budget(ledger, chain)
    killer = KillOnce(ledger, say.note)
    with Assets(ledger, chain, say, killer) as assets:
        assets.make("base")
        assets.make("suite")
        assets.make("dataset")
        assets.make("sft", "model")
        assets.make("sft-twin", "model")
        compare(ledger, assets, say)
        assets.make("sft", "report")
        assets.make("sft", "promotion")
        assets.make("sft-short", "model")
        assets.make("sft-short", "report")
        refuse(ledger, assets, say)
        assets.make(chain.stage, "deployment")
    ask(ledger, chain, say)
    say.title(f"posttrain which {chain.stage}")
    show_which(which(ledger, chain.stage), stdout())
    say.title("Next")
    say.note(f"posttrain lineage {chain.stage} · posttrain log verify · posttrain fsck · posttrain cost")
    say.note(f"posttrain serve stop {chain.stage}     ends the engine and the gateway")


def compare(ledger: Ledger, assets: Assets, say: Narration) -> None:
    """The resumed run and its uninterrupted twin must have made the same model.

    Raises:
        CheckFailed: they differ.
    """
    resumed, twin = (trained_model(ledger, assets.chain, name) for name in ("sft", "sft-twin"))
    attempts = assets.attempts("sft")
    if resumed != twin:
        raise CheckFailed(f"the resumed model {short(resumed)} and its uninterrupted twin {short(twin)} differ")
    say.result(f"resumed after kill -9 ({attempts} attempts) and uninterrupted: identical weights, model {short(twin)}")


def refuse(ledger: Ledger, assets: Assets, say: Narration) -> None:
    """Ask Dagster for nothing but the promotion of the candidate that failed; the ledger refuses it.

    Raises:
        CheckFailed: it was promoted.
    """
    reason = assets.refused("sft-short", "promotion")
    live = registry.live(ledger, assets.chain.stage)
    if (
        reason is None
        or live is None
        or getattr(live.payload, "model", None) != trained_model(ledger, assets.chain, "sft")
    ):
        raise CheckFailed("a candidate without a passing gate was promoted")
    say.result(f"promotion refused: {reason}")


def ask(ledger: Ledger, chain: Chain, say: Narration) -> None:
    """One question over HTTP, through the gateway."""
    endpoint = str(serve(ledger, chain).show["endpoint"])
    answer = complete(endpoint, chain.stage, [{"role": "user", "content": QUESTION}])
    say.title(f"asking {chain.stage} over HTTP", f"POST {endpoint}/v1/chat/completions")
    say.note(f"Q: {QUESTION}")
    task = {"prompt": QUESTION, "answer": ANSWER}
    verdict = load_verifier("exact-answer", {"after": "</think>"}).verify(task, answer.text)
    accuracy = which(ledger, chain.stage)["evaluation"]["accuracy"]
    word = "right" if verdict.status == "pass" else f"wrong, it is {ANSWER}"
    say.result(f"A: {answer.text}    {word}; the model answers {float(accuracy):.0%} of the held-out questions")


def main() -> int:
    """Run the demo; the exit code is the command line's."""
    started = monotonic()
    model = os.environ.get("MODEL") or "tiny"
    errors = Console(stderr=True)
    try:
        demo(model)
    except PosttrainError as error:
        errors.print(f"[bold red]demo:[/] {escape(safe_lines(str(error)))}", soft_wrap=True)
        return error.exit_code
    except KeyboardInterrupt:
        errors.print("demo: interrupted; a run that was started goes on, and `make demo` goes on from here")
        return 130
    Console().print(f"[dim]done in {monotonic() - started:.0f} s[/]")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a step that was interrupted still has its thread; all that matters is durable
