"""The demo's project directory: base, sources, suite, and the chain file that ties them together, written once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from assets.chain import Chain
from assets.demo.base import SMOLLM2_SOURCE, make_tiny, replace_directory, unpack_smollm2
from assets.demo.tasks import SUITE_LICENCE, SUITE_NAME, Source, write_sources, write_suite
from ledger.errors import InputError

SEED = 1
ITEMS = {"tiny": 1000, "smollm2": 200}
MODELS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "tiny": (lambda place: make_tiny(place, seed=SEED), "generated:assets.demo.base seed 1"),
    "smollm2": (unpack_smollm2, SMOLLM2_SOURCE),
}


def prepare(directory: Path, model: str) -> Chain:
    """Write what is missing in `directory` and read the chain. A file is there whole or not at all.

    Raises:
        InputError: no such model.
    """
    if model not in MODELS:
        raise InputError(f"MODEL={model}: the demo knows {', '.join(sorted(MODELS))}")
    directory.mkdir(parents=True, exist_ok=True)
    make, source = MODELS[model]
    if not (directory / "base").is_dir():
        unfinished = directory / "base.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        replace_directory(make(unfinished), directory / "base")
    if not (directory / "suite.jsonl").is_file():
        write_suite(directory / "suite.jsonl", seed=SEED, items=ITEMS[model])
    sources = write_sources(directory / "sources", seed=SEED)
    for name, text in _files(model, source, sources).items():
        _replace(directory / name, text)
    return Chain(directory / "chain.yaml")


def _files(model: str, base_source: str, sources: dict[Source, Path]) -> dict[str, str]:
    stages = files("assets.demo") / "stages"
    candidates = {name: (stages / f"{_stage_file(model, name)}.yaml").read_text() for name in ("sft", "sft-short")}
    rows = "\n".join(
        f'  - {{name: {s.name}, path: sources/{path.name}, licence: {s.licence}, generated_by: "{s.generated_by}"}}'
        for s, path in sources.items()
    )
    return {
        "sft.yaml": candidates["sft"],
        "sft-short.yaml": candidates["sft-short"],
        "dataset.yaml": f"name: word-problems-train\nformat: prompt-response\nsources:\n{rows}\n",
        "suite.yaml": (
            f"name: {SUITE_NAME}\nitems: suite.jsonl\nverifier: exact-answer\n"
            f'verifier_config: {{after: "</think>"}}\nlicence: {SUITE_LICENCE}\nsource: assets.demo.tasks\n'
        ),
        "chain.yaml": (
            f'name: demo\nbase: {{name: demo-{model}, path: base, source: "{base_source}", licence: Apache-2.0}}\n'
            "suite: suite.yaml\ndataset: dataset.yaml\nstage: production\n"
            f'gate: {{confidence: "0.95", min_gain: "0", min_items: {ITEMS[model]}}}\n'
            "candidates:\n  - {name: sft, run: sft.yaml}\n  - {name: sft-twin, run: sft.yaml, repeat: 1}\n"
            "  - {name: sft-short, run: sft-short.yaml, after: sft}\n"
            'budget: {stage: demo, cap: "1"}\n'
        ),
    }


def _stage_file(model: str, name: str) -> str:
    return name if model == "tiny" else f"{model}-{name}"


def _replace(path: Path, text: str) -> None:
    if path.is_file() and path.read_text() == text:
        return
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)
