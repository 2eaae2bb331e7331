"""The engine with real weights: in this process what it loads and digests, as a process what it answers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from executors.launchers.local import LocalLauncher
from executors.serving.engine import EnginePlan, load, refuse_foreign_content
from executors.serving.places import Place
from executors.serving.probe import wait_for_port
from executors.serving.requests import MAX_BODY_BYTES
from executors.serving.weights import directory_digest, tensor_specs
from ledger.errors import InputError
from tests.executors.serving.tiny import save_tiny_model

NAME = "production-0123456789ab-01234567"
CHAT: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "1+1="}], "max_tokens": 5}
TEXT: dict[str, Any] = {"model": NAME, "prompt": "1+1=", "max_tokens": 5}


# --- what is in memory -------------------------------------------------------------------------------------------------


def loaded(directory: Path) -> Any:
    plan = EnginePlan("d-0123456789abcdef", NAME, directory, directory / "token")
    return load(plan, tensor_specs(directory))


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_memory_and_files_have_one_digest(tmp_path: Path, tied: bool, dtype: str) -> None:
    directory = save_tiny_model(tmp_path / "model", 1, tied=tied, dtype=dtype)
    pinned = loaded(directory)
    assert str(pinned.model.dtype) == f"torch.{dtype}"
    names = {spec.name for spec in tensor_specs(directory)}
    assert ("lm_head.weight" in names) is not tied
    assert pinned.weights()["weights"] == directory_digest(directory)


def test_the_files_type_wins_over_the_configurations(tmp_path: Path) -> None:
    directory = save_tiny_model(tmp_path / "model", 1, dtype="bfloat16")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    pinned = loaded(directory)
    assert str(pinned.model.dtype) == "torch.bfloat16"
    assert pinned.weights()["weights"] == directory_digest(directory)


def test_the_digest_is_of_the_memory_and_not_of_the_file(tmp_path: Path) -> None:
    import torch

    directory = save_tiny_model(tmp_path / "model", 1)
    pinned = loaded(directory)
    with torch.no_grad():
        pinned.model.lm_head.weight[3, 3] += 1e-3  # tied: the embedding changes with it
    assert pinned.weights()["weights"] != directory_digest(directory)


def test_a_tensor_that_the_file_lacks_is_not_made_up(tmp_path: Path) -> None:
    """transformers would fill it with random numbers and serve."""
    from safetensors.numpy import load_file, save_file

    directory = save_tiny_model(tmp_path / "model", 1)
    tensors = load_file(directory / "model.safetensors")
    removed = next(name for name in sorted(tensors) if "mlp" in name)
    kept = {name: tensor for name, tensor in tensors.items() if name != removed}
    save_file(kept, directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=f"1 missing keys while loading, such as {removed}"):
        loaded(directory)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("modeling_evil.py", "import os", "holds modeling_evil.py"),
        ("sub/weights.bin", "", "holds sub/weights.bin"),
        ("optimizer.PT", "", "holds optimizer.PT"),
        ("adapter_config.json", "{}", "holds an adapter"),
        ("config.json", '{"auto_map": {"AutoModel": "x.y"}}', "config.json has auto_map"),
        ("tokenizer_config.json", '{"auto_map": {}}', "tokenizer_config.json has auto_map"),
        ("special.json", "{", "special.json is not JSON"),
    ],
)
def test_a_directory_with_more_than_weights_and_json_is_refused(
    tmp_path: Path, models: dict[str, Path], name: str, content: str, reason: str
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(models["first"], directory)
    refuse_foreign_content(directory)
    (directory / name).parent.mkdir(exist_ok=True)
    (directory / name).write_text(content)
    with pytest.raises(InputError, match=reason):
        refuse_foreign_content(directory)


# --- what it answers ---------------------------------------------------------------------------------------------------


@dataclass
class Running:
    place: Place
    client: httpx.Client
    directory: Path


@pytest.fixture(scope="module")
def engine(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    place = Place(tmp_path_factory.mktemp("engine") / "d-0123456789abcdef")
    plan = EnginePlan("d-0123456789abcdef", NAME, models["first"], place.make_token())
    LocalLauncher().start(place.directory, (sys.executable, "-m", "executors.serving.engine"), {}, plan.document())
    url = f"http://127.0.0.1:{wait_for_port(place, 'the engine', 120)}"
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {place.token()}"}, timeout=60) as client:
        yield Running(place, client, models["first"])
    place.end(5)


def test_it_answers_with_the_weights_of_the_file(engine: Running) -> None:
    answer = engine.client.get("/posttrain/weights").json()
    assert answer == {
        "weights": directory_digest(engine.directory),
        "tensors": 11,
        "deployment_id": "d-0123456789abcdef",
    }


def test_a_completion_is_what_the_model_generates(engine: Running) -> None:
    """Greedy tokens, computed here by hand from the same weights."""
    import torch

    pinned = loaded(engine.directory)
    ids = list(pinned.tokenizer("1+1=")["input_ids"])
    expected = []
    for _ in range(5):
        with torch.no_grad():
            expected.append(int(pinned.model(torch.tensor([ids + expected])).logits[0, -1].argmax()))
    text = pinned.tokenizer.decode(expected, skip_special_tokens=True)
    chat = engine.client.post("/v1/chat/completions", json={**CHAT, "temperature": 0}).json()
    plain = engine.client.post("/v1/completions", json={**TEXT, "temperature": 0}).json()
    assert (chat["choices"][0]["message"]["content"], plain["choices"][0]["text"]) == (text, text)
    assert (chat["model"], plain["model"]) == (NAME, NAME)
    assert chat["usage"] == {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}
    assert chat["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_a_stream_has_the_same_text_and_an_end_mark(engine: Running, path: str, body: dict[str, Any]) -> None:
    whole = engine.client.post(path, json=body).json()["choices"][0]
    lines = [line for line in engine.client.post(path, json={**body, "stream": True}).text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert {chunk["model"] for chunk in chunks} == {NAME}
    choices = [chunk["choices"][0] for chunk in chunks]
    text = "".join(choice.get("text") or (choice.get("delta") or {}).get("content") or "" for choice in choices)
    assert text == (whole.get("text") or whole["message"]["content"])
    assert choices[-1]["finish_reason"] == "length"


def test_sampling_follows_the_seed(engine: Running) -> None:
    def sample(seed: int) -> str:
        body = {**TEXT, "temperature": 1.5, "seed": seed, "max_tokens": 20}
        return str(engine.client.post("/v1/completions", json=body).json()["choices"][0]["text"])

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(5)}) > 1


@pytest.mark.parametrize(
    ("path", "change", "status", "code"),
    [
        ("/v1/chat/completions", {"model": "gpt2"}, 404, "model_not_found"),
        ("/v1/chat/completions", {"model": "/etc"}, 404, "model_not_found"),
        ("/v1/chat/completions", {"model": None}, 400, "invalid_request"),
        ("/v1/chat/completions", {"chat_template": "{{ 1 }}"}, 400, "invalid_request"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "1" * 64}]}, 400, "invalid_request"),
        ("/v1/completions", {"prompt": "1" * 64}, 400, "invalid_request"),
        ("/v1/completions", {"prompt": "1" * MAX_BODY_BYTES}, 413, "body_too_large"),
    ],
)
def test_what_it_refuses(engine: Running, path: str, change: dict[str, Any], status: int, code: str) -> None:
    response = engine.client.post(path, json={**(CHAT if "chat" in path else TEXT), **change})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def test_it_never_generates_beyond_its_context(engine: Running) -> None:
    usage = engine.client.post("/v1/completions", json={**TEXT, "prompt": "1" * 60, "max_tokens": 1000}).json()["usage"]
    assert (usage["prompt_tokens"], usage["total_tokens"]) == (60, 64)


@pytest.mark.parametrize("token", [None, "", "Bearer", "Bearer wrong", "Basic eDp5", "bearer TOKEN", "Bearer TOKENx"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/health"),
        ("GET", "/v1/models"),
        ("GET", "/posttrain/weights"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/nowhere"),
        ("OPTIONS", "/health"),
    ],
)
def test_nothing_answers_without_the_token(engine: Running, token: str | None, method: str, path: str) -> None:
    headers = {} if token is None else {"authorization": token.replace("TOKEN", engine.place.token())}
    response = httpx.request(method, f"{engine.client.base_url}{path}".replace("//v1", "/v1"), headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (401, "unauthorized")


def test_routes_that_load_models_do_not_exist(engine: Running) -> None:
    for path in ("/load_model", "/reset", "/v1/responses", "/v1/audio/transcriptions", "/docs", "/openapi.json"):
        assert engine.client.post(path, json={"model": "gpt2"}).status_code == 404
        assert engine.client.get(path).status_code == 404


def test_it_listens_on_loopback_only(engine: Running) -> None:
    port = int(str(engine.client.base_url).rpartition(":")[2].strip("/"))
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    assert {row[1] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port} == {
        f"0100007F:{port:04X}"
    }
