"""The server's promises beyond one client's happy path: order, retries, accumulation, refusals."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")
from tests.engine.serve.serve_support import Raw, datum, pass_message

TOKENS = list(range(20, 40))
STEP = {"adam_params": {"learning_rate": 0.01}}


@pytest.fixture
def raw(server):
    return Raw(server.port)


@pytest.fixture
def model(raw):
    return raw.model(raw.session())


def loss(raw, model, seq):
    status, made = raw.run_pass(model, seq, [datum(TOKENS)], forward_only=True)
    assert status == 200, made
    return raw.result(made["request_id"]).metrics["loss:sum"]


def test_a_request_seen_twice_is_applied_once(raw, model):
    data = [datum(TOKENS)]
    first = raw.run_pass(model, 1, data)
    assert raw.run_pass(model, 1, data) == first
    step = {**STEP, "model_id": model, "seq_id": 2}
    once = raw.result(raw.post("optim_step", step)[1]["request_id"])["metrics"]
    assert raw.result(raw.post("optim_step", step)[1]["request_id"])["metrics"] == once
    after = loss(raw, model, 3)

    twin = raw.model(raw.session())
    raw.run_pass(twin, 1, data)
    raw.post("optim_step", {**step, "model_id": twin})
    assert loss(raw, twin, 3) == after


def test_a_number_used_for_another_request_is_refused(raw, model):
    raw.run_pass(model, 1, [datum(TOKENS)])
    status, answer = raw.run_pass(model, 1, [datum(TOKENS[::-1])])
    assert status == 400
    assert "another request" in answer["detail"]


def test_requests_run_in_the_order_of_their_numbers(raw, model):
    step = raw.post("optim_step", {**STEP, "model_id": model, "seq_id": 3})[1]["request_id"]
    second = raw.run_pass(model, 2, [datum(TOKENS)])[1]["request_id"]
    first = raw.run_pass(model, 1, [datum(TOKENS)])[1]["request_id"]
    assert raw.result(first).metrics == raw.result(second).metrics
    assert raw.result(step)["metrics"]["grad_norm:mean"] > 0
    assert loss(raw, model, 4) < raw.result(first).metrics["loss:sum"]


def with_image(message):
    message.data[0].model_input.add().image.format = "png"


def halved(message):
    message.data[0].loss_fn_inputs["weights"].dense = b"abc"


def misshapen(message):
    message.data[0].loss_fn_inputs["weights"].shape[:] = [2]


@pytest.mark.parametrize(
    ("tokens", "loss_fn", "spoil", "named"),
    [
        ([5, 10**6, 7], "cross_entropy", None, "vocabulary"),
        (TOKENS, "stable_reinforce", None, "stable_reinforce"),
        (TOKENS, "dro", None, "beta"),
        (TOKENS, "ppo", None, "advantages"),
        (TOKENS, "cross_entropy", with_image, "text"),
        (TOKENS, "cross_entropy", misshapen, "shape"),
        (TOKENS, "cross_entropy", halved, "bytes"),
    ],
    ids=["data", "loss", "setting", "fields", "image", "shape", "bytes"],
)
def test_a_refused_pass_takes_its_turn_and_the_step_behind_it_is_not_taken(raw, model, tokens, loss_fn, spoil, named):
    before = loss(raw, model, 1)
    raw.run_pass(model, 2, [datum(TOKENS)])
    message = pass_message(model, 3, [datum(tokens)], loss_fn)
    if spoil is not None:
        spoil(message)
    status, answer = raw.send_pass(message)
    assert status == (400 if spoil else 200)  # a message that cannot be read is also answered at once
    assert named in (answer["detail"] if spoil else raw.result(answer["request_id"])["error"])
    failed = raw.result(raw.post("optim_step", {**STEP, "model_id": model, "seq_id": 4})[1]["request_id"])
    assert failed["error"]
    assert loss(raw, model, 5) == before
    raw.run_pass(model, 6, [datum(TOKENS)])
    assert raw.result(raw.post("optim_step", {**STEP, "model_id": model, "seq_id": 7})[1]["request_id"])["metrics"]


@pytest.mark.parametrize(
    ("call", "body", "status"),
    [
        ("save_weights", {"path": "after step 10"}, 400),
        ("save_weights_for_sampler", {"path": "a/b"}, 400),
        ("load_weights", {"path": "tinker://nowhere/weights/x", "optimizer": True}, 404),
        ("optim_step", {"adam_params": {"learning_rate": "fast"}}, 400),
    ],
    ids=["name", "path", "checkpoint", "setting"],
)
def test_a_call_that_is_refused_at_once_takes_its_turn(raw, model, call, body, status):
    before = loss(raw, model, 1)
    raw.run_pass(model, 2, [datum(TOKENS)])
    assert raw.post(call, {**body, "model_id": model, "seq_id": 3})[0] == status
    assert raw.post(call, {**body, "model_id": model, "seq_id": 3})[0] == status
    stepped = raw.result(raw.post("optim_step", {**STEP, "model_id": model, "seq_id": 4})[1]["request_id"])
    assert stepped["metrics"]
    assert loss(raw, model, 5) < before


def test_after_a_number_that_never_comes_no_step_is_taken_with_what_was_before_it(server, raw, model):
    raw.run_pass(model, 1, [datum(TOKENS)])
    late = raw.post("optim_step", {**STEP, "model_id": model, "seq_id": 3})[1]["request_id"]
    server.call(lambda: server.core.close_gap(server.core.runs[model]))
    assert "never came" in raw.result(late)["error"]
    raw.run_pass(model, 4, [datum(TOKENS)])
    failed = raw.result(raw.post("optim_step", {**STEP, "model_id": model, "seq_id": 5})[1]["request_id"])
    assert "no step was taken" in failed["error"]


@pytest.mark.parametrize(
    ("starts", "columns", "shape"),
    [
        ([0, 1], [5], [1, 3]),
        ([0, 1], [-1], [1, 3]),
        ([0, 2], [0], [1, 3]),
        ([1, 1], [0], [1, 3]),
        ([0, 1], [0], [10**9, 10**9]),
        ([0, 1], [0], [1, 10**9]),
        ([], [], [1, 3]),
        ([0, 1], [0], []),
    ],
)
def test_compressed_rows_that_are_none_are_refused_and_cost_no_memory(raw, model, starts, columns, shape):
    message = pass_message(model, 1, [datum(TOKENS)])
    weights = message.data[0].loss_fn_inputs["weights"]
    weights.shape[:] = shape
    weights.sparse_csr.values = np.float32(1.0).tobytes()
    weights.sparse_csr.crow_indices = np.array(starts, dtype=np.int64).tobytes()
    weights.sparse_csr.col_indices = np.array(columns, dtype=np.int64).tobytes()
    weights.ClearField("dense")
    status, answer = raw.send_pass(message)
    assert status == 400
    assert answer["detail"]


PROMPT = {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}


@pytest.mark.parametrize(
    ("call", "body", "headers", "status"),
    [
        ("get_server_capabilities", {}, {}, 405),
        ("load_weights", {"model_seq_id": 1, "path": "tinker://x/weights/..", "optimizer": True}, {}, 404),
        ("asample", {"seq_id": 1, "prompt": PROMPT, "sampling_params": {}, "topk_sample_logprobs": 2}, {}, 400),
    ],
    ids=["method", "path", "field"],
)
def test_a_request_that_cannot_be_answered_has_its_own_status(raw, call, body, headers, status):
    known = {"session_id": raw.session()}
    if call == "asample":
        saved = {"model_id": raw.model(known["session_id"]), "seq_id": 1, "sampling_session_seq_id": 0}
        made = raw.post("save_weights_for_sampler", saved)[1]
        known = {"sampling_session_id": raw.result(made["request_id"])["sampling_session_id"]}
    assert raw.post(call, {**known, **body}, **headers)[0] == status


@pytest.mark.parametrize("call", ["create_session", "telemetry", "asample"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.invalid"}, 403),
        ({"Origin": "http://evil.invalid"}, 403),
        ({"Content_Type": "text/plain"}, 415),
    ],
    ids=["rebinding", "origin", "type"],
)
def test_a_web_page_reaches_no_call(raw, call, headers, status):
    assert raw.post(call, {}, **headers)[0] == status


@pytest.mark.parametrize("call", ["get_server_capabilities", "training_runs", "sessions"])
def test_a_web_page_under_another_host_name_reads_nothing(raw, call):
    assert raw.send("GET", f"/api/v1/{call}", headers={"Host": "evil.invalid"})[0] == 403


def test_a_sampler_of_a_checkpoint_takes_no_other_base_model(raw, model):
    saved = raw.post("save_weights_for_sampler", {"model_id": model, "seq_id": 1, "path": "w"})[1]
    body = {"session_id": raw.session(), "model_path": raw.result(saved["request_id"])["path"]}
    assert raw.post("create_sampling_session", {**body, "sampling_session_seq_id": 0})[0] == 200
    other = {**body, "sampling_session_seq_id": 1, "base_model": "another"}
    assert raw.post("create_sampling_session", other)[0] == 400


def test_a_name_longer_than_a_path_is_a_bad_request(raw):
    body = {"session_id": raw.session(), "model_seq_id": 0, "lora_config": {"rank": 1}}
    assert raw.post("create_model", {**body, "base_model": "x" * 5000})[0] == 400
    status, answer = raw.get(f"get_server_capabilities?model_name={'x' * 5000}")
    assert (status, bool(answer["refused"])) == (200, True)
