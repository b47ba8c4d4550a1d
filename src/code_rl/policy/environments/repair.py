"""An environment in which a failing program can be repaired. The policy is shown the first public
test that its program fails, and answers again."""

from __future__ import annotations

from collections.abc import Sequence

from code_rl.grading import ProblemView, StdinTest, Verdict, extract_code
from code_rl.policy.environments.base import Grader, Reply, Single
from code_rl.policy.prompt_templates import shown_test
from code_rl.policy.renderers.base import Message

SHOWN = 800
"""The most characters of a test's input or expected output that a message shows."""
NO_PROGRAM = "Your answer has no program. Put the whole program between ```python and ```."
AGAIN = "Correct the program and write it again as a whole, between ```python and ```."


class Repair(Single):
    """Up to `max_turns` answers. A program that fails a public test can be repaired; one that
    passes all public tests is final, even if a hidden test fails."""

    max_turns = 3
    least_turns = 2

    async def reply(
        self, problem: ProblemView, conversation: Sequence[Message], grader: Grader
    ) -> Reply:
        """Ask for another answer if a public test fails and a turn is left; else judge on all tests
        and end the conversation. If the public tests have no verdict, no answer is asked for."""
        code = extract_code(conversation[-1]["content"], problem.language)
        answers = sum(message["role"] == "assistant" for message in conversation)
        if answers < self.max_turns and problem.public_tests:
            verdict = await grader.judge_public(code)
            if not verdict.correct and not verdict.undecided:
                return Reply(
                    code, verdict, ({"role": "user", "content": feedback(problem, verdict)},)
                )
        return Reply(code, await grader.judge(code))


def feedback(problem: ProblemView, verdict: Verdict) -> str:
    """Return the message about a failed public test, or about an answer without a program.
    `verdict` is that of `judge_public`, whose test is an index among the public tests."""
    if verdict.failure is None:
        return f"{NO_PROGRAM}\n"
    test = problem.public_tests[verdict.failure.test]
    given, expected = shown_test(test, problem.fn_name, SHOWN)
    what = "Input" if isinstance(test, StdinTest) else "Call"
    return (
        "The program fails a test: "
        f"{verdict.failure.message}\n\n{what}:\n{given}\n\nExpected:\n{expected}\n\n{AGAIN}\n"
    )
