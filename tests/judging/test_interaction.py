"""Interactive problems: two processes joined by this one, as an executor joins two sandboxes."""

from __future__ import annotations

import asyncio
import io
import sys
from dataclasses import replace

import pytest

from code_rl.errors import ConfigError, DataError
from code_rl.judging.interaction import PREAMBLE
from code_rl.judging.judge import judge
from code_rl.judging.verdict import VerdictKind
from code_rl.problems.problem import Compare, Problem, StdinTest
from code_rl.sandbox.executor import Conversation, Execution, Job, Status, StdinInput, case_bytes

from .fakes import ScriptedExecutor

GUESS = """
def interact(input, expected, program):
    secret = int(expected)
    for _ in range(8):
        guess = int(program.read_token())
        if guess == secret:
            program.write("found\\n")
            return program.readline() == "bye" or "no goodbye"
        program.write("more\\n" if guess < secret else "less\\n")
    return "too many guesses"
"""
RIGHT = """
low, high = 0, 100
while True:
    middle = (low + high) // 2
    print(middle, flush=True)
    answer = input()
    if answer == "found":
        break
    low, high = (middle + 1, high) if answer == "more" else (low, middle - 1)
print("bye")
"""
PROBLEM = Problem("i", "", tuple(StdinTest("", str(n)) for n in (0, 37, 100)), interactor=GUESS, solutions=(RIGHT,))

CALL = """
import json, os
from code_rl.problems import values
{preamble}
{code}
{setup}
args, kwargs = values.loads({given!r})
value = interact(*args, **kwargs)
os.write(int({value_fd}), values.dumps(value).encode())
"""


class Joined(ScriptedExecutor):
    """Runs both ends as plain processes."""

    description = "joined"

    async def converse(self, program: Job, interactor: Job) -> Conversation:
        assert interactor.trusted
        assert not program.trusted
        assert program.cases[0] == StdinInput(b"")
        said: list[tuple[str, bytes]] = []
        import os

        value_read, value_write = os.pipe()
        source = CALL.format(
            preamble=interactor.preamble,
            code=interactor.code,
            setup=interactor.setup,
            given=case_bytes(interactor.cases[0]),
            value_fd=value_write,
        )
        ends = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, stdin=-1, stdout=-1, stderr=-1, pass_fds=fds
            )
            for code, fds in ((program.code, ()), (source, (value_write,)))
        ]
        os.close(value_write)

        async def carry(who: str, reader, writer) -> None:
            while data := await reader.read(1 << 16):
                said.append((who, data))
                writer.write(data)
            writer.close()

        try:
            async with asyncio.timeout(20):
                await asyncio.gather(
                    carry("program", ends[0].stdout, ends[1].stdin), carry("interactor", ends[1].stdout, ends[0].stdin)
                )
                errors = [await end.stderr.read() for end in ends]
                codes = [await end.wait() for end in ends]
        finally:
            for end in ends:
                if end.returncode is None:
                    end.kill()
        value = os.read(value_read, 1 << 16)
        os.close(value_read)
        executions = []
        for code, error in zip(codes, errors, strict=True):
            detail = error.decode().strip().rpartition("\n")[2]
            status = Status.OK if code == 0 else Status.RUNTIME_ERROR
            executions.append(Execution(status, stderr=error, exit_code=code, detail=detail))
        return Conversation(executions[0], replace(executions[1], value=value or None), tuple(said))


def verdict_of(problem: Problem, code: str, **options):
    return asyncio.run(judge(problem, code, Joined([]), **options))


def test_a_program_that_finds_every_secret_passes():
    verdict = verdict_of(PROBLEM, RIGHT)
    assert (verdict.kind, verdict.passed, verdict.rule) == (VerdictKind.PASSED, 3, "interactor")
    assert verdict.transcript == ()


