"""Hostile requests: each is answered with a 4xx, none ends the server, and its memory stays where it was."""

from __future__ import annotations

import json
import math
import random
import struct
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")
from tinker.proto import tinker_public_pb2 as pb

from code_rl.engine.serve.wire import PROTOBUF
from tests.engine.serve.serve_support import API, Raw, ServeProcess, datum

CALLS = (
    "create_session", "session_heartbeat", "create_model", "get_info", "create_sampling_session",
    "asample", "forward_backward", "optim_step", "save_weights", "save_weights_for_sampler", "load_weights",
    "retrieve_future", "cancel_future", "weights_info", "nonsense", "sessions/x/finish",
)  # fmt: skip
ABSURD: tuple[Any, ...] = (
    None, True, -1, 2**31, 2**63, 10**30, -(10**30), 1e308, "", "x" * 5000, "\0", "\ud800", "../../etc/passwd", "tinker://a/b/c",
    [], [[[]]], {}, {"a": {"b": [1]}}, "00000000-0000-0000-0000-000000000000:train:0", [None], "${jndi:x}",
)  # fmt: skip
TOKENS = list(range(20, 40))


def message(model, seq, tokens, **fields):
    """A protobuf pass; `fields` are raw tensors, as (dtype, bytes, shape)."""
    request = pb.ForwardBackwardRequest(model_id=model, seq_id=seq, loss_fn="cross_entropy")
    datum = request.data.add()
    datum.model_input.add().encoded_text.tokens = tokens
    for name, (dtype, dense, shape) in fields.items():
        tensor = datum.loss_fn_inputs[name]
        tensor.dtype, tensor.dense = dtype, dense
        tensor.shape.extend(shape)
    return request.SerializeToString()


def ints(*values):
    return struct.pack(f"<{len(values)}i", *values)


def longs(*values):
    return struct.pack(f"<{len(values)}q", *values)


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


