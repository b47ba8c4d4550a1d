"""Hostile requests: each is answered with a 4xx, or is a pass that fails in its turn; none ends the server, and its memory stays
where it was."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")
from tinker.proto import tinker_public_pb2 as pb

from tests.engine.serve.serve_support import API, PROTOBUF, Raw, ServeProcess, datum

CALLS = (
    "create_session", "session_heartbeat", "create_model", "get_info", "create_sampling_session", "asample", "forward_backward", "optim_step",
    "save_weights", "save_weights_for_sampler", "load_weights", "retrieve_future", "cancel_future", "weights_info", "nonsense", "sessions/x/finish",
)  # fmt: skip
NAMES = (
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
TOKENS = list(range(20, 40))
ABSURD = st.sampled_from(
    (
        None, True, -1, 2**31, 2**63, 10**30, 1e308, "", "x" * 5000, "\0", "\ud800", "../../etc/passwd", "tinker://a/b/c", [], [[[]]],
        {}, {"a": {"b": [1]}}, "00000000-0000-0000-0000-000000000000:train:0", [None],
    )
)  # fmt: skip
JSON = "application/json"
Sent = tuple[str, bytes, str]


class Known:
    """A session, a model and a sampler that exist on the server."""

    def __init__(self, raw: Raw) -> None:
        self.session = raw.session()
        self.model = raw.model(self.session)
        body = {"model_id": self.model, "seq_id": 1, "sampling_session_seq_id": 0}
        made = raw.post("save_weights_for_sampler", body)[1]
        self.sampler = raw.result(made["request_id"])["sampling_session_id"]


def torn_json(known: Known) -> st.SearchStrategy[Sent]:
    text = json.dumps({"model_id": known.model, "seq_id": 2, "temperature": 1.0}).encode()
    deep = st.sampled_from((b"[" * 100_000, b'{"a": ' * 50_000, b'{"model_id": ' + b"9" * 6000 + b"}"))
    numbers = st.sampled_from((b"NaN", b"Infinity", b"-Infinity")).map(lambda number: text.replace(b"1.0", number))
    cut = st.integers(0, len(text) - 2).map(lambda end: text[:end])
    body = deep | numbers | cut | st.binary(min_size=1, max_size=200)
    return st.tuples(st.sampled_from(("save_weights", "optim_step", "asample")), body, st.just(JSON))


def wrong_types() -> st.SearchStrategy[Sent]:
    body = st.dictionaries(st.sampled_from(NAMES), ABSURD, min_size=1).map(lambda each: json.dumps(each).encode())
    return st.tuples(st.sampled_from(CALLS), body, st.just(JSON))


def absurd_values(known: Known) -> st.SearchStrategy[Sent]:
    """One value of a request that would be right is not."""
    params = {"max_tokens": 4, "temperature": 1.0}
    prompt = {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}
    sample = {"sampling_session_id": known.sampler, "seq_id": 7, "prompt": prompt, "sampling_params": params}
    made = {"session_id": known.session, "model_seq_id": 9, "base_model": "tiny"}
    step = {"model_id": known.model, "seq_id": 1, "adam_params": {}}
    save = {"model_id": known.model, "seq_id": 2, "path": "x"}
    one: dict[tuple[str, str], tuple[dict[str, Any], tuple[Any, ...]]] = {
        ("asample", "prompt"): (sample, tuple({"chunks": [{"type": "encoded_text", "tokens": t}]} for t in ([-1], [10**6], [2**40], [], ["x"]))),
        ("asample", "num_samples"): (sample, (0, -1, 10**9)),
        ("asample", "seq_id"): (sample, (-1, 2**63, 10**30)),
        ("asample", "topk_prompt_logprobs"): (sample, (-1, 1025, 10**9)),
        ("asample", "no_such_field"): (sample, (1,)),
        ("asample", "sampling_params"): (sample, tuple({**params, name: value} for name, values in {
            "max_tokens": (-1, 10**9, 2**70), "temperature": (-1, "x", -1e308), "top_k": (0, -2, 2**70), "top_p": (0, -1, 2, 1e308),
            "stop": ([[1]], [""], {"a": 1}), "seed": (0.5, "x", [1]), "no_such": (1,)}.items() for value in values)),
        ("create_model", "base_model"): (made, ("../x", "", "\0", "a/b/c", "/etc")),
        ("create_model", "lora_config"): (made, tuple({"rank": rank} for rank in (0, -1, 10**9, 2**70))),
        ("optim_step", "adam_params"): (step, tuple({"learning_rate": rate} for rate in (-1, "x", None, [1]))),
        ("optim_step", "seq_id"): (step, (10**9, -1, 0.5, "x", None, [])),
        ("save_weights", "path"): (save, ("../x", "a/b", "", ".x", "x" * 999, "\0")),
        ("load_weights", "path"): (save | {"optimizer": True}, ("tinker://../weights/x", "", "\0")),
    }  # fmt: skip
    spoilt = [(call, body | {name: value}) for (call, name), (body, values) in one.items() for value in values]
    return st.sampled_from(spoilt).map(lambda each: (each[0], json.dumps(each[1]).encode(), JSON))


def message(model: str, seq: int, tokens: bytes, **fields: tuple[int, bytes, list[int]]) -> bytes:
    """A protobuf pass; `fields` are raw tensors, as (dtype, bytes, shape)."""
    request = pb.ForwardBackwardRequest(model_id=model, seq_id=seq, loss_fn="cross_entropy")
    made = request.data.add()
    made.model_input.add().encoded_text.tokens = tokens
    for name, (dtype, dense, shape) in fields.items():
        tensor = made.loss_fn_inputs[name]
        tensor.dtype, tensor.dense = dtype, dense
        tensor.shape.extend(shape)
    return request.SerializeToString()


def packed(kind: str, *values: float) -> bytes:
    return struct.pack(f"<{len(values)}{kind}", *values)


def absurd_proto(known: Known) -> st.SearchStrategy[Sent]:
    n = len(TOKENS) - 1
    tokens, targets, ones = (
        packed("i", *TOKENS[:-1]),
        (2, packed("q", *TOKENS[1:]), [n]),
        (1, packed("f", *[1.0] * n), [n]),
    )
    one, odd = packed("f", 1.0), st.sampled_from((b"abc", b"", packed("i", -1, 5), packed("i", 2**31 - 1)))
    weights = [(1, packed("f", *[bad] * n), [n]) for bad in (math.nan, math.inf)]
    weights += [(1, b"abc", []), (1, one, [-1]), (1, one, [2**40, 2**40]), (9, one, [1])]
    bodies: list[dict[str, Any]] = [{"target_tokens": targets, "weights": each} for each in weights]
    bodies += [{"target_tokens": (2, packed("q", *[2**62] * n), [n]), "weights": ones}]
    bodies += [{"target_tokens": targets, "weights": ones, "advantages": ones}]
    spoilt = st.sampled_from(bodies).flatmap(
        lambda each: st.integers(2, 10**6).map(lambda seq: message(known.model, seq, tokens, **each))
    )
    spoilt |= odd.map(lambda bad: message(known.model, 2, bad, target_tokens=targets, weights=ones))
    spoilt |= st.sampled_from([(known.model, -5), ("no-such-model", 2)]).map(
        lambda of: message(*of, tokens, target_tokens=targets, weights=ones)
    )
    good = message(known.model, 2, tokens, target_tokens=targets)
    torn = st.integers(1, len(good) - 1).map(lambda end: good[:end]) | st.binary(max_size=60).map(
        lambda tail: b"\xff\xff\xff" + tail
    )
    return st.tuples(
        st.just("forward_backward"),
        spoilt | torn | torn.map(lambda body: b"\x28\xb5\x2f\xfd" + body),
        st.just(PROTOBUF),
    )


def memory_mb(server: ServeProcess) -> float:
    assert server.process is not None
    with open(f"/proc/{server.process.pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(100, marks=pytest.mark.long),
        pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_hostile_requests_are_refused_and_nothing_else_happens(tmp_path, count):
    with ServeProcess(tmp_path, max_request_mb=1) as server:
        raw = Raw(server.port)
        known, seen = Known(raw), list[float]()
        sent = torn_json(known) | wrong_types() | absurd_values(known) | absurd_proto(known)

        @settings(max_examples=count, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(sent)
        def refused(request: Sent) -> None:
            call, body, kind = request
            status, answer = raw.send("POST", f"{API}/{call}", body, {"Content-Type": kind})
            turns = call == "forward_backward" and status == 200
            assert turns or 400 <= status < 500, answer[:200]
            seen.append(memory_mb(server))

        refused()
        assert raw.send("POST", f"{API}/forward_backward", bytes(2 << 20), {"Content-Type": PROTOBUF})[0] == 413
        assert seen[-1] < seen[len(seen) // 2] * 1.05 + 8
        assert raw.result(f"{known.model}:2")["error"]  # the one whose turn it was
        model = raw.model(raw.session())
        assert raw.result(raw.run_pass(model, 1, [datum(TOKENS)])[1]["request_id"]).metrics
        code, stderr = server.stop()
    assert code == 0
    assert "Traceback" not in stderr
