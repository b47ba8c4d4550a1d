"""Back-pressure, limits, start and end of our server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import json
import signal
import socket
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web

from code_rl import Compare, Problem, StdinTest, Verdict, judge_async
from code_rl.cli.main import main
from code_rl.grading.sandbox import Limits, Status, connect_executor
from code_rl.grading.sandbox.executor import Execution
from code_rl.grading.sandbox.server import RunLimits, SandboxApplication
from code_rl.util import admission
from code_rl.util.errors import SandboxError
from tests.grading.fusion.fusion_support import ServerProcess
from tests.grading.fusion.test_fusion_server import run
from tests.grading.jobs import collect, stdin_job
from tests.kinds import each_is
from tests.refusals import one_line
from tests.stand_in import StandIn

JSON = {"Content-Type": "application/json"}
SLEEP = {"code": "import time; time.sleep(.5); print('done')", "language": "python"}
FOREVER = {"code": "import time; time.sleep(600)", "language": "python", "run_timeout": 600}
PRINT = {"code": "print(1)", "language": "python"}


def client_of(server: ServerProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=60)


async def posts(client: httpx.AsyncClient, *bodies: dict[str, Any]) -> list[httpx.Response | BaseException]:
    """The answers to requests that are sent at once."""
    sent = (client.post("/run_code", json=body) for body in bodies)
    return await asyncio.gather(*sent, return_exceptions=True)


@pytest.fixture(scope="module")
def queueing() -> Iterator[ServerProcess]:
    """A server that runs one program and lets two wait."""
    with ServerProcess(sandbox_concurrency=1, max_queue=2) as server:
        yield server


@pytest.mark.long
def test_beyond_the_queue_requests_are_refused_with_a_time_to_come_back(queueing: ServerProcess):
    async def go():
        async with client_of(queueing) as client:
            return await posts(client, *[SLEEP] * 12)

    answers = each_is(httpx.Response, asyncio.run(go()))
    assert [answer.status_code for answer in answers].count(200) == 3
    refused = [answer for answer in answers if answer.status_code != 200]
    assert {(answer.status_code, answer.headers["Retry-After"]) for answer in refused} == {(429, "1")}


def test_a_client_gets_all_its_results_from_a_server_that_pushes_back(queueing: ServerProcess):
    async def go(url):
        client = connect_executor(url, concurrency=16)
        results = await asyncio.gather(*(collect(client, stdin_job(f"print({n})")) for n in range(12)))
        await client.aclose()
        return results

    results = asyncio.run(go(queueing.url))
    assert [executions[0].stdout for executions in results] == [b"%d\n" % n for n in range(12)]


@pytest.fixture(scope="module")
def narrow() -> Iterator[ServerProcess]:
    """A server that takes no large request and gives no large output."""
    with ServerProcess(sandbox_concurrency=4, max_request_mb=1, max_output_mb=1) as server:
        yield server


def test_a_job_beyond_the_servers_own_limits_is_no_verdict_and_ends_nothing_else(narrow: ServerProcess):
    small = Limits(output_bytes=1 << 20)

    async def go():
        client = connect_executor(narrow.url)
        with pytest.raises(SandboxError, match="max_output_mb"):
            await collect(client, dataclasses.replace(stdin_job("print(1)"), limits=Limits()))
        results = await collect(client, dataclasses.replace(stdin_job("print(1)"), limits=small))
        await client.aclose()
        return results

    assert asyncio.run(go())[0].stdout == b"1\n"


def pieces(body: bytes, size: int) -> Iterator[bytes]:
    return (body[start : start + size] for start in range(0, len(body), size))


def status_of(server: ServerProcess, body: bytes | Iterator[bytes], **headers: str) -> int:
    """The status of the answer to a body, which the server may refuse before it has all."""

    async def go() -> int:
        data = body if isinstance(body, bytes) else aiter_of(body)
        async with aiohttp.ClientSession(headers={**JSON, **headers}) as session:
            return (await session.post(server.url + "/run_code", data=data)).status

    return asyncio.run(go())


async def aiter_of(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def packed(body: bytes, how: str) -> tuple[dict[str, str], bytes]:
    match how:
        case "gzip":
            return {"Content-Encoding": "gzip"}, gzip.compress(body, 1)
        case "deflate":
            return {"Content-Encoding": "deflate"}, zlib.compress(body, 1)
    return {}, body


@pytest.mark.parametrize("how", ["plain", "gzip", "deflate"])
def test_bodies_are_read_however_they_come(server: ServerProcess, how):
    more, body = packed(json.dumps({"code": "print(6 * 7)", "language": "python"}).encode(), how)
    for content in (body, pieces(body, 7)):
        answer = httpx.post(server.url + "/run_code", content=content, headers={**JSON, **more})
        assert answer.json()["run_result"]["stdout"] == "42\n"


def test_commas_and_quotes_in_strings_are_no_parts(server: ServerProcess):
    stdin = '[,{\\"' * 200_000
    assert run(server, "print(len(input()))", stdin=stdin)["run_result"]["stdout"] == f"{len(stdin)}\n"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_over_the_limit_is_413(narrow: ServerProcess, chunked):
    body = json.dumps({"code": "#" * (2 << 20), "language": "python"}).encode()
    assert status_of(narrow, pieces(body, 65536) if chunked else body) == 413


def test_output_beyond_the_limit_is_said_to_be(narrow: ServerProcess):
    answer = run(narrow, "print('x' * 3_000_000)")
    assert answer["status"] == "Failed", answer
    assert "output limit" in answer["message"]
    assert answer["run_result"]["return_code"] != 0


def test_a_client_that_leaves_takes_its_program_with_it(queueing: ServerProcess):
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(queueing.url + "/run_code", json=FOREVER, timeout=0.5)
    assert run(queueing, "print(1)")["status"] == "Success"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_programs_end_and_refuses_new_ones(number):
    async def go(server):
        async with client_of(server) as client:
            await posts(client, PRINT)
            running = asyncio.create_task(posts(client, SLEEP))
            await asyncio.sleep(0.2)
            server.send(number)
            await asyncio.sleep(0.2)
            refused = await posts(client, SLEEP)
            return *await running, *refused

    with ServerProcess() as server:
        answer, refused = asyncio.run(go(server))
        code, stderr = server.stop(None)
    assert (answer.status_code, answer.json()["run_result"]["stdout"]) == (200, "done\n")
    assert isinstance(refused, httpx.HTTPError) or refused.status_code == 503
    assert code == 0
    assert "Traceback" not in stderr


@pytest.mark.long
def test_programs_beyond_the_grace_are_stopped():
    async def go(server):
        async with client_of(server) as client:
            running = asyncio.create_task(posts(client, FOREVER))
            await asyncio.sleep(0.5)
            server.send(signal.SIGTERM)
            return await running

    with ServerProcess(shutdown_grace_s=0.5) as server:
        each_is(httpx.HTTPError, asyncio.run(go(server)))
        code, stderr = server.stop(None)
    assert code == 0
    assert "longer than 0.5 s" in stderr


def test_a_port_in_use_is_one_line_and_exit_code_2(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["sandbox", f"port={port}"]) == 2
    one_line(capsys, f"port={port}")


@pytest.mark.parametrize(
    "word",
    [
        "port=99999",
        "port=abc",
        "max_queue=-1",
        "isolation=strong",
        "prot=1",
        "host=",
        "sandbox_concurrency=0",
        "memory_mb=0",
    ]
    + [f"{name}=nan" for name in ("max_run_s", "shutdown_grace_s")]
    + ["memory_mb=99999999999999999999", "max_run_s=inf", "processes=99999999999"],
)
def test_bad_settings_are_one_line_and_exit_code_2(word, capsys):
    assert main(["sandbox", word]) == 2
    one_line(capsys, word.split("=")[0])


@pytest.mark.long
def test_it_binds_to_loopback_unless_told_and_warns_when_told(server: ServerProcess):
    assert server.line.startswith("serving http://127.0.0.1:")
    assert "warning" not in server.said()
    with ServerProcess(host="0.0.0.0") as open_to_all:
        assert "warning: bound to 0.0.0.0" in open_to_all.stop()[1]


BEGUN = b"POST /run_code HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
"""A request whose body does not end."""


def test_a_body_that_does_not_come_takes_no_place(queueing: ServerProcess):
    with contextlib.ExitStack() as slow:
        for _ in range(8):
            slow.enter_context(socket.create_connection(("127.0.0.1", queueing.port))).sendall(BEGUN)
        assert run(queueing, "print(1)")["status"] == "Success"


def test_a_body_that_does_not_end_is_given_up(monkeypatch):
    monkeypatch.setattr(admission, "BODY_TIMEOUT_S", 0.2)

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(await request.json())

    async def go():
        app = web.Application()
        app.router.add_post("/run_code", answer)
        async with admission.listening(app, "127.0.0.1", 0) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(BEGUN)
            line = await asyncio.wait_for(reader.readline(), 30)
            writer.close()
            return int(line.split()[1])

    assert asyncio.run(go()) == 408


@pytest.mark.parametrize("how", ["gzip", "deflate"])
def test_a_body_is_unpacked_up_to_the_limit_only(narrow: ServerProcess, how):
    more, body = packed(bytes(400 << 20), how)
    assert status_of(narrow, body, **more) == 413
    assert narrow.process is not None
    status = Path(f"/proc/{narrow.process.pid}/status").read_text()
    assert int(status.split("VmHWM:")[1].split()[0]) << 10 < 400 << 20


def test_a_body_that_is_not_as_its_headers_say_is_refused(narrow: ServerProcess):
    assert status_of(narrow, b"{}", **{"Content-Encoding": "gzip"}) == 400


def address_of_this_machine() -> str:
    """An address of this machine that is not loopback; skips the test where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


