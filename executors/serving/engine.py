"""The engine: one model in memory, answering on loopback to whoever holds the deployment's token.

Run as `python -m executors.serving.engine` by a launcher. Generation, chat templates and streaming are those of
transformers' own server (`transformers.cli.serving`); its application is not used, because it lists routes that load,
reset and switch models. Three routes of it are listed here, `/health`, and `/posttrain/weights`: the digest of the
tensors that are in memory now. The model comes from a verified local directory, never from a hub, in the dtype of its
file; a directory that brings code, an adapter or other weight formats is refused.

`plan.json`: `{"deployment_id", "served_name", "model_dir", "token_file"}`. When it answers, the engine writes
`listening.json` (`{"port", "pid"}`) into its output directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executors.launchers import supervisor
from executors.serving.weights import TensorDigest, TensorSpec, combine, main_dtype, tensor_specs
from ledger.errors import InfrastructureError, InputError, MissingExtra, PosttrainError

if TYPE_CHECKING:
    import torch

MAX_CONFIG_BYTES = 16 << 20
SMALL_MODEL_PARAMETERS = 20_000_000  # below this, threads cost more than they bring
REFUSED_SUFFIXES = (".py", ".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".gguf", ".h5", ".msgpack")
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "I16": "int16",
    "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32",
    "I64": "int64", "U64": "uint64", "F64": "float64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class EnginePlan:
    deployment_id: str
    served_name: str
    model_dir: Path
    token_file: Path

    def document(self) -> dict[str, str]:
        return {
            "deployment_id": self.deployment_id,
            "served_name": self.served_name,
            "model_dir": str(self.model_dir),
            "token_file": str(self.token_file),
        }

    @classmethod
    def read(cls, path: Path) -> EnginePlan:
        content = json.loads(path.read_bytes())
        return cls(
            str(content["deployment_id"]),
            str(content["served_name"]),
            Path(content["model_dir"]),
            Path(content["token_file"]),
        )


def main() -> int:
    """Serve until SIGTERM. 0: asked to end; otherwise the last line of the log says why."""
    try:
        plan = EnginePlan.read(Path(os.environ["POSTTRAIN_PLAN"]))
        out = Path(os.environ["POSTTRAIN_OUT"])
        os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
        serve(plan, out)
    except PosttrainError as error:
        sys.stderr.write(f"engine: {' '.join(str(error).split())}\n")
        return error.exit_code
    return 0


def serve(plan: EnginePlan, out: Path) -> None:
    """Load the model, then listen and answer.

    Raises:
        InputError: the directory is not one that is served.
        MissingExtra: transformers or the web server is not installed.
    """
    token = plan.token_file.read_text("ascii").strip()
    if len(token) < 32:
        raise InfrastructureError(f"{plan.token_file} holds no token")
    specs = tensor_specs(plan.model_dir)
    refuse_foreign_content(plan.model_dir)
    try:
        import uvicorn

        loaded = load(plan, specs)
        # Imported here, because it needs transformers in its offline mode and this module is imported by deployers.
        from executors.serving.web.engine import OnlyWithToken, build_app

        app = OnlyWithToken(build_app(loaded), token)
    except ImportError as error:
        raise MissingExtra(f"serving ({error.name or error})", "serve") from error
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=120,  # longer than the gateway keeps a connection, so that it is never the engine who closes
        timeout_graceful_shutdown=30,
    )
    supervisor.write_file(out / "listening.json", {"port": listener.getsockname()[1], "pid": os.getpid()})
    uvicorn.Server(config).run(sockets=[listener])


def refuse_foreign_content(directory: Path) -> None:
    """Refuse a model directory that holds more than safetensors, JSON and text.

    Raises:
        InputError: a file of another kind, an adapter, or a configuration with `auto_map`.
    """
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        if path.suffix.lower() in REFUSED_SUFFIXES:
            raise InputError(f"{directory} holds {name}; only safetensors weights and JSON are served")
        if path.name == "adapter_config.json":
            raise InputError(f"{directory} holds an adapter ({name}); merge it into its base before it is promoted")
        if path.suffix == ".json" and path.stat().st_size <= MAX_CONFIG_BYTES:
            try:
                content = json.loads(path.read_bytes())
            except (ValueError, RecursionError):
                raise InputError(f"{directory}: {name} is not JSON") from None
            if isinstance(content, dict) and "auto_map" in content:
                raise InputError(f"{directory}: {name} has auto_map, which loads code; such models are not served")


class PinnedModel:
    """What transformers' handlers ask of a model manager: always this model, under the name that it is served by."""

    def __init__(self, plan: EnginePlan, model: Any, tokenizer: Any, specs: list[TensorSpec]) -> None:
        self.force_model = plan.served_name  # the handlers refuse any other name
        self.deployment_id = plan.deployment_id
        self.model, self.tokenizer, self.specs = model, tokenizer, specs
        text = model.config.get_text_config()
        self.context: int = getattr(text, "max_position_embeddings", None) or 1 << 20
        self.defaults: dict[str, Any] = model.generation_config.to_diff_dict()

    def process_model_name(self, model_id: str) -> str:
        return model_id

    def load_model_and_processor(self, _model_id: str, gguf_file: str | None = None) -> tuple[Any, Any]:
        if gguf_file is not None:
            raise InputError("one model is served here; it is not a GGUF file")
        return self.model, self.tokenizer

    def get_model_modality(self, _model: Any, processor: Any = None) -> Any:
        from transformers.cli.serving.utils import Modality

        return Modality.LLM

    def weights(self) -> dict[str, Any]:
        """Digest the tensors that generation uses, as they are in memory now."""
        tensors = state_by_name(self.model)
        missing = [spec.name for spec in self.specs if spec.name not in tensors]
        if missing:
            raise InfrastructureError(
                f"{len(missing)} tensors of the file are not in the model, such as {missing[0]!r}"
            )
        digest = combine(tensor_digest(spec.name, tensors[spec.name]) for spec in self.specs)
        return {"weights": digest, "tensors": len(self.specs), "deployment_id": self.deployment_id}


