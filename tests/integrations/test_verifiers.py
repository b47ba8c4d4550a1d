"""verifiers' own evaluator on our taskset, against an endpoint whose model knows every second solution. Needs the extra `verifiers`, and `uv` for the null harness."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("verifiers.v1")

from verifiers.v1.errors import TaskError

import code_rl
from code_rl import load_problems
from code_rl.integrations.verifiers import CodeConfig, CodeTaskset
from tests.refusals import refused


def tasks():
    return list(CodeTaskset(CodeConfig(id="code_tasks", limit=4)))


def scored(answer):
    rewards: dict[str, float] = {}
    trace = SimpleNamespace(last_reply=answer, metrics={}, rewards=rewards)
    trace.record_reward = lambda name, value, weight: rewards.__setitem__(name, value * weight)
    try:
        asyncio.run(tasks()[0].score(trace))
    finally:
        print(rewards)
    return rewards


def test_a_task_is_scored_by_our_judge():
    solution = load_problems("builtin", limit=4)[0].solutions[0]
    assert scored(f"```python\n{solution}\n```") == {"passes": 1.0}
    assert scored("```python\nprint()\n```") == {"passes": 0.0}


@pytest.mark.usefixtures("broken")
def test_a_sandbox_that_is_down_is_a_failed_rollout():
    with refused(kind=TaskError):
        scored("```python\nprint()\n```")


class Model(http.server.BaseHTTPRequestHandler):
    """Chat Completions."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = json.dumps(asked["messages"], ensure_ascii=False)
        known = [problem for problem in load_problems("builtin", limit=4)[::2] if problem.statement in text]
        content = f"```python\n{known[0].solutions[0]}\n```" if known else "I do not know."
        stream = asked.get("stream")
        choice = {"index": 0, "finish_reason": "stop"}
        choice["delta" if stream else "message"] = {"role": "assistant", "content": content}
        kind = "chat.completion.chunk" if stream else "chat.completion"
        answer = json.dumps({"id": "1", "created": 0, "model": "m", "object": kind, "choices": [choice]})
        body = (f"data: {answer}\n\ndata: [DONE]\n\n" if stream else answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if stream else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("uv", path=Path(sys.executable).parent) is None, reason="no uv beside this Python")
def test_vf_eval_reads_our_rewards(tmp_path):
    (tmp_path / "code_tasks.py").write_text(
        'from code_rl.integrations.verifiers import CodeTaskset\n\n__all__ = ["CodeTaskset"]\n'
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    binaries = Path(sys.executable).parent
    words = "code_tasks --env.taskset.limit 4 --env.agent.harness.id null --env.agent.runtime.type subprocess "
    words += f"--client.base-url http://127.0.0.1:{server.server_port}/v1 --model m --no-push --no-rich -o out"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(code_rl.__file__).parents[1])]),
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
    }
    try:
        done = subprocess.run(
            [binaries / "vf-eval", *words.split()],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
        )
    finally:
        server.shutdown()
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = tmp_path.glob("out/*/traces.jsonl")
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    print(done.stderr[-1500:])
    assert all(episode["ok"] for episode in episodes)
    scores = [trace["rewards"]["passes"]["score"] for episode in episodes for trace in episode["traces"]]
    assert sorted(scores) == [0.0, 0.0, 1.0, 1.0]
