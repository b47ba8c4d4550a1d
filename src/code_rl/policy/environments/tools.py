"""An environment in which the policy may use a shell before it answers: commands run in a box that
has the public tests as files, and their output comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from code_rl.grading import ProblemView, StdinTest, Verdict, VerdictKind, extract_code
from code_rl.grading.sandbox import Box, open_box
from code_rl.policy.environments.base import Grader, Reply, Single
from code_rl.policy.renderers.base import Message
from code_rl.util.errors import ConfigError, DataError, SandboxError

TAGS = ("sh", "bash", "shell")
OFFER = (
    "\n\nBefore you answer you may run commands in a Linux shell with Python: an answer whose only "
    "code block is tagged ```sh is run there, and you get its output. Files stay from command to "
    "command.{files} You have {turns} answers in all; the last must have the program."
)
FILES = " The example tests are the files tests/1.in and tests/1.out, and so on."
CPU_S, WALL_S = 10.0, 30.0
SHOWN = 2000
"""The most characters of each stream that the policy sees: the beginning and the end."""
OUTPUT_BYTES = 1 << 20


class Tools(Single):
    """Up to `max_turns` answers. An answer with a shell block and no program is run; the first
    other answer is judged on all tests."""

    max_turns = 4
    least_turns = 2

    def begin(self, problem: ProblemView) -> list[Message]:
        """Return the prompt with the offer of the shell at the end of its last message. Raises
        ValueError if the template gives no message."""
        *earlier, last = self.prompt(problem)
        stdin = problem.fn_name is None and bool(problem.public_tests)
        offer = OFFER.format(files=FILES if stdin else "", turns=self.max_turns)
        return [*earlier, {**last, "content": last["content"].rstrip() + offer}]

    async def reply(
        self, problem: ProblemView, conversation: Sequence[Message], grader: Grader
    ) -> Reply:
        """Run the answer's command if there is one and a turn is left, and reply with its output;
        else judge on all tests. A command on the last turn is an answer without a program.

        If the sandbox fails, the conversation ends with the undecided verdict `sandbox_error`,
        which is never rewarded.
        """
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
    """Return the content of an answer's last block that is tagged sh, bash or shell, or None if
    there is none or the answer has a program in another block."""
    command = extract_code(answer, only=TAGS)
    return None if extract_code(answer, language) not in (None, command) else command


async def output_of(commands: Sequence[str], problem: ProblemView) -> str:
    """Run the last of `commands` in a new box that has the public tests, after the earlier ones and
    on their files. Return what the policy is shown of it. Earlier commands that ended their box are
    left out, and the others run once more.

    Raises SandboxError if no box works, and IsolationError if this machine cannot make one.
    """
    async with open_box() as box:
        for number, test in enumerate(problem.public_tests, start=1):
            if isinstance(test, StdinTest):
                with contextlib.suppress(DataError):  # it does not fit into the box
                    for kind, text in (("in", test.input), ("out", test.expected)):
                        data = text.encode("utf-8", "surrogatepass")
                        await box.write(f"tests/{number}.{kind}", data)
        shown = ""
        for number, command in enumerate(commands):
            shown = await _run(box, command)
            if box.closed and number + 1 < len(commands):
                return await output_of([*commands[:number], *commands[number + 1 :]], problem)
    return shown


async def _run(box: Box, command: str) -> str:
    """Run one command within 10 CPU seconds and 30 wall seconds. Return its exit code, output and
    errors as text, or the reason why it was not run. Raises SandboxError if it ended its box and no
    other box works either."""
    text = command.encode("utf-8", "replace").decode()
    try:
        result = await box.run(text, cpu_s=CPU_S, wall_s=WALL_S, output_bytes=OUTPUT_BYTES)
    except ConfigError as error:  # it is too long, or has NUL
        return f"{error}\n"
    except SandboxError:
        # Its own doing if another box works: it must not mask its conversation.
        async with open_box() as control:
            await control.run("true")
        return "the command ended its box\n"
    over = f", stopped at its limit of {result.limit}" if result.limit else ""
    parts = [f"exit code {result.exit_code}{over}"]
    for name, data in (("output", result.stdout), ("errors", result.stderr)):
        if data.strip():
            parts.append(f"{name}:\n{_shortened(data.decode('utf-8', 'replace'))}")
    return "\n".join(parts) + "\n"


def _shortened(text: str) -> str:
    """Return at most 2,000 characters of a stream, half of them its beginning, half its end, with
    the number of those left out."""
    text = text.replace("\0", "\ufffd").strip("\n")
    if len(text) <= SHOWN:
        return text
    half = SHOWN // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
