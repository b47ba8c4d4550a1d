"""Tools: commands run in a box before the answer, on the public tests only; a resumed conversation reuses their outputs."""

from __future__ import annotations

import asyncio

import pytest

from code_rl.policy import Sampling
from code_rl.policy.completion_log import InFlight
from code_rl.policy.environments import Tools, get_environment
from tests.refusals import refused

from .conversation_support import Scripted, policy, problem, program

pytestmark = pytest.mark.usefixtures("boxes")
RIGHT = program("7")


def shell(command: str) -> str:
    return f"I look first.\n```sh\n{command}\n```"


def conversation(sampler, *, log=None, count=1, **fields):
    made = policy(sampler, environment=Tools(**fields))
    sampling = Sampling(300_000, request_per="completion")
    return asyncio.run(made.roll_out(problem(), count, sampling, 5, log)).trajectories


def test_commands_share_their_files_and_the_answer_is_judged():
    sampler = Scripted([shell("echo $((6 * 7)) > found; ls tests"), shell("cat found tests/1.in; exit 3"), RIGHT])
    (trajectory,) = conversation(sampler)
    assert [turn.verdict.kind.value for turn in trajectory.turns] == ["no_code", "no_code", "passed"]
    first, second, third = sampler.prompts
    assert "tests/1.in" in first
    assert "1.in\n1.out" in second
    assert "exit code 3\noutput:\n42\nPUBLIC" in third


def test_hidden_tests_are_nowhere_in_the_box():
    sampler = Scripted([shell("grep -rl HID[D]EN /box /tmp /etc; cat tests/*; echo seen"), RIGHT])
    conversation(sampler)
    assert "PUBLIC" in sampler.prompts[1]
    assert "seen" in sampler.prompts[1]
    assert "HIDDEN" not in sampler.prompts[1].rpartition("exit code")[2]


def test_a_command_at_a_limit_and_a_long_output_come_back_short(monkeypatch):
    monkeypatch.setattr("code_rl.policy.environments.tools.CPU_S", 0.5)
    sampler = Scripted([shell("seq 100000"), shell("while :; do :; done"), RIGHT])
    conversation(sampler)
    assert len(sampler.prompts[1]) < 5000
    assert "characters left out" in sampler.prompts[1]
    assert "stopped at its limit of cpu" in sampler.prompts[2]


def test_without_a_turn_left_a_command_is_no_program():
    (trajectory,) = conversation(Scripted([shell("true")]), max_turns=2)
    assert [turn.verdict.kind.value for turn in trajectory.turns] == ["no_code", "no_code"]


def test_a_program_beside_a_command_is_the_answer():
    (trajectory,) = conversation(Scripted([f"{shell('echo x')}\n{RIGHT}"]))
    assert [turn.verdict.kind.value for turn in trajectory.turns] == ["passed"]


def test_a_resumed_conversation_reuses_outputs_and_buys_no_answer_twice(tmp_path):
    answers = [shell("head -c 8 /dev/urandom | od"), RIGHT]
    cut, again = Scripted(answers, fails_at=1), Scripted(answers)
    with pytest.raises(ConnectionError):
        conversation(cut, log=InFlight(tmp_path / "kept").group_log(0, "0.0"))
    resumed = conversation(again, log=InFlight(tmp_path / "kept").group_log(0, "0.0"))
    once_more = Scripted([])
    assert conversation(once_more, log=InFlight(tmp_path / "kept").group_log(0, "0.0")) == resumed
    assert (len(cut.prompts), len(again.prompts), len(once_more.prompts)) == (1, 1, 0)


def test_a_conversation_of_one_turn_is_refused():
    with refused("max_turns=1"):
        get_environment("tools", 1)


FLOOD = "python3 -c 'import socket as s\nk = [s.socketpair() for _ in range(400)]\nfor a, _ in k:\n a.setblocking(0)\n try:\n  while a.send(bytes(4096)): pass\n except OSError: pass'"


@pytest.mark.parametrize(
    "command",
    [
        "chmod 000 /box",
        "mkdir .command",
        "kill -INT 1; exit 3",
        f"for i in 1 2 3 4 5 6 7 8; do {FLOOD} & done; wait",
    ],
)
def test_no_command_ends_or_masks_its_conversation(command):
    (trajectory,) = conversation(Scripted([shell(command), shell("echo hi"), RIGHT]))
    assert [turn.verdict.kind.value for turn in trajectory.turns] == ["no_code", "no_code", "passed"]
