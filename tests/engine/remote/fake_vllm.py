"""vLLM's endpoints as version 0.32 answered them, with the embedded engine behind: the requests of a run, and the faults that can happen."""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from tinker import types

from code_rl.engine.adapters import read_folder
from code_rl.engine.local import EmbeddedService
from tests.engine.remote.remote_support import Loopback


class FakeVllm(Loopback):
    """Adapters are computed with, not only taken: log-probabilities are right when the folder was. Turn its attributes to turn it against a run."""

    def __init__(self, rank: int = 32) -> None:
        super().__init__()
        self.context, self.vocabulary, self.key = 512, 772, ""
        self.updates, self.reads, self.processed, self.off = True, True, False, 0.0
        self.loaded: dict[str, Any] = {}
        self.roots: dict[str, str] = {}
        self.names: list[str] = []
        self.rank = rank
        self.bodies: list[dict[str, Any]] = []
        self.keeps = False
        self.spoil: Callable[[dict[str, Any]], object] = lambda _: None
        self._service = EmbeddedService(device="cpu", threads=1)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.key and request.path != "/health" and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        body = await request.json() if request.method == "POST" else {}
        match request.path:
            case "/health":
                return web.Response()
            case "/v1/models":
                return web.json_response({"object": "list", "data": self._models()})
            case "/v1/load_lora_adapter" if self.updates:
                return self._load(**body)
            case "/v1/unload_lora_adapter" if self.updates:
                if self.keeps:
                    return error(400, "BadRequestError", "adapters are pinned")
                if self.loaded.pop(body["lora_name"], None) is None:
                    return error(404, "NotFoundError", f"The lora adapter '{body['lora_name']}' cannot be found.")
                return web.Response(text=f"Success: LoRA adapter '{body['lora_name']}' removed successfully.")
            case "/v1/completions":
                return await self._complete(body)
        return web.json_response({"detail": "Not Found"}, status=404)

    def _models(self) -> list[dict[str, Any]]:
        base = {"id": "tiny", "object": "model", "root": "/models/tiny", "parent": None, "max_model_len": self.context}
        each = {"object": "model", "parent": "tiny", "max_model_len": None}
        return [base, *({"id": name, "root": self.roots[name], **each} for name in self.loaded)]

    def _load(self, lora_name: str, lora_path: str) -> web.Response:
        if lora_name in self.loaded:
            return error(400, "InvalidUserInput", f"The lora adapter '{lora_name}' has already been loaded. If you …")
        if not self.reads or not Path(lora_path, "adapter_config.json").is_file():
            return error(404, "NotFoundError", f"Loading lora {lora_name} failed: No adapter found for {lora_path}")
        adapter = read_folder(Path(lora_path), "tiny")
        if adapter.rank > self.rank:
            told = (
                f"Call to add_lora method failed: LoRA rank {adapter.rank} is greater than max_lora_rank {self.rank}."
            )
            return error(500, "InternalServerError", told)
        client = self._service.create_lora_training_client("tiny", rank=adapter.rank, seed=0).result()
        a, b = client._lora.views(client._lora.flat)
        assert a.keys() == adapter.pairs.keys()
        for name, (down, up) in adapter.pairs.items():
            a[name].copy_(down)
            b[name].copy_(up)
        client._learner.weights_changed()
        self.loaded[lora_name] = client.save_weights_and_get_sampling_client().result()
        self.roots[lora_name] = lora_path
        self.names.append(lora_name)
        return web.Response(text=f"Success: LoRA adapter '{lora_name}' added successfully.")

    async def _complete(self, body: dict[str, Any]) -> web.Response:
        self.bodies.append(body)
        model, prompt = body["model"], body["prompt"]
        if model not in self.loaded:
            return error(404, "NotFoundError", f"The model `{model}` does not exist. Valid aliases: tiny.")
        if max(prompt) >= self.vocabulary:
            return error(400, "BadRequestError", f"Token id {max(prompt)} is out of vocabulary")
        assert len(prompt) + body["max_tokens"] <= self.context
        named = ("max_tokens", "temperature", "top_p", "top_k", "seed")
        how = types.SamplingParams(
            **{name: body[name] for name in named}, stop=body.get("stop") or body["stop_token_ids"]
        )
        sampler = self.loaded[model]
        drawn = (await sampler.sample(types.ModelInput.from_ints(prompt), 1, how)).sequences[0]
        logprobs = list(drawn.logprobs)
        if not self.processed and body["temperature"] not in (0.0, 1.0):
            text = types.ModelInput.from_ints([*prompt, *drawn.tokens])
            logprobs = (await sampler.compute_logprobs(text))[len(prompt) :]
        choice = {
            "index": 0,
            "logprobs": {"token_logprobs": [logprob + self.off for logprob in logprobs]},
            "finish_reason": drawn.stop_reason,
            "token_ids": list(drawn.tokens),
        }
        self.spoil(choice)
        return web.json_response({"object": "text_completion", "model": model, "choices": [choice]})


def error(status: int, kind: str, message: str) -> web.Response:
    said = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": said}, status=status)


def main() -> None:
    """Serve as `vllm serve` would with these options, until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--enable-lora", action="store_true", required=True)
    for name in ("port", "max-lora-rank", "max-loras", "max-model-len"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("max-num-seqs", "max-num-batched-tokens"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("model", "dtype", "host"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("logprobs-mode", "gpu-memory-utilization"):
        parser.add_argument(f"--{name}")
    asked = parser.parse_args()
    print(json.dumps(vars(asked)), flush=True)
    made = FakeVllm(asked.max_lora_rank)
    made.port, made.context, made.key = asked.port, asked.max_model_len, os.environ["VLLM_API_KEY"]
    made.updates = os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    made.processed = asked.logprobs_mode == "processed_logprobs"
    print("model loaded", flush=True)
    with made:
        threading.Event().wait()


if __name__ == "__main__":
    main()
