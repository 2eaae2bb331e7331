"""Models of a few thousand parameters: a character vocabulary, with or without a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHARACTERS = "0123456789+-*/= abcdefghijklmnopqrstuvwxyz?.!"
TEMPLATE = (
    "{% for message in messages %}{{ '<|user|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIAL = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>")


def save_model(
    directory: Path,
    *,
    seed: int = 0,
    chat: bool = True,
    positions: int = 64,
    kind: str = "llama",
    dtype: str = "float32",
) -> Path:
    """A random model; about one in twenty tokens that it says ends the answer."""
    import torch
    import transformers as library
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    transformers: Any = library  # its configurations take more keywords than their types say
    words = ["<unk>", *SPECIAL, *CHARACTERS]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    # One of the two is called special, as in tokenizers that exist.
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    tokenizer.add_special_tokens([AddedToken("</think>", special=True, normalized=False)])
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<|pad|>", eos_token="<|end|>",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    if chat:
        wrapped.chat_template = TEMPLATE
    torch.manual_seed(seed)
    ends = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 1}
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=len(wrapped),
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=positions,
            initializer_range=0.7,
            **ends,
        )
        model: Any = transformers.GPT2LMHeadModel(config)
    elif kind == "mamba":
        config = transformers.MambaConfig(vocab_size=len(wrapped), hidden_size=16, num_hidden_layers=1, **ends)
        model = transformers.MambaForCausalLM(config)
    elif kind == "lfm2":
        config = transformers.Lfm2Config(
            vocab_size=len(wrapped), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, layer_types=["conv", "full_attention"], **ends,
        )  # fmt: skip
        model = transformers.Lfm2ForCausalLM(config)
    else:
        config = transformers.LlamaConfig(
            vocab_size=len(wrapped), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=positions, tie_word_embeddings=True, initializer_range=0.7,
            **ends,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    model = model.to(getattr(torch, dtype))
    # What a model brings along must not change how it is evaluated.
    model.generation_config = transformers.GenerationConfig(
        do_sample=True, temperature=1.5, top_k=2, repetition_penalty=3.0, eos_token_id=[2], pad_token_id=1
    )
    model.save_pretrained(directory)
    wrapped.save_pretrained(directory)
    return directory
