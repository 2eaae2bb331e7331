"""A Hugging Face model directory: checked and loaded, and written again with other weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from executors.checkpoints.files import DTYPES, TensorEntry, file_order, write_bytes, write_tensors
from executors.pipe import MODEL_PREFIX, FileRecord
from ledger.artifacts.weights import read_header
from ledger.bases import inspect_model
from ledger.errors import InputError

_FLOATS = {word: dtype for dtype, word in DTYPES.items() if dtype.is_floating_point}


class ModelFiles:
    """A checked model directory.

    `small` holds every file but the weights, by name; `dtypes` the type of every stored tensor.

    Raises:
        InputError: it is no model directory, holds pickles, asks for remote code, or a weight file is unsound.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        listed = inspect_model(directory).files
        weights = [name for name in listed if name.endswith(".safetensors")]
        self.small: dict[str, bytes] = {
            name: source if isinstance(source, bytes) else Path(source).read_bytes()
            for name, source in listed.items()
            if name not in weights and not name.endswith(".safetensors.index.json")
        }
        self.dtypes = {name: tensor.dtype for file in weights for name, tensor in read_header(directory / file).items()}

    def load_tokenizer(self) -> Any:
        """The tokenizer of the directory.

        Raises:
            InputError: transformers cannot read it.
        """
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self.directory, local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.directory} has no tokenizer that can be loaded: {_line(error)}") from None

    def load_model(self, dtype: torch.dtype) -> Any:
        """The causal language model of the directory with all weights in `dtype`, on the CPU.

        Raises:
            InputError: transformers does not know its kind, or tensors are missing, left over or of another shape.
        """
        from transformers import AutoModelForCausalLM

        loader: Any = AutoModelForCausalLM
        try:
            model, report = loader.from_pretrained(
                self.directory,
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise InputError(f"{self.directory} holds no model that can be loaded: {_line(error)}") from None
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if names := sorted(str(name) for name in report.get(kind) or ()):
                raise InputError(
                    f"{self.directory}: {len(names)} {kind.replace('_', ' ')} while loading, such as {names[0]}"
                )
        unknown = sorted({name for name, _ in model.named_parameters()} - self.dtypes.keys())
        if unknown:
            raise InputError(
                f"{self.directory}: its weight files have no {unknown[0]}; models whose tensors are renamed while they are "
                "loaded cannot be written back"
            )
        return model

    def export_dtype(self, name: str) -> torch.dtype:
        """The type that the tensor `name` is exported in: the one it was loaded from."""
        return _FLOATS.get(self.dtypes[name], torch.float32)


def write_model(
    directory: Path, model: ModelFiles, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[torch.Tensor]
) -> dict[str, FileRecord]:
    """Write `model/` into a checkpoint: every small file as it was, and `model.safetensors` with new weights.

    Args:
        shapes: of every tensor, in the order of `export_order`.
        tensors: full tensors in that order; each may be made when it is asked for.
    """
    target = directory / MODEL_PREFIX
    target.mkdir()
    records: dict[str, FileRecord] = {}
    for name, content in model.small.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        records[MODEL_PREFIX + name] = write_bytes(target / name, content, "model")
    entries = [TensorEntry(name, model.export_dtype(name), shape) for name, shape in shapes.items()]
    cast = (tensor.to(entry.dtype) for entry, tensor in zip(entries, tensors, strict=True))
    written = write_tensors(target / "model.safetensors", entries, cast, "model", {"format": "pt"})
    return {**records, MODEL_PREFIX + "model.safetensors": written}


def export_order(model: ModelFiles, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Names of tensors in the order of the exported file."""
    return [entry.name for entry in file_order(TensorEntry(n, model.export_dtype(n), s) for n, s in shapes.items())]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
