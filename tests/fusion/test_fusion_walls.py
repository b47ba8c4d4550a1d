"""What a program can learn or change through the harness: nothing of another test, and never an expected output."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from code_rl.errors import IsolationError
from code_rl.sandbox.embedded import pool
from code_rl.sandbox.executor import Execution, Job, Status, StdinInput
from code_rl.sandbox.fusion.client import FusionClient
from code_rl.sandbox.fusion.payload import make_chunk
from code_rl.sandbox.fusion.records import read_records
from code_rl.sandbox.fusion.remote.harness import RESULT_FILE
from tests.fusion.fusion_support import QUICK, ServerProcess, call_job, collect, fake_server, run_all, stdin_job

SEARCH = """
import os, re, sys
def canaries(mine):
    found = set()
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            span, mode, *_ = line.split()
            low, high = (int(end, 16) for end in span.split("-"))
            if mode[0] == "r" and high < 1 << 47:
                try:
                    memory.seek(low)
                    found.update(re.findall(rb"CANARY[_]([0-9a-f]{32})", memory.read(high - low)))
                except OSError:
                    pass
    for number in os.listdir("/proc/self/fd"):
        if int(number) > 2:
            try:
                found.update(re.findall(rb"CANARY[_]([0-9a-f]{32})", os.pread(int(number), 1 << 20, 0)))
            except OSError:
                pass
    return sorted(each.decode() for each in found if each.decode() not in mine)
