"""Memory, disk, time: saved state survives, a client that vanishes frees its models, and requests that do not fit are refused."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")
from code_rl.engine import names
from code_rl.util.errors import ConfigError
from tests.engine.serve.serve_support import Raw, ServeProcess, ServerThread, datum
from tests.waiting import until

TOKENS = list(range(20, 40))
DATA = [datum(TOKENS)]
STEP = {"adam_params": {"learning_rate": 0.01}}
PROMPT = {"chunks": [{"type": "encoded_text", "tokens": TOKENS[:8]}]}


def post(raw, call, body):
    status, made = raw.post(call, body)
    assert status == 200, made
    return raw.result(made["request_id"])


def step(raw, model, seq):
    """One pass and one step, requests seq and seq + 1; the pass's loss."""
    status, made = raw.run_pass(model, seq, DATA)
    assert status == 200, made
    post(raw, "optim_step", {**STEP, "model_id": model, "seq_id": seq + 1})
    return raw.result(made["request_id"]).metrics["loss:sum"]


def sampler(raw, model, seq, number=0):
    body = {"model_id": model, "seq_id": seq, "sampling_session_seq_id": number}
    return post(raw, "save_weights_for_sampler", body)["sampling_session_id"]


def sample(raw, sampling_session, seq, **changes):
    params = {"max_tokens": 6, "seed": 3, **changes.pop("sampling_params", {})}
    body = {
        "sampling_session_id": sampling_session,
        "seq_id": seq,
        "prompt": PROMPT,
        "sampling_params": params,
        **changes,
    }
    return raw.post("asample", body)


def sampled(raw, sampling_session, seq):
    drawn = raw.result(sample(raw, sampling_session, seq)[1]["request_id"]).sequences
    return [(each.stop_reason, each.tokens, each.logprobs) for each in drawn]


def losses_of_an_undisturbed_model(raw, count):
    model = raw.model(raw.session())
    return [step(raw, model, 1 + 2 * i) for i in range(count)]


def test_a_server_answers_while_a_file_of_weights_is_converted(tmp_path, monkeypatch):
    begun, answered = threading.Event(), threading.Event()

    def convert(file):
        begun.set()
        assert answered.wait(60)
        raise ConfigError("no model")

    monkeypatch.setattr(names, "folder_of", convert)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with ServerThread(tmp_path / "state") as server:
        raw = Raw(server.port)
        body = {"session_id": raw.session(), "model_seq_id": 0, "base_model": str(tmp_path / "m.gguf")}
        status, made = raw.post("create_model", body)
        assert status == 200
        assert begun.wait(60)
        assert raw.send("GET", "/health")[0] == 200
        answered.set()
        failed = raw.result(made["request_id"])
    assert "no model" in str(failed)


def test_more_models_than_may_be_are_pushed_back_and_a_vanished_clients_give_way(tmp_path):
    with ServerThread(tmp_path, max_models=2, session_timeout_s=1.0) as server:
        raw = Raw(server.port)
        first, session = raw.session(), raw.session()
        lost = raw.model(first)
        kept = raw.model(session)
        body = {"session_id": session, "model_seq_id": 1, "base_model": "tiny"}
        status, answer = raw.post("create_model", body)
        assert status == 429
        assert "max_models" in answer["detail"]

        def silent():
            raw.post("session_heartbeat", {"session_id": session})
            return server.core.sessions[first].vanished

        until(silent)
        raw.model(session, 1)
        assert step(raw, kept, 1)
        assert raw.run_pass(lost, 1, DATA)[0] == 410


def test_a_snapshot_out_of_memory_samples_as_before(tmp_path):
    with ServerThread(tmp_path, max_samplers=1) as server:
        raw = Raw(server.port)
        model = raw.model(raw.session())
        step(raw, model, 1)
        first = sampler(raw, model, 3, 0)
        before = sampled(raw, first, 0)
        step(raw, model, 4)
        second = sampler(raw, model, 6, 1)
        assert len(server.core.weights) == 1
        assert sampled(raw, first, 1) == before
        assert sampled(raw, second, 0) != before


@pytest.mark.long
def test_a_client_that_vanishes_finds_its_model_again_for_a_while_and_its_samplers_for_longer(tmp_path):
    with ServerThread(tmp_path, session_timeout_s=0.5, idle_s=2.0) as server:
        raw = Raw(server.port)
        expected = losses_of_an_undisturbed_model(raw, 2)
        session = raw.session()
        model = raw.model(session)
        loss = step(raw, model, 1)
        snapshot = sampler(raw, model, 3)
        before = sampled(raw, snapshot, 0)
        until(lambda: server.core.sessions[session].vanished)
        assert not [p for p in server.core.promises._all.values() if p.session_id == session and p.kind == "sample"]
        assert [loss, step(raw, model, 4)] == expected
        until(lambda: model not in server.core.runs and not server.core.service.models)
        status, answer = raw.run_pass(model, 6, DATA)
        assert status == 410
        assert "last checkpoint" in answer["detail"]
        assert sampled(raw, snapshot, 1) == before


