"""The client against our own server, end to end."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
from aiohttp import web

from code_rl.grading import values
from code_rl.grading.sandbox.executor import Status
from code_rl.grading.sandbox.fusion.client import FusionClient
from tests.grading.fusion.fusion_support import (
    ServerProcess,
    call_job,
    collect,
    fake_server,
    run_all,
    stdin_job,
    through,
)


def only(executions):
    assert len(executions) == 1
    return executions[0]


def test_each_input_gives_its_own_output_in_order(server: ServerProcess):
    executions = run_all(server.url, stdin_job("print(int(input()) * 2)", *[str(n) for n in range(30)]))
    assert [int(execution.stdout) for execution in executions] == [2 * n for n in range(30)]
    assert all(execution.status is Status.OK and execution.exit_code == 0 for execution in executions)


def test_returned_values_come_back_with_their_types(server: ServerProcess):
    executions = run_all(
        server.url, call_job("def f(a, b):\n    return (a, {b: [a]}, 10**5000)", "f", (1, 2), ("x", 3))
    )
    assert [values.loads(execution.value) for execution in executions] == [
        (1, {2: [1]}, 10**5000),
        ("x", {3: ["x"]}, 10**5000),
    ]


def test_a_method_of_solution_is_called_with_preamble_and_setup(server: ServerProcess):
    code = "class Solution:\n    def f(self, x: List[int]):\n        return helper(x)"
    job = call_job(code, "f", ([1, 2],), preamble="from typing import List", setup="def helper(x): return sum(x)")
    assert values.loads(only(run_all(server.url, job)).value) == 3


@pytest.mark.parametrize(
    ("code", "limits", "status", "exit_code"),
    [
        ("raise ValueError('no')", {}, Status.RUNTIME_ERROR, 1),
        ("import sys; sys.exit(7)", {}, Status.RUNTIME_ERROR, 7),
        ("import os; os.kill(os.getpid(), 11)", {}, Status.RUNTIME_ERROR, -11),
        ("def f(:", {}, Status.COMPILE_ERROR, 1),
        ("while True: pass", {"cpu_s": 0.5}, Status.TIME_LIMIT, None),
        ("import time; time.sleep(60)", {"cpu_s": 0.5, "wall_s": 1.0}, Status.TIME_LIMIT, None),
        ("x = b'x' * (1 << 32); print(len(x))", {"memory_mb": 128}, Status.MEMORY_LIMIT, 1),
        ("while True: print('x' * 9999)", {"output_bytes": 100_000}, Status.OUTPUT_LIMIT, None),
        ("print('fine')", {}, Status.OK, 0),
    ],
)
def test_every_status(server: ServerProcess, code, limits, status, exit_code):
    execution = only(run_all(server.url, stdin_job(code, **limits)))
    assert (execution.status, execution.exit_code) == (status, exit_code)


def test_a_function_that_does_not_return_is_a_runtime_error(server: ServerProcess):
    for body in ("raise SystemExit(0)", "import os; os._exit(0)", "return object()"):
        assert only(run_all(server.url, call_job(f"def f():\n    {body}", "f", ()))).status is Status.RUNTIME_ERROR


def test_outputs_of_megabytes_arrive_whole(server: ServerProcess):
    execution = only(run_all(server.url, stdin_job("print('ab' * 2_000_000)")))
    assert execution.stdout == b"ab" * 2_000_000 + b"\n"


def test_outputs_of_several_large_tests_arrive_whole(server: ServerProcess):
    executions = run_all(server.url, stdin_job("n = int(input()); print('x' * n)", *["9000000"] * 3))
    assert [len(execution.stdout) for execution in executions] == [9_000_001] * 3


def test_binary_input_and_output_arrive_unchanged(server: ServerProcess):
    data = bytes(range(256)) * 500 + b"\r\n\0\xff"
    code = "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())"
    assert only(run_all(server.url, stdin_job(code, data))).stdout == data


def test_the_report_of_an_exception_names_it(server: ServerProcess):
    execution = only(run_all(server.url, stdin_job("1 / 0")))
    assert execution.detail == "ZeroDivisionError: division by zero"
    assert b"Traceback" in execution.stderr


def test_nothing_follows_a_compile_error(server: ServerProcess):
    assert len(run_all(server.url, stdin_job("def f(:", "1", "2", "3"))) == 1


def test_a_failed_test_does_not_hide_the_following_ones(server: ServerProcess):
    executions = run_all(server.url, stdin_job("print(1 / int(input()))", "1", "0", "2", "0", "4"))
    assert [execution.status is Status.OK for execution in executions] == [True, False, True, False, True]


def test_a_source_that_overwhelms_the_compiler_is_a_verdict_of_the_program(server: ServerProcess):
    execution = only(run_all(server.url, stdin_job("-" * 200_000 + "1")))
    assert execution.status is Status.COMPILE_ERROR


def test_a_process_left_behind_does_not_hold_up_the_test(server: ServerProcess):
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(0)
print("parent done")
"""
    assert only(run_all(server.url, stdin_job(code))).stdout == b"parent done\n"