"""


SYSTEM_PYTHON = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if os.path.exists(path)), None)
NOBODY = 65534
Harness = Callable[[Job], list[Execution]]


@pytest.fixture(params=["this account", "an account of its own each", "one account for all"])
def harness(request, tmp_path) -> Iterator[Harness]:
    """Runs all tests of a job in one request, without a server between."""
    python, uid, directory = sys.executable, None, tmp_path
    if request.param != "this account":
        if os.geteuid() != 0 or SYSTEM_PYTHON is None:
            pytest.skip("needs root and an interpreter open to all")
        python, uid = SYSTEM_PYTHON, NOBODY if request.param == "one account for all" else 0
        directory = Path("/var/tmp") / f"harness-{os.getpid()}"
        directory.mkdir(mode=0o700)
        os.chown(directory, uid, uid)

    def run(job: Job) -> list[Execution]:
        chunk = make_chunk(job, 0, len(job.cases))
        for path, data in chunk.request.files.items():
            (directory / path).write_bytes(data)
            os.chown(directory / path, -1 if uid is None else uid, -1)
        # As a server does: a directory of its own first in the path.
        (directory / "entry.py").write_text(chunk.request.code)
        subprocess.run([python, "entry.py"], cwd=directory, check=True, timeout=100, user=uid)
        records = read_records((directory / RESULT_FILE).read_bytes(), chunk.nonce, chunk.count)
        assert len(records.executions) == len(job.cases), records
        return list(records.executions)

    yield run
    subprocess.run(["rm", "-rf", str(directory)], check=True)


def canaries(count: int) -> list[str]:
    return [f"CANARY_{secrets.token_hex(16)}" for _ in range(count)]


def test_a_script_that_searches_its_memory_finds_no_other_tests_input_or_output(harness: Harness):
    code = SEARCH + "mine = input()\nprint(canaries(mine), file=sys.stderr)\nprint('CANARY' + mine[6:])"
    marks = canaries(8)
    found = harness(stdin_job(code, *marks))
    assert [each.stdout.decode() for each in found] == [f"{mark}\n" for mark in marks]
    assert {each.stderr for each in found} == {b"[]\n"}


def test_a_function_that_searches_its_memory_finds_no_other_tests_arguments_or_values(harness: Harness):
    code = SEARCH + "def f(mine):\n    return [mine, canaries(mine)]"
    marks = canaries(8)
    found = harness(call_job(code, "f", *((mark,) for mark in marks)))
    assert [json.loads(each.value) for each in found] == [[mark, []] for mark in marks]


def test_the_search_finds_what_is_there(harness: Harness):
    code = SEARCH + "mine = input()\nprint(canaries(''))"
    mark = canaries(1)[0]
    assert mark[7:] in harness(stdin_job(code, mark))[0].stdout.decode()


def test_through_our_server_a_program_finds_no_other_tests_input(server: ServerProcess):
    code = SEARCH + "mine = input()\nprint(canaries(mine))"
    found = run_all(server.url, stdin_job(code, *canaries(6)))
    assert [each.stdout for each in found] == [b"[]\n"] * 6


def test_the_inputs_of_later_tests_are_not_in_the_file_system(harness: Harness):
    code = "import os\nprint([n for n in range(3) if os.path.exists(f'../case_{n}')], os.path.exists('../job.json'), os.listdir('.'))"
    found = harness(stdin_job(code, "a", "b", "c"))
    assert {each.stdout for each in found} == {b"[] False ['solution.py']\n"}


MARKS = {
    "a file beside": ("os.path.exists('../mark')", "open('../mark', 'w').close()"),
    "a deep directory beside": ("os.path.exists('../d')", "os.makedirs('../d/e/f'); os.chmod('../d/e', 0)"),
    "the mode": ("os.stat('..').st_mode & 0o1777 == 0o1765", "os.chmod('..', 0o1765)"),
    "no mode at all": ("False", "os.chmod('..', 0); os.chmod('.', 0)"),
    "the times": ("os.stat('..').st_atime == 12345", "os.utime('..', (12345, 12345))"),
    "an attribute": ("'user.x' in os.listxattr('..')", "os.setxattr('..', 'user.x', b'1')"),
    "its own directory": ("os.listdir('.') != ['solution.py']", "os.makedirs('x/y'); os.chmod('x', 0)"),
    "a flag of stdin": (
        "fcntl.fcntl(0, 3) & os.O_NONBLOCK != 0",
        "fcntl.fcntl(0, 4, fcntl.fcntl(0, 3) | os.O_NONBLOCK)",
    ),
    "a flag of stdout": ("fcntl.fcntl(1, 3) & os.O_APPEND != 0", "fcntl.fcntl(1, 4, fcntl.fcntl(1, 3) | os.O_APPEND)"),
    "a process": (
        "os.path.exists(f'/proc/{os.getpgid(0)}/x')",
        "os.fork() or (os.setsid(), signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(99))",
    ),
}


@pytest.mark.parametrize("name", MARKS)
def test_what_one_test_leaves_the_next_does_not_find(harness: Harness, name):
    seen, leave = MARKS[name]
    code = f"import fcntl, os, signal, time\nprint({seen}, flush=True)\ntry:\n    {leave}\nexcept OSError: pass"
    found = harness(stdin_job(code, "", "", ""))
    assert [(each.status, each.stdout) for each in found] == [(Status.OK, b"False\n")] * 3


def test_a_test_that_leaves_what_cannot_be_removed_keeps_its_result_and_the_next_gets_a_request_of_its_own(server):
    code = "import os\nprint(os.listdir('.'), flush=True)\nfor _ in range(1500):\n    os.mkdir('d'); os.chdir('d')"
    found = run_all(server.url, stdin_job(code, *"abcd"))
    assert [each.stdout for each in found] == [b"['solution.py']\n"] * 4


def test_a_program_that_fills_its_directory_keeps_its_answer(server: ServerProcess):
    """The results of our server lie on the file system that tests write to."""
    code = "try:\n    for n in range(300):\n        open(f'f{n}', 'wb').write(b'x' * (1 << 20))\nexcept OSError: pass\nprint(input())"
    found = run_all(server.url, stdin_job(code, *"abc"))
    assert [(each.status, each.stdout) for each in found] == [(Status.OK, b"%c\n" % mark) for mark in b"abc"]


@pytest.mark.slow
def test_a_fork_bomb_is_a_time_limit(server: ServerProcess):
    """Its processes are stopped before any is killed; on a machine so busy that this takes too long, by the request's."""
    code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert run_all(server.url, stdin_job(code, cpu_s=1.0))[0].status is Status.TIME_LIMIT


SHARED = "import mmap, os, time\ndef share():\n    block = mmap.mmap(-1, 64 << 20)\n    block.write(b'x' * len(block))\n    return block\n"


def test_shared_mappings_are_memory_of_the_test_while_it_runs(server: ServerProcess):
    code = SHARED + "kept = []\nwhile True:\n    kept.append(share())\n    time.sleep(.05)"
    execution = run_all(server.url, stdin_job(code, memory_mb=128))[0]
    assert execution.status is Status.MEMORY_LIMIT
    assert execution.peak_memory_bytes < 2 << 30, "it was not let run into the server's own limit"


