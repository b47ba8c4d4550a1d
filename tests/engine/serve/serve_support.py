"""Servers for tests: `code-rl serve` as a process, or its application on a thread of the test (torch is loaded once)."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
from tinker import types
from tinker.proto import tinker_public_pb2 as pb
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import deserialize_proto_response

from code_rl.engine.local import EmbeddedService
from code_rl.engine.serve import Core, ServiceLimits, StateStore, TinkerApplication
from tests.verb_server import VerbServer

API = "/api/v1"
KEY = "tml-dummy"
PROTOBUF = "application/x-protobuf"
LIMITS = {
    "max_models": 64,
    "max_samplers": 16,
    "max_queue": 4096,
    "max_queued_bytes": 1 << 30,
    "idle_s": 900.0,
    "session_timeout_s": 180.0,
}


class ServerThread:
    """The application on loopback, in a thread. `core` may be looked at from tests."""

    def __init__(
        self,
        folder: Path,
        token: str | None = None,
        models: dict[str, str] | None = None,
        **limits: Any,
    ) -> None:
        self.folder = folder
        self._token = token
        self._models = models or {}
        self._limits = ServiceLimits(**{**LIMITS, **limits})
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.max_request_bytes = 8 << 20

    async def _serve(self) -> None:
        store = StateStore(self.folder)
        self.core = Core(
            store,
            self._models,
            self._limits,
            EmbeddedService("cpu", "float32", quiet_s=0.015),  # as in the verb
        )
        self.application = TinkerApplication(self.core, self._token, self.max_request_bytes)
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with self.application.listening("127.0.0.1", 0) as self.port:
            self._ready.set()
            await self._stop.wait()
            self.drained = await self.application.drain(30.0)
        self.core.service.close()
        store.close()

    def __enter__(self) -> ServerThread:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, function: Any, *args: Any) -> Any:
        """Run a function on the server's event loop."""

        async def go() -> Any:
            return function(*args)

        return asyncio.run_coroutine_threadsafe(go(), self.loop).result(60)


class ServeProcess(VerbServer):
    """`code-rl serve` in a process of its own."""

    verb = "serve"

    def __init__(self, folder: Path, environment: dict[str, str] | None = None, **settings: object) -> None:
        super().__init__(environment, **{"state_dir": folder, "device": "cpu", **settings})

    def start(self) -> ServeProcess:
        line = self.launch()
        assert line.startswith("serving http://"), self.said()
        return self.listens_at(line.split(" (")[0].rpartition(":")[2])


class Raw:
    """HTTP requests without the SDK."""

    def __init__(self, port: int, key: str | None = KEY, timeout: float = 60) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        self._key = key

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        sent = {"X-API-Key": self._key} if self._key is not None else {}
        sent |= {"Content-Type": "application/json"} if body is not None else {}
        self._connection.request(method, path, body, {**sent, **(headers or {})})
        response = self._connection.getresponse()
        self.content_type = response.headers.get_content_type()
        return response.status, response.read()

    def post(self, call: str, data: Any = None, **headers: str) -> tuple[int, Any]:
        """POST JSON to a call; returns status and JSON."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"Content-Type": "application/json", **named}
        status, body = self.send("POST", f"{API}/{call}", json.dumps(data or {}).encode(), sent)
        return status, json.loads(body)

    def get(self, path: str) -> tuple[int, Any]:
        status, body = self.send("GET", f"{API}/{path}")
        return status, json.loads(body)

    def session(self) -> str:
        return str(
            self.post("create_session", {"tags": [], "user_metadata": None, "sdk_version": "0.38.0"})[1]["session_id"]
        )

    def model(self, session: str, number: int = 0, rank: int = 4) -> str:
        """A new model on the built-in base."""
        config = {"rank": rank, "seed": 0}
        body = {"session_id": session, "model_seq_id": number, "base_model": "tiny", "lora_config": config}
        status, made = self.post("create_model", body)
        assert status == 200, made
        return str(self.result(made["request_id"])["model_id"])

    def send_pass(self, message: pb.ForwardBackwardRequest) -> tuple[int, Any]:
        body, headers = message.SerializeToString(), {"Content-Type": PROTOBUF}
        status, answer = self.send("POST", f"{API}/forward_backward", body, headers)
        return status, json.loads(answer)

    def run_pass(self, *args: Any, **kwargs: Any) -> tuple[int, Any]:
        """A pass with the arguments of `pass_message`; returns status and JSON."""
        return self.send_pass(pass_message(*args, **kwargs))

    def result(self, request_id: str) -> Any:
        """A promise's result, waited for: the SDK's type of a pass or sample, else JSON."""
        sent, status = json.dumps({"request_id": request_id}).encode(), 408
        while status == 408:
            status, body = self.send("POST", f"{API}/retrieve_future", sent)
        assert status == 200, body
        if self.content_type != PROTOBUF:
            return json.loads(body)
        is_sample = ":sample:" in request_id
        kind = types.SampleResponse if is_sample else types.ForwardBackwardOutput
        return deserialize_proto_response(body, kind)


def datum(tokens: list[int]) -> types.Datum:
    """A cross-entropy datum."""
    targets = types.TensorData(tokens[1:], "int64", [len(tokens) - 1])
    weights = types.TensorData.from_numpy(np.ones(len(tokens) - 1, dtype=np.float32))
    inputs = {"target_tokens": targets, "weights": weights}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def pass_message(
    model: str,
    seq: int,
    data: list[types.Datum],
    loss: Any = "cross_entropy",
    forward_only: bool = False,
) -> pb.ForwardBackwardRequest:
    """A pass as the SDK sends it."""
    given = types.ForwardBackwardInput(data=data, loss_fn=loss)
    message = forward_backward_request_to_proto(types.ForwardBackwardRequest(given, model, seq))
    message.forward_only = forward_only
    return message
