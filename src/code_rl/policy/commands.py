"""Commands of a policy in a box that has the public tests of its problem, and nothing of the hidden
ones."""

from __future__ import annotations

from collections.abc import Sequence

from code_rl.grading import ProblemView, StdinTest
from code_rl.grading.sandbox import open_box

CPU_S, WALL_S = 10.0, 30.0
SHOWN = 2000
"""The most characters of each stream that the policy sees: the beginning and the end."""
OUTPUT_BYTES = 1 << 20


async def output_of(commands: Sequence[str], problem: ProblemView) -> str:
    """Run the last of `commands`, after the earlier ones and on their files, and return what the
    policy is shown of it. Raises SandboxError, IsolationError."""
    async with open_box() as box:
        for number, test in enumerate(problem.public_tests, start=1):
            if isinstance(test, StdinTest):
                await box.write(f"tests/{number}.in", test.input.encode())
                await box.write(f"tests/{number}.out", test.expected.encode())
        for command in commands:
            await box.write(".command", command.encode())
            result = await box.run(
                "sh .command", cpu_s=CPU_S, wall_s=WALL_S, output_bytes=OUTPUT_BYTES
            )
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
