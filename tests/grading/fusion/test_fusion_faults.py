"""Servers that fail: every submission ends with the right executions or with SandboxError, never with something invented."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from code_rl.grading.sandbox import Status
from code_rl.util.errors import OutageError, SandboxError
from tests.grading.fusion.fusion_support import (
    STUBBORN,
    Forward,
    ServerProcess,
    connected,
    fake_server,
    outcome,
    relay,
    run_all,
    run_job,
    through,
)
from tests.grading.jobs import collect, stdin_job
from tests.refusals import refused

RESULT = "results.bin"
Fault = Callable[[dict[str, Any], Forward], Awaitable[web.Response]]


def run_through(handler, server: ServerProcess, job, **more):
    return through([handler], lambda client: outcome(client, job), server.url, **more)


def says(make: Callable[[], web.Response]) -> Fault:
    """Whatever is asked."""

    async def fault(_body, _forward):
        return make()

    return fault


def with_result(change: Callable[[bytes], bytes | str]) -> Fault:
    """The server's own answer, with another file of results; none if that is empty."""

    async def fault(body, forward):
        answer = await forward(body)
        changed = change(base64.b64decode(answer["files"].pop(RESULT)))
        text = changed if isinstance(changed, str) else base64.b64encode(changed).decode()
        return web.json_response({**answer, "files": {RESULT: text} if text else {}})

    return fault


async def cut_connection(body, forward):
    text = json.dumps(await forward(body))
    answer = web.json_response(text=text)
    answer.content_length = len(text.encode()) + 1000
    answer.force_close()
    return answer


def flipped(data: bytes) -> bytes:
    at = len(data) // 3
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