def printed(url: str) -> bytes:
    """What a program prints that runs there by way of the client."""

    async def go() -> bytes:
        executor = connect_executor(url, outage_timeout_s=5)
        try:
            await executor.check()
            return (await collect(executor, stdin_job("print(7)")))[0].stdout
        finally:
            await executor.aclose()

    return asyncio.run(go())


def test_a_server_with_a_token_runs_programs_for_those_who_send_it(monkeypatch):
    monkeypatch.setenv("CODE_RL_SANDBOX_TOKEN", "a secret")
    with ServerProcess(host="0.0.0.0") as server:
        url = f"http://{address_of_this_machine()}:{server.url.rpartition(':')[2]}"
        assert printed(url) == b"7\n"
        for wrong in ("another", None):
            if wrong is None:
                monkeypatch.delenv("CODE_RL_SANDBOX_TOKEN")
            else:
                monkeypatch.setenv("CODE_RL_SANDBOX_TOKEN", wrong)
            with pytest.raises(SandboxError):
                printed(url)


@pytest.mark.parametrize("rule", ["lcb", "lcb-official", "python", "contest"])
def test_a_server_as_it_starts_runs_what_every_rule_asks_for(server, rule):
    async def verdict() -> Verdict:
        executor = connect_executor(server.url)
        try:
            return await judge_async(
                Problem("p", "", (StdinTest("", "7"),), compare=Compare(rule)), "print(7)", executor
            )
        finally:
            await executor.aclose()

    assert asyncio.run(verdict()).correct


