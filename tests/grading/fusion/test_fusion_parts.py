"""The parts of the client by themselves: addresses, slots, result files, the harness's text, the real server's configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from code_rl.grading.sandbox import connect_executor
from code_rl.grading.sandbox.executor import Execution, Status
from code_rl.grading.sandbox.fusion.protocol import FAILED, RunRequest, run_urls
from code_rl.grading.sandbox.server.runs import RunLimits, run_request
from tests.refusals import refused
from tests.stand_in import StandIn

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("http://localhost:8080/run_code", ("http://localhost:8080/run_code",)),
        ("http://a:1", ("http://a:1/run_code",)),
        ("http://a:1/", ("http://a:1/run_code",)),
        ("https://h/prefix/", ("https://h/prefix/run_code",)),
        (" http://a:1 , http://b:2/run_code,http://a:1", ("http://a:1/run_code", "http://b:2/run_code")),
    ],
)
def test_addresses(text, urls):
    assert run_urls(text) == urls


@pytest.mark.parametrize("text", ["", " , ", "localhost:8080", "ftp://a", "http://", "http:///run_code"])
def test_addresses_that_cannot_be_used_are_named(text):
    with refused("SANDBOX_URL"):
        run_urls(text)


def test_an_address_of_the_environment_is_refused_by_its_own_name(monkeypatch):
    monkeypatch.setenv("SANDBOX_URL", "localhost:8080")
    with refused("SANDBOX_URL: 'localhost:8080'"):
        connect_executor("auto")


def test_the_environment_sets_address_and_concurrency(monkeypatch):
    monkeypatch.setenv("SANDBOX_URL", "http://x:1,http://y:2")
    monkeypatch.setenv("SANDBOX_MAX_CONCURRENCY", "9")
    executor = connect_executor("auto")
    assert executor.slots == 18
    assert "http://x:1/run_code, http://y:2/run_code" in executor.description
    monkeypatch.delenv("SANDBOX_MAX_CONCURRENCY")
    assert connect_executor("auto").slots == 8


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_concurrency_that_cannot_be_used_is_named(monkeypatch, value):
    monkeypatch.setenv("SANDBOX_MAX_CONCURRENCY", value)
    with refused("SANDBOX_MAX_CONCURRENCY"):
        connect_executor("http://x:1")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("sandbox.isolation", str),
        ("sandbox.cleanup_process", bool),
        ("sandbox.restore_bash", bool),
        ("sandbox.max_concurrency", int),
        ("dataset.database.backend.type", str),
        ("common.logging_color", bool),
    ],
)
def test_the_configuration_of_the_real_server_has_what_it_requires(path, kind):
    value = yaml.safe_load((ROOT / "sandbox_config" / "local.yaml").read_text())
    for key in path.split("."):
        value = value[key]
    assert isinstance(value, kind)


class Ends(StandIn):
    """A sandbox in which every program ends in one way."""

    async def run(self, job):
        yield Execution(Status.RUNTIME_ERROR, detail="lost three times")


def test_a_run_without_an_exit_code_says_why():
    response = asyncio.run(run_request(Ends(), RunRequest("print(1)"), RunLimits(100, 100, 1, 60)))
    assert (response.status, response.message) == (FAILED, "lost three times")
    assert response.run_result.return_code is None