def test_one_client_serves_several_event_loops(server: ServerProcess):
    client = FusionClient([server.url], 2)
    for n in range(3):
        assert only(asyncio.run(collect(client, stdin_job(f"print({n})")))).stdout == b"%d\n" % n


def test_no_request_is_made_for_no_tests():
    assert run_all("http://127.0.0.1:9", stdin_job("print(1)").__class__("print(1)", ())) == []


def test_chunks_grow_and_inputs_are_all_that_travels(server: ServerProcess):
    seen = []

    async def spy(_, body, forward):
        seen.append(body)
        return web.json_response(await forward(body))

    job = stdin_job("print(input())", *[str(n) for n in range(30)], cpu_s=2.5)
    through([spy], lambda client: collect(client, job), server.url)
    counts = [sum(name.startswith("case_") for name in body["files"]) for body in seen]
    assert counts == [1, 4, 16, 9]
    assert [body["run_timeout"] for body in seen] == [(3 + 1) * n + 5 for n in counts]
    assert all(
        set(body["files"]) - {"testing_util.py", "job.json"} == {f"case_{n}" for n in range(count)}
        for body, count in zip(seen, counts, strict=True)
    )


def test_a_wrong_first_test_costs_one_request(server: ServerProcess):
    requests = 0

    async def spy(number, body, forward):
        nonlocal requests
        requests = number
        return web.json_response(await forward(body))

    async def use(client):
        stream: Any = client.run(stdin_job("print(0)", *["1"] * 100))
        await anext(stream)
        await stream.aclose()

    through([spy], use, server.url)
    assert requests == 1


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
    hits = [0, 0]

    def counting(which):
        async def handler(_, body, forward):
            hits[which] += 1
            return web.json_response(await forward(body))

        return handler

    async def use(client):
        await asyncio.gather(*(collect(client, stdin_job("print(1)")) for _ in range(20)))

    through([counting(0), counting(1)], use, server.url)
    assert sum(hits) == 20
    assert min(hits) >= 5


def test_a_refused_size_is_retried_in_halves(server: ServerProcess):
    async def small_only(_, body, forward):
        if sum(name.startswith("case_") for name in body["files"]) > 2:
            return web.json_response({"detail": "too large"}, status=413)
        return web.json_response(await forward(body))

    job = stdin_job("print(input())", *[str(n) for n in range(12)])
    found = through([small_only], lambda client: collect(client, job), server.url, 1)
    assert [int(execution.stdout) for execution in found] == list(range(12))


def test_large_inputs_travel_in_smaller_chunks(server: ServerProcess):
    sizes = []

    async def spy(_, body, forward):
        sizes.append(len(json.dumps(body)))
        return web.json_response(await forward(body))

    job = stdin_job("print(len(input()))", *["x" * 7_000_000] * 5)
    found = through([spy], lambda client: collect(client, job), server.url, 1, grace_s=60)
    assert [int(execution.stdout) for execution in found] == [7_000_000] * 5
    assert max(sizes) < 24 << 20


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
            client = FusionClient([large, small, odd], **more)
            before = client.places
            await client.check()
            found = before, client.places
            await client.aclose()
            return found

    assert asyncio.run(go()) == (12, 48 + 4 + 4)
    assert asyncio.run(go(concurrency=3)) == (9, 9)


def test_a_server_of_ours_says_what_it_has(server: ServerProcess, monkeypatch):
    monkeypatch.delenv("SANDBOX_MAX_CONCURRENCY", raising=False)

    async def go():
        client = FusionClient([server.url])
        await client.check()
        return client.places

    assert asyncio.run(go()) == max(4, 2 * len(os.sched_getaffinity(0)))
