"""Loopback addresses are reached without the environment's proxy, others through it, and a failure names it."""

from __future__ import annotations

import asyncio
import http.client
import os
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from code_rl import CodeRLError
from code_rl.engine import place_of
from code_rl.engine.probes import require_downloads
from code_rl.engine.vllm import find_vllm, vllm_at
from code_rl.evaluation import EvalConfig
from code_rl.evaluation.endpoint import Endpoint
from code_rl.evaluation.generators import CompletionRequest
from code_rl.grading import Problem, StdinTest
from code_rl.grading.sandbox import check_executor, connect_executor
from tests.boxes import shared_server
from tests.evaluation.chat_server import RIGHT, chat_server
from tests.refusals import refused

PROBLEM = Problem(id="sum", statement="Add.", tests=(StdinTest("1 2\n", "3\n"),))
DEAD = "http://name:secret-word@127.0.0.1:9"


@pytest.fixture(autouse=True)
def no_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.05)


async def ask(endpoint: str, outage_timeout: float) -> None:
    settings = EvalConfig(
        model_name="m", endpoint=endpoint, max_tokens=8, temperature=0.7, asking=1, outage_timeout=outage_timeout
    )
    asked = Endpoint(settings)
    try:
        await asked.complete(CompletionRequest(PROBLEM, [{"role": "user", "content": "?"}], 5, "sampled", 1), (0,))
    finally:
        await asked.aclose()


async def check(url: str) -> None:
    executor = connect_executor(url)
    try:
        await check_executor(executor)
    finally:
        await executor.aclose()


DOORS: dict[str, Callable[[str], object]] = {
    "endpoint": lambda url: asyncio.run(ask(f"{url}/v1", 0.1)),
    "executor": lambda url: asyncio.run(check(url)),
    "sampler": lambda url: find_vllm(vllm_at(url)),
    "backend": lambda url: require_downloads(place_of(url)),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_failure_through_a_proxy_names_it_without_its_password(door, monkeypatch):
    monkeypatch.setenv("http_proxy", DEAD)
    with refused("http://elsewhere.example:81", "@127.0.0.1:9", kind=CodeRLError) as caught:
        DOORS[door]("http://elsewhere.example:81")
    assert "secret-word" not in str(caught.value)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_loopback_is_reached_without(door, host, monkeypatch):
    monkeypatch.setenv("http_proxy", DEAD)
    with refused(f"http://{host}:9", kind=CodeRLError) as caught:
        DOORS[door](f"http://{host}:9")
    assert "127.0.0.1:9 of" not in str(caught.value)
    assert "***" not in str(caught.value)


def test_another_address_goes_through_the_proxy(monkeypatch):
    async def run() -> int:
        async with chat_server(lambda body, attempt: RIGHT) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
            await ask("http://model.example/v1", 5.0)
            return len(proxy.bodies)

    assert asyncio.run(run()) == 1


def reach(url: str) -> None:
    """Ask a server that is not there."""
    with refused(url, kind=CodeRLError):
        DOORS["sampler"](url)


OURS = "localhost,127.0.0.1,::1"


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
@pytest.mark.parametrize(
    ("before", "after"),
    [("", OURS), ("a.b", f"a.b,{OURS}"), (".local, *.corp", f".local,*.corp,{OURS}"), ("[::1],fd00::/8", "::1,localhost,127.0.0.1")],
)  # fmt: skip
def test_the_exceptions_of_the_environment_stay_and_all_clients_read_the_same(name, before, after, monkeypatch):
    monkeypatch.setenv(name, before)
    for _ in range(2):
        reach("http://localhost:9")
        assert (os.environ["no_proxy"], os.environ["NO_PROXY"]) == (after, after)


def test_where_all_addresses_are_excepted_no_proxy_is_left(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("http_proxy", DEAD)
    monkeypatch.setenv("ALL_PROXY", DEAD)
    reach("http://elsewhere.invalid:81")
    assert not {"http_proxy", "ALL_PROXY"} & os.environ.keys()


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "socks4://127.0.0.1:9", ":::bad"])
@pytest.mark.parametrize("door", DOORS)
def test_a_proxy_that_no_client_can_use_is_one_line_and_loopback_needs_none(door, proxy, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", proxy)
    with refused("ALL_PROXY=", kind=CodeRLError):
        DOORS[door]("http://elsewhere.example:81")
    with refused("http://localhost:9", kind=CodeRLError):
        DOORS[door]("http://localhost:9")


@pytest.mark.parametrize(
    ("host", "ours"),
    [("127.0.0.1:8265", True), ("localhost", True), ("[::1]:80", True), ("127.0.0.1.evil.invalid:80", False), ("evil.invalid", False), ("0.0.0.0:1", False)],
)  # fmt: skip
def test_loopback_is_told_from_names_that_look_like_it(host, ours):
    address = urlsplit(shared_server(1)).netloc
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request("GET", "/", headers={"Host": host})
    assert (connection.getresponse().status == 403) is not ours
    connection.close()
