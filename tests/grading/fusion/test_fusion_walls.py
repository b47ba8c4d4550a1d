"""A program learns and changes nothing through the harness: nothing of another test, and never an expected output."""

from __future__ import annotations

import pytest
from aiohttp import web

from code_rl.grading.sandbox import Job, Status, StdinInput
from code_rl.grading.sandbox.server import EmbeddedSandbox
from code_rl.util.errors import IsolationError
from tests.grading.fusion.fusion_support import ServerProcess, run_all, through
from tests.grading.jobs import collect, stdin_job

MARKS = {
    "its own directory": ("os.listdir('.') != ['solution.py']", "os.makedirs('x/y'); os.chmod('x', 0)"),
    "its parent directory": ("len(os.listdir('..')) != 1", "open('../x', 'w').close()"),
    "a directory of its parent": ("len(os.listdir('..')) != 1", "os.makedirs('../y/z'); os.chmod('../y', 0)"),
    "the mode of its parent": ("os.stat('..').st_mode & 7 != 0", "os.chmod('..', 0o777)"),
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
def test_what_one_test_leaves_the_next_does_not_find(server: ServerProcess, name):
    seen, leave = MARKS[name]
    code = f"import fcntl, os, signal, time\nprint({seen}, flush=True)\ntry:\n    {leave}\nexcept OSError: pass"
    found = run_all(server.url, stdin_job(code, "", "", ""))
    assert [(each.status, each.stdout) for each in found] == [(Status.OK, b"False\n")] * 3


def test_a_fork_that_spins_beside_a_sleeping_parent_is_a_time_limit(server: ServerProcess):
    code = "import os, time\nif os.fork():\n    time.sleep(3600)\nwhile True: pass"
    execution = run_all(server.url, stdin_job(code, cpu_s=0.7, wall_s=1.5))[0]
    assert execution.status is Status.TIME_LIMIT
    assert execution.cpu_s < 10


def test_no_byte_of_a_trusted_job_reaches_a_server():
    """A checker is given expected outputs: it runs on this machine."""
    requests = []

    async def spy(_, body, forward):
        requests.append(body)
        return web.Response(status=500)

    job = Job("print(input()[::-1])", (StdinInput(b"expected output"), StdinInput(b"another")), trusted=True)
    found = through([spy], lambda client: collect(client, job))
    assert [each.stdout for each in found] == [b"tuptuo detcepxe\n", b"rehtona\n"]
    assert requests == []


def test_where_the_machine_isolates_nothing_trusted_jobs_run_all_the_same(monkeypatch, caplog):
    class Bare(EmbeddedSandbox):
        def __init__(self, concurrency=None, isolation="auto"):
            if isolation == "auto":
                raise IsolationError("no namespaces here")
            super().__init__(concurrency, isolation)

    monkeypatch.setattr("code_rl.grading.sandbox.local.pool.EmbeddedSandbox", Bare)

    async def use(client):
        return [await collect(client, Job("print(7)", (StdinInput(b""),), trusted=True)) for _ in range(2)]

    assert [found[0].stdout for found in through(["http://127.0.0.1:9"], use)] == [b"7\n"] * 2
    assert len(caplog.records) == 1


@pytest.mark.parametrize("code", ["import os; os._exit(97)", "raise SystemExit(97)"])
def test_no_exit_code_of_a_program_means_anything_but_itself(server: ServerProcess, code):
    execution = run_all(server.url, stdin_job(code))[0]
    assert (execution.status, execution.exit_code) == (Status.RUNTIME_ERROR, 97)
