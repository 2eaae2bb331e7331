"""Generation: what a batch answers is what each prompt would be answered alone, and only the weights decide."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from executors.rollout.base import Completion, Sampling
from executors.rollout.transformers import TransformersGenerator, load_generator
from ledger.errors import InputError
from tests.executors.rollout.tiny import save_model

rng = random.Random(0)
PROMPTS = ["+".join(str(rng.randrange(10**6)) for _ in range(rng.randrange(1, 5))) + "=" for _ in range(50)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("rollout") / "llama")


@pytest.fixture(scope="module")
def generator(directory: Path) -> TransformersGenerator:
    return load_generator(directory)


def answers(
    generator: TransformersGenerator, prompts: list[str], sampling: Sampling, batch_size: int = 128
) -> list[Completion]:
    found = dict(pair for batch in generator.generate(prompts, sampling, batch_size=batch_size) for pair in batch)
    return [found[index] for index in range(len(prompts))]


def reference(generator: TransformersGenerator, prompt: str, max_new_tokens: int) -> list[int]:
    """Greedy tokens of one prompt by transformers' own `generate`, with a configuration that says nothing else."""
    import torch
    import transformers as library

    transformers: Any = library
    ids = torch.tensor(generator.encode([prompt]))
    brought, generator.model.generation_config = generator.model.generation_config, transformers.GenerationConfig()
    try:
        plain = transformers.GenerationConfig(
            do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=sorted(generator.end_ids), pad_token_id=1
        )
        out: Any = generator.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=plain)
    finally:
        generator.model.generation_config = brought
    return list(out[0, ids.shape[1] :].tolist())


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_batch_gives_the_tokens_of_transformers_own_greedy_generation(kind: str, tmp_path: Path) -> None:
    generator = load_generator(save_model(tmp_path / kind, kind=kind, seed=3))
    found = answers(generator, PROMPTS, Sampling(24))
    assert [list(one.token_ids) for one in found] == [reference(generator, prompt, 24) for prompt in PROMPTS]
    assert len({one.token_ids for one in found}) > 25  # the prompts matter


def test_the_batch_size_changes_no_token(generator: TransformersGenerator) -> None:
    alone = answers(generator, PROMPTS, Sampling(24), batch_size=1)
    assert Counter(one.finish_reason for one in alone).keys() == {"stop", "length"}
    for batch_size in (2, 7, 50):
        assert answers(generator, PROMPTS, Sampling(24), batch_size=batch_size) == alone


def test_the_order_of_the_prompts_changes_no_token(generator: TransformersGenerator) -> None:
    forward = answers(generator, PROMPTS, Sampling(24), batch_size=8)
    backward = answers(generator, PROMPTS[::-1], Sampling(24), batch_size=8)
    assert backward[::-1] == forward


def test_stop_and_length(generator: TransformersGenerator) -> None:
    for one in answers(generator, PROMPTS, Sampling(24)):
        end = [token in generator.end_ids for token in one.token_ids]
        assert not any(end[:-1])
        assert end[-1] == (one.finish_reason == "stop")
        assert len(one.token_ids) == 24 or one.finish_reason == "stop"
        assert "<|end|>" not in one.text


def test_an_answer_ends_where_the_context_does(generator: TransformersGenerator) -> None:
    prompt = "1" * 58  # and two tokens of the template before it, two after it: 61 of 64
    assert len(generator.encode([prompt])[0]) == 61
    generator_without_end = TransformersGenerator(generator.model, generator.tokenizer, "cpu")
    generator_without_end.end_ids = frozenset()
    short, long = answers(generator_without_end, ["1+1=", prompt], Sampling(24))
    assert (len(short.token_ids), len(long.token_ids), long.finish_reason) == (24, 3, "length")


def test_a_prompt_that_fills_the_context_is_refused(generator: TransformersGenerator) -> None:
    with pytest.raises(InputError, match=r"prompt 2 has 103 tokens and the model's context 64"):
        answers(generator, ["1+1=", "1" * 100], Sampling(4))


def test_thinking_stays_and_special_tokens_go(generator: TransformersGenerator) -> None:
    ids = generator.tokenizer("<think>1+1</think>2<|end|>", add_special_tokens=False)["input_ids"]
    assert len(ids) == 7
    assert generator.decode(ids) == "<think>1+1</think>2"


