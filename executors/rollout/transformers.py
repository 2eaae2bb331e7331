"""Batched generation with a key-value cache, through Hugging Face transformers on one device.

The loop is written out because it must depend on nothing but the weights and `Sampling`: `model.generate` also obeys a
`generation_config.json` (penalties, top-k, forced tokens) that came with the model. Prompts go in batches of similar length,
padded on the left; a row that has ended leaves the batch.

The same prompts, sampling and batch size give the same tokens on the same machine. Padding and batch size can change the
order in which a matrix product is summed: in float32 the last bit of a logit, in bfloat16 about its third digit. A choice
between two tokens that close can then fall the other way; nothing else depends on what shares a batch.
"""

from __future__ import annotations

import inspect
import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executors.rollout.base import Completion, Sampling
from executors.rollout.chat import encode_texts, prompt_text
from ledger.bases import REMOTE_CODE_KEYS
from ledger.errors import InputError, MissingExtra

if TYPE_CHECKING:
    import torch

MAX_CONFIG_BYTES = 16 << 20
SMALL_MODEL_PARAMETERS = 20_000_000  # below this, threads cost more than they bring
CACHE_NAMES = ("cache", "past_key_values")  # transformers 5.24 renamed the argument
ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
KEPT = ("<think>", "</think>")  # a part of the answer's text, even where a tokenizer calls them special


@dataclass(slots=True)
class _Row:
    """A prompt that is being answered. `room` is how many tokens it may still get."""

    index: int
    prompt: list[int]
    room: int
    draws: list[float]
    chosen: list[int] = field(default_factory=list)


def load_generator(directory: Path, device: str = "cpu") -> TransformersGenerator:
    """The model in a local directory, in the dtype of its file.

    Raises:
        InputError: it is no model directory, it brings code, weights are missing, transformers does not know it, or it
            keeps a recurrent state instead of a key-value cache.
        MissingExtra: torch or transformers is not installed.
    """
    refuse_code(directory)
    try:
        import torch
        import transformers
        from safetensors import SafetensorError
    except ImportError:
        raise MissingExtra("generation", "evaluate") from None
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **local)
        loader: Any = transformers.AutoModelForCausalLM
        model, report = loader.from_pretrained(
            directory, use_safetensors=True, dtype="auto", output_loading_info=True, **local
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{directory} cannot be loaded as a causal language model: {_one_line(error)}") from error
    wrong = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if wrong:
        raise InputError(
            f"{directory}: {len(wrong)} weights are missing or have another shape, the first is {wrong[0]}"
        )
    _set_threads(torch, sum(parameter.numel() for parameter in model.parameters()))
    return TransformersGenerator(model.to(device).eval(), tokenizer, device)


def refuse_code(directory: Path) -> None:
    """Refuse a model directory whose configuration asks for Python code that came with it.

    Raises:
        InputError: it does, or its `config.json` is missing or unreadable.
    """
    if not (directory / "config.json").is_file():
        raise InputError(f"{directory} is no model directory: it has no config.json")
    for path in sorted(directory.glob("*config*.json")):
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"{path} has {path.stat().st_size} bytes; a configuration has at most {MAX_CONFIG_BYTES}")
        try:
            content = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is not JSON: {error}") from None
        for key in REMOTE_CODE_KEYS:
            if isinstance(content, dict) and key in content:
                raise InputError(
                    f"{path} has {key}, which loads code that came with the model; such models are refused"
                )