def test_a_finished_session_keeps_its_checkpoints_and_nothing_else(tmp_path):
    with ServerThread(tmp_path) as server:
        raw = Raw(server.port)
        session = raw.session()
        model = raw.model(session)
        step(raw, model, 1)
        path = post(raw, "save_weights", {"model_id": model, "seq_id": 3, "path": "kept"})["path"]
        snapshot = sampler(raw, model, 4)
        assert raw.post(f"sessions/{session}/finish", {"reason": {"type": "success"}})[0] == 200
        assert raw.post("session_heartbeat", {"session_id": session})[0] == 410
        assert raw.run_pass(model, 5, DATA)[0] == 410
        assert sample(raw, snapshot, 0)[0] in (404, 410)
        again = {"session_id": raw.session(), "model_seq_id": 0, "path": path, "optimizer": True}
        assert post(raw, "load_weights", again)["path"] == path
        assert not server.core.store.sampler_file(snapshot).exists()


def test_a_cancelled_sample_is_not_drawn(tmp_path):
    with ServerThread(tmp_path) as server:
        raw = Raw(server.port)
        model = raw.model(raw.session())
        snapshot = sampler(raw, model, 1)
        sampled(raw, snapshot, 0)
        gate, waits = threading.Event(), threading.Event()
        sampling = server.core.service._sampler._lanes
        sampling.submit(waits.set)
        sampling.submit(gate.wait)
        assert waits.wait(60)
        request = sample(raw, snapshot, 1)[1]["request_id"]
        assert raw.post("cancel_future", {"request_id": request})[0] == 200
        gate.set()
        assert "cancelled" in raw.result(request)["error"]


def test_full_queues_push_back_and_the_request_that_all_wait_for_comes_in(tmp_path):
    with ServerThread(tmp_path, max_queue=3) as server:
        raw = Raw(server.port)
        model = raw.model(raw.session())
        answers = [raw.run_pass(model, seq, DATA) for seq in (2, 3, 4, 5)]
        assert [status for status, _ in answers] == [200, 200, 200, 429]
        first = raw.run_pass(model, 1, DATA)
        assert first[0] == 200
        for _, made in [first, *answers[:3]]:
            assert raw.result(made["request_id"]).metrics
        assert raw.run_pass(model, 5, DATA)[0] == 200


def test_a_token_lets_in_only_those_who_have_it(tmp_path):
    with ServerThread(tmp_path, token="tml-secret", models={"another": "tiny"}) as server:
        for key, status in (("tml-secret", 200), ("tml-wrong", 401), (None, 401)):
            raw = Raw(server.port, key)
            assert raw.send("GET", "/metrics")[0] == status
            assert raw.send("GET", "/health")[0] == 200
            found, listed = raw.get("get_server_capabilities")
            assert found == status
            assert status != 200 or "another" in [each["model_name"] for each in listed["supported_models"]]


def test_metrics_tell_of_requests_tokens_and_memory(tmp_path):
    with ServerThread(tmp_path) as server:
        raw = Raw(server.port)
        model = raw.model(raw.session())
        step(raw, model, 1)
        sampled(raw, sampler(raw, model, 3), 0)
        lines = raw.send("GET", "/metrics")[1].decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert float(values['code_rl_serve_tokens_total{kind="sampled"}']) == 6
        assert float(values['code_rl_serve_tokens_total{kind="trained"}']) == len(TOKENS) - 1
        assert float(values['code_rl_serve_in_memory{kind="training"}']) == 1
        assert float(values['code_rl_serve_requests_total{call="/api/v1/asample",status="200"}']) == 1


def test_every_sequence_that_is_promised_comes_also_without_tokens(tmp_path):
    with ServerThread(tmp_path) as server:
        raw = Raw(server.port)
        snapshot = sampler(raw, raw.model(raw.session()), 1)
        promised = sample(raw, snapshot, 0, num_samples=3, sampling_params={"max_tokens": 0})[1]
        drawn = raw.result(promised["request_id"]).sequences
        assert len(promised["sample_sequence_ids"]) == len(drawn) == 3
        assert (drawn[0].stop_reason, drawn[0].tokens) == ("length", [])


@pytest.mark.slow
def test_after_a_restart_checkpoints_are_there_and_lost_models_and_samplers_say_so(tmp_path):
    server = ServeProcess(tmp_path)
    with server:
        raw = Raw(server.port)
        session = raw.session()
        model = raw.model(session)
        step(raw, model, 1)
        path = post(raw, "save_weights", {"model_id": model, "seq_id": 3, "path": "kept"})["path"]
        loss = step(raw, model, 4)
        snapshot = sampler(raw, model, 6)
        code, stderr = server.stop()
        assert (code, "Traceback" in stderr) == (0, False)
        server.start()
        raw = Raw(server.port)
        status, answer = raw.run_pass(model, 7, DATA)
        assert status == 410
        assert "last checkpoint" in answer["detail"]
        assert sample(raw, snapshot, 0)[0] == 410
        again = {"session_id": session, "model_seq_id": 1, "path": path, "optimizer": True}
        restored = post(raw, "load_weights", again)["model_id"]
        assert step(raw, restored, 1) == loss
        assert [c["tinker_path"] for c in raw.get("checkpoints")[1]["checkpoints"]] == [path]
