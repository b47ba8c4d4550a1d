"""`executor=ray`: nodes of Ray's own test cluster, all on this machine, give the results of one sandbox, whatever becomes of a node."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import signal
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from code_rl.grading import CallTest, Compare, Problem, StdinTest, VerdictKind, judge_async
from code_rl.grading.sandbox import Job, Limits, Status, StdinInput, connect_executor
from code_rl.grading.sandbox.server import EmbeddedSandbox
from code_rl.util.errors import IsolationError, SandboxError
from tests.grading.jobs import collect
from tests.grading.sandbox.test_isolation_levels import WITHOUT_USER_NAMESPACES
from tests.refusals import refused

MARKER = "expected-7f3a"


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with refused("[ray]"):
        connect_executor("ray")


needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'")


def on_a_cluster(test):
    """A test that starts Ray."""
    return needs_ray(pytest.mark.slow(test))


@needs_ray
def test_an_address_that_does_not_answer_is_one_line_at_once(monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with refused(str(port), kind=SandboxError):
        connect_executor("ray")


def test_a_head_that_refuses_us_is_said_to_want_a_token(monkeypatch):
    def refuse(**_):
        raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.delenv("RAY_NUM_REDIS_GET_RETRIES", raising=False)
    stub = SimpleNamespace(is_initialized=lambda: False, init=refuse)
    with socket.create_server(("127.0.0.1", 0)) as head:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{head.getsockname()[1]}")
        monkeypatch.setitem(sys.modules, "ray", stub)
        with refused("RAY_AUTH_MODE=token", kind=SandboxError):
            connect_executor("ray")
    assert os.environ["RAY_NUM_REDIS_GET_RETRIES"] == "5"


def test_a_client_port_is_refused_by_name():
    with refused("executor: 'ray://head:10001'"):
        connect_executor("ray://head:10001")


@pytest.fixture
def cluster(monkeypatch):
    """Makes clusters whose head has no processors and whose other nodes have one each; a connected process, nothing of Ray left behind."""
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    made = []

    def make(nodes: int) -> Cluster:
        made.append(Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}))
        for _ in range(nodes):
            made[0].add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", made[0].address)
        return made[0]

    yield make
    ray.shutdown()
    for each in made:
        each.shutdown()


def stdin_problem(name: str, *pairs: tuple[str, str], **more: Any) -> Problem:
    return Problem(name, "", tuple(StdinTest(given, expected) for given, expected in pairs), **more)


ADD = stdin_problem("add", *[(f"{n} {3 * n}\n", f"{4 * n}\n") for n in range(20)])
CALL = Problem("call", "", tuple(CallTest((n, [n]), [n, n]) for n in range(30)), fn_name="f")
CHECKED = stdin_problem(
    "checked",
    ("", MARKER),
    compare=Compare("checker", checker="def check(input, output, expected):\n    return output.strip() in expected\n"),
)
CORPUS = [
    (ADD, "print(sum(map(int, input().split())))"),
    (ADD, "a, b = map(int, input().split())\nprint(a + b if a < 11 else 0)"),
    (ADD, "print(0)"),
    (ADD, "def f(:"),
    (ADD, "raise SystemExit(3)"),
    (ADD, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"),
    (ADD, "while True: pass"),
    (ADD, "import time\ntime.sleep(60)"),
    (ADD, "x = b'x' * (1 << 32)\nprint(len(x))"),
    (ADD, "while True: print('x' * 65536)"),
    (ADD, "import numpy\nprint(int(numpy.fromstring(input(), sep=' ').sum()))"),
    (ADD, "print(open('/etc/hostname').read() and sum(map(int, input().split())))"),
    (CALL, "def f(x, xs):\n    return [x, *xs]"),
    (CALL, "def f(x, xs):\n    return [x, *xs] if x < 29 else None"),
    (CALL, "def g(x): pass"),
    (CALL, "class Solution:\n    def f(self, x, xs): return [x] + xs"),
    (CHECKED, f"print('{MARKER[:5]}')"),
    (CHECKED, "print('other')"),
]


async def verdicts(executor, corpus, at_once: int = 8, on_verdict=lambda _: None):
    places, limits = asyncio.Semaphore(at_once), 1.0

    async def one(problem, code):
        async with places:
            found = await judge_async(problem, code, executor, cpu_limit_s=limits)
        on_verdict(found)
        return found.kind, found.passed, found.total, found.failure and found.failure.test

    return await asyncio.gather(*(one(*pair) for pair in corpus))


async def on_one_machine(corpus):
    async with EmbeddedSandbox() as box:
        return await verdicts(box, corpus)


def with_cluster(use, **more):
    """The result of `use(executor)` on the cluster of RAY_ADDRESS."""

    async def go():
        executor: Any = connect_executor("ray", **more)
        try:
            await executor.check()
            return await use(executor)
        finally:
            await executor.aclose()

    return asyncio.run(go())


def on_cluster(corpus, act=lambda *_: None, **more):
    async def use(executor):
        count = itertools.count(1)
        return await verdicts(executor, corpus, on_verdict=lambda _: act(executor, next(count))), executor

    return with_cluster(use, **more)


@on_a_cluster
@pytest.mark.parametrize("nodes", [2, 4])
def test_nodes_give_the_verdicts_of_one_machine(cluster, nodes):
    expected = asyncio.run(on_one_machine(CORPUS))
    assert {kind for kind, *_ in expected} >= {VerdictKind.PASSED, VerdictKind.TIME_LIMIT, VerdictKind.COMPILE_ERROR}
    cluster(nodes)
    seen = []

    def note(executor, _):
        seen.append((executor.description, executor.slots))

    found, _ = on_cluster(CORPUS, note, isolation="full")
    assert found == expected
    assert seen[0] == (f"{nodes} nodes of a Ray cluster, isolation full, {4 * nodes} workers", 4 * nodes)


@on_a_cluster
def test_a_node_that_dies_in_the_middle_costs_no_verdict(cluster):
    corpus = CORPUS[:5] * 60
    machines = cluster(2)
    nodes = list(machines.worker_nodes)

    def act(executor, count):
        if count == 60:
            machines.remove_node(nodes[0], allow_graceful=False)

    found, executor = on_cluster(corpus, act)
    assert found == asyncio.run(on_one_machine(CORPUS[:5])) * 60
    assert executor.retries > 0


@on_a_cluster
def test_a_node_that_joins_and_one_that_leaves_are_noticed(cluster):
    machines = cluster(1)

    async def use(executor):
        (first,) = machines.worker_nodes
        machines.add_node(num_cpus=2)
        await until(lambda: executor.slots == 8)
        machines.remove_node(first)
        await until(lambda: executor.slots == 4)
        return await verdicts(executor, CORPUS[:4])

    assert with_cluster(use) == asyncio.run(on_one_machine(CORPUS[:4]))


async def until(true):
    while not true():  # noqa: ASYNC110 - the test's own timeout ends what never comes
        await asyncio.sleep(0.1)


@on_a_cluster
def test_a_sandbox_that_is_killed_on_a_node_that_lives_starts_again(cluster):
    cluster(1)

    async def use(executor):
        import ray

        job = Job("import time\ntime.sleep(1)\nprint(input())", (StdinInput(b"1"), StdinInput(b"2")))
        under_way = asyncio.create_task(collect(executor, job))
        await asyncio.sleep(0.7)
        (node,) = executor.pool.members
        ray.kill(node.actor)
        return [execution.stdout for execution in await under_way], executor.retries

    outputs, retries = with_cluster(use)
    assert outputs == [b"1\n", b"2\n"]
    assert retries > 0


@on_a_cluster
def test_a_submission_that_is_closed_early_stops_on_its_node(cluster):
    cluster(1)
    inputs = tuple(StdinInput(b"%d" % number) for number in range(1000))

    async def use(executor):
        executions = executor.run(Job("import time\ntime.sleep(0.05)\nprint(input())", inputs))
        first = await anext(executions)
        await executions.aclose()
        after = await asyncio.wait_for(collect(executor, Job("print(2)", (StdinInput(b""),))), 20)
        return first.status, after[0].stdout

    # The only place is free again long before 1000 tests are through.
    assert with_cluster(use, concurrency=1) == (Status.OK, b"2\n")


@on_a_cluster
def test_what_travels_to_a_node_holds_no_expected_output(cluster, monkeypatch):
    cluster(1)
    travelled = []
    post = aiohttp.ClientSession.post

    def watched(session, url, **options):
        body = options["json"]
        travelled.append((repr(body).encode(), *map(base64.b64decode, body["cases"])))
        return post(session, url, **options)

    monkeypatch.setattr(aiohttp.ClientSession, "post", watched)
    problems = [
        CHECKED,
        stdin_problem("plain", ("in", MARKER)),
        Problem("c", "", (CallTest((1,), MARKER),), fn_name="f"),
    ]
    codes = ["print(1)", "print(2)", "def f(x): return x"]
    found, _ = on_cluster(list(zip(problems, codes, strict=True)))
    assert [kind for kind, *_ in found] == [VerdictKind.WRONG_ANSWER] * 3
    assert len(travelled) >= 3
    assert not any(MARKER.encode() in text for texts in travelled for text in texts)


def without_user_namespaces(folder: Path) -> dict[str, str]:
    """The environment of Python processes that may make none."""
    (folder / "sitecustomize.py").write_text(WITHOUT_USER_NAMESPACES)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@on_a_cluster
def test_a_node_without_the_isolation_asked_for_is_left_out_by_name(cluster, tmp_path, caplog):
    weak = {"num_cpus": 1, "env_vars": without_user_namespaces(tmp_path)}
    machines = cluster(1)
    machines.add_node(**weak)
    found, _ = on_cluster(CORPUS[:2], isolation="full")
    assert [kind for kind, *_ in found] == [VerdictKind.PASSED, VerdictKind.WRONG_ANSWER]
    assert "CLONE_NEWUSER" in caplog.text
    for node in list(machines.worker_nodes):
        machines.remove_node(node)
    machines.add_node(**weak)
    with refused("CLONE_NEWUSER", kind=IsolationError):
        on_cluster(CORPUS[:2], isolation="full")


@on_a_cluster
def test_limits_and_refusals_cross_the_wire_typed(cluster):
    cluster(1)

    async def use(executor):
        strict = await collect(executor, Job("while True: pass", (StdinInput(b""),), limits=Limits(cpu_s=0.3)))
        with pytest.raises(SandboxError):
            await collect(executor, Job("def f(): pass", (StdinInput(b""),), fn_name="f"))
        return strict[0].status, executor.retries

    assert with_cluster(use) == (Status.TIME_LIMIT, 0)


@on_a_cluster
def test_a_cluster_started_here_ends_with_the_executor(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before = signal.getsignal(signal.SIGTERM)

    async def use(executor):
        return (await collect(executor, Job("print(input())", (StdinInput(b"x"),))))[0].stdout, executor.description

    output, description = with_cluster(use, concurrency=2)
    import ray

    assert (output, ray.is_initialized()) == (b"x\n", False)
    assert description.startswith("1 node of a Ray cluster")
    assert description.endswith("2 workers")
    assert signal.getsignal(signal.SIGTERM) is before
