"""Commands of a policy in a box that has the public tests of its problem, and nothing of the hidden
ones."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from code_rl.grading import ProblemView, StdinTest
from code_rl.grading.sandbox import open_box
from code_rl.util.errors import ConfigError, DataError, SandboxError

CPU_S, WALL_S = 10.0, 30.0
SHOWN = 2000
"""The most characters of each stream that the policy sees: the beginning and the end."""
OUTPUT_BYTES = 1 << 20


async def output_of(commands: Sequence[str], problem: ProblemView) -> str:
    """Run the last of `commands`, after the earlier ones and on their files, and return what the
    policy is shown of it. Earlier commands that ended their box are left out.

    Raises SandboxError if no box works, IsolationError.
    """
    async with open_box() as box:
        for number, test in enumerate(problem.public_tests, start=1):
            if isinstance(test, StdinTest):
                with contextlib.suppress(DataError):  # it does not fit into the box
                    for kind, text in (("in", test.input), ("out", test.expected)):
                        data = text.encode("utf-8", "surrogatepass")
                        await box.write(f"tests/{number}.{kind}", data)
        shown = ""
        for place, command in enumerate(commands):
            shown = await _run(box.run, command)
            if box.closed and place + 1 < len(commands):
                return await output_of([*commands[:place], *commands[place + 1 :]], problem)
    return shown


async def _run(run: Callable[..., Awaitable[Any]], command: str) -> str:
    """Run one command by a box's `run`, and return what is shown of it."""
    text = command.encode("utf-8", "replace").decode()
    try:
        result = await run(text, cpu_s=CPU_S, wall_s=WALL_S, output_bytes=OUTPUT_BYTES)
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
            parts.append(f"{name}:\n{_shown(data.decode('utf-8', 'replace'))}")
    return "\n".join(parts) + "\n"


def _shown(text: str) -> str:
    text = text.replace("\0", "\ufffd").strip("\n")
    if len(text) <= SHOWN:
        return text
    half = SHOWN // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
