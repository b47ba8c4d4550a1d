"""The parts of the client by themselves: addresses, slots, result files, the harness's text, the real server's configuration."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from code_rl.grading.sandbox import connect_executor
from code_rl.grading.sandbox.executor import CallInput, Execution, Job, Status
from code_rl.grading.sandbox.fusion.harness import RESULT_FILE
from code_rl.grading.sandbox.fusion.payload import TEST_CODE, TEST_UTIL, make_chunk
from code_rl.grading.sandbox.fusion.protocol import FAILED, RunRequest, run_urls
from code_rl.grading.sandbox.fusion.records import read_records
from code_rl.grading.sandbox.pooled import Member, Pool
from code_rl.grading.sandbox.server.runs import RunLimits, run_request
from code_rl.util.errors import SandboxError
from tests.grading.jobs import stdin_job
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


class Machine(Member):
    """A machine that runs nothing and is never well."""

    async def attempt(self, job, alone):
        raise SandboxError(self.name)
        yield

    async def well(self):
        return False


def pool_of(**slots: int) -> Pool[Machine]:
    pool: Pool[Machine] = Pool()
    for name, count in slots.items():
        pool.add(Machine(name, count))
    return pool


def test_a_machine_that_takes_more_at_once_gets_more():
    async def go():
        pool = pool_of(small=2, large=6)
        async with contextlib.AsyncExitStack() as stack:
            held = [await stack.enter_async_context(pool.slot()) for _ in range(8)]
            return Counter(member.name for member in held)

    assert asyncio.run(go()) == {"small": 2, "large": 6}


def test_a_machine_that_joins_takes_what_waits_and_without_any_it_is_said():
    async def go():
        pool = pool_of(first=1)
        async with pool.slot() as first:
            waiting = asyncio.create_task(pool.slot().__aenter__())
            await asyncio.sleep(0)
            assert not waiting.done()
            pool.add(Machine("second", 1))
            assert (await waiting).name == "second"
            pool.remove(first)
        pool.remove(pool.members[0])
        with pytest.raises(SandboxError):
            async with pool.slot():
                pass

    asyncio.run(go())


def test_waiting_tasks_that_are_cancelled_lose_no_slot():
    async def go():
        pool = pool_of(a=2)

        async def use():
            async with pool.slot():
                await asyncio.sleep(0.001)

        for round_ in range(20):
            tasks = [asyncio.create_task(use()) for _ in range(8)]
            for _ in range(round_ % 5):
                await asyncio.sleep(0)
            for task in tasks[round_ % 3 :: 2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [member.in_flight for member in pool.members]

    assert asyncio.run(go()) == [0]


def run_harness(directory: Path, job: Job, count: int, python: str = sys.executable) -> tuple[bytes, str]:
    chunk = make_chunk(job, 0, count)
    for path, data in chunk.request.files.items():
        (directory / path).write_bytes(data)
    (directory / "entry.py").write_text(chunk.request.code)
    subprocess.run([python, "entry.py"], cwd=directory, check=True, timeout=60)
    return (directory / RESULT_FILE).read_bytes(), chunk.nonce


@pytest.fixture(scope="module")
def result_file(tmp_path_factory):
    job = stdin_job("print('output of', input())", "a", "b", "c")
    return run_harness(tmp_path_factory.mktemp("chunk"), job, 3)


def test_the_harness_is_self_contained_text(result_file):
    data, nonce = result_file
    records = read_records(data, nonce, 3)
    assert [execution.stdout for execution in records.executions] == [
        b"output of a\n",
        b"output of b\n",
        b"output of c\n",
    ]
    assert records.end == "done"
    assert TEST_CODE % {"timeout": 6} == TEST_CODE
    assert "def main" in TEST_UTIL


@given(st.data())
def test_a_file_cut_anywhere_holds_every_test_before_the_cut(result_file, data):
    whole, nonce = result_file
    cut = data.draw(st.integers(0, len(whole) - 2))
    full, part = read_records(whole, nonce, 3), read_records(whole[:cut], nonce, 3)
    assert part.executions == full.executions[: len(part.executions)]
    assert part.end is None


@given(st.binary(max_size=200))
def test_reading_never_raises(result_file, noise):
    whole, nonce = result_file
    for text in (noise, b"{" + noise, whole[:60] + noise):
        assert len(read_records(text, nonce, 3).executions) <= 3


def test_an_input_that_is_not_plain_data_is_a_sandbox_error():
    with pytest.raises(SandboxError):
        make_chunk(Job("", (CallInput((object(),)),), fn_name="f"), 0, 1)


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