def test_the_chat_template_is_applied_when_there_is_one(generator: TransformersGenerator, tmp_path: Path) -> None:
    assert generator.tokenizer.decode(generator.encode(["1+1="])[0]) == "<|user|>1+1=<|end|><|assistant|>"
    without = load_generator(save_model(tmp_path / "plain", chat=False))
    assert without.tokenizer.decode(without.encode(["1+1="])[0]) == "1+1="


def test_draws_belong_to_a_prompt_and_a_seed(generator: TransformersGenerator) -> None:
    sampling = Sampling(16, temperature=1.0, seed=5)
    first = answers(generator, PROMPTS, sampling, batch_size=50)
    assert answers(generator, PROMPTS, sampling, batch_size=3) == first
    assert answers(generator, PROMPTS, Sampling(16, temperature=1.0, seed=6)) != first
    cold = answers(generator, PROMPTS, Sampling(16, temperature=1e-4, seed=5))
    assert cold == answers(generator, PROMPTS, Sampling(16))


def test_draws_follow_the_probabilities(generator: TransformersGenerator) -> None:
    import torch

    prompt = "7+7="
    with torch.inference_mode():
        logits = generator.model(input_ids=torch.tensor(generator.encode([prompt]))).logits[0, -1]
    probabilities = torch.softmax(logits.double() / 1.5, 0).tolist()
    count = 4000
    drawn = Counter(
        one.token_ids[0] for one in answers(generator, [prompt] * count, Sampling(1, temperature=1.5), batch_size=count)
    )
    for token, probability in enumerate(probabilities):
        deviation = (count * probability * (1 - probability)) ** 0.5
        assert abs(drawn[token] - count * probability) <= 5 * deviation + 1, token


def test_a_bfloat16_model_answers_in_its_own_precision(tmp_path: Path) -> None:
    import torch

    generator = load_generator(save_model(tmp_path / "half", dtype="bfloat16"))
    assert generator.model.dtype == torch.bfloat16
    assert answers(generator, PROMPTS, Sampling(8)) == answers(generator, PROMPTS, Sampling(8))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_a_model_that_brings_code_is_refused(name: str, directory: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    content = json.loads((copy / name).read_text())
    content["auto_map"] = {"AutoModelForCausalLM": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}
    (copy / name).write_text(json.dumps(content))
    (copy / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(InputError, match="auto_map"):
        load_generator(copy)
    assert not (tmp_path / "ran").exists()


def test_pickled_weights_are_never_loaded(directory: Path, tmp_path: Path) -> None:
    import torch

    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    (copy / "model.safetensors").unlink()
    torch.save({}, copy / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_generator(copy)


def test_missing_weights_are_not_made_up(directory: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    content = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**content, "num_hidden_layers": 3}))
    with pytest.raises(InputError, match="9 weights are missing"):
        load_generator(copy)


@pytest.mark.parametrize("damage", ["truncated", "not a model", "no config", "config is no JSON"])
def test_a_damaged_model_is_refused_in_one_line(damage: str, directory: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    weights = copy / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "not a model":
        (copy / "config.json").write_text('{"model_type": "no-such-thing"}')
    elif damage == "no config":
        (copy / "config.json").unlink()
    else:
        (copy / "config.json").write_text("{")
    with pytest.raises(InputError) as raised:
        load_generator(copy)
    assert str(copy) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("wrong", [{"max_new_tokens": 0}, {"max_new_tokens": 1, "temperature": -1.0}])
def test_sampling_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Sampling(**wrong)


def test_a_template_that_refuses_is_the_models_fault(directory: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    (copy / "chat_template.jinja").write_text("{{ raise_exception('a system message is needed') }}")
    with pytest.raises(InputError, match="a system message is needed"):
        answers(load_generator(copy), ["1+1="], Sampling(4))


@pytest.mark.parametrize(("kind", "name"), [("mamba", "MambaForCausalLM"), ("lfm2", "Lfm2ForCausalLM")])
def test_a_recurrent_model_is_refused_and_not_answered_wrongly(kind: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name} keeps no key-value cache"):
        load_generator(save_model(tmp_path / kind, kind=kind))