WRONG_TYPE = {"status": "Success", "run_result": {"status": "Finished", "return_code": "zero"}}
NO_SPACE = {"status": "SandboxError", "message": "no space left on device", "files": {}}
NO_RESULT = {"status": "Success", "message": "", "run_result": None, "files": {}}
FAULTS: dict[str, Fault] = {
    "status 500": says(lambda: web.Response(status=500, text="oops")),
    "no JSON": says(lambda: web.Response(text="<html>proxy error</html>")),
    "wrong JSON": says(lambda: web.json_response(WRONG_TYPE)),
    "no object": says(lambda: web.json_response(["Success"])),
    "sandbox error": says(lambda: web.json_response(NO_SPACE)),
    "no result": says(lambda: web.json_response(NO_RESULT)),
    "bad base64": with_result(lambda data: "*" + base64.b64encode(data).decode()[1:]),
    "missing file": with_result(lambda _: ""),
    "halved file": with_result(lambda data: data[: len(data) // 3]),
    "flipped bit": with_result(flipped),
    "cut connection": cut_connection,
}
by_name = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)


@pytest.mark.long
@by_name
def test_a_fault_that_passes_is_survived(server: ServerProcess, fault, monkeypatch):
    # How long it is out is no question here.
    monkeypatch.setattr("code_rl.grading.sandbox.pooled.PROBE_INTERVAL_S", 0.05)

    async def handler(number, body, forward):
        return await fault(body, forward) if number in (1, 2, 4) else web.json_response(await forward(body))

    async def use(client):
        return await outcome(client, stdin_job("print(input())", *"abcd")), client.retries

    executions, retries = through([handler], use, server.url)
    assert [execution.stdout for execution in executions] == [b"a\n", b"b\n", b"c\n", b"d\n"]
    assert retries >= 1


@pytest.mark.long
@by_name
def test_a_fault_that_stays_is_an_outage_and_never_a_verdict(server: ServerProcess, fault):
    async def handler(_, body, forward):
        return await fault(body, forward)

    result = run_through(handler, server, stdin_job("print(1)"), outage_timeout_s=0.5)
    assert isinstance(result, OutageError | SandboxError)


@pytest.mark.slow
def test_a_hanging_server_is_an_outage_within_bounds(server: ServerProcess):
    async def hang(_, body, forward):
        await asyncio.sleep(3600)

    result = run_through(hang, server, stdin_job("print(1)", cpu_s=0.1, wall_s=0.1), outage_timeout_s=0.1)
    assert isinstance(result, OutageError | SandboxError)


def test_a_test_that_is_run_again_draws_the_same_random_numbers(server: ServerProcess):
    code = "import random\ninput()\nprint(random.random())"

    async def lost_twice(number, body, forward):
        return (
            await FAULTS["missing file"](body, forward) if number in (2, 5) else web.json_response(await forward(body))
        )

    job = stdin_job(code, *"abcdef")
    disturbed, whole = (run_through(handler, server, job) for handler in (lost_twice, relay))
    assert [each.stdout for each in disturbed] == [each.stdout for each in whole]


def test_results_of_another_request_are_not_taken(server: ServerProcess):
    stored = []

    async def crossed(_, body, forward):
        stored.append(await forward(body))
        return web.json_response(stored[0])

    async def use(client):
        return [await outcome(client, stdin_job(code)) for code in ("print('right')", "print('wrong')")]

    first, second = through([crossed], use, server.url, outage_timeout_s=0.5)
    assert first[0].stdout == b"right\n"
    assert isinstance(second, OutageError | SandboxError)


@pytest.mark.parametrize("transfer_s", [0, pytest.param(0.25, marks=pytest.mark.long)])
def test_an_overloaded_server_is_waited_for(server: ServerProcess, transfer_s):
    """Also by a client whose own requests take longer than it would wait for the server."""

    async def busy_at_first(number, body, forward):
        if number <= 20:
            await asyncio.sleep(transfer_s)
            return web.json_response({}, status=429, headers={"Retry-After": "0.05"})
        return web.json_response(await forward(body))

    assert run_through(busy_at_first, server, stdin_job("print(1)"))[0].stdout == b"1\n"


@pytest.mark.parametrize("status", [413, 422])
def test_a_request_that_the_server_does_not_take_is_a_sandbox_error(server: ServerProcess, status):
    async def refusing(_, body, forward):
        return web.json_response({"detail": []}, status=status)

    assert isinstance(run_through(refusing, server, stdin_job("print(1)")), SandboxError)


def test_no_server_at_all_is_an_outage():
    async def use(client):
        with pytest.raises(SandboxError):
            await client.check()
        return await outcome(client, stdin_job("print(1)"))

    assert isinstance(through(["http://127.0.0.1:9"], use, outage_timeout_s=0.5), OutageError)


@pytest.mark.long
def test_work_moves_from_a_failing_server_to_a_healthy_one(server: ServerProcess):
    hits = 0

    async def black_hole(_, body, forward):
        nonlocal hits
        hits += 1
        return web.Response(status=500)

    async def use(client):
        return await asyncio.gather(*(outcome(client, stdin_job(f"print({n})")) for n in range(40)))

    results = through([black_hole, relay], use, server.url, **STUBBORN)
    assert [result[0].stdout for result in results] == [b"%d\n" % n for n in range(40)]
    assert hits < 20  # answering pings and failing at once, it would have drawn most of the load


def test_a_server_that_is_out_and_back_is_named_once_each_and_used_again(server: ServerProcess, caplog):
    served, broken = [0, 0], True

    def handler_of(which):
        async def handler(_, body, forward):
            if which == 0 and broken:
                return web.Response(status=500)
            served[which] += 1
            return web.json_response(await forward(body))

        return handler

    async def go():
        nonlocal broken
        async with (
            fake_server(handler_of(0), server.url, alive=lambda: not broken) as flaky,
            fake_server(handler_of(1), server.url) as steady,
        ):
            client = connected([flaky, steady], 1, **STUBBORN)
            await asyncio.gather(*(collect(client, stdin_job("print(1)")) for _ in range(6)))
            assert served[0] == 0
            broken = False
            while served[0] == 0 or len(caplog.records) < 2:
                await asyncio.gather(*(collect(client, stdin_job("print(1)")) for _ in range(4)))
            await client.aclose()
            return flaky

    url = asyncio.run(asyncio.wait_for(go(), 60))
    records = [record for record in caplog.records if record.name == "code_rl.outages"]
    out, back = (record.getMessage() for record in records)
    assert out.startswith(f"sandbox {url}")
    assert "is out" in out
    assert back.startswith(f"sandbox {url}")
    assert "is back" in back
    assert {record.levelname for record in records} == {"WARNING"}


@pytest.mark.long
def test_a_server_killed_and_restarted_in_mid_batch_costs_no_verdict():
    with ServerProcess() as process:

        async def use(client):
            code = "n = int(input())\nprint(sum(range(n * 10_000)))"
            jobs = [stdin_job(code, str(n), str(n + 1)) for n in range(40)]
            tasks = [asyncio.create_task(outcome(client, job)) for job in jobs]
            while sum(task.done() for task in tasks) < 8:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert await asyncio.to_thread(process.stop, signal.SIGKILL)
            await asyncio.to_thread(process.start)
            return await asyncio.gather(*tasks)

        results = through([process.url], use, concurrency=4, **STUBBORN)
    for n, executions in enumerate(results):
        wanted = [sum(range(k * 10_000)) for k in (n, n + 1)]
        assert [int(execution.stdout) for execution in executions] == wanted


HOSTILE = {
    "kills the runner": "import os; os.kill(os.getppid(), 9)",
    "kills all it may": "import os; os.kill(-1, 9)",
    "removes the result": "import os\nfor d in ('.', '..'):\n    for n in os.listdir(d):\n        p = d + '/' + n\n        os.path.isfile(p) and os.unlink(p)",
    "puts a directory in the way": "import os\ntry: os.unlink('../results.bin')\nexcept OSError: pass\ntry: os.mkdir('../results.bin')\nexcept OSError: pass",
    "empties the result": "try: open('../results.bin', 'w').close()\nexcept OSError: pass",
}


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE)
def test_a_program_that_attacks_the_runner_gets_a_verdict_of_its_own(server: ServerProcess, name):
    """Never a SandboxError, by which it would leave its group without a reward of its own."""

    async def use(client):
        return [await outcome(client, stdin_job(code)) for code in (HOSTILE[name], "print('still here')")]

    result, after = through([server.url], use)
    assert result[0].status in (Status.OK, Status.RUNTIME_ERROR)
    assert result[0].stdout == b""
    assert after[0].stdout == b"still here\n"


