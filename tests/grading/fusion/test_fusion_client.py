"""The client of Sandbox Fusion: addresses, chunks, sizes, slots, several servers, their processors."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
import yaml
from aiohttp import web

from code_rl.grading.sandbox import connect_executor
from tests.grading.fusion.fusion_support import ServerProcess, connected, fake_server, recording, relay, through
from tests.grading.jobs import collect, stdin_job
from tests.paths import ROOT
from tests.refusals import refused


def test_the_first_test_travels_alone_then_the_others_and_only_inputs_do(server: ServerProcess):
    seen: list[dict[str, Any]] = []
    job = stdin_job("print(input())", *[str(n) for n in range(30)], cpu_s=2.5)
    through([recording(seen)], lambda client: collect(client, job), server.url)
    counts = [sum(name.startswith("case_") for name in body["files"]) for body in seen]
    assert counts == [1, 29]
    assert all(body["run_timeout"] > (2.5 + 1) * n for body, n in zip(seen, counts, strict=True))
    assert all(
        set(body["files"]) - {"testing_util.py", "job.json"} == {f"case_{n}" for n in range(count)}
        for body, count in zip(seen, counts, strict=True)
    )


def test_a_wrong_first_test_costs_one_request(server: ServerProcess):
    seen: list[dict[str, Any]] = []

    async def use(client):
        stream: Any = client.run(stdin_job("print(0)", *["1"] * 100))
        await anext(stream)
        await stream.aclose()

    through([recording(seen)], use, server.url)
    assert len(seen) == 1


def test_cancelling_a_submission_ends_its_request(server: ServerProcess):
    arrived, ended = [], []

    async def hang(_, body, forward):
        arrived.append(1)
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(1)

    async def use(client):
        task = asyncio.create_task(collect(client, stdin_job("print(0)")))
        while not arrived:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not ended:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    through([hang], use)


@pytest.mark.long
def test_no_server_sees_more_requests_at_once_than_the_concurrency(server: ServerProcess):
    now, most = 0, 0

    async def count(_, body, forward):
        nonlocal now, most
        now += 1
        most = max(most, now)
        answer = await forward(body)
        now -= 1
        return web.json_response(answer)

    async def use(client):
        return await asyncio.gather(*(collect(client, stdin_job(f"print({n})", "", "")) for n in range(20)))

    results = through([count], use, server.url, 3)
    assert [r[1].stdout for r in results] == [b"%d\n" % n for n in range(20)]
    assert most <= 3


def test_load_is_spread_over_several_servers(server: ServerProcess):
    seen: tuple[list[dict[str, Any]], ...] = [], []

    async def use(client):
        await asyncio.gather(*(collect(client, stdin_job("print(1)")) for _ in range(20)))

    through([*map(recording, seen)], use, server.url)
    assert sum(map(len, seen)) == 20
    assert min(map(len, seen)) >= 5


@pytest.mark.long
def test_large_inputs_travel_in_smaller_chunks(server: ServerProcess):
    seen: list[dict[str, Any]] = []
    job = stdin_job("print(len(input()))", *["x" * 7_000_000] * 5)
    found = through([recording(seen)], lambda client: collect(client, job), server.url, 1)
    assert [int(execution.stdout) for execution in found] == [7_000_000] * 5
    assert max(len(json.dumps(body)) for body in seen) < 24 << 20


def test_each_server_is_asked_for_its_processors_and_takes_twice_as_many_at_once(monkeypatch):
    monkeypatch.delenv("SANDBOX_MAX_CONCURRENCY", raising=False)

    def of(processors: str):
        async def handler(_, body, forward):
            assert "sched_getaffinity" in body["code"]
            result = {"status": "Finished", "return_code": 0, "stdout": processors, "stderr": "", "execution_time": 0.1}
            return web.json_response(
                {"status": "Success", "message": "", "compile_result": None, "run_result": result, "files": {}}
            )

        return handler

    async def go(**more):
        async with fake_server(of("24.0\n")) as large, fake_server(of("1.5\n")) as small, fake_server(of("?")) as odd:
            client = connected([large, small, odd], **more)
            before = client.slots
            await client.check()
            found = before, client.slots
            await client.aclose()
            return found

    assert asyncio.run(go()) == (12, 48 + 4 + 4)
    assert asyncio.run(go(concurrency=3)) == (9, 9)


def test_a_server_of_ours_says_what_it_has(server: ServerProcess, monkeypatch):
    monkeypatch.delenv("SANDBOX_MAX_CONCURRENCY", raising=False)

    async def go():
        client = connected([server.url])
        await client.check()
        return client.slots

    assert asyncio.run(go()) == max(4, 2 * len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("http://localhost:8080/run_code", "http://localhost:8080/run_code"),
        ("http://a:1/", "http://a:1/run_code"),
        ("https://h/prefix/", "https://h/prefix/run_code"),
        (" http://a:1 , http://b:2/run_code,http://a:1", "http://a:1/run_code, http://b:2/run_code"),
    ],
)
def test_addresses(text, urls):
    assert f"at {urls} (" in connect_executor(text).description


@pytest.mark.parametrize("text", [" , ", "localhost:8080", "ftp://a", "http://", "http:///run_code"])
def test_addresses_that_cannot_be_used_are_named(text):
    with refused(text.strip()):
        connect_executor(text)


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


def test_waiting_submissions_that_are_cancelled_lose_no_slot(server: ServerProcess):
    async def use(client):
        for round_ in range(8):
            tasks = [asyncio.create_task(collect(client, stdin_job("print(1)"))) for _ in range(6)]
            for _ in range(round_ % 5):
                await asyncio.sleep(0)
            for task in tasks[round_ % 3 :: 2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return await asyncio.gather(*(collect(client, stdin_job("print(2)")) for _ in range(4)))

    assert [found[0].stdout for found in through([relay], use, server.url)] == [b"2\n"] * 4


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
