"""OpenEnv's own client on our server. Needs the extra `openenv`."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

pytest.importorskip("openenv")

import uvicorn
from openenv.core.generic_client import GenericEnvClient

from code_rl import load_problems
from code_rl.grading import Verdict, VerdictKind
from code_rl.integrations import openenv
from code_rl.policy import GroupGrader
from tests.refusals import refused


@contextlib.contextmanager
def client(**settings):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    app = openenv.make_app("builtin", limit=4, **settings)
    running = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        while not running.started:
            time.sleep(0.02)
        with GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as connected:
            yield connected
    finally:
        running.should_exit = True
        thread.join()


def solution(index):
    return f"```python\n{load_problems('builtin', limit=4)[index].solutions[0]}\n```"


def test_an_answer_ends_the_episode_with_its_reward():
    with client() as connected:
        for index, answer, reward in ((0, solution(0), 1.0), (1, "```python\nprint(0)\n```", 0.0)):
            opened = connected.reset(index=index)
            assert opened.observation["messages"][-1]["role"] == "user"
            assert not opened.done
            got = connected.step({"answer": answer})
            print(got.reward, got.done, got.observation["verdict"])
            assert (got.reward, got.done) == (reward, True)
        with refused(kind=RuntimeError):
            connected.step({"answer": "again"})


def test_the_seed_draws_the_problem():
    with client() as connected:
        drawn = [connected.reset(seed=seed).observation["problem_id"] for seed in (1, 2, 3, 1)]
    assert drawn[0] == drawn[3]
    assert len(set(drawn)) > 1


def test_a_failing_answer_may_be_repaired():
    with client(environment="repair") as connected:
        connected.reset(index=0)
        first = connected.step({"answer": "```python\nprint('?')\n```"})
        assert not first.done
        assert "fails a test" in first.observation["messages"][0]["content"]
        second = connected.step({"answer": solution(0)})
        assert (second.reward, second.done) == (1.0, True)


def test_a_sandbox_that_is_down_is_an_error_and_no_reward(monkeypatch):
    async def down(self, code):
        return Verdict(VerdictKind.SANDBOX_ERROR, 0, 1, "lcb")

    monkeypatch.setattr(GroupGrader, "judge", down)
    with client() as connected:
        connected.reset(index=0)
        with refused(kind=RuntimeError):
            connected.step({"answer": solution(0)})
