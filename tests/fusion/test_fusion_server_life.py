"""Back-pressure, limits, start and end of our server."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator

import aiohttp
import pytest

from code_rl.cli import main
from code_rl.sandbox.fusion.client import FusionClient
from tests.fusion.fusion_support import ServerProcess, collect, stdin_job

SLEEP = {"code": "import time; time.sleep(1); print('done')", "language": "python"}


def test_beyond_the_queue_requests_are_refused_with_a_time_to_come_back():
    async def go(url):
        async with aiohttp.ClientSession() as session:

            async def one():
                async with session.post(url + "/run_code", json=SLEEP) as response:
                    return response.status, response.headers.get("Retry-After")

            return await asyncio.gather(*(one() for _ in range(12)))

    with ServerProcess(concurrency=1, max_queue=2) as server:
        answers = asyncio.run(go(server.url))
    assert [status for status, _ in answers].count(200) == 3
    assert {answer for answer in answers if answer[0] != 200} == {(429, "1")}


def test_a_client_gets_all_its_results_from_a_server_that_pushes_back():
    async def go(url):
        client = FusionClient([url], 16)
        results = await asyncio.gather(*(collect(client, stdin_job(f"print({n})")) for n in range(12)))
        await client.aclose()
        return results

    with ServerProcess(concurrency=1, max_queue=1) as server:
        results = asyncio.run(go(server.url))
    assert [executions[0].stdout for executions in results] == [b"%d\n" % n for n in range(12)]


@pytest.fixture(scope="module")
def narrow() -> Iterator[ServerProcess]:
    """A server that holds few bytes of requests, and takes none that are large."""
    with ServerProcess(concurrency=4, max_queued_mb=1, max_request_mb=1) as server:
        yield server


def test_bodies_waiting_in_memory_are_bounded(narrow: ServerProcess):
    big = {**SLEEP, "files": {"a": "A" * 700_000}}

    async def go(url):
        async with aiohttp.ClientSession() as session:

            async def one():
                async with session.post(url + "/run_code", json=big) as response:
                    return response.status

            return await asyncio.gather(*(one() for _ in range(4)))

    assert sorted(asyncio.run(go(narrow.url))) == [200, 429, 429, 429]


def packed(body: bytes, how: str) -> tuple[dict[str, str], bytes]:
    match how:
        case "gzip":
            return {"Content-Encoding": "gzip"}, gzip.compress(body)
        case "deflate":
            return {"Content-Encoding": "deflate"}, zlib.compress(body)
        case "members":
            return {"Content-Encoding": "gzip"}, gzip.compress(body[:9]) + gzip.compress(body[9:])
    return {}, body


@pytest.mark.parametrize("how", ["plain", "gzip", "deflate", "members"])
def test_bodies_are_read_however_they_come(server: ServerProcess, how):
    headers, body = packed(json.dumps({"code": "print(6 * 7)", "language": "python"}).encode(), how)

    async def parts():
        for start in range(0, len(body), 7):
            yield body[start : start + 7]

    async def go():
        async with aiohttp.ClientSession() as session:
            answers = []
            for data in (body, parts()):
                async with session.post(server.url + "/run_code", data=data, headers=headers) as response:
                    answers.append((await response.json())["run_result"]["stdout"])
            return answers

    assert asyncio.run(go()) == ["42\n"] * 2


@pytest.mark.parametrize("how", ["plain", "gzip", "deflate"])
def test_chunked_and_compressed_bodies_do_not_pass_the_budget_by(narrow: ServerProcess, how):
    headers, body = packed(json.dumps({**SLEEP, "files": {"a": "A" * 700_000}}).encode(), how)

    async def parts():
        for start in range(0, len(body), 1 << 16):
            yield body[start : start + (1 << 16)]
            await asyncio.sleep(0)

    async def go(url):
        async with aiohttp.ClientSession() as session:

            async def one():
                async with session.post(url + "/run_code", data=parts(), headers=headers) as response:
                    return response.status

            return await asyncio.gather(*(one() for _ in range(4)))

    assert sorted(asyncio.run(go(narrow.url))) == [200, 429, 429, 429]


def test_a_few_bytes_that_unpack_to_many_are_stopped_before_they_do():
    bomb = gzip.compress(b"\0" * (256 << 20))

    async def go(url):
        async with aiohttp.ClientSession() as session:
            headers = {"Content-Encoding": "gzip"}
            async with session.post(url + "/run_code", data=bomb, headers=headers) as response:
                return response.status

    with ServerProcess(max_request_mb=8) as server:
        assert asyncio.run(go(server.url)) == 413
        with open(f"/proc/{server.process.pid}/status") as status:
            peak_kb = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert peak_kb < 200_000


@pytest.mark.parametrize(("encoding", "status"), [("br", 415), ("gzip", 400)])
def test_a_body_that_cannot_be_unpacked_is_refused(server: ServerProcess, encoding, status):
    async def go():
        async with (
            aiohttp.ClientSession() as session,
            session.post(server.url + "/run_code", data=b"{}", headers={"Content-Encoding": encoding}) as response,
        ):
            return response.status

    assert asyncio.run(go()) == status


def test_half_sent_bodies_hold_no_place_and_end():
    """More of them than there are places; another request runs meanwhile, and each is answered in the end."""

    async def half(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /run_code HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        return reader, writer

    async def go(server):
        ends = [await half(server.port) for _ in range(5)]
        async with (
            aiohttp.ClientSession() as session,
            session.post(server.url + "/run_code", json=SLEEP) as response,
        ):
            meanwhile = response.status
        lines = [await reader.readline() for reader, _ in ends]
        for _, writer in ends:
            writer.close()
        return meanwhile, lines

    with ServerProcess(concurrency=1, max_queue=0, body_timeout_s=3) as server:
        meanwhile, lines = asyncio.run(asyncio.wait_for(go(server), 60))
    assert meanwhile == 200
    assert all(b" 408 " in line for line in lines)


def test_a_sender_that_pauses_is_left_though_it_sent_much_and_has_time():
    async def go(server):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /run_code HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n" + bytes(1_000_000))
        await writer.drain()
        line = await reader.readline()
        writer.close()
        return line

    with ServerProcess(body_timeout_s=100_000, body_grace_s=1) as server:
        assert b" 408 " in asyncio.run(asyncio.wait_for(go(server), 60))


def test_a_few_bytes_that_would_become_many_objects_are_refused_before_they_do():
    body = zlib.compress(b'{"code": "", "language": "python", "x": [' + b"[]," * (60 << 20) + b"0]}", 1)

    async def go(url):
        async with aiohttp.ClientSession() as session:
            headers = {"Content-Encoding": "deflate"}
            async with session.post(url + "/run_code", data=body, headers=headers) as response:
                return response.status, (await response.json())["detail"]

    with ServerProcess() as server:
        status, detail = asyncio.run(go(server.url))
        with open(f"/proc/{server.process.pid}/status") as lines:
            peak_kb = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    assert status == 413
    assert "100000 commas" in detail
    assert peak_kb < 200_000


def test_commas_and_quotes_in_strings_are_no_parts(server: ServerProcess):
    stdin = '[,{\\"' * 200_000

    async def go():
        async with aiohttp.ClientSession() as session:
            body = {"code": "print(len(input()))", "language": "python", "stdin": stdin}
            async with session.post(server.url + "/run_code", json=body) as response:
                return (await response.json())["run_result"]["stdout"]

    assert asyncio.run(go()) == f"{len(stdin)}\n"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_over_the_limit_is_413(narrow: ServerProcess, chunked):
    body = json.dumps({"code": "#" * (2 << 20), "language": "python"}).encode()

    async def parts():
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    async def go(url):
        data = parts() if chunked else body
        async with aiohttp.ClientSession() as session, session.post(url + "/run_code", data=data) as response:
            return response.status

    assert asyncio.run(go(narrow.url)) == 413


def test_a_client_that_leaves_takes_its_program_with_it():
    async def go(url):
        async with aiohttp.ClientSession() as session:
            body = {"code": "import time; time.sleep(600)", "language": "python", "run_timeout": 600}
            with pytest.raises(asyncio.TimeoutError):
                async with session.post(url + "/run_code", json=body, timeout=aiohttp.ClientTimeout(total=0.5)):
                    pass
            async with session.post(url + "/run_code", json={"code": "print(1)", "language": "python"}) as response:
                return (await response.json())["status"]

    with ServerProcess(concurrency=1) as server:
        assert asyncio.run(asyncio.wait_for(go(server.url), 60)) == "Success"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_programs_end_and_refuses_new_ones(number):
    async def go(server):
        async with aiohttp.ClientSession() as session:

            async def post(body):
                async with session.post(server.url + "/run_code", json=body) as response:
                    return response.status, await response.json()

            await post({"code": "print(1)", "language": "python"})
            running = asyncio.create_task(post(SLEEP))
            await asyncio.sleep(0.3)
            server.send(number)
            await asyncio.sleep(0.3)
            refused = await asyncio.gather(post(SLEEP), return_exceptions=True)
            return await running, refused[0]

    with ServerProcess() as server:
        (status, answer), refused = asyncio.run(go(server))
        code, stderr = server.stop(None)
    assert (status, answer["run_result"]["stdout"]) == (200, "done\n")
    assert isinstance(refused, aiohttp.ClientError) or refused[0] == 503
    assert code == 0
    assert "Traceback" not in stderr


def test_programs_beyond_the_grace_are_stopped():
    async def go(server):
        async with aiohttp.ClientSession() as session:
            body = {"code": "import time; time.sleep(600)", "language": "python", "run_timeout": 600}
            running = asyncio.create_task(session.post(server.url + "/run_code", json=body))
            await asyncio.sleep(0.5)
            server.send(signal.SIGTERM)
            with pytest.raises(aiohttp.ClientError):
                await running

    with ServerProcess(shutdown_grace_s=0.5) as server:
        asyncio.run(asyncio.wait_for(go(server), 60))
        code, stderr = server.stop(None)
    assert code == 0
    assert "longer than 0.5 s" in stderr


def start(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "code_rl.cli", "sandbox", *words], capture_output=True, text=True, timeout=60
    )


def test_a_port_in_use_is_one_clear_line_and_exit_code_2():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = start(f"port={port}")
    assert result.returncode == 2
    assert f"port={port}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "word",
    ["port=99999", "port=abc", "max_queue=-1", "isolation=strong", "prot=1", "host=", "concurrency=0", "memory_mb=0"]
    + [f"{name}=nan" for name in ("max_run_s", "body_timeout_s", "body_kb_per_s", "body_grace_s", "shutdown_grace_s")]
    + ["memory_mb=99999999999999999999", "max_run_s=inf", "processes=99999999999"],
)
def test_bad_settings_are_one_line_and_exit_code_2(word, capsys):
    assert main(["sandbox", word]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert word.split("=")[0] in said.err
    assert said.err.count("\n") == 1


def test_it_binds_to_loopback_unless_told_and_warns_when_told():
    with ServerProcess() as server:
        assert server.line.startswith("serving http://127.0.0.1:")
        assert server.stop()[1].count("warning") == 0
    with ServerProcess(host="0.0.0.0") as server:
        assert "warning: bound to 0.0.0.0" in server.stop()[1]
