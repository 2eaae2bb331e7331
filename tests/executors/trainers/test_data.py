"""The loader: whose order is a function of seed and epoch, and whose state is a position."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from executors.trainers.data import Example, Loader, collate, encode_rows, epoch_order, micro_batches, read_rows
from executors.trainers.objectives import IGNORED
from ledger.digest import sha256_digest
from ledger.errors import InputError
from tests.executors.rollout.tiny import save_model

DIGEST = sha256_digest(b"dataset")


def examples(count: int) -> list[Example]:
    """Row i has i mod 5 + 3 tokens, two of them prompt; its first token is its number."""
    return [Example((i, 1, *range(2, 3 + i % 5)), 2) for i in range(count)]


def loader(count: int = 10, batch: int = 4, seed: int = 3, dataset: str = DIGEST) -> Loader:
    return Loader(examples(count), batch_size=batch, seed=seed, dataset=dataset)


def numbers(batch: list[Example]) -> list[int]:
    return [example.tokens[0] for example in batch]


def test_the_order_is_pinned_for_ever() -> None:
    """A checkpoint of an older release stands in this order."""
    assert epoch_order(10, 0, 0) == [6, 4, 7, 3, 8, 1, 2, 0, 5, 9]
    assert epoch_order(10, 0, 1) == [9, 6, 7, 2, 5, 3, 4, 0, 1, 8]
    assert epoch_order(10, 1, 0) == [3, 7, 4, 9, 8, 1, 2, 5, 0, 6]


def test_an_order_is_a_permutation_without_favourites() -> None:
    assert sorted(epoch_order(1000, 5, 7)) == list(range(1000))
    first = Counter(epoch_order(4, seed, 0)[0] for seed in range(4000))
    assert all(850 < count < 1150 for count in first.values())
    assert sorted(first) == [0, 1, 2, 3]


def test_no_row_is_skipped_or_repeated_within_an_epoch() -> None:
    data = loader()
    drawn = [number for _ in range(5) for number in numbers(data.next_batch())]  # two epochs of ten
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]


def test_a_batch_may_be_larger_than_the_dataset() -> None:
    data = loader(count=3, batch=8)
    assert Counter(numbers(data.next_batch()))[0] >= 2
    assert (data.epoch, data.position) == (2, 2)


def test_no_global_generator_is_touched() -> None:
    states = (random.getstate(), torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"].copy())  # type: ignore[call-overload, index]
    data = loader()
    for _ in range(6):
        list(micro_batches(data.next_batch(), 0, 2, 2))
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert (np.random.get_state(legacy=False)["state"]["key"] == states[2]).all()  # type: ignore[call-overload, index]


@pytest.mark.parametrize("batches", range(6))
def test_a_restored_loader_goes_on_where_it_stood(batches: int) -> None:
    """Also at and over the end of an epoch (after 2.5 batches)."""
    data = loader()
    for _ in range(batches):
        data.next_batch()
    again = loader().restore(data.state())
    for _ in range(5):
        assert numbers(again.next_batch()) == numbers(data.next_batch())


def test_a_loader_restored_at_an_epochs_end_trains_the_next() -> None:
    data = loader(batch=10)
    data.next_batch()
    assert data.state()["position"] == 10
    again = loader(batch=10).restore(data.state())
    assert sorted(numbers(again.next_batch())) == list(range(10))
    assert again.epoch == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset": sha256_digest(b"other")}, "belongs to dataset"),
        ({"rows": 11}, "belongs to rows"),
        ({"seed": 4}, "belongs to seed"),
        ({"position": 11}, "row 11"),
        ({"position": -1}, "row -1"),
        ({"epoch": "1"}, "epoch '1'"),
        ({"position": True}, "row True"),
        ({"epoch": None}, "epoch None"),
    ],
)
def test_a_position_of_another_dataset_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        loader().restore({**loader().state(), **change})


@pytest.mark.parametrize(("size", "rows"), [(1, 3), (2, 2), (4, 1), (2, 100)])
def test_micro_batches_cover_the_batch_once_and_evenly(size: int, rows: int) -> None:
    batch = examples(12)
    shares = [list(micro_batches(batch, rank, size, rows)) for rank in range(size)]
    assert sorted(n for share in shares for block in share for n in numbers(block)) == list(range(12))
    assert len({len(share) for share in shares}) == 1  # else a rank would wait in a collective for ever
    assert max(len(block) for share in shares for block in share) <= rows
    for share in shares:
        lengths = [len(example.tokens) for block in share for example in block]
        assert lengths == sorted(lengths)


def test_labels_are_the_response_and_the_end() -> None:
    block = collate([Example((7, 8, 9, 5, 2), 3), Example((7, 8, 9, 9, 6, 5, 2), 4)], pad=1)
    assert block.tokens.tolist() == [[7, 8, 9, 5, 2, 1, 1, 1], [7, 8, 9, 9, 6, 5, 2, 1]]
    assert block.first == 2  # the position that predicts the first response token of the shortest prompt
    no = IGNORED
    assert block.labels.tolist() == [[5, 2, no, no, no, no], [no, 6, 5, 2, no, no]]


def test_a_real_end_counts_when_padding_is_the_same_token() -> None:
    block = collate([Example((7, 8, 2), 2)], pad=2)
    assert block.labels.tolist() == [[2] + [IGNORED] * 6]


def test_rows_go_through_the_chat_template(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(save_model(tmp_path / "model"))
    (example,) = encode_rows(tokenizer, [("1+1=", "<think>2</think>2")], 64)
    tokens = tokenizer.convert_ids_to_tokens(list(example.tokens))
    assert tokens[: example.prompt_length] == ["<|user|>", "1", "+", "1", "=", "<|end|>", "<|assistant|>"]
    assert tokens[example.prompt_length :] == ["<think>", "2", "</think>", "2", "<|end|>"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has no rows"),
        (b'{"prompt": "a", "response": "b"}\n{"prompt": "a"}\n', "line 2: expected the texts"),
        (b'{"prompt": "a", "response": ""}\n', "line 1: expected the texts"),
        (b"[1]\n", "line 1: expected the texts"),
        (b"{\n", "line 1: not JSON"),
        (b"\xff\n", "line 1: not JSON"),
        (b"[" * 100_000 + b"\n", "line 1: not JSON"),
        (b'{"prompt": "' + b"a" * (4 << 20) + b'"}\n', "line 1: longer than"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_rows(tmp_path)


def test_a_missing_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path / "nowhere")