FORGED = """import json, os, sys, time
end = time.process_time() + .7
while time.process_time() < end:
    pass
frame = sys._getframe()
while 'job' not in frame.f_locals:
    frame = frame.f_back
nonce = {'nonce': frame.f_locals['job']['nonce']}
line = lambda row: json.dumps(nonce | row) + '\\n'
row = {'index': 0, 'status': 'ok', 'exit_code': 0, 'cpu_s': 0, 'wall_s': 0, 'detail': ''}
path = '../results.jsonl'
if os.path.exists(path):
    os.unlink(path)
%s
"""
WAYS = {
    "a file": "open(path, 'w').write(line(row) + line({'end': 'done', 'detail': ''}))",
    "a folder": "os.mkdir(path)",
    "a link": "os.symlink('/dev/null', path)",
}


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_result_that_a_program_leaves_is_replaced(server: ServerProcess, way):
    result = run_all(server.url, stdin_job(FORGED % WAYS[way], cpu_s=0.5))
    assert result[0].status is Status.TIME_LIMIT


@pytest.fixture(scope="module")
def short_runs():
    """A server that allows less than the client would like to ask for in the last try."""
    with ServerProcess(max_run_s=30) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("code", ["import time\ntime.sleep(100)", "import time\ntime.sleep(99)\nprint(2)"])
def test_a_sleeper_is_no_fault_of_a_server_that_allows_short_runs_only(short_runs: ServerProcess, code):
    job = stdin_job(code, "1", cpu_s=0.5, wall_s=6.0)
    found = run_job(short_runs.url, job)
    assert [one.status for one in found] == [Status.TIME_LIMIT]


@pytest.mark.long
def test_many_tests_are_sent_in_runs_that_the_server_allows(short_runs: ServerProcess):
    job = stdin_job("print(input())", *map(str, range(20)), cpu_s=4.0, wall_s=5.0)
    assert [one.stdout for one in run_job(short_runs.url, job)] == [b"%d\n" % n for n in range(20)]


def test_limits_that_a_server_does_not_allow_are_one_error_that_names_its_setting(short_runs: ServerProcess):
    with refused("max_run_s=", kind=SandboxError):
        run_job(short_runs.url, stdin_job("print(1)", *"12345678", cpu_s=3.0, wall_s=31.0))
