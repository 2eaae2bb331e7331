"""From a prompt's text to the text and tokens that a model sees: one place for training, evaluation and rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ledger.errors import InputError


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: Any
    eos_token_id: int | None
    pad_token_id: int | None

    def __call__(self, text: list[str], *, add_special_tokens: bool) -> Any: ...

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> Any: ...

    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> Any: ...


def prompt_text(tokenizer: Tokenizer, prompt: str) -> str:
    """`prompt` as the user's turn, up to where the model's turn begins: what a chat request of one message becomes.

    A tokenizer without a chat template gets the prompt as it is.

    Raises:
        InputError: the template does not accept a conversation of one user message.
    """
    if tokenizer.chat_template is None:
        return prompt
    conversation = [{"role": "user", "content": prompt}]
    try:
        return str(tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a program that came with the model: whatever it raises is its refusal
        raise InputError(f"the model's chat template refuses one user message: {error}") from None


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text. Special tokens come from the chat template, so none are added here."""
    return [list(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]


def padding_token(tokenizer: Tokenizer) -> int:
    """The token that fills blocks; without one of its own the end token does, since padding is never looked at."""
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0
