"""From a dataset's rows to batches of tokens.

The order of an epoch is a function of (seed, epoch) and touches no global random generator; the loader's whole state is
where it stands. A batch may reach into the next epoch, so no row is skipped or repeated within one, and an epoch's end is
no end of training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from executors.rollout.chat import Tokenizer, encode_texts, prompt_text
from executors.trainers.objectives import IGNORED
from ledger.errors import InputError

MAX_LINE_BYTES = 4 << 20
PAD_TO = 8  # lengths are rounded up to it, so that few different shapes occur


@dataclass(frozen=True, slots=True)
class Example:
    """One row: prompt tokens, then response tokens and the end token; the loss is on what follows the prompt."""

    tokens: tuple[int, ...]
    prompt_length: int

    @property
    def response_length(self) -> int:
        return len(self.tokens) - self.prompt_length


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """`tokens` is `[rows, length]`, padded on the right, where a causal model does not look. `labels[:, i]` is what
    position `first + i` predicts: `[rows, length - first]`, from the first position that anything is learnt at."""

    tokens: torch.Tensor
    labels: torch.Tensor
    first: int


def read_rows(directory: Path) -> list[tuple[str, str]]:
    """Prompt and response of every row of a dataset artifact.

    Raises:
        InputError: no rows, or a row that is not an object with the texts `prompt` and `response`.
    """
    path = directory / "rows.jsonl"
    rows: list[tuple[str, str]] = []
    try:
        with path.open("rb") as stream:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                rows.append(_row(path, len(rows) + 1, line))
    except OSError as error:
        raise InputError(f"dataset {directory} cannot be read: {error}") from None
    if not rows:
        raise InputError(f"{path} has no rows; there is nothing to train on")
    return rows


def encode_rows(tokenizer: Tokenizer, rows: Sequence[tuple[str, str]], max_length: int) -> list[Example]:
    """Rows as tokens, with the model's chat template around the prompt.

    Raises:
        InputError: a row is longer than `max_length`; nothing is cut silently. Or the tokenizer has no end token.
    """
    end = tokenizer.eos_token_id
    if end is None:
        raise InputError("the tokenizer has no end token (eos_token); a model could not learn to stop")
    prompts = encode_texts(tokenizer, [prompt_text(tokenizer, prompt) for prompt, _ in rows])
    responses = encode_texts(tokenizer, [response for _, response in rows])
    examples = [Example((*p, *r, end), len(p)) for p, r in zip(prompts, responses, strict=True)]
    longest = max(range(len(examples)), key=lambda index: len(examples[index].tokens))
    length = len(examples[longest].tokens)
    if length > max_length:
        count = sum(len(example.tokens) > max_length for example in examples)
        raise InputError(
            f"{count} rows are longer than config.max_length {max_length}; row {longest + 1} has {length} tokens: "
            "raise max_length or remove the rows"
        )
    return examples


class Loader:
    """Global batches, the same on every rank. `dataset` is the digest that the position belongs to."""

    def __init__(self, examples: Sequence[Example], *, batch_size: int, seed: int, dataset: str) -> None:
        if not examples:
            raise InputError("the dataset has no rows; there is nothing to train on")
        self.examples = examples
        self.batch_size = batch_size
        self.seed = seed
        self.dataset = dataset
        self.epoch = 0
        self.position = 0  # rows taken from this epoch
        self._order = epoch_order(len(examples), seed, 0)

    def next_batch(self) -> list[Example]:
        """The next `batch_size` rows; at an epoch's end the rest comes from the next one."""
        batch: list[Example] = []
        while len(batch) < self.batch_size:
            if self.position == len(self.examples):
                self._enter(self.epoch + 1)
            taken = self._order[self.position : self.position + self.batch_size - len(batch)]
            batch.extend(self.examples[index] for index in taken)
            self.position += len(taken)
        return batch

    def state(self) -> dict[str, Any]:
        """Everything that the next batch depends on."""
        return {
            "dataset": self.dataset,
            "rows": len(self.examples),
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
        }

    def restore(self, state: Mapping[str, Any]) -> Self:
        """Go on from `state`.

        Raises:
            InputError: it belongs to another dataset, seed or number of rows, or is no state at all. A position means nothing
                in other data.
        """
        for name, own in (("dataset", self.dataset), ("rows", len(self.examples)), ("seed", self.seed)):
            if state.get(name) != own:
                raise InputError(
                    f"the checkpoint's loader position belongs to {name} {state.get(name)!r}, this run has {own!r}; "
                    "start a new run from the checkpoint's model instead"
                )
        epoch, position = state.get("epoch"), state.get("position")
        if type(epoch) is not int or type(position) is not int or epoch < 0 or not 0 <= position <= len(self.examples):
            raise InputError(f"the checkpoint's loader position is epoch {epoch!r}, row {position!r}, which is none")
        self._enter(epoch)
        self.position = position
        return self

    def _enter(self, epoch: int) -> None:
        self.epoch, self.position = epoch, 0
        self._order = epoch_order(len(self.examples), self.seed, epoch)


def epoch_order(rows: int, seed: int, epoch: int) -> list[int]:
    """A permutation of `range(rows)` that depends on seed and epoch alone, on no library's generator.

    Rows are sorted by SplitMix64 (Steele et al., 2014) of their number, keyed by seed and epoch.
    """
    key = _mix(np.array([(seed << 32) ^ epoch], dtype=np.uint64))
    keys = _mix(_mix(np.arange(rows, dtype=np.uint64)) ^ key)
    return [int(index) for index in np.argsort(keys, kind="stable")]


def micro_batches(batch: Sequence[Example], rank: int, size: int, rows: int) -> Iterator[list[Example]]:
    """This rank's share of a global batch, at most `rows` at a time. Rows of like length stand together, which saves
    padding, and every rank gets rows of every length and the same number of micro-batches."""
    ordered = sorted(range(len(batch)), key=lambda index: (len(batch[index].tokens), index))
    share = [batch[index] for index in ordered[rank::size]]
    for start in range(0, len(share), rows):
        yield share[start : start + rows]


def collate(examples: Sequence[Example], pad: int) -> MicroBatch:
    """Examples as one padded block."""
    length = -(-max(len(example.tokens) for example in examples) // PAD_TO) * PAD_TO
    first = min(example.prompt_length for example in examples) - 1
    tokens = np.full((len(examples), length), pad, dtype=np.int64)
    labels = np.full((len(examples), length), IGNORED, dtype=np.int64)
    for row, example in enumerate(examples):
        count = len(example.tokens)
        tokens[row, :count] = example.tokens
        labels[row, example.prompt_length - 1 : count - 1] = example.tokens[example.prompt_length :]
    return MicroBatch(torch.from_numpy(tokens), torch.from_numpy(labels[:, first:].copy()), first)


def _mix(values: Any) -> Any:
    """SplitMix64's step and finaliser; uint64 arithmetic wraps."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _row(path: Path, number: int, line: bytes) -> tuple[str, str]:
    place = f"{path}, line {number}"
    if len(line) > MAX_LINE_BYTES:
        raise InputError(f"{place}: longer than {MAX_LINE_BYTES} bytes")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{place}: not JSON") from None
    prompt, response = (row.get("prompt"), row.get("response")) if isinstance(row, dict) else (None, None)
    if not isinstance(prompt, str) or not isinstance(response, str) or not prompt or not response:
        raise InputError(f"{place}: expected the texts prompt and response, neither of them empty")
    return prompt, response
