"""The demo's project directory: base, sources, suite, and the chain file that ties them together, written once.

A variant decides the base model and the sizes: `tiny` is the demo, `smollm2` the same chain on a pretrained model, and
`micro` the same chain in a minute, for tests.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from assets.chain import Chain
from assets.demo.base import SMOLLM2_SOURCE, make_tiny, replace_directory, unpack_smollm2
from assets.demo.tasks import SUITE_LICENCE, SUITE_NAME, Source, write_sources, write_suite
from ledger.errors import InputError

SEED = 1
CANDIDATES = ("sft", "sft-short")


@dataclass(frozen=True, slots=True)
class Variant:
    """What differs between the demos. `port` is the gateway's; `None`: its usual one."""

    make_base: Callable[[Path], Path]
    source: str
    items: int
    worked: int
    weak: int
    dataset: str
    suite: str
    stage: str = "production"
    port: int | None = None


def _tiny(place: Path) -> Path:
    return make_tiny(place, seed=SEED)


TINY_SOURCE = f"generated:assets.demo.base seed {SEED}"

VARIANTS = {
    "tiny": Variant(_tiny, TINY_SOURCE, 1000, 12_000, 6_000, "word-problems-train", SUITE_NAME),
    "micro": Variant(_tiny, TINY_SOURCE, 300, 2_000, 1_000, "word-problems-micro", f"{SUITE_NAME}-micro", port=0),
    "smollm2": Variant(
        unpack_smollm2,
        SMOLLM2_SOURCE,
        200,
        2_000,
        1_000,
        "word-problems-smollm2",
        f"{SUITE_NAME}-smollm2",
        stage="production-smollm2",
    ),
}


def prepare(directory: Path, model: str) -> Chain:
    """Write what is missing in `directory` and read the chain. A file is there whole or not at all.

    Raises:
        InputError: no such variant.
    """
    if model not in VARIANTS:
        raise InputError(f"MODEL={model}: the demo knows {', '.join(sorted(VARIANTS))}")
    variant = VARIANTS[model]
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "base").is_dir():
        unfinished = directory / "base.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        replace_directory(variant.make_base(unfinished), directory / "base")
    write_suite(directory / "suite.jsonl", seed=SEED, items=variant.items)
    sources = write_sources(directory / "sources", seed=SEED, worked=variant.worked, weak=variant.weak)
    for name, text in _files(model, variant, sources).items():
        _replace(directory / name, text)
    return Chain(directory / "chain.yaml")


def _files(model: str, variant: Variant, sources: dict[Source, Path]) -> dict[str, str]:
    stages = files("assets.demo") / "stages" / model
    rows = "".join(
        f'  - {{name: {s.name}, path: sources/{path.name}, licence: {s.licence}, generated_by: "{s.generated_by}"}}\n'
        for s, path in sources.items()
    )
    return {
        **{f"{name}.yaml": (stages / f"{name}.yaml").read_text("utf-8") for name in CANDIDATES},
        "dataset.yaml": f"name: {variant.dataset}\nformat: prompt-response\nsources:\n{rows}",
        "suite.yaml": (
            f"name: {variant.suite}\nitems: suite.jsonl\nverifier: exact-answer\n"
            f'verifier_config: {{after: "</think>"}}\nlicence: {SUITE_LICENCE}\nsource: assets.demo.tasks\n'
        ),
        "chain.yaml": _chain(model, variant),
    }


def _chain(model: str, variant: Variant) -> str:
    name = "demo" if model == "tiny" else f"demo-{model}"
    port = "" if variant.port is None else f"port: {variant.port}\n"
    return (
        f"name: {name}\n"
        f'base: {{name: demo-{model}, path: base, source: "{variant.source}", licence: Apache-2.0}}\n'
        f"suite: suite.yaml\ndataset: dataset.yaml\nstage: {variant.stage}\n{port}"
        f'gate: {{confidence: "0.95", min_gain: "0", min_items: {variant.items}}}\n'
        "candidates:\n"
        "  - {name: sft, run: sft.yaml}\n"
        "  - {name: sft-twin, run: sft.yaml, repeat: 1}\n"
        "  - {name: sft-short, run: sft-short.yaml, after: sft}\n"
        'budget: {stage: demo, cap: "1"}\n'
    )


def _replace(path: Path, text: str) -> None:
    if path.is_file() and path.read_text("utf-8") == text:
        return
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, "utf-8")
    unfinished.rename(path)