class TransformersGenerator:
    """One model and its tokenizer on one device."""

    def __init__(self, model: Any, tokenizer: Any, device: str) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.device = device
        self.end_ids = _end_ids(model, tokenizer)
        self.context = int(getattr(model.config, "max_position_embeddings", None) or 2**31)
        accepted = inspect.signature(model.forward).parameters
        self._optional = {name for name in ("position_ids", "logits_to_keep") if name in accepted}
        self._cache_name = next((name for name in CACHE_NAMES if name in accepted), "")
        recurrent = set(getattr(model.config, "layer_types", None) or ()) - ATTENTION_LAYERS
        if not self._cache_name or recurrent or getattr(model, "_is_stateful", False):
            # A recurrent state would take in the padding, and a cache that is ignored gives wrong tokens without a word.
            raise InputError(
                f"{type(model).__name__} keeps no key-value cache of the usual kind; only models with one are supported"
            )
        self._dropped = _special_ids(tokenizer)

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids of each prompt as the user's turn (see `executors.rollout.chat`).

        Raises:
            InputError: the model's chat template refuses a message.
        """
        return encode_texts(self.tokenizer, [prompt_text(self.tokenizer, prompt) for prompt in prompts])

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a completion without special tokens; `<think>` and `</think>` stay."""
        kept = [token for token in token_ids if token not in self._dropped]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def generate(
        self, prompts: Sequence[str], sampling: Sampling, *, batch_size: int = 128
    ) -> Iterator[list[tuple[int, Completion]]]:
        """Answer every prompt once, a batch at a time, the longest prompts first (what does not fit into memory fails at once).

        Yields:
            for each batch, pairs of a prompt's index and its completion.

        Raises:
            InputError: a prompt without tokens, or one that leaves no room in the model's context.
        """
        rows = [self._row(index, tokens, sampling) for index, tokens in enumerate(self.encode(prompts))]
        rows.sort(key=lambda row: (-len(row.prompt), row.index))
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            self._answer(batch, sampling)
            yield [(row.index, self._completion(row)) for row in batch]

    def _row(self, index: int, prompt: list[int], sampling: Sampling) -> _Row:
        room = min(sampling.max_new_tokens, self.context - len(prompt))
        if not prompt:
            raise InputError(f"prompt {index + 1} has no tokens")
        if room < 1:
            raise InputError(
                f"prompt {index + 1} has {len(prompt)} tokens and the model's context {self.context}: no room for an answer"
            )
        draws = _draws(sampling, index, room) if sampling.temperature > 0 else []
        return _Row(index, prompt, room, draws)

    def _completion(self, row: _Row) -> Completion:
        stopped = row.chosen[-1] in self.end_ids
        return Completion(tuple(row.chosen), self.decode(row.chosen), "stop" if stopped else "length")

    def _answer(self, batch: list[_Row], sampling: Sampling) -> None:
        """Fill `chosen` of every row. Shapes: tokens (rows, prompt) at first and (rows, 1) then; mask (rows, all so far)."""
        import torch
        from transformers import DynamicCache

        with torch.inference_mode():
            cache = DynamicCache(config=self.model.config)
            tokens, mask = self._padded(batch)
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            while True:
                logits = self._forward(tokens, mask, positions, cache)
                step = _choose(logits, batch, sampling).tolist()
                for row, token in zip(batch, step, strict=True):
                    row.chosen.append(token)
                going = [
                    place
                    for place, row in enumerate(batch)
                    if row.chosen[-1] not in self.end_ids and len(row.chosen) < row.room
                ]
                if not going:
                    return
                if len(going) < len(batch):
                    kept = torch.tensor(going, device=self.device)
                    cache.batch_select_indices(kept)
                    mask, positions = mask[kept], positions[kept]
                    batch = [batch[place] for place in going]
                tokens = torch.tensor([[row.chosen[-1]] for row in batch], device=self.device)
                mask = torch.cat([mask, mask.new_ones(len(batch), 1)], dim=1)
                positions = positions[:, -1:] + 1

    def _padded(self, batch: list[_Row]) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        width = max(len(row.prompt) for row in batch)
        tokens = [[0] * (width - len(row.prompt)) + row.prompt for row in batch]  # what is masked may be any token
        mask = [[0] * (width - len(row.prompt)) + [1] * len(row.prompt) for row in batch]
        return torch.tensor(tokens, device=self.device), torch.tensor(mask, device=self.device)

    def _forward(self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        """Logits of the next token, (rows, vocabulary) in float32."""
        import torch

        options: dict[str, Any] = {"position_ids": positions, "logits_to_keep": 1}
        options = {name: value for name, value in options.items() if name in self._optional}
        options[self._cache_name] = cache
        out = self.model(input_ids=tokens, attention_mask=mask, use_cache=True, **options)
        return torch.as_tensor(out.logits[:, -1]).float()


def _choose(logits: torch.Tensor, batch: list[_Row], sampling: Sampling) -> torch.Tensor:
    """The next token of each row: the likeliest, or where the row's draw falls in the cumulated probabilities."""
    import torch

    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    cumulated = torch.softmax(logits.double() / sampling.temperature, dim=-1).cumsum(dim=-1)
    draws = torch.tensor([[row.draws[len(row.chosen)]] for row in batch], dtype=torch.float64, device=logits.device)
    found = torch.searchsorted(cumulated, draws * cumulated[:, -1:], right=True).squeeze(1)
    return found.clamp(max=logits.shape[-1] - 1)


def _draws(sampling: Sampling, index: int, count: int) -> list[float]:
    """Uniform numbers in [0, 1) of one prompt; the first n are the same whatever `count` is."""
    # A text seeds all of the state; torch's CPU generator would take the lower 32 bits of a number and drop the rest.
    stream = random.Random(f"{sampling.seed}/{index}")
    return [stream.random() for _ in range(count)]


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends an answer, by the model's generation configuration and by its tokenizer."""
    found: set[int] = set()
    for named in (getattr(model.generation_config, "eos_token_id", None), tokenizer.eos_token_id):
        found.update([named] if isinstance(named, int) else named or [])
    return frozenset(found)


def _special_ids(tokenizer: Any) -> frozenset[int]:
    added = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    kept = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.content in KEPT}
    return frozenset((added | set(tokenizer.all_special_ids)) - kept)


def _set_threads(torch: Any, parameters: int) -> None:
    stated = os.environ.get("OMP_NUM_THREADS", "")
    if stated.isdecimal() and int(stated) > 0:
        torch.set_num_threads(int(stated))
    elif parameters < SMALL_MODEL_PARAMETERS:
        torch.set_num_threads(1)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400]
