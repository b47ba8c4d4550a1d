"""An OpenAI Chat Completions endpoint that fails in every way a real one does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import traceback

import pytest
from aiohttp import web

from code_rl.evaluation import EvalConfig
from code_rl.evaluation.endpoint import Endpoint
from code_rl.evaluation.generators import CompletionError, CompletionRequest
from code_rl.grading import Problem, StdinTest
from code_rl.util.errors import BackendError, ConfigError
from tests.evaluation.chat_server import RIGHT, chat_server
from tests.refusals import refused

PROBLEM = Problem(id="sum", statement="Add.", tests=(StdinTest("1 2\n", "3\n"),))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.05)


def complete(script, numbers=(0,), *, mode="sampled", times=1, **settings):
    """The samples of the last of several requests, and the server that was asked."""
    limits = {"request_timeout": 10.0, "outage_timeout": 20.0}
    given = {"max_tokens": 64, "temperature": 0.7, "asking": 4, **limits, **settings}

    async def run():
        async with chat_server(script) as server:
            asked = Endpoint(EvalConfig(model_name="m", **{"endpoint": server.url, **given}))
            request = CompletionRequest(PROBLEM, [{"role": "user", "content": "Add."}], 5, mode, len(numbers))
            try:
                for _ in range(times - 1):
                    with contextlib.suppress(CompletionError):
                        await asked.complete(request, numbers)
                return await asked.complete(request, numbers), server
            finally:
                await asked.aclose()

    return asyncio.run(run())


async def hang(body, attempt):
    await asyncio.sleep(30)


def test_one_request_per_sample_each_with_a_seed_of_its_own():
    samples, server = complete(lambda body, attempt: RIGHT, (0, 1, 2))
    assert [sample.sample for sample in samples] == [0, 1, 2]
    assert len({body["seed"] for body in server.bodies}) == 3
    again = complete(lambda body, attempt: RIGHT, (0, 1, 2))[1].bodies
    assert {body["seed"] for body in again} == {body["seed"] for body in server.bodies}
    assert complete(lambda body, attempt: RIGHT, mode="greedy")[1].bodies[0]["temperature"] == 0.0
    body = server.bodies[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.7, 64)
    assert body["messages"] == [{"role": "user", "content": "Add."}]
    assert (samples[0].prompt_tokens, samples[0].completion_tokens, samples[0].truncated) == (7, 11, False)


def test_no_more_requests_are_out_than_may_be_whoever_asks():
    now, most = 0, []

    async def script(body, attempt):
        nonlocal now
        now += 1
        most.append(now)
        await asyncio.sleep(0.01)
        now -= 1
        return RIGHT

    samples, _ = complete(script, range(12))
    assert (max(most), len(samples)) == (4, 12)


TROUBLES = {
    "busy": lambda: web.Response(status=429, headers={"Retry-After": "0.01"}),
    "bad gateway": lambda: web.Response(status=502, text="<html>"),
    "internal error": lambda: web.Response(status=500),
    "cut connection": lambda: "drop",
}
NO_COMPLETIONS = {
    "not JSON": lambda: web.Response(text="it works"),
    "no choices": lambda: web.json_response({"choices": []}),
    "an error with status 200": lambda: web.json_response({"error": {"message": "overloaded"}}),
    "content that is no text": lambda: web.json_response({"choices": [{"message": {"content": [1]}}]}),
    "given up": lambda: web.json_response({"choices": [{"message": {"content": "x"}, "finish_reason": "abort"}]}),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_that_passes_is_waited_out(trouble):
    samples, server = complete(lambda body, attempt: TROUBLES[trouble]() if attempt < 2 else RIGHT)
    assert samples[0].completion == RIGHT
    assert len(server.bodies) == 3


@pytest.mark.parametrize("answer", NO_COMPLETIONS)
def test_an_answer_that_is_no_completion_is_one_missing_sample(answer):
    with pytest.raises(CompletionError) as caught:
        complete(lambda body, attempt: NO_COMPLETIONS[answer]())
    assert str(caught.value).partition(":")[0] == "no_completion"


@pytest.mark.parametrize("outage_timeout", [0.5, 20.0])
def test_an_answer_that_never_comes_is_one_missing_sample_however_short_the_patience(outage_timeout):
    with pytest.raises(CompletionError) as caught:
        complete(hang, request_timeout=0.3, outage_timeout=outage_timeout)
    assert str(caught.value).partition(":")[0] == "request_timeout"


def test_a_server_that_lets_every_request_hang_is_left_in_the_end():
    with pytest.raises(BackendError):
        complete(hang, times=9, asking=1, request_timeout=0.2, outage_timeout=0.1)


def test_an_address_at_which_no_server_listens_ends_the_evaluation_at_once():
    async def run():
        asked = Endpoint(EvalConfig(endpoint="http://127.0.0.1:9/v1", model_name="m", outage_timeout=3600))
        try:
            await asked.check()
        finally:
            await asked.aclose()

    with refused("endpoint=http://127.0.0.1:9/v1", kind=BackendError):
        asyncio.run(run())


@pytest.mark.parametrize(("status", "named"), [(401, "api_key_env"), (403, "api_key_env"), (404, "model_name=m")])
def test_a_wrong_key_or_model_stops_at_once(status, named):
    with refused(named):
        complete(lambda body, attempt: web.Response(status=status), outage_timeout=20)


def test_a_completion_cut_by_length_is_truncated_and_one_without_content_is_empty():
    def answer(body, attempt):
        message = {"role": "assistant", "content": None, "reasoning_content": "hm"}
        return web.json_response({"choices": [{"finish_reason": "length", "message": message}]})

    samples, _ = complete(answer)
    assert (samples[0].completion, samples[0].truncated, samples[0].completion_tokens) == ("", True, 0)


def test_the_key_that_is_named_is_sent_and_nothing_else_of_the_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "not-for-you")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: not-for-you\nX-Api-Key: not-for-you")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("MY_LOGIN", "for-you")
    _, server = complete(lambda body, attempt: RIGHT)
    assert "authorization" not in {name.lower() for name in server.headers[0]}
    assert "not-for-you" not in str(server.headers)
    _, server = complete(lambda body, attempt: RIGHT, api_key_env="MY_LOGIN")
    assert {name.lower(): value for name, value in server.headers[0].items()}["authorization"] == "Bearer for-you"
    assert "not-for-you" not in str(server.headers)
    with refused("NO_SUCH_KEY"):
        complete(lambda body, attempt: RIGHT, api_key_env="NO_SUCH_KEY")


@pytest.mark.parametrize(("status", "error"), [(401, ConfigError), (400, CompletionError), (500, BackendError)])
def test_no_error_shows_the_key(monkeypatch, status, error):
    monkeypatch.setenv("MY_LOGIN", "for-you")
    with pytest.raises(error) as caught:
        complete(
            lambda body, attempt: web.Response(status=status, text="no: for-you"),
            api_key_env="MY_LOGIN",
            outage_timeout=0.1,
        )
    assert "no: ***" in str(caught.value)
    assert "for-you" not in "".join(traceback.format_exception(caught.value))


def test_extra_fields_travel_and_those_with_settings_are_refused():
    _, server = complete(lambda body, attempt: RIGHT, extra_body=json.dumps({"top_p": 0.95}))
    assert server.bodies[0]["top_p"] == 0.95
    _, server = complete(lambda body, attempt: RIGHT, top_k=20, extra_body=json.dumps({"min_p": 0.1}))
    assert (server.bodies[0]["top_k"], server.bodies[0]["min_p"]) == (20, 0.1)
    with refused("extra_body", "top_p"):
        complete(lambda body, attempt: RIGHT, top_p=0.9, extra_body=json.dumps({"top_p": 0.95}))
    for text in ('{"temperature": 1}', "[1]", "{"):
        with refused("extra_body"):
            complete(lambda body, attempt: RIGHT, extra_body=text)


def test_an_endpoint_that_is_no_address_is_refused():
    with refused("endpoint='gpu-box'"):
        complete(lambda body, attempt: RIGHT, endpoint="gpu-box")
