"""An environment in which the policy may use a shell before it answers: commands run in a box that
has the public tests as files, and their output comes back."""

from __future__ import annotations

from collections.abc import Sequence

from code_rl.grading import ProblemView, Verdict, VerdictKind, extract_code
from code_rl.policy.environments.base import Grader, Reply
from code_rl.policy.environments.single import Single
from code_rl.policy.renderers.base import Message
from code_rl.util.errors import SandboxError

TAGS = ("sh", "bash", "shell")
OFFER = (
    "\n\nBefore you answer you may run commands in a Linux shell with Python: an answer whose only "
    "code block is tagged ```sh is run there, and you get its output. Files stay from command to "
    "command.{files} You have {turns} answers in all; the last must have the program."
)
FILES = " The example tests are the files tests/1.in and tests/1.out, and so on."


class Tools(Single):
    """Up to `max_turns` answers. An answer with a shell block and no program is run; the first
    other answer is judged on all tests."""

    max_turns = 4
    least_turns = 2

    def begin(self, problem: ProblemView) -> list[Message]:
        """The prompt, and the offer of the shell at its end."""
        *earlier, last = self.prompt(problem)
        stdin = problem.fn_name is None and bool(problem.public_tests)
        offer = OFFER.format(files=FILES if stdin else "", turns=self.max_turns)
        return [*earlier, {**last, "content": last["content"].rstrip() + offer}]

    async def reply(
        self, problem: ProblemView, conversation: Sequence[Message], grader: Grader
    ) -> Reply:
        """Run the answer's command if there is one and a turn is left; else judge on all tests."""
        answers = [one["content"] for one in conversation if one["role"] == "assistant"]
        commands = [command_of(text, problem.language) for text in answers]
        code = extract_code(answers[-1], problem.language)
        if commands[-1] is None or len(answers) >= self.max_turns:
            return Reply(code, await grader.judge(code if commands[-1] is None else None))
        try:
            output = await grader.run_commands([command for command in commands if command])
        except SandboxError:  # ours, so the answer is masked like one without a verdict
            return Reply(None, Verdict(VerdictKind.SANDBOX_ERROR, 0, 0, "tools"))
        verdict = await grader.judge_public(None)
        return Reply(None, verdict, ({"role": "user", "content": output},))


def command_of(answer: str, language: str) -> str | None:
    """Return the command of an answer that has a shell block and no block of the problem's
    language, or None."""
    command = extract_code(answer, only=TAGS)
    return None if extract_code(answer, language) not in (None, command) else command