# The fields of a whole job that every case below sends alike.
JOB_BUT_ITS_CODE = {
    "fn_name": None,
    "preamble": "",
    "setup": "",
    "cases": [""],
    "limits": {},
    "language": "python",
}


def test_without_a_token_whole_jobs_are_taken_from_this_machine_only():
    body = {**JOB_BUT_ITS_CODE, "code": "print(1)"}
    with ServerProcess(host="0.0.0.0") as server:
        other = f"http://{address_of_this_machine()}:{server.url.rpartition(':')[2]}"
        assert [httpx.post(url + "/v1/jobs", json=body).status_code for url in (server.url, other)] == [200, 401]
        assert printed(other) == b"7\n"


@pytest.mark.parametrize(
    "broken", [{}, {"code": 1}, {"code": "", "cases": ["*"]}, {"code": "", "limits": {"memory_mb": 1 << 30}}]
)
def test_a_job_with_a_field_of_the_wrong_kind_is_refused(server: ServerProcess, broken):
    assert httpx.post(server.url + "/v1/jobs", json={**JOB_BUT_ITS_CODE, **broken}).status_code == 422


class Ends(StandIn):
    """A sandbox in which every program ends in one way."""

    async def run(self, job):
        yield Execution(Status.RUNTIME_ERROR, detail="lost three times")


def test_a_run_without_an_exit_code_says_why():
    async def go():
        limits = RunLimits(memory_mb=100, output_bytes=100, processes=1, longest_s=60)
        application = SandboxApplication(Ends(), admission.Admission(1, 1), limits, 1 << 20)
        async with application.listening("127.0.0.1", 0) as port, httpx.AsyncClient() as client:
            return await client.post(f"http://127.0.0.1:{port}/run_code", json=PRINT)

    answer = asyncio.run(go()).json()
    assert (answer["status"], answer["message"]) == ("Failed", "lost three times")
    assert answer["run_result"]["return_code"] is None
