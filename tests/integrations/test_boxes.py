"""Other people's agents in our box: the cookbook's sandbox, a trial of Harbor, and a runtime of verifiers, on one task of Harbor's layout. Each needs
its package (CODE_RL_HARBOR names a `harbor` command where it is not in this environment)."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from code_rl import ConfigError
from code_rl.integrations.tasks import open_task_box, read_image, run_in
from tests.paths import ROOT
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("boxes")
SOLVE = "python3 -c 'print(sum(map(int, open(\"numbers\"))))' > sum"
TASK = {
    "task.toml": 'version = "1.0"\n[environment]\nbuild_timeout_sec = 60.0\n',
    "instruction.md": "Write the sum of the numbers in /app/numbers into /app/sum.",
    "environment/Dockerfile": "# plain\nFROM python:3.12-slim AS base\nWORKDIR /app\nENV NAME=total \\\n    MORE=1\nCOPY numbers /app/\n",
    "environment/numbers": "1\n2\n3\n",
    "solution/solve.sh": f"#!/bin/bash\n{SOLVE}\n",
    "tests/test.sh": '#!/bin/bash\nif [ "$(cat /app/sum)" = 6 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n',
}


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """The folder of one task, `sum`."""
    for name, text in TASK.items():
        path = tmp_path / "tasks" / "sum" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tasks" / "sum"


def test_a_plain_image_is_a_box_with_its_directory_variables_and_files(task):
    async def run():
        image = read_image(task / "environment")
        async with open_task_box(image) as box:
            return await run_in(box, "pwd; cat numbers; echo $NAME $MORE $OWN", image.workdir, 20, {"OWN": "a b"})

    ended = asyncio.run(run())
    assert (ended.exit_code, ended.stdout, ended.limit) == (0, "/app\n1\n2\n3\ntotal 1 a b\n", None)


@pytest.mark.parametrize("command", ["true # " + "x" * 70_000, "echo a\0b", "exit 3 # \ud800"])
def test_a_command_that_a_box_cannot_take_fails_and_does_not_end_its_trial(task, command):
    async def run():
        async with open_task_box(read_image(task / "environment")) as box:
            return await run_in(box, command, "/app", 20, {}), await run_in(box, "true", "/app", 20, {})

    refused_one, next_one = asyncio.run(run())
    assert (refused_one.exit_code, next_one.exit_code) == (3 if "exit" in command else 126, 0)


@pytest.mark.parametrize("target", ["/app", "/app/", ".", "./numbers", "/app/numbers"])
def test_a_file_is_copied_into_a_directory_or_under_a_name(task, target):
    lines = ["from --platform=linux/amd64 python@sha256:00", "WORKDIR /app", f"COPY numbers {target}"]
    (task / "environment" / "Dockerfile").write_text("\n".join(lines))
    assert [path for _, path in read_image(task / "environment").files] == ["/app/numbers"]


@pytest.mark.parametrize(
    "line",
    [
        "FROM nvidia/cuda:12",
        "RUN apt-get install gcc",
        "COPY --from=base /a /b",
        "USER me",
        "ENV PATH=/opt:$PATH",
        "ENV A 'it",
        "WORKDIR /usr/src/app",
        "COPY numbers /numbers/../../etc/x",
        "COPY *.py .",
    ],
)
def test_an_image_that_is_not_plain_is_refused_with_its_line(task, line):
    path = task / "environment" / "Dockerfile"
    path.write_text(f"FROM debian:12\n{line}\n")
    with refused(str(path), "line 2", line.split()[0], kind=ConfigError):
        read_image(task / "environment")


@pytest.mark.parametrize("copied", ["/etc/passwd", "../../../../../../etc/passwd", "link", "folder", "absent"])
def test_only_files_of_the_task_are_copied(task, copied):
    environment = task / "environment"
    (environment / "link").symlink_to("/etc/passwd")
    (environment / "folder").mkdir()
    (environment / "folder" / "link").symlink_to("/etc/passwd")
    (environment / "Dockerfile").write_text(f"FROM debian\nCOPY {copied} /app/\n")
    with refused(kind=ConfigError):
        read_image(environment)


@pytest.mark.skipif(importlib.util.find_spec("tinker_cookbook") is None, reason="tinker_cookbook is not installed")
@pytest.mark.parametrize(("command", "reward"), [(SOLVE, 1.0), ("echo 7 > sum", 0.0)])
def test_the_cookbooks_own_reward_grades_in_a_box(task, command, reward):
    from tinker_cookbook.recipes.harbor_rl.harbor_tools import HarborBashTool, HarborReward
    from tinker_cookbook.sandbox.sandbox_interface import SandboxInterface, SandboxTerminatedError

    from code_rl.integrations.tinker_cookbook import box_sandbox

    async def run():
        sandbox = await box_sandbox(task / "environment", 600)
        assert isinstance(sandbox, SandboxInterface)
        await sandbox.send_heartbeat()
        assert HarborBashTool(sandbox) is not None
        result = await sandbox.run_command(f"cd /app; {command}; cat sum", workdir="/")
        graded, _ = await HarborReward(task / "tests", sandbox)([])
        missing = await sandbox.read_file("/app/absent")
        await sandbox.cleanup()
        with pytest.raises(SandboxTerminatedError):
            await sandbox.run_command("true")
        return result, graded, missing

    result, graded, missing = asyncio.run(run())
    assert (result.exit_code, result.stdout) == (0, "6\n" if reward else "7\n")
    assert (graded, missing.exit_code) == (reward, 1)


HARBOR = os.environ.get("CODE_RL_HARBOR") or shutil.which("harbor")


@pytest.mark.skipif(HARBOR is None, reason="harbor is not installed")
@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_a_trial_of_harbor_runs_in_a_box(task, tmp_path, agent, reward):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    names = ["--env", "code_rl.integrations.harbor:BoxEnvironment", "--jobs-dir", str(tmp_path / "jobs")]
    command = [str(HARBOR), "run", "-p", str(task), "--agent", agent, *names]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    (path,) = (tmp_path / "jobs").glob("*/sum__*/result.json")
    assert json.loads(path.read_text())["verifier_result"]["rewards"] == {"reward": reward}


@pytest.mark.skipif(importlib.util.find_spec("verifiers") is None, reason="verifiers is not installed")
@pytest.mark.parametrize(("command", "reward"), [(SOLVE, "1"), ("echo 7 > sum", "0")])
def test_a_runtime_of_verifiers_runs_a_rollouts_commands_in_a_box(task, command, reward):
    from verifiers.v1.errors import SandboxError

    from code_rl.integrations.verifiers import box_runtime

    async def run():
        async with box_runtime(read_image(task / "environment")) as runtime:
            done = await runtime.run(["sh", "-c", command], {})
            await runtime.write("/tests/test.sh", (task / "tests/test.sh").read_bytes())
            await runtime.run(["bash", "/tests/test.sh"], {})
            with pytest.raises(SandboxError):
                await runtime.read("/logs/verifier/absent")
            with pytest.raises(SandboxError):
                await runtime.read("/logs/verifier/reward.txt", max_bytes=1)
            assert await runtime.alive()
            return done.exit_code, await runtime.read("/logs/verifier/reward.txt", max_bytes=9)

    assert asyncio.run(run()) == (0, f"{reward}\n".encode())
