"""Tiny models that are served in tests: one layer, a character vocabulary, a chat template."""

from __future__ import annotations

from pathlib import Path

ALPHABET = "0123456789+-*/= abcdefghijklmnopqrstuvwxyz?.!"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def save_tiny_model(
    directory: Path, seed: int, *, tied: bool = True, dtype: str = "float32", chat: bool = True
) -> Path:
    """A Llama with random weights that differ by `seed`; it never emits an end token of its own accord."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", *ALPHABET]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    if chat:
        fast.chat_template = TEMPLATE
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied, pad_token_id=0, eos_token_id=1,
        bos_token_id=None, initializer_range=0.5,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(getattr(torch, dtype))
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0, max_new_tokens=8)
    model.save_pretrained(directory)
    fast.save_pretrained(directory)
    return directory