def test_the_interactors_reason_is_a_wrong_answer_with_a_transcript():
    public = replace(PROBLEM, tests=(StdinTest("", "37", public=True),))
    verdict = verdict_of(public, RIGHT.replace('"bye"', '"ciao"'))
    assert verdict.kind is VerdictKind.WRONG_ANSWER
    assert "no goodbye" in verdict.failure.message
    assert ("program", "50\n") in verdict.transcript
    assert ("interactor", "less\n") in verdict.transcript


def test_messages_about_hidden_conversations_hold_nothing_of_them():
    verdict = verdict_of(PROBLEM, RIGHT.replace('"bye"', '"ciao"'))
    assert verdict.failure.message == "the interactor says wrong"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("print(200, flush=True)\nwhile True: print(input() and 200, flush=True)", VerdictKind.WRONG_ANSWER),
        ("raise ValueError('x')", VerdictKind.RUNTIME_ERROR),
        (RIGHT + "raise ValueError('late')", VerdictKind.RUNTIME_ERROR),
        (RIGHT + "input()", VerdictKind.RUNTIME_ERROR),
        ("", VerdictKind.WRONG_ANSWER),
        ("print('garbage', flush=True)", VerdictKind.WRONG_ANSWER),
    ],
)
def test_bad_programs_get_a_verdict_about_themselves(code, kind):
    assert verdict_of(PROBLEM, code).kind is kind


def test_all_conversations_are_held_when_asked():
    code = RIGHT.replace('print("bye")', 'print("bye" if middle != 37 else "ciao")')
    verdict = verdict_of(PROBLEM, code, all_tests=True)
    assert (verdict.kind, verdict.passed, verdict.failure.test) == (VerdictKind.WRONG_ANSWER, 2, 1)


def test_an_interactor_that_fails_with_the_reference_is_the_problems_fault():
    broken = replace(PROBLEM, interactor="def interact(input, expected, program):\n    raise KeyError('lost')")
    verdict = verdict_of(broken, "print('bye')")
    assert verdict.kind is VerdictKind.CHECKER_ERROR
    assert "lost" in verdict.failure.message
    assert verdict_of(replace(broken, solutions=()), "print('bye')").kind is VerdictKind.WRONG_ANSWER


@pytest.mark.parametrize("body", ["raise KeyError('lost')", "program.readline()\n    raise KeyError('lost')"])
def test_a_program_that_hears_no_more_from_a_broken_interactor_is_not_to_blame(body):
    broken = replace(PROBLEM, interactor=f"def interact(input, expected, program):\n    {body}")
    verdict = verdict_of(broken, RIGHT)
    assert verdict.kind is VerdictKind.CHECKER_ERROR
    assert "lost" in verdict.failure.message
    some = replace(
        PROBLEM, interactor=GUESS.replace("if guess ==", "if guess == 7:\n            1 / 0\n        if guess ==")
    )
    assert verdict_of(some, "print(7, flush=True)\ninput()").kind is VerdictKind.WRONG_ANSWER


def test_reading_tokens_is_linear_and_bounded():
    space: dict = {}
    exec(PREAMBLE, space)
    for size, read in ((1 << 20, True), ((1 << 20) + 1, False)):
        program = space["_Program"]()
        program._from = io.BytesIO(b" " + b"x" * size)
        if read:
            assert len(program.read_token()) == size
        else:
            with pytest.raises(ValueError, match="megabyte"):
                program.read_token()


def test_conversations_need_an_executor_that_holds_them():
    with pytest.raises(ConfigError, match="executor=embedded"):
        asyncio.run(judge(PROBLEM, RIGHT, ScriptedExecutor([])))


@pytest.mark.parametrize(
    "problem",
    [
        replace(PROBLEM, interactor="def interact("),
        replace(PROBLEM, interactor="def other(input, expected, program): return True"),
        replace(PROBLEM, compare=Compare("checker", checker="print('ok')")),
        replace(PROBLEM, fn_name="f"),
    ],
)
def test_interactors_that_cannot_be_used_are_data_errors(problem):
    with pytest.raises(DataError):
        verdict_of(problem, RIGHT)