class Fuzzer:
    """Makes one hostile request after another; `model` and `sampler` exist on the server."""

    def __init__(self, raw, seed):
        self.random = random.Random(seed)
        self.raw = raw
        session = raw.session()
        self.session = session
        self.model = raw.model(session)
        body = {"model_id": self.model, "seq_id": 1, "sampling_session_seq_id": 0}
        made = raw.post("save_weights_for_sampler", body)[1]
        self.sampler = raw.result(made["request_id"])["sampling_session_id"]
        self.seq = 2

    def one(self):
        kinds = (
            self.torn_json,
            self.wrong_types,
            self.absurd_values,
            self.torn_proto,
            self.absurd_proto,
            self.oversized,
        )
        weights = (3, 4, 5, 3, 4, 0.02)
        return self.random.choices(kinds, weights)[0]()

    def send(self, call, body, kind="application/json", **headers):
        return call, body, self.raw.send("POST", f"{API}/{call}", body, {"Content-Type": kind, **headers})

    def torn_json(self):
        text = json.dumps({"model_id": self.model, "seq_id": self.seq, "temperature": 1.0}).encode()
        choice = self.random.randrange(6)
        if choice == 0:
            text = text[: self.random.randrange(len(text) - 1)]
        elif choice == 1:
            text = bytes(self.random.randrange(256) for _ in range(self.random.randrange(1, 200)))
        elif choice == 2:
            text = b"[" * self.random.choice([10, 1000, 100_000])
        elif choice == 3:
            text = b'{"a": ' * 50_000
        elif choice == 4:
            text = b'{"model_id": ' + b"9" * 6000 + b"}"
        else:
            text = text.replace(b"1.0", self.random.choice([b"NaN", b"Infinity", b"-Infinity"]), 1)
        return self.send(self.random.choice(("save_weights", "optim_step", "asample")), text)

    def wrong_types(self):
        call = self.random.choice(CALLS)
        names = (
            "session_id",
            "model_id",
            "seq_id",
            "path",
            "request_id",
            "sampling_session_id",
            "tinker_path",
            "target",
            "type",
        )
        body = {name: self.random.choice(ABSURD) for name in self.random.sample(names, self.random.randrange(1, 6))}
        return self.send(call, json.dumps(body).encode())

    def absurd_values(self):
        absurd = self.random.choice(ABSURD)
        number: Any = self.random.choice((-1, 0.5, 2**63, 10**30, -(2**31), "x", None, []))
        params = {"max_tokens": 4, "temperature": 1.0}
        prompt = {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}
        sample = {"sampling_session_id": self.sampler, "seq_id": 7, "prompt": prompt, "sampling_params": params}
        bad_prompt = {
            "chunks": [{"type": "encoded_text", "tokens": self.random.choice(([-1], [10**6], [2**40], [], ["x"]))}]
        }
        call, body = self.random.choice(
            (
                ("asample", {**sample, "prompt": bad_prompt}),
                ("asample", {**sample, "num_samples": self.random.choice((0, -1, 10**9))}),
                ("asample", {**sample, "sampling_params": {**params, "max_tokens": self.random.choice((-1, 10**9, 2**70))}}),
                ("asample", {**sample, "sampling_params": {**params, "temperature": self.random.choice((-1, "x", -1e308))}}),
                ("asample", {**sample, "sampling_params": {**params, "top_k": self.random.choice((0, -2, 2**70))}}),
                ("asample", {**sample, "sampling_params": {**params, "top_p": self.random.choice((0, -1, 2, 1e308))}}),
                ("asample", {**sample, "sampling_params": {**params, "stop": self.random.choice(([[1]], [""], {"a": 1}))}}),
                ("asample", {**sample, "sampling_params": {**params, "seed": self.random.choice((0.5, "x", [1]))}}),
                ("asample", {**sample, "sampling_params": {**params, "no_such": 1}}),
                ("asample", {**sample, "topk_prompt_logprobs": self.random.choice((-1, 1025, 10**9))}),
                ("asample", {**sample, "no_such_field": absurd}),
                ("asample", {**sample, "seq_id": self.random.choice((-1, 2**63, 10**30))}),
                ("create_model", {"session_id": self.session, "model_seq_id": 9, "base_model": self.random.choice(("../x", "", "\0", "a/b/c", "/etc"))}),
                ("create_model", {"session_id": self.session, "model_seq_id": 9, "base_model": "tiny", "lora_config": {"rank": self.random.choice((0, -1, 10**9, 2**70))}}),
                ("optim_step", {"model_id": self.model, "seq_id": 1, "adam_params": {"learning_rate": self.random.choice((-1, "x", None, [1]))}}),
                ("optim_step", {"model_id": self.model, "seq_id": 10**9, "adam_params": {}}),
                ("optim_step", {"model_id": absurd, "seq_id": number, "adam_params": {}}),
                ("save_weights", {"model_id": self.model, "seq_id": self.seq, "path": self.random.choice(("../x", "a/b", "", ".x", "x" * 999, "\0"))}),
                ("load_weights", {"model_id": self.model, "seq_id": self.seq, "path": "tinker://../weights/x", "optimizer": True}),
                ("load_weights", {"session_id": self.session, "model_seq_id": 3, "path": str(absurd), "optimizer": False}),
            )
        )  # fmt: skip
        return self.send(call, json.dumps(body).encode())

    def torn_proto(self):
        good = message(self.model, self.seq, ints(*TOKENS[:-1]), target_tokens=(2, longs(*TOKENS[1:]), [19]))
        torn = bytearray(good)
        if self.random.random() < 0.5:
            torn = torn[: self.random.randrange(1, len(torn))]
        else:
            torn = bytearray(b"\xff\xff\xff" + bytes(self.random.randrange(256) for _ in range(60)))
        headers = self.random.choice(({}, {"Content-Encoding": "zstd"}))
        if headers:
            torn = bytearray(b"\x28\xb5\x2f\xfd") + torn
        # A cut may leave a message that is whole, and whose model is not there or whose fields are missing.
        self.seq += 1
        return self.send("forward_backward", bytes(torn), PROTOBUF, **headers)

    def absurd_proto(self):
        n = len(TOKENS) - 1
        tokens, targets, ones = ints(*TOKENS[:-1]), (2, longs(*TOKENS[1:]), [n]), (1, floats(*[1.0] * n), [n])
        nan = (1, floats(*[self.random.choice((math.nan, math.inf, -math.inf))] * n), [n])
        body = self.random.choice(
            (
                message(self.model, self.seq, tokens, target_tokens=targets, weights=nan),
                message(self.model, self.seq, tokens, target_tokens=targets, weights=(1, b"abc", [])),
                message(self.model, self.seq, tokens, target_tokens=targets, weights=(1, floats(1.0), [-1])),
                message(self.model, self.seq, tokens, target_tokens=targets, weights=(1, floats(1.0), [2**40, 2**40])),
                message(self.model, self.seq, tokens, target_tokens=targets, weights=(9, floats(1.0), [1])),
                message(self.model, self.seq, tokens, target_tokens=(2, longs(*[2**62] * n), [n]), weights=ones),
                message(self.model, self.seq, tokens, target_tokens=targets, weights=ones, advantages=ones),
                message(self.model, self.seq, ints(-1, 5), target_tokens=(2, longs(5, 6), [2]), weights=(1, floats(1, 1), [2])),
                message(self.model, self.seq, ints(2**31 - 1), target_tokens=(2, longs(5), [1]), weights=(1, floats(1), [1])),
                message(self.model, self.seq, b"abc", target_tokens=targets, weights=ones),
                message(self.model, self.seq, b"", target_tokens=targets, weights=ones),
                message(self.model, -5, tokens, target_tokens=targets, weights=ones),
                message("no-such-model", self.seq, tokens, target_tokens=targets, weights=ones),
                pb.ForwardBackwardRequest(model_id=self.model, seq_id=self.seq, loss_fn="nonsense").SerializeToString(),
            )
        )  # fmt: skip
        self.seq += 1
        return self.send("forward_backward", body, PROTOBUF)

    def oversized(self):
        return self.send("forward_backward", bytes(2 << 20), PROTOBUF)


def memory_mb(server):
    with open(f"/proc/{server.process.pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def fuzz(server, count, seed):
    raw = Raw(server.port)
    fuzzer = Fuzzer(raw, seed)
    others = []
    middle = 0.0
    for i in range(count):
        call, body, (status, answer) = fuzzer.one()
        if not 400 <= status < 500:
            others.append((call, body[:300], status, answer[:200]))
        if i == count // 2:
            middle = memory_mb(server)
    return raw, others, middle, memory_mb(server)


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_hostile_requests_are_refused_and_nothing_else_happens(tmp_path, count):
    with ServeProcess(tmp_path, max_request_mb=1) as server:
        raw, others, middle, end = fuzz(server, count, seed=count)
        assert others == []
        assert end < middle * 1.05 + 8
        model = raw.model(raw.session())
        assert raw.result(raw.run_pass(model, 1, [datum(TOKENS)])[1]["request_id"]).metrics
        code, stderr = server.stop()
    assert code == 0
    assert "Traceback" not in stderr
    print(f"\n{count} requests: memory {middle:.0f} MB half way, {end:.0f} MB at the end")