@pytest.mark.parametrize(("each", "status"), [(True, Status.MEMORY_LIMIT), (False, Status.OK)])
def test_memory_of_several_processes_counts_once_where_they_share_it(server: ServerProcess, each, status):
    """Eight processes below the limit each: one mapping for all of them is little, one for each of them is too much."""
    work = "kept = share()" if each else "kept = [block[at] for at in range(0, 64 << 20, 4096)]"
    code = (
        SHARED
        + f"block = None if {each} else share()\npids = []\nfor _ in range(8):\n    pid = os.fork()\n    if pid == 0:\n        {work}\n        time.sleep(2)\n        os._exit(0)\n    pids.append(pid)\nfor pid in pids:\n    os.waitpid(pid, 0)"
    )
    assert run_all(server.url, stdin_job(code, memory_mb=160))[0].status is status


def test_a_fork_that_spins_beside_a_sleeping_parent_is_a_time_limit(server: ServerProcess):
    code = "import os, time\nif os.fork():\n    time.sleep(3600)\nwhile True: pass"
    execution = run_all(server.url, stdin_job(code, cpu_s=1.5))[0]
    assert execution.status is Status.TIME_LIMIT
    assert execution.cpu_s < 10


def test_threads_that_come_and_go_hold_no_place(server: ServerProcess):
    code = "import threading, time\nwhile True:\n    t = threading.Thread(target=time.sleep, args=(.001,))\n    t.start()\n    t.join()\n    time.sleep(.2)"
    execution = run_all(server.url, stdin_job(code, cpu_s=1.0, wall_s=3.0))[0]
    assert execution.status is Status.TIME_LIMIT
    assert execution.wall_s < 8 * 3.0


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["os.getppid()", "-1"])
def test_a_program_that_stops_the_harness_is_to_blame(server: ServerProcess, victim):
    code = f"import os, signal, time\nos.kill({victim}, signal.SIGSTOP)\ntime.sleep(3600)"
    execution = run_all(server.url, stdin_job(code, cpu_s=0.5, wall_s=1.0))[0]
    assert execution.status in (Status.TIME_LIMIT, Status.RUNTIME_ERROR)


def test_no_byte_of_a_trusted_job_reaches_a_server():
    """A checker is given expected outputs: it runs on this machine."""
    requests = []

    async def spy(_, body, forward):
        requests.append(body)
        return web.Response(status=500)

    async def go():
        async with fake_server(spy) as url:
            client = FusionClient([url], 2, **QUICK)
            job = Job("print(input()[::-1])", (StdinInput(b"expected output"), StdinInput(b"another")), trusted=True)
            found = await collect(client, job)
            await client.aclose()
            return found

    found = asyncio.run(go())
    assert [each.stdout for each in found] == [b"tuptuo detcepxe\n", b"rehtona\n"]
    assert requests == []


def test_where_the_machine_isolates_nothing_trusted_jobs_run_all_the_same(monkeypatch, caplog):
    class Bare(pool.EmbeddedSandbox):
        def __init__(self, concurrency=None, isolation="auto"):
            if isolation == "auto":
                raise IsolationError("no namespaces here")
            super().__init__(concurrency, isolation)

    monkeypatch.setattr(pool, "EmbeddedSandbox", Bare)

    async def go():
        client = FusionClient(["http://127.0.0.1:9"], 2, **QUICK)
        found = [await collect(client, Job("print(7)", (StdinInput(b""),), trusted=True)) for _ in range(2)]
        await client.aclose()
        return found

    assert [found[0].stdout for found in asyncio.run(go())] == [b"7\n"] * 2
    assert sum("without isolation" in record.getMessage() for record in caplog.records) == 1


def test_a_server_that_is_out_and_back_is_named_once_each(server: ServerProcess, caplog):
    broken = True

    async def flaky(_, body, forward):
        return web.Response(status=500) if broken else web.json_response(await forward(body))

    async def well(_, body, forward):
        return web.json_response(await forward(body))

    async def go():
        nonlocal broken
        async with fake_server(flaky, server.url) as first, fake_server(well, server.url) as second:
            client = FusionClient([first, second], 1, patience_s=60.0)
            await asyncio.gather(*(collect(client, stdin_job("print(1)")) for _ in range(6)))
            broken = False
            while not any("is back" in record.getMessage() for record in caplog.records):
                await asyncio.gather(*(collect(client, stdin_job("print(1)")) for _ in range(4)))
            await client.aclose()
            return first

    url = asyncio.run(asyncio.wait_for(go(), 100))
    said = [
        record.getMessage()
        for record in caplog.records
        if record.name == "code_rl.outages" and record.getMessage().startswith(f"sandbox {url}")
    ]
    assert len(said) == 2, said
    assert "is out" in said[0]
    assert "is back" in said[1]
    assert {record.levelname for record in caplog.records if record.name == "code_rl.outages"} == {"WARNING"}