def load(plan: EnginePlan, specs: list[TensorSpec]) -> PinnedModel:
    """The model in memory: every tensor comes from the file, in the file's dtype."""
    import torch
    import transformers

    dtype = main_dtype(specs)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = transformers.AutoTokenizer.from_pretrained(plan.model_dir, **local)
    loader: Any = transformers.AutoModelForCausalLM  # its types do not know output_loading_info
    model, report = loader.from_pretrained(
        plan.model_dir,
        dtype=getattr(torch, DTYPES[dtype]) if dtype else "auto",
        use_safetensors=True,
        output_loading_info=True,
        **local,
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(str(name) for name in report.get(kind) or ()):
            raise InputError(
                f"{plan.model_dir}: {len(names)} {kind.replace('_', ' ')} while loading, such as {names[0]}"
            )
    model.to(device).eval()
    if sum(parameter.numel() for parameter in model.parameters()) < SMALL_MODEL_PARAMETERS:
        torch.set_num_threads(1)
    return PinnedModel(plan, model, tokenizer, specs)


def state_by_name(model: Any) -> dict[str, torch.Tensor]:
    """The model's tensors under the names that its file uses; both names of a tied pair are there."""
    state: dict[str, torch.Tensor] = model.state_dict()
    if getattr(model, "_weight_conversions", None):
        # transformers merged or renamed tensors while it loaded them; this is what its save_pretrained undoes it with.
        from transformers.core_model_loading import revert_weight_conversion

        state = revert_weight_conversion(model, state)
    return state


def tensor_digest(name: str, tensor: torch.Tensor) -> TensorDigest:
    import torch

    words = {getattr(torch, word): name for name, word in DTYPES.items()}
    data: Any = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
    content = "sha256:" + hashlib.sha256(data).hexdigest()
    return TensorDigest(name, words[tensor.dtype], tuple(tensor.shape), content)


if __name__ == "__main__":
    sys.exit(main())
