"""The course's environment: tokens in, reward out."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

pytest.importorskip("tinker")

import tinker

from code_rl import CallTest, Compare, Problem, StdinTest, judge
from code_rl.grading.sandbox import shared_executor
from code_rl.policy.prompt_templates import build_prompt
from code_rl.util.errors import DataError, SandboxError
from tests.boxes import descendants
from tests.waiting import until
from tinker_utils.env import CodeEnv, StepResult, sandbox_check_correctness, text_of
from tinker_utils.lcb import normalize_tests

from .fakes import ScriptedExecutor, printed, returned

STDIN = [{"input": "", "output": "1", "testtype": "stdin", "metadata": {"func_name": None}}]
CALL = [{"input": "[1]\n2", "output": "3", "testtype": "functional", "metadata": {"func_name": "add"}}]


class LetterRenderer:
    """Tokens are code points; 0 ends a completion."""

    def build_generation_prompt(self, messages):
        return tinker.ModelInput.from_ints([ord(c) for message in messages for c in message["content"]])

    def parse_response(self, tokens):
        ended = bool(tokens) and tokens[-1] == 0
        return {"role": "assistant", "content": "".join(map(chr, tokens[:-1] if ended else tokens))}, ended

    def get_stop_sequences(self):
        return [0]


def tokens(text, *, ended=True):
    return [*map(ord, text), *([0] if ended else [])]


def step(action, *answers, **options):
    executor = ScriptedExecutor(answers)
    env = CodeEnv("question", STDIN, LetterRenderer(), executor=executor, **options)
    return asyncio.run(env.step(action)), executor


BLOCK = "```python\nprint(1)\n```"


@pytest.mark.parametrize(
    ("action", "output", "reward", "format_score", "correct"),
    [
        (tokens(BLOCK), "1", 1.0, 0.0, 1.0),
        (tokens(BLOCK), "2", 0.0, 0.0, 0.0),
        (tokens("no code"), "1", -0.1, -1.0, 0.0),
        (tokens(BLOCK, ended=False), "1", 1.0, 0.0, 1.0),
        ([], "1", -0.1, -1.0, 0.0),
    ],
)
def test_the_reward_of_a_step(action, output, reward, format_score, correct):
    result, executor = step(action, printed(output))
    assert isinstance(result, StepResult)
    assert result.reward == pytest.approx(reward)
    assert result.metrics == {"format": format_score, "correct": correct}
    assert (result.episode_done, result.next_stop_condition) == (True, [0])
    assert result.next_observation.to_ints() == []
    assert bool(executor.jobs) == (BLOCK in "".join(map(chr, action)))


def test_the_observation_is_the_prompt_after_the_prefix():
    env = CodeEnv("?", STDIN, LetterRenderer(), convo_prefix=[{"role": "system", "content": "s"}])
    observation, stop = asyncio.run(env.initial_observation())
    assert (observation.to_ints(), stop) == ([ord("s"), ord("?")], [0])
    assert env.get_question() == "?"
    assert env.extract_code_from_model(BLOCK) == "print(1)"


ADD = Problem(
    "add", "Add.", (CallTest((1.0, 2.0), 3.0), CallTest((0.1, 0.2), 0.3)), fn_name="add", compare=Compare(abs_tol=0.1)
)


@pytest.mark.parametrize(
    ("tests", "program"),
    [
        (ADD, "def add(a, b): return a + b + 0.01"),
        ((CallTest((1, 2), 3, fn_name="add"),), "def add(a, b): return a + b"),
        ([StdinTest("1", "2")], "print(1 + int(input()))"),
        (Problem("p", "s", (StdinTest("1", "2"),)), "print(1 + int(input()))"),
    ],
)
def test_a_problem_or_its_tests_are_tests_wherever_rows_are(tests, program):
    assert asyncio.run(sandbox_check_correctness(tests, program))[0]
    env = CodeEnv("question", tests, LetterRenderer())
    assert asyncio.run(env.step(tokens(f"```python\n{program}\n```"))).reward == 1.0
    rows = normalize_tests(tests)
    assert rows == normalize_tests(rows)
    assert len(rows) == len(tests.tests if isinstance(tests, Problem) else tests)


@pytest.mark.parametrize("nothing", [None, [], "", "[]", ()])
def test_a_row_without_tests_normalizes_to_none(nothing):
    assert normalize_tests(nothing, {}) == []


def test_the_question_of_a_problem_is_the_prompt_of_training():
    assert CodeEnv(ADD, ADD, LetterRenderer()).get_question() == build_prompt(ADD.view())


def test_the_program_of_a_problem_in_another_language_is_the_block_of_that_language():
    answer = "```python\nprint(1)\n```\nthen\n```cpp\nint main() {}\n```"
    env = CodeEnv(replace(ADD, language="cpp"), replace(ADD, language="cpp"), LetterRenderer())
    assert env.extract_code_from_model(answer) == "int main() {}"
    assert CodeEnv(ADD, ADD, LetterRenderer()).extract_code_from_model(answer) == "print(1)"


def test_settings_reach_the_sandbox():
    result, executor = step(tokens("x"), format_coef=0.5)
    assert result.reward == -0.5
    _, executor = step(tokens(BLOCK), printed("1"), reward_timeout=2)
    assert executor.jobs[0].limits.cpu_s == 2


def test_malformed_tests_are_refused_when_the_environment_is_made():
    with pytest.raises(DataError):
        CodeEnv("q", [{"input": 1}], LetterRenderer())


def test_trouble_of_the_sandbox_is_raised_not_scored():
    with pytest.raises(SandboxError):
        step(tokens(BLOCK), SandboxError("down"))


def test_correctness_comes_with_details():
    executor = ScriptedExecutor([returned("4")])
    passed, details = asyncio.run(sandbox_check_correctness(CALL, "code", timeout=3, executor=executor))
    assert passed is False
    assert (details["status"], details["verdict"], details["total"]) == ("Failed", "wrong_answer", 1)
    assert executor.jobs[0].fn_name == "add"
    passed, details = asyncio.run(sandbox_check_correctness(CALL, "code", executor=ScriptedExecutor([returned("3.0")])))
    assert (passed, details["status"], details["failure"]) == (True, "Success", None)


def test_message_content_may_be_parts():
    parts = [{"type": "thinking", "thinking": "x"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert text_of({"content": parts}) == "ab"


@pytest.fixture
def shared(monkeypatch):
    """The sandbox that environments share, closed before and after."""
    monkeypatch.delenv("SANDBOX_URL", raising=False)
    shared_executor.close()
    yield shared_executor
    shared_executor.close()


@pytest.mark.long
def test_where_the_process_s_own_sandbox_stays_away_programs_have_no_verdict(shared, monkeypatch):
    monkeypatch.setenv("SANDBOX_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("code_rl.grading.sandbox.connect.REMOTE_OUTAGE_TIMEOUT_S", 0.2)
    assert judge(ADD, "def add(a, b): return a + b").undecided
    with pytest.raises(SandboxError):
        asyncio.run(sandbox_check_correctness(STDIN, "print(1)"))


async def itself(executor):
    return executor


def test_the_shared_sandbox_is_started_once_and_outlasts_event_loops(shared):
    env = CodeEnv("q", STDIN, LetterRenderer())
    others = descendants()

    async def score_all():
        rewards = [result.reward for result in await asyncio.gather(*(env.step(tokens(BLOCK)) for _ in range(8)))]
        assert rewards == [1.0] * 8
        return await shared.run(itself)

    first, *later = [asyncio.run(score_all()) for _ in range(3)]
    assert all(executor is first for executor in later)
    shared.close()
    shared.close()
    assert descendants() <= others
    assert asyncio.run(score_all()) is not first


def test_cancelling_a_step_stops_its_program(shared):
    env = CodeEnv("q", STDIN, LetterRenderer())
    sleeps = "```python\nimport time\ntime.sleep(3600)\n```"

    async def cut():
        await env.step(tokens(BLOCK))
        idle = len(descendants())
        step = asyncio.create_task(env.step(tokens(sleeps)))
        await asyncio.to_thread(until, lambda: len(descendants()) > idle)
        step.cancel()
        await asyncio.to_thread(until, lambda: len(descendants()) <= idle, 20)

    asyncio.run(cut())
